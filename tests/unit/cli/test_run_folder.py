"""Results of jobs of a cluster: where they are, and why there are none."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from finetune_operator.cli.commands import app
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.results.exports import why_not_exported
from finetune_operator.cli.results.run_folder import run_of
from tests.unit.cli.exported import FILES, contents, sha256, write_run
from tests.unit.cli.fake_api import FakeApi, serve

JOBS = Path(__file__).parent / "jobs"


def job(phase: str, **status: Any) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((JOBS / f"{phase}.yaml").read_text())
    loaded["status"] |= status
    return loaded


@pytest.fixture
async def kubeconfig(api: FakeApi, tmp_path: Path) -> AsyncIterator[Path]:
    """A kubeconfig for the fake API server."""
    async with serve(api) as configuration:
        path = tmp_path / "kubeconfig"
        path.write_text(
            json.dumps(
                {
                    "clusters": [{"name": "fake", "cluster": {"server": configuration.host}}],
                    "contexts": [
                        {"name": "fake", "context": {"cluster": "fake", "user": "me", "namespace": "team-a"}}
                    ],
                    "users": [{"name": "me", "user": {}}],
                    "current-context": "fake",
                }
            )
        )
        yield path


async def finetune(*arguments: object) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, [str(each) for each in arguments])


async def test_a_job_s_model_is_fetched_by_its_name(api: FakeApi, kubeconfig: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "team-a" / "quickstart-5b0f3f3c", {"model": FILES})
    digest = f"sha256:{sha256((run / 'export/model/manifest.json').read_bytes())}"
    uri = f"file://{run}"
    artifacts = [
        {"name": "model", "type": "HuggingFace", "uri": f"{uri}/export/model", "digest": digest},
        {"name": "model", "type": "HuggingFace", "uri": "gs://copies/model", "digest": digest},
    ]
    await api.put("finetunejobs", job("succeeded", artifacts=artifacts, resolved={"runFolder": uri}))
    done = await finetune("download", "quickstart", "--to", tmp_path / "out", "--kubeconfig", kubeconfig)
    assert done.exit_code == 0, done.output
    assert contents(tmp_path / "out") == contents(run / "export/model")
    assert "finetune try quickstart" in done.stderr


async def test_a_job_that_does_not_exist_gets_a_hint_to_its_run_folder(
    api: FakeApi, kubeconfig: Path
) -> None:
    await api.put("finetunejobs", job("succeeded"))
    done = await finetune("download", "quickstrat", "--kubeconfig", kubeconfig)
    assert done.exit_code == 1
    assert "Did you mean quickstart?" in done.stderr
    assert "give it with --run URI" in done.stderr


@pytest.mark.parametrize(
    ("phase", "status", "message", "fix"),
    [
        ("running", {}, "quickstart has exported nothing yet: it is Running, stage Train.", "finetune wait quickstart"),
        ("queued", {}, "exported nothing yet: it is Queued", "finetune status quickstart"),
        ("suspended", {}, "is suspended", "finetune resume quickstart"),
        ("planned", {}, "is only planned", "without spec.planOnly"),
        ("failed", {}, "quickstart failed in Preflight (DatasetSchemaMismatch)", "finetune retry quickstart"),
        ("failed", {"failure": {"reason": "GateNotMet", "stage": "Evaluate"}},
         "has not met its gates, so nothing was exported.", "--from-stage Export"),
        ("failed", {"failure": {"reason": "\x1b[2JBad"}}, "([2JBad)", "finetune retry"),
        ("succeeded", {"artifacts": []}, "names no exported folder in gs://", ""),
    ],
)  # fmt: skip
def test_why_a_job_has_exported_nothing(phase: str, status: dict[str, Any], message: str, fix: str) -> None:
    error = why_not_exported(job(phase, **status))
    assert message in error.message
    assert fix in error.fix


def test_a_cancelled_job_is_not_advised_to_retry() -> None:
    failure = {"reason": "Cancelled", "stage": "Train"}
    resolved, attempts = {"runFolder": "gs://a/b"}, {"total": 1}
    cancelled = job("failed", failure=failure, resolved=resolved, attempts=attempts)
    cancelled["spec"]["cancel"] = True
    error = why_not_exported(cancelled)
    assert error.message == "quickstart was cancelled in Train and has exported nothing."
    assert error.fix.endswith("spec.resumeFrom.runFolder: gs://a/b")
    del cancelled["status"]["resolved"]
    assert why_not_exported(cancelled).fix.endswith("spec.resumeFrom.runFolder.")


def test_a_job_without_a_run_folder_says_what_to_look_at() -> None:
    with pytest.raises(CliError, match="has no run folder yet") as caught:
        run_of(job("pending"))
    assert "finetune status quickstart" in caught.value.fix


@pytest.mark.parametrize("uri", ["/etc", "gs://a/../b", "gs://a/\x1b[2J", "s3://a/b", "x" * 5000])
def test_a_status_that_names_no_folder_is_refused(uri: str) -> None:
    with pytest.raises(CliError, match="is no URI") as caught:
        run_of(job("succeeded", resolved={"runFolder": uri}))
    assert caught.value.message.isprintable()
