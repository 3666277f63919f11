"""The user's ``engineOverrides`` as typed values, validated by the same table as in the operator."""

from collections.abc import Mapping

from finetune_contract import ExitCode
from finetune_contract.engine import FaultKind, OverrideFault, Value, override_faults, override_values
from finetune_trainer.errors import StageError


def parse(overrides: Mapping[str, str]) -> dict[str, Value]:
    """Parses the values as MaxText's command line would.

    Raises ``StageError`` 64 for a setting that MaxText does not have or that the user may not set, and for a value of
    another type.
    """
    for fault in override_faults(overrides):
        raise _refusal(fault)
    return override_values(overrides)


def _refusal(fault: OverrideFault) -> StageError:
    where = f"spec.engineOverrides.{fault.key}"
    details = {"where": where, "actual": fault.actual, "expected": fault.expected, "fix": fault.fix}
    match fault.kind:
        case FaultKind.UNKNOWN:
            return StageError(ExitCode.BAD_REQUEST, "UnknownEngineOverride", fault.what, **details)
        case FaultKind.NOT_ALLOWED:
            return StageError(ExitCode.BAD_REQUEST, "EngineOverrideNotAllowed", fault.what, **details)
        case FaultKind.INVALID:
            return StageError(ExitCode.BAD_REQUEST, "EngineOverrideInvalid", fault.what, **details)
