"""Who used the machine while a number was taken, from what Linux counts."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")


class Neighbours:
    """How much of the machine others took since this was made: they spoil a ratio.

    A program that spins at its barriers loses far more to them than one that sleeps. What this
    process, its ended children and the processes of `group` used is not theirs; what a hypervisor
    withheld ("steal") is.
    """

    def __init__(self, group: int | None = None) -> None:
        self._group = group
        self._before = self._read()

    def share(self) -> float:
        """Processor time of others, of all that there was, from 0 to 1."""
        others, total = (now - then for now, then in zip(self._read(), self._before, strict=True))
        return max(0.0, others / max(total, 1e-9))

    def _read(self) -> tuple[float, float]:
        """Seconds that others were busy, and all seconds, of all cores together."""
        ticks = [int(text) for text in Path("/proc/stat").read_text().split(None, 9)[1:9]]
        seconds = [tick / _TICKS for tick in ticks]
        idle = seconds[3] + seconds[4]
        ours = sum(os.times()[:4]) + (0.0 if self._group is None else group_seconds(self._group))
        return sum(seconds) - idle - ours, sum(seconds)


def group_seconds(group: int) -> float:
    """Processor time of all living processes of a process group."""
    seconds = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[2]) == group:
            seconds += (int(fields[11]) + int(fields[12])) / _TICKS
    return seconds


def resident_bytes(pid: int) -> int:
    """What a process occupies of the machine's memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def machine() -> dict[str, Any]:
    """What the numbers belong to."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {"cpu": cpu, "cores": os.cpu_count(), "system": platform.platform()}
