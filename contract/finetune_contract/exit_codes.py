"""Exit codes of ``finetune-stage``; sysexits.h where it has one that fits."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Why a stage's process ended. Any other code is unknown and handled as infrastructure."""

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
