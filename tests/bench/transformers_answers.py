"""Checks that an exported folder gives the same answers with transformers as in our own evaluation.

    python -m tests.bench.transformers_answers JOB

Takes the exported model of a job that has succeeded on the local cluster, generates answers to the evaluation's prompts
with transformers (greedy, float32, environment `make reference`), and prints both answers and how much they have in
common. Exits with 1 if an answer differs within its first half: later parts may differ, because our evaluation
computes in the job's precision.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from devcluster import samples
from devcluster.demo import kubectl, running_environment
from devcluster.layout import ROOT


def main() -> None:
    name = sys.argv[1]
    environment = os.environ | running_environment()
    job = json.loads(kubectl("get", "finetunejob", name, "-o", "json", environment=environment))
    status = job["status"]
    exported = next(a["uri"] for a in status["artifacts"] if a["type"] == "HuggingFace")
    rows = samples.read(f"{status['resolved']['runFolder']}/evaluate/samples.jsonl", environment).splitlines()
    ours = [(sample["prompt"], sample["tuned"] or "") for sample in map(json.loads, rows)]
    limit = job["spec"]["evaluation"]["generation"]["maxNewTokens"]
    with tempfile.TemporaryDirectory() as folder:
        samples.download(exported, Path(folder), environment["STORAGE_EMULATOR_HOST"])
        theirs = under_transformers(Path(folder), [prompt for prompt, _ in ours], limit)
    worst = 1.0
    for (prompt, our), their in zip(ours, theirs, strict=True):
        pairs = zip(our.strip(), their.strip(), strict=False)
        common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        share = common / max(len(our.strip()), len(their.strip()), 1)
        worst = min(worst, share)
        print(f"{prompt}\n  evaluation    {our!r}\n  transformers  {their!r}\n  equal for {share:.0%}\n")
    sys.exit(worst < 0.5)


def under_transformers(folder: Path, prompts: list[str], limit: int) -> list[str]:
    install = ROOT / "trainer_image" / "install.sh"
    environment = subprocess.run([install, "reference"], capture_output=True, text=True, check=True).stdout
    script = ROOT / "trainer_image" / "reference" / "answers.py"
    done = subprocess.run(
        [Path(environment.strip()) / "bin" / "python", script, folder, str(limit)],
        input=json.dumps(prompts),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"transformers failed:\n{done.stderr[-2000:]}")
    answers: list[str] = json.loads(done.stdout)
    return answers


if __name__ == "__main__":
    main()
