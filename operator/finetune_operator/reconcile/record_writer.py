"""Writes the operator's records of attempts, and of a job's end, to its run folder."""

import logging
from collections.abc import Sequence
from importlib.metadata import version

from pydantic_core import to_json

from finetune_contract import RunFolder
from finetune_operator.api import FineTuneJobStatus
from finetune_operator.artifacts.port import ObjectStore, StorageError
from finetune_operator.lifecycle.attempts.pending_records import Record
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.fitting import fit_schema
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.run_record import run_record
from finetune_operator.objects import Object
from finetune_operator.planning.stored_plan import StoredPlan

log = logging.getLogger(__name__)


def run_folder(observation: Observation) -> RunFolder:
    """Returns the run folder of an admitted job."""
    assert isinstance(observation.stored, StoredPlan), "only an admitted job has a run folder"
    return observation.stored.run_folder


def attempt_labels(jobset: Object) -> dict[str, object]:
    """Returns the labels of log lines about a JobSet, as ``extra`` of the logging call."""
    key = AttemptKey.of(jobset)
    return {"stage": key.stage.value, "attempt": key.number} if key else {}


class RecordWriter:
    """Writes records. Each replaces the one that is there, so a write may be repeated."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._version = version("finetune-operator")

    async def write_failures(self, observation: Observation, records: Sequence[Record]) -> None:
        """Writes why attempts ended (``failure.json``). Raises StorageError at the first one that fails."""
        run = run_folder(observation)
        for key, failure in records:
            await self._store.write(run.failure(*key.place), failure.to_json().encode())

    async def write_jobset(self, run: RunFolder, jobset: Object) -> None:
        """Writes a JobSet (``jobset.json``). Nothing is decided by it, so a failure is only logged."""
        key = AttemptKey.of(jobset)
        assert key is not None, "the operator labels its JobSets"
        uri = run.jobset(key.stage.short, key.number)
        try:
            await self._store.write(uri, to_json(jobset, indent=1))
        except StorageError as error:
            log.warning("the JobSet was not recorded: %s", error, extra=attempt_labels(jobset))

    async def write_end(self, observation: Observation, status: FineTuneJobStatus) -> FineTuneJobStatus:
        """Writes the record of a job that ends with this status (``status.json``).

        A job ends although that fails: the status that is returned then says so.
        """
        record = run_record(observation, status, operator=self._version)
        try:
            await self._store.write(run_folder(observation).status, record)
        except StorageError as error:
            log.warning("the end of the job was not recorded: %s", error)
            summary = f"{status.summary or ''} This status could not be recorded: {error}.".strip()
            return fit_schema(status.model_copy(update={"summary": summary}))
        return status
