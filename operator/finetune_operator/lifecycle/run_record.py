"""The record of a job's end in its run folder (``status.json``): the job as it was, which outlives the FineTuneJob.

Everyone who may write to the run folder may have written it, so its readers trust no name or address in it.
"""

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from finetune_contract.versions import CONTRACT_VERSION
from finetune_operator.api import API_VERSION, FineTuneJobStatus
from finetune_operator.api.common import Timestamp
from finetune_operator.api.timestamps import stamp
from finetune_operator.lifecycle.job import MOST_TEXTS
from finetune_operator.lifecycle.observation import Observation

type Texts = Annotated[dict[str, str], Field(max_length=MOST_TEXTS)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class RecordedMetadata(_Part):
    """What identifies the job."""

    namespace: Annotated[str, Field(max_length=63)]
    name: Annotated[str, Field(max_length=253)]
    uid: Annotated[str, Field(max_length=128)]
    creationTimestamp: Timestamp | None = None  # noqa: N815  as in the API
    labels: Texts = {}
    annotations: Texts = {}
    """The first ones that are not long, as of the labels."""


class RecordedJob(_Part):
    """The FineTuneJob when it ended: an object of the API without what the API server manages."""

    apiVersion: str  # noqa: N815
    kind: str
    metadata: RecordedMetadata
    spec: dict[str, Any]
    status: dict[str, Any]
    """As the operator wrote it last, without ``ledger``. ``lifecycle.fitting.read_status`` reads it."""


class RunRecord(_Part):
    """``status.json``. Keys of a newer operator are ignored, as in all records."""

    written: Timestamp
    operator: str
    """Version of the operator that wrote it."""
    contract: str
    """Version of the contract that this operator supports."""
    job: RecordedJob


def run_record(observation: Observation, status: FineTuneJobStatus, *, operator: str) -> bytes:
    """Returns the record of a job that ends with this status, as JSON.

    Its size is bounded by that of the job, which has at most 1.5 MiB in the API server. ``operator`` is the version of
    the operator.
    """
    job = observation.job
    metadata = {name: getattr(job, name) for name in ("namespace", "name", "uid", "labels", "annotations")}
    if job.creation_timestamp:
        metadata["creationTimestamp"] = stamp(job.creation_timestamp)
    record = {
        "written": stamp(observation.now),
        "operator": operator,
        "contract": str(CONTRACT_VERSION),
        "job": {
            "apiVersion": API_VERSION,
            "kind": "FineTuneJob",
            "metadata": metadata,
            "spec": job.document["spec"],
            # The operator's ledger is written after this record.
            "status": {key: each for key, each in status.to_document().items() if key != "ledger"},
        },
    }
    # No text in a job may prevent the job from ending, not even one that is no Unicode.
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
