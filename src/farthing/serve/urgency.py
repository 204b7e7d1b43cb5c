"""The thread of the event loop answers soon, though others compute on every core.

Linux lets a thread that has just woken run at once where it asks for shorter slices of time than
the one that runs (from 6.12 on; earlier ones take the wish and ignore it). That gives it no larger
share of the machine. A refusal takes a millisecond of computing, and should not wait for as many
as a thread that multiplies matrices may go on.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

_SLICE_NANOSECONDS = 100_000
"""The shortest that Linux grants."""

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""The number of the system call, which libc has no function for."""

# struct sched_attr: size, policy (0: the usual one), flags, nice, priority, runtime, deadline,
# period.
_ATTRIBUTES = struct.Struct("IIQiIQQQ")


def ask_for_short_slices() -> bool:
    """For the thread that calls; whether the system took the wish."""
    number = _SCHED_SETATTR.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    wish = _ATTRIBUTES.pack(_ATTRIBUTES.size, 0, 0, nice, 0, _SLICE_NANOSECONDS, 0, 0)
    this_thread, flags = 0, 0
    try:
        return bool(ctypes.CDLL(None).syscall(number, this_thread, wish, flags) == 0)
    except (OSError, AttributeError):
        return False
