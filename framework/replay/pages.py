"""Memory that nobody needs any more, given back to the system before its array ends."""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy as np
from numpy.typing import NDArray

_DONTNEED = 4  # number of that advice to madvise(2) on Linux


def give_back(records: NDArray[np.void]) -> None:
    """Give back the whole pages that these records, which must be contiguous, fill: what they hold is lost.

    Where the system is not Linux nothing happens. The next array that wants the memory waits for the system to clear
    it, so that this pays for large arrays alone.
    """
    if sys.platform != "linux":
        return
    begin = -(-records.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (records.ctypes.data + records.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if begin < end:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _DONTNEED)
