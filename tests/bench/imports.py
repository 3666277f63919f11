"""CPU seconds of a train stage's process until it records the time of its start: mostly its imports.

    python -m tests.bench.imports [--runs 5]

The first run of a new environment also writes its bytecode, so it is not counted.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from devcluster import samples
from devcluster.layout import ROOT
from tests.trainer.requests import request

_PROGRAM = """
import os, resource
from finetune_trainer.training import goodput
def first_line():
    used = resource.getrusage(resource.RUSAGE_SELF)
    open(os.environ["MEASURED"], "w").write(str(used.ru_utime + used.ru_stime))
    os._exit(0)
goodput.since_process_start = first_line
from finetune_trainer.commands.main import main
main(os.environ)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    seconds = sorted([_seconds() for _ in range(parser.parse_args().runs + 1)][1:])
    print(
        f"CPU seconds to the first line of a train stage: median {statistics.median(seconds):.2f} of {len(seconds)} "
        f"({seconds[0]:.2f} to {seconds[-1]:.2f})"
    )


def _seconds() -> float:
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu", "FINETUNE_REQUEST": request(Path(folder), "Train").to_json(),
            "TERMINATION_MESSAGE_PATH": f"{folder}/termination", "MEASURED": f"{folder}/seconds",
        }  # fmt: skip
        command = [samples.trainer_python(), "-c", _PROGRAM]
        subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, check=True)
        return float(Path(folder, "seconds").read_text())


if __name__ == "__main__":
    main()
