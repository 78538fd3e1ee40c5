"""Returns unneeded memory to the system before its array ends."""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy as np
from numpy.typing import NDArray

_DONTNEED = 4  # number of that advice to madvise(2) on Linux


def give_back(records: NDArray[np.void]) -> None:
    """Return the whole pages that these contiguous records fill to the system: their content is lost.

    It does nothing on other systems than Linux. The next array in this memory waits for the system to clear it, so this
    pays only for large arrays.
    """
    if sys.platform != "linux":
        return
    begin = -(-records.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (records.ctypes.data + records.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if begin < end:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _DONTNEED)
