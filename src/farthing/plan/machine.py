"""What this machine grants the process: cores it may keep busy and memory it may use.

A container's limits count, not only the hardware's: cgroup v2 and v1 are read where they exist.
A machine with several NUMA nodes is best used by one engine a node, each started within its node
(`numactl --cpunodebind=0 --membind=0 farthing ...`): the cores of that node are then all there are.
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from farthing.plan import other_systems
from farthing.plan.process import BASE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

_FAST_SHARE = 0.5
"""Cores with at least this share of the fastest core's capacity count as performance cores."""


@dataclass(frozen=True)
class MemoryRoom:
    """Bytes that can be allocated now, as the system and as the cgroups of this process see it.

    What this process has of its own already counts as there, up to `BASE_BYTES`: whoever asks
    whether a process has room means all of it. `limit` is None where no cgroup sets one.
    """

    system: int
    limit: int | None

    @property
    def bytes(self) -> int:
        """The smaller one."""
        return self.system if self.limit is None else min(self.system, self.limit)


def usable_cores(root: Path = Path("/")) -> int:
    """Physical performance cores that this process may keep busy: the default number of threads.

    The second hardware thread of a core adds nothing to work that keeps the first one's ports
    busy, and an efficiency core makes the others wait. Counted are the cores of the process's
    affinity, at most as many as the cgroup's CPU quota pays for. `root` is where /proc and /sys
    stand. At least 1.
    """
    if sys.platform == "win32":
        return other_systems.windows_cores()
    if sys.platform == "darwin":
        return other_systems.macos_cores()
    cores = len({_core_of(cpu, root) for cpu in _performance_cpus(os.sched_getaffinity(0), root)})
    return max(1, min([cores, *(int(quota) for quota in _cpu_quotas(root))]))


def processor(root: Path = Path("/")) -> str:
    """The processor's name."""
    for line in (_read(root / "proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that can be allocated now without swapping, within the cgroup's limit.

    Cached file pages that nobody has used of late count as available: the system gives them back.
    """
    return memory_room(root).bytes


def memory_room(root: Path = Path("/")) -> MemoryRoom:
    """What `available_memory` is the smaller one of."""
    if sys.platform == "win32":
        return MemoryRoom(other_systems.windows_available_memory(), None)
    if sys.platform == "darwin":
        return MemoryRoom(other_systems.macos_available_memory(), None)
    own = _own_base(root)
    limit = min(_memory_rooms(root), default=None)
    return MemoryRoom(_meminfo_available(root) + own, None if limit is None else limit + own)


def _performance_cpus(cpus: set[int], root: Path) -> set[int]:
    """Of these logical processors, the ones of performance cores; all where there is one kind."""
    fast = _cpu_list(root / "sys/devices/cpu_core/cpus")  # Intel's hybrid processors only
    if fast & cpus:
        return fast & cpus
    capacities = {
        cpu: int(_read(root / f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity") or 0) for cpu in cpus
    }
    least = _FAST_SHARE * max(capacities.values(), default=0)
    return {cpu for cpu in cpus if capacities[cpu] >= least}


def _core_of(cpu: int, root: Path) -> str:
    """A name that the hardware threads of one core share."""
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    for name in ("core_cpus_list", "thread_siblings_list"):  # the newer name first
        siblings = _read(topology / name)
        if siblings:
            return siblings
    return str(cpu)


def _cpu_list(path: Path) -> set[int]:
    """Processors of a list such as "0-3,8"; none where there is no such file."""
    cpus: set[int] = set()
    for part in (_read(path) or "").split(","):
        first, _, last = part.partition("-")
        if first:
            cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def _cpu_quotas(root: Path) -> Iterator[float]:
    """Processors' worth of time a cgroup of this process grants, for each that sets a limit."""
    for group in _cgroups(root, ""):
        amount, _, period = (_read(group / "cpu.max") or "max").partition(" ")
        if amount != "max":
            yield int(amount) / int(period)
    for group in _cgroups(root, "cpu"):
        amount = _read(group / "cpu.cfs_quota_us") or "-1"
        period = _read(group / "cpu.cfs_period_us") or "100000"
        if int(amount) > 0:
            yield int(amount) / int(period)


def _memory_rooms(root: Path) -> Iterator[int]:
    """Bytes left under each limit of this process's cgroups."""
    for controller, limit_name, used_name, cached in (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        for group in _cgroups(root, controller):
            limit, used = _read(group / limit_name), _read(group / used_name)
            if limit is None or used is None or limit == "max":
                continue
            statistics = (_read(group / "memory.stat") or "").split()
            counts = dict(zip(statistics[::2], statistics[1::2], strict=False))
            given_back = int(counts.get(cached, 0))
            yield max(0, int(limit) - max(0, int(used) - given_back))


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's cgroup and of those above it: v2's where `controller` is empty.

    Within a container the path that the kernel tells may be the host's, of which only the top
    folder is there to see.
    """
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / controller
        group = top / path.lstrip("/")
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(top))


def _meminfo_available(root: Path) -> int:
    for line in (_read(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _own_base(root: Path) -> int:
    """Of the anonymous memory of this process what any would have."""
    for line in (_read(root / "proc/self/status") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "RssAnon":
            return min(int(value.split()[0]) * 1024, BASE_BYTES)
    return 0


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
