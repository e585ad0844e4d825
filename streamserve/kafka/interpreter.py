"""What a process that serves wants of Python's interpreter and of the allocator under it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys

#: The collector would walk every record of a fetch again and again.
_GC_THRESHOLD = (50_000, 20, 100)
#: A model's thread gives the loop its turn back within this.
_SWITCH_INTERVAL_S = 0.001
#: glibc's malloc: buffers of this size and above are mapped, and given back when they are freed.
_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES = -3, 128 << 10


def tune_interpreter() -> None:
    """Once per process, after everything long-lived has been made."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    # Left alone, glibc takes them from the heap as soon as it has freed one, and the small things that then lie between
    # them make the heap grow by megabytes a minute, though no more of it is used.
    with contextlib.suppress(AttributeError, OSError):  # another malloc
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLD)
