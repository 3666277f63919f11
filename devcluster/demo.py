"""``make demo`` and ``make demo-real``: run a whole fine-tuning on this machine, watch it, and show its result.

Does what a user does in the cloud: puts a model and data into the object store, applies a manifest, watches the job
with ``finetune watch`` and reads the results. Everything that it runs is a program of this repository.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from devcluster import before_after, build, samples
from devcluster.layout import ROOT
from finetune_contract import RunFolder

VENV = ROOT / ".venv" / "bin"
#: Columns of the summary at most.
_WIDEST = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """One demo: a manifest, and the model and data that it names."""

    manifest: Path
    inputs: Sequence[samples.SampleFolder]


DEMOS: Mapping[str, Demo] = {
    "quickstart": Demo(
        manifest=ROOT / "examples" / "quickstart.yaml",
        inputs=(samples.TINY_MODEL, samples.CAPITALS),
    ),
    "real": Demo(
        manifest=ROOT / "examples" / "lora-smollm2-gsm8k.yaml",
        inputs=(samples.SMOLLM2, samples.GSM8K),
    ),
}


def main() -> None:
    demo = DEMOS[sys.argv[1]]
    started = time.monotonic()
    environment = os.environ | cluster_environment()
    for item in demo.inputs:
        print(f"writing {item.title} to {item.uri}", flush=True)
        samples.put(item, environment["STORAGE_EMULATOR_HOST"])
    name = apply(demo.manifest, environment)
    watched = subprocess.run([VENV / "finetune", "watch", name], env=environment, check=False)
    job = json.loads(kubectl("get", "finetunejob", name, "-o", "json", environment=environment))
    if watched.returncode != 0:
        sys.exit(watched.returncode)
    print(story(job, environment))
    print(f"\ntotal {time.monotonic() - started:.0f} s, cluster and inputs included.")
    print(
        "The cluster stays up; make down stops it. For a shell with its kubectl, finetune and object store:"
    )
    print('  eval "$(.venv/bin/python -m devcluster env)"; export PATH=$PWD/.venv/bin:$PATH')
    print(f"Then: finetune status {name}; finetune report {name}; finetune download {name}")


def cluster_environment(*options: str) -> dict[str, str]:
    """Starts the cluster unless it runs. Returns KUBECONFIG and the object store's address."""
    subprocess.run([sys.executable, "-m", "devcluster", "up", *options], cwd=ROOT, check=True)
    return running_environment()


def running_environment() -> dict[str, str]:
    """KUBECONFIG and the object store's address of the running cluster."""
    shown = subprocess.run(
        [sys.executable, "-m", "devcluster", "env"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    pairs = (line.removeprefix("export ").split("=", 1) for line in shown.splitlines() if "=" in line)
    return {key: value.strip("'\"") for key, value in pairs}


def kubectl(*arguments: str, environment: Mapping[str, str], check: bool = True) -> str:
    done = subprocess.run(
        [str(build.ensure()["kubectl"]), *arguments],
        env=environment,
        check=check,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


def apply(manifest: Path, environment: Mapping[str, str]) -> str:
    """Applies the manifest unchanged; deletes a job of an earlier demo first, as a finished job never runs again."""
    print(f"\n$ kubectl apply -f {manifest.relative_to(ROOT)}\n\n{manifest.read_text()}", flush=True)
    kubectl(
        "delete", "-f", str(manifest), "--ignore-not-found", "--cascade=foreground", environment=environment
    )
    name = kubectl("apply", "-f", str(manifest), "-o", "jsonpath={.metadata.name}", environment=environment)
    print(f"$ finetune watch {name}", flush=True)
    return name


def story(job: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """The summary for the user: the model's address, the losses, answers, and where time went."""
    status = job["status"]
    evaluation = status["evaluation"]
    exported = [a["uri"] for a in status["artifacts"] if a["type"] in ("HuggingFace", "Adapter")]
    lines = ["", "Data", *(f"  {line}" for line in _data(status)), ""]
    lines += ["Exported", *(f"  {uri}" for uri in exported)]
    lines += [
        "",
        "Loss on the validation set (nats per token)",
        f"  before  {float(evaluation['baseline']['loss']):.4f}",
        f"  after   {float(evaluation['result']['loss']):.4f}",
        "",
    ]
    results = samples.read(f"{status['resolved']['runFolder']}/evaluate/samples.jsonl", environment)
    answered = [json.loads(line) for line in results.splitlines()]
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    lines += list(before_after.compared(answered, width)) or _prompts(answered)
    lines += ["", "Time by stage", *time_table(status, environment)]
    return "\n".join(lines)


def _data(status: Mapping[str, Any]) -> Iterator[str]:
    """Each dataset's rows, and how many of them were too long to be used whole."""
    for each in status["resolved"]["datasets"]:
        cut = float(each.get("truncatedPercent") or 0)
        yield f"{each['name']}  {each['rows']} rows, {f'{cut:g} % cut' if cut else 'none cut'}"


def _prompts(answered: Sequence[Mapping[str, Any]]) -> list[str]:
    """The first prompts with their answers, where there are no references to compare with."""
    lines = ["Answers"]
    for sample in answered[:2]:
        lines += [
            f"  {sample['prompt']}",
            f"    before  {_short(sample.get('baseline'))}",
            f"    after   {_short(sample.get('tuned'))}",
        ]
    return lines


def _short(text: str | None, width: int = 96) -> str:
    line = " ".join((text or "").split())
    return repr(line if len(line) <= width else line[: width - 1] + "…")


def time_table(status: Mapping[str, Any], environment: Mapping[str, str]) -> list[str]:
    """Per stage: the time from its JobSet's creation to its end, and how much of it the trainer itself ran."""
    rows = [f"  {'stage':<10} {'seconds':>8} {'work':>8} {'pod start and scheduling':>26}"]
    work_total = 0.0
    for stage in status["stages"]:
        if "startTime" not in stage or "completionTime" not in stage:
            rows.append(f"  {stage['name']:<10} {'-':>8}   {stage.get('message') or stage.get('reason', '')}")
            continue
        whole = _seconds(stage["startTime"], stage["completionTime"])
        if not stage.get("jobSet"):
            rows.append(
                f"  {stage['name']:<10} {0:>8.1f}   {stage.get('message') or stage.get('reason', '')}"
            )
            continue
        short, number = stage["jobSet"].rsplit("-", 2)[1:]
        run = RunFolder(status["resolved"]["runFolder"])
        record = run.result(short, int(number), stage.get("restart", 0))
        result = json.loads(samples.read(record, environment))
        work = _seconds(result["started"], result["finished"])
        work_total += work
        rows.append(f"  {stage['name']:<10} {whole:>8.1f} {work:>8.1f} {max(0.0, whole - work):>26.1f}")
    whole = _seconds(status["startTime"], status["completionTime"])
    rows.append(f"  {'job':<10} {whole:>8.1f} {work_total:>8.1f} {max(0.0, whole - work_total):>26.1f}")
    return rows


def _seconds(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


if __name__ == "__main__":
    main()
