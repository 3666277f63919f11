"""The failure record: what went wrong, where, and what to change."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from finetune_contract.base import Chips, Code, Count, Price, Record, Seconds, Timestamp, Version
from finetune_contract.exit_codes import ExitCode

#: Reason of a process that ended because another process of its stage was gone without a word; somebody else may know
#: more (the culprit's pod).
PEER_LOST = "PeerLost"
#: Reason of a stage that found the converted model damaged, which ``where`` names by its ``items``. The operator never
#: gives that conversion to a stage again.
CONVERTED_MODEL_DAMAGED = "ConvertedModelDamaged"


class FailureClass(StrEnum):
    """Who must act, and which retry budget an attempt is charged to."""

    PREEMPTION = "Preemption"
    """Preemption, eviction or a lost node; limited by recovery.maxPreemptions."""
    INFRASTRUCTURE = "Infrastructure"
    """Node, network or storage fault, or hang; limited by recovery.maxInfrastructureRetries."""
    USER = "User"
    """Fault of the job itself; limited by recovery.maxUserRetries."""
    QUOTA = "Quota"
    """Eviction by Kueue; not limited."""
    PLATFORM = "Platform"
    """Incompatible image or platform setting; not retried."""


class Failure(Record):
    """One failure, recorded once by whoever saw it.

    ``message`` is a whole sentence for people and already holds where, saw and expected; the single fields
    are for programs.
    """

    version: Version = 1
    code: ExitCode | Code
    reason: Annotated[str, Field(pattern=r"^[A-Z][A-Za-z0-9]{0,62}$")]
    """CamelCase, stable, for programs: ``DatasetSchemaMismatch``."""
    message: Annotated[str, Field(max_length=1024)]
    where: Annotated[str, Field(max_length=512)] = ""
    """JSON path of the spec, file and row, or stage and host."""
    saw: Annotated[str, Field(max_length=512)] = ""
    expected: Annotated[str, Field(max_length=512)] = ""
    fix: Annotated[str, Field(max_length=512)] = ""
    evidence: Annotated[str, Field(max_length=4096)] = ""
    """The last lines of the traceback or log, redacted."""
    host: Count = 0
    """Which process of the stage failed; not always the one that wrote this."""
    # --- of an attempt that left no result, where the operator could still see it
    checkpoint: Count | None = None
    """The step of training's newest checkpoint."""
    seconds: Seconds | None = None
    """How long its processes ran, over all runs of the attempt."""
    seconds_before: Seconds | None = None
    """Of these, in the runs before the one that this record is about: a queue may end a run and begin another."""
    chips: Chips | None = None
    """TPU chips that it held; 0 on CPU."""
    chip_hour_price: Price | None = None
    """What each of them cost an hour then."""
    queued: Seconds | None = None
    """Seconds that it waited for quota."""
    provisioning: Seconds | None = None
    """Seconds from then until all its processes ran: nodes, images."""
    pods: Seconds | None = None
    """Of these, seconds from the time at which every pod had its node."""
    at: Timestamp | None = None
    """When a run of the attempt was ended that another run of it may follow."""
    written: Timestamp | None = None
    """When the operator judged the attempt."""

    @property
    def failure_class(self) -> FailureClass:
        """The class that the exit code stands for (api: exit codes of a stage)."""
        return CLASS_OF_CODE.get(self.code, FailureClass.INFRASTRUCTURE)


CLASS_OF_CODE: dict[int, FailureClass] = {
    ExitCode.BAD_REQUEST: FailureClass.USER,
    ExitCode.BAD_DATA: FailureClass.USER,
    ExitCode.INPUT_MISSING: FailureClass.USER,
    ExitCode.UNAVAILABLE: FailureClass.INFRASTRUCTURE,
    ExitCode.DIVERGED: FailureClass.USER,
    ExitCode.STOPPED: FailureClass.PREEMPTION,
    ExitCode.CONTRACT_UNSUPPORTED: FailureClass.PLATFORM,
    ExitCode.PERMISSION_DENIED: FailureClass.USER,
    ExitCode.OUT_OF_MEMORY: FailureClass.USER,
}
