"""Exit codes of ``finetune-stage``, taken from sysexits.h where a code fits."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Why a stage's process ended. Any other code is treated as an infrastructure failure."""

    OK = 0
    BAD_REQUEST = 64
    BAD_DATA = 65
    INPUT_MISSING = 66
    UNAVAILABLE = 69
    DIVERGED = 70
    STOPPED = 75
    CONTRACT_UNSUPPORTED = 76
    PERMISSION_DENIED = 77
    OUT_OF_MEMORY = 78
