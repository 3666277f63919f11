"""Arrays in files."""

import math
import os
from typing import IO

import numpy as np


def memmap_array(file: IO[bytes], dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """A writable array of zeros in an empty file, all of whose space is reserved. Raises ``OSError`` where there is not
    enough: a disk that turns out full when a mapped page is written kills the process."""
    os.posix_fallocate(file.fileno(), 0, max(1, math.prod(shape) * dtype.itemsize))
    return np.memmap(file, dtype=dtype, mode="r+", shape=shape)
