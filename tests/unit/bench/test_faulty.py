"""The faulty jobs of the benchmark of scale are faulty in the way that it expects."""

from pathlib import Path

import pytest

from finetune_operator.planning import Refused, admit
from finetune_operator.reconcile.run_folder import RunFolderReader
from tests.bench.scale.faulty import GARBAGE, INVALID
from tests.integration import fake_trainer
from tests.unit.reconcile.fakes import FOLDERS, FakeStore

type Object = dict[str, object]


@pytest.mark.parametrize(("spec", "reason"), INVALID, ids=[reason for _, reason in INVALID])
def test_an_invalid_job_is_refused_with_its_reason(spec: Object, reason: str) -> None:
    job = fake_trainer.job("team", "invalid", "bench", **spec)
    job["metadata"] = {"namespace": "team", "name": "invalid", "uid": "0b5e3a52-8d0e-4c39-a7d6-1f1f0c1d2e3f"}
    with pytest.raises(Refused) as refusal:
        admit(job, [fake_trainer.profile("bench", Path("/runs"))])
    assert refusal.value.reason == reason


@pytest.mark.parametrize(("file", "content"), GARBAGE)
async def test_garbage_is_reported_with_the_name_of_the_file(file: str, content: str) -> None:
    store = FakeStore()
    store.files[f"{FOLDERS.run.uri}/{file}"] = content.encode()
    view = await RunFolderReader(store).view(FOLDERS)
    faults = [files.malformed for files in view.attempts.values()]
    faults += [view.unreadable.message] if view.unreadable else []
    assert [file in (fault or "") for fault in faults] == [True]
