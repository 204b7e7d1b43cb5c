"""The event loop's wish for short slices of time, as the system has it."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
import threading

import pytest

from farthing.serve.urgency import ask_for_short_slices

GETATTR = {"x86_64": 315, "aarch64": 275}


def slice_nanoseconds() -> int:
    """What the system has noted for this thread; 0 where it is the usual one."""
    room = ctypes.create_string_buffer(48)
    number = GETATTR[platform.machine()]
    assert ctypes.CDLL(None).syscall(number, 0, room, len(room), 0) == 0
    runtime: int = struct.unpack("IIQiIQQQ", room.raw)[5]
    return runtime


def in_a_thread(found: list[tuple[bool, int, int]]) -> None:
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    took = ask_for_short_slices()
    found.append((took, slice_nanoseconds(), os.getpriority(os.PRIO_PROCESS, 0) - nice))


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in GETATTR, reason="Linux has this"
)
def test_the_thread_that_asks_gets_short_slices_and_keeps_its_share() -> None:
    before = slice_nanoseconds()
    found: list[tuple[bool, int, int]] = []
    thread = threading.Thread(target=in_a_thread, args=(found,))
    thread.start()
    thread.join()
    [(took, after, nicer)] = found
    assert took
    # Kernels before 6.12 tell none.
    assert after in (0, 100_000)
    assert nicer == 0
    assert slice_nanoseconds() == before  # nobody else's


@pytest.mark.parametrize(("system", "machine"), [("win32", "AMD64"), ("linux", "riscv64")])
def test_elsewhere_nothing_is_asked(
    system: str, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert not ask_for_short_slices()
