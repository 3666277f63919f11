"""The user's ``engineOverrides`` as typed values, judged by the table that the operator judges them by."""

from collections.abc import Mapping

from finetune_contract import ExitCode
from finetune_contract.engine import FaultKind, OverrideFault, Value, override_faults, override_values
from finetune_trainer.errors import StageError


def parse(overrides: Mapping[str, str]) -> dict[str, Value]:
    """Values for MaxText, the same that its command line would read. Raises ``StageError`` 64 for a setting that is not
    MaxText's or not the user's to set, and for a value of another type."""
    for fault in override_faults(overrides):
        raise _refusal(fault)
    return override_values(overrides)


def _refusal(fault: OverrideFault) -> StageError:
    where = f"spec.engineOverrides.{fault.key}"
    told = {"where": where, "saw": fault.saw, "expected": fault.expected, "fix": fault.fix}
    match fault.kind:
        case FaultKind.UNKNOWN:
            return StageError(ExitCode.BAD_REQUEST, "UnknownEngineOverride", fault.what, **told)
        case FaultKind.NOT_ALLOWED:
            return StageError(ExitCode.BAD_REQUEST, "EngineOverrideNotAllowed", fault.what, **told)
        case FaultKind.INVALID:
            return StageError(ExitCode.BAD_REQUEST, "EngineOverrideInvalid", fault.what, **told)
