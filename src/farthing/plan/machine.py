"""What this machine grants the process: cores it may run on and memory it may use.

A container's limits count, not only the hardware's: cgroup v2 and v1 are read where they exist.
"""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Cores this process may keep busy: its affinity, bounded by the cgroup's CPU quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = _cpu_quota()
    return max(1, min(cores or 1, int(quota) if quota is not None else 2**31))


def available_memory() -> int:
    """Bytes that can be allocated now without swapping, within the cgroup's limit."""
    free = _meminfo_available()
    limits = [room for room in (_cgroup_v2_room(), _cgroup_v1_room()) if room is not None]
    return min([free, *limits])


def _cpu_quota() -> float | None:
    quota = _read(_CGROUP / "cpu.max")
    if quota is not None:
        amount, _, period = quota.partition(" ")
        return None if amount == "max" else int(amount) / int(period)
    old_amount = _read(_CGROUP / "cpu" / "cpu.cfs_quota_us")
    old_period = _read(_CGROUP / "cpu" / "cpu.cfs_period_us")
    if old_amount is None or old_period is None or int(old_amount) <= 0:
        return None
    return int(old_amount) / int(old_period)


def _meminfo_available() -> int:
    meminfo = _read(Path("/proc/meminfo"))
    if meminfo is not None:
        for line in meminfo.splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroup_v2_room() -> int | None:
    limit, used = _read(_CGROUP / "memory.max"), _read(_CGROUP / "memory.current")
    if limit is None or used is None or limit == "max":
        return None
    return max(0, int(limit) - int(used))


def _cgroup_v1_room() -> int | None:
    folder = _CGROUP / "memory"
    limit, used = _read(folder / "memory.limit_in_bytes"), _read(folder / "memory.usage_in_bytes")
    if limit is None or used is None:
        return None
    return max(0, int(limit) - int(used))


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
