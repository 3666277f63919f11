"""The quickstart on the local cluster against the bare MaxText chain, in pairs on the same machine.

    python -m tests.bench.quickstart [--runs 5] [--cold]

Each pair runs MaxText's own convert, train and export as three processes (bare_chain.py: neither Kubernetes nor our
code), then the quickstart job, which also checks the data, proves the export, evaluates base and tuned model
and generates answers. With ``--cold`` the node agent starts every stage as a fresh process, as on a real node.
Prints a Markdown table of medians.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from devcluster import build, samples
from devcluster.demo import cluster_environment, kubectl
from devcluster.layout import ROOT
from finetune_contract import RunFolder

QUICKSTART = ROOT / "examples" / "quickstart.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="stages are fresh processes, no warm server")
    options = parser.parse_args()

    environment = os.environ | cluster_environment("--cold" if options.cold else "--warm")
    manifest = yaml.safe_load(QUICKSTART.read_text())
    for item in (samples.TINY_MODEL, samples.CAPITALS):
        samples.put(item, environment["STORAGE_EMULATOR_HOST"])
    rows: list[dict[str, float]] = []
    for run in range(options.runs):
        bare = bare_chain(manifest["spec"])
        ours = quickstart(manifest, f"bench-{os.getpid()}-{run}", environment)
        rows.append(bare | ours)
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print("| seconds | median | min | max |\n|---|---|---|---|")
    for key in rows[0]:
        values = [row[key] for row in rows]
        print(f"| {key} | {statistics.median(values):.1f} | {min(values):.1f} | {max(values):.1f} |")
    ratio = statistics.median(row["quickstart"] / row["bare chain"] for row in rows)
    print(f"\nquickstart / bare chain, median of {len(rows)} pairs: {ratio:.2f}")


def bare_chain(spec: Mapping[str, Any]) -> dict[str, float]:
    """Returns the seconds of each process of MaxText's own chain, with the job's settings."""
    data = samples.folder_of(samples.CAPITALS)
    hyperparameters = spec["hyperparameters"]
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as work:
        settings = Path(work) / "settings.json"
        settings.write_text(
            json.dumps(
                {
                    "model": str(samples.folder_of(samples.TINY_MODEL)),
                    "work": work,
                    "train": str(data / "train.jsonl"),
                    "validation": str(data / "eval.jsonl"),
                    "steps": hyperparameters["steps"],
                    "batch": hyperparameters["globalBatchSize"],
                    "sequence": spec["datasets"]["maxSeqLength"],
                    "learning_rate": hyperparameters["learningRate"],
                    "chips": 4,
                }
            )
        )
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "HF_HUB_OFFLINE": "1",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        }
        python = samples.trainer_python()
        for stage in ("convert", "train", "export"):
            started = time.monotonic()
            done = subprocess.run(
                [python, Path(__file__).with_name("bare_chain.py"), stage, settings],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                sys.exit(f"bare {stage} failed:\n{done.stderr[-2000:]}")
            seconds[f"bare {stage}"] = time.monotonic() - started
        if not (Path(work) / "exported" / "model.safetensors").exists():
            sys.exit("the bare chain exported nothing")
    return {"bare chain": sum(seconds.values())} | seconds


def quickstart(manifest: Mapping[str, Any], name: str, environment: Mapping[str, str]) -> dict[str, float]:
    """Returns the seconds of the job from apply to Succeeded, and of its parts. The conversion is not read from the
    cache."""
    body = {**manifest, "metadata": {"name": name}, "spec": {**manifest["spec"], "cache": "Off"}}
    started = time.monotonic()
    subprocess.run(
        [str(build.ensure()["kubectl"]), "apply", "-f", "-"],
        input=json.dumps(body),
        text=True,
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    kubectl(
        "wait", f"finetunejob/{name}", "--for=condition=Succeeded", "--timeout=900s", environment=environment
    )
    whole = time.monotonic() - started
    job = json.loads(kubectl("get", "finetunejob", name, "-o", "json", environment=environment))
    status = job["status"]
    parts = {"quickstart": whole, "of it trainer's work": 0.0, "of it scheduling and process start": 0.0}
    for stage in status["stages"]:
        short, _, number = stage["jobSet"].removeprefix(f"{name}-").rpartition("-")
        uri = RunFolder(status["resolved"]["runFolder"]).result(short, int(number), stage.get("restart", 0))
        result = json.loads(samples.read(uri, environment))
        work = _between(result["started"], result["finished"])
        parts["of it trainer's work"] += work
        parts["of it scheduling and process start"] += _between(stage["startTime"], result["started"])
        parts[f"work of {stage['name']}"] = work
    rest = whole - parts["of it trainer's work"] - parts["of it scheduling and process start"]
    parts["of it JobSet controller, operator and API"] = rest
    kubectl("delete", "finetunejob", name, environment=environment)
    return parts


def _between(start: str, end: str) -> float:
    return max(0.0, (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds())


if __name__ == "__main__":
    main()
