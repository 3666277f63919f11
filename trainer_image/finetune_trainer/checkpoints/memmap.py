"""Arrays in files."""

import math
import os
from typing import IO

import numpy as np


def memmap_array(file: IO[bytes], dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """A writable array of zeros in an empty file, with all of its disk space reserved.

    Raises ``OSError`` if there is not enough: a full disk kills the process when a mapped page is written.
    """
    os.posix_fallocate(file.fileno(), 0, max(1, math.prod(shape) * dtype.itemsize))
    return np.memmap(file, dtype=dtype, mode="r+", shape=shape)
