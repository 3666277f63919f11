"""CPU seconds of ``finetune`` commands, user and system time of the whole process.

    python -m tests.bench.commands [--runs 9]

``status`` and ``list`` read one job from a stand-in for the API server, whose time does not count. The first run of
each command writes the bytecode that an installed package has, and is not counted. The commands take turns.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from tests.unit.cli.bad_input.rows import LOCAL, QUICKSTART, ROOT
from tests.unit.cli.stand_in import stand_in

FINETUNE = Path(sys.executable).with_name("finetune")
JOB = ROOT / "tests" / "unit" / "cli" / "jobs" / "succeeded.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=9)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder, stand_in(Path(folder)) as server:
        server.put("finetunejobs", yaml.safe_load(JOB.read_text()))
        cluster = ["--kubeconfig", str(server.kubeconfig)]
        commands: dict[str, Sequence[str]] = {
            "finetune --help": ["--help"],
            "finetune plan": ["plan", "-f", QUICKSTART, "--profile", LOCAL],
            "finetune validate": ["validate", "-f", QUICKSTART],
            "finetune status": ["status", "quickstart", *cluster],
            "finetune list": ["list", *cluster],
        }
        environment = {
            name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
        } | {"PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
        rounds = [
            {name: _seconds(words, environment) for name, words in commands.items()} for _ in range(runs + 1)
        ]
    for name in commands:
        seconds = sorted(each[name] for each in rounds[1:])
        middle = statistics.median(seconds)
        print(f"{name:<20} median {middle:.2f} of {len(seconds)} ({seconds[0]:.2f} to {seconds[-1]:.2f})")


def _seconds(words: Sequence[str], environment: Mapping[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([FINETUNE, *words], env=environment, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
