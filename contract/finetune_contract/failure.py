"""The failure record: what went wrong, where, and how to fix it."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from finetune_contract.base import Chips, Code, Count, Price, Record, Seconds, Timestamp, Version
from finetune_contract.exit_codes import ExitCode

#: Reason of a process that ended because another process of its stage disappeared without reporting a failure. The pod
#: of the lost process may show the cause.
PEER_LOST = "PeerLost"
#: Reason of a stage that found the converted model damaged; ``where`` is the URI of its ``items``. The operator never
#: passes that conversion to a stage again.
CONVERTED_MODEL_DAMAGED = "ConvertedModelDamaged"


class FailureClass(StrEnum):
    """Who must act on a failure, and which retry budget its attempt is charged to."""

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
    """One failure, recorded once by the process that detects it.

    ``message`` is a full sentence for users that already includes ``where``, ``actual`` and ``expected``; the separate
    fields are for programs.
    """

    version: Version = 3
    code: ExitCode | Code
    reason: Annotated[str, Field(pattern=r"^[A-Z][A-Za-z0-9]{0,62}$")]
    """Stable, machine-readable reason in CamelCase: ``DatasetSchemaMismatch``."""
    message: Annotated[str, Field(max_length=1024)]
    where: Annotated[str, Field(max_length=512)] = ""
    """Location of the cause: a JSON path in the spec, a file and row, or a stage and host."""
    actual: Annotated[str, Field(max_length=512)] = ""
    expected: Annotated[str, Field(max_length=512)] = ""
    fix: Annotated[str, Field(max_length=512)] = ""
    evidence: Annotated[str, Field(max_length=4096)] = ""
    """Last lines of the traceback or log, redacted."""
    host: Count = 0
    """Index of the stage's process that failed, which is not always the one that wrote this record."""
    # --- Set by the operator for an attempt that left no result, as far as it observed the attempt.
    checkpoint: Count | None = None
    """Step of the newest training checkpoint."""
    start_step: Count | None = None
    """Step at which the attempt began to train."""
    step: Count | None = None
    """Last step that it had reported as completed when this was written."""
    seconds: Seconds | None = None
    """Running time of the attempt's processes in seconds, over all runs of the attempt."""
    seconds_before: Seconds | None = None
    """The part of ``seconds`` spent in runs before the recorded one: a queue may end a run and start another."""
    chips: Chips | None = None
    """TPU chips that the attempt held; 0 on CPU."""
    chip_hour_price: Price | None = None
    """Price of one chip hour at that time."""
    queued: Seconds | None = None
    """Seconds that the attempt waited for quota."""
    provisioning: Seconds | None = None
    """Seconds from the end of that wait until all processes ran: provisioning of nodes, pulling of images."""
    pods: Seconds | None = None
    """The part of ``provisioning`` after every pod had a node, in seconds."""
    at: Timestamp | None = None
    """End of a run of the attempt that another run of the same attempt may follow."""
    written: Timestamp | None = None
    """Time at which the operator classified the attempt."""

    @property
    def failure_class(self) -> FailureClass:
        """The class of the exit code. Infrastructure for an unknown code."""
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
