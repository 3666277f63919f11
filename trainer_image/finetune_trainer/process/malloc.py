"""The C library's heap, for stages that read and free large arrays all the time."""

import ctypes

#: Constants from glibc's malloc.h.
_MMAP_THRESHOLD, _ARENA_MAX = -3, -8


def return_freed_arrays() -> None:
    """Makes the C library return freed arrays to the system at once, for the whole process.

    By default glibc keeps what allocations of up to 32 MiB leave behind, in a heap for each of many threads: over a
    conversion of 3 GB that grows by half a GiB. No effect under another C library.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_MMAP_THRESHOLD, 2**20)
    mallopt(_ARENA_MAX, 4)
