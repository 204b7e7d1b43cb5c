"""Cores and memory, read from made-up /proc and /sys trees."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.plan.machine import (
    MemoryRoom,
    available_memory,
    memory_room,
    processor,
    usable_cores,
)
from farthing.plan.other_systems import windows_core_count
from farthing.plan.process import BASE_BYTES

if TYPE_CHECKING:
    from pathlib import Path

MB = 1 << 20


class Machine:
    """A tree of files, and the processors that the process may run on."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._monkeypatch = monkeypatch
        self.write("proc/meminfo", "MemTotal: 8192000 kB\nMemAvailable: 4096000 kB\n")

    def write(self, path: str, text: object) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def allow(self, cpus: set[int]) -> None:
        self._monkeypatch.setattr(os, "sched_getaffinity", lambda _: cpus, raising=False)

    def pairs(self, cores: int, name: str = "core_cpus_list") -> None:
        """`cores` cores of two hardware threads, numbered as Intel's servers do."""
        for cpu in range(2 * cores):
            core = cpu % cores
            path = f"sys/devices/system/cpu/cpu{cpu}/topology/{name}"
            self.write(path, f"{core},{core + cores}")
        self.allow(set(range(2 * cores)))

    def cores(self) -> int:
        return usable_cores(self.root)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr("sys.platform", "linux")
    return Machine(tmp_path, monkeypatch)


def test_without_any_topology_every_allowed_processor_is_a_core(machine):
    machine.allow({1, 2, 5})
    assert machine.cores() == 3


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
def test_hardware_threads_of_a_core_count_once(machine, name):
    machine.pairs(4, name)
    assert machine.cores() == 4


def test_affinity_counts_the_cores_it_touches(machine):
    machine.pairs(4)
    machine.allow({0, 4, 1})  # both threads of one core, one of another
    assert machine.cores() == 2


def test_on_an_intel_hybrid_only_performance_cores_count(machine):
    for cpu in range(8):
        pair = f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}"
        machine.write(f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list", pair)
    machine.write("sys/devices/cpu_core/cpus", "0-7")
    machine.write("sys/devices/cpu_atom/cpus", "8-15")
    machine.allow(set(range(16)))
    assert machine.cores() == 4


def test_a_process_confined_to_efficiency_cores_uses_them(machine):
    machine.write("sys/devices/cpu_core/cpus", "0-7")
    machine.write("sys/devices/cpu_atom/cpus", "8-15")
    machine.allow({8, 9, 10})
    assert machine.cores() == 3


def test_on_arm_cores_of_less_than_half_the_capacity_do_not_count(machine):
    for cpu, capacity in enumerate([250, 250, 250, 250, 620, 620, 1024, 1024]):
        machine.write(f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity", capacity)
    machine.allow(set(range(8)))
    assert machine.cores() == 4
    machine.allow({0, 1, 2})
    assert machine.cores() == 3


@pytest.mark.parametrize(
    ("limit", "cores"),
    [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("1600000 100000", 8)],
)
def test_a_cgroup_v2_quota_bounds_the_cores(machine, limit, cores):
    machine.allow(set(range(8)))
    machine.write("proc/self/cgroup", "0::/")
    machine.write("sys/fs/cgroup/cpu.max", limit)
    assert machine.cores() == cores


def test_the_tightest_quota_on_the_way_up_counts(machine):
    machine.allow(set(range(8)))
    machine.write("proc/self/cgroup", "0::/a/b")
    machine.write("sys/fs/cgroup/a/b/cpu.max", "max 100000")
    machine.write("sys/fs/cgroup/a/cpu.max", "300000 100000")
    machine.write("sys/fs/cgroup/c/cpu.max", "100000 100000")  # somebody else's
    assert machine.cores() == 3


def test_a_cgroup_v1_quota_is_read_where_the_container_mounts_it(machine):
    machine.allow(set(range(8)))
    machine.write("proc/self/cgroup", "5:cpuset:/x\n4:cpu,cpuacct:/docker/0123\n")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", 400000)
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", 100000)
    assert machine.cores() == 4
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", -1)
    assert machine.cores() == 8


def test_memory_is_what_the_system_says_is_available(machine):
    assert available_memory(machine.root) == 4096000 * 1024
    assert memory_room(machine.root) == MemoryRoom(system=4096000 * 1024, limit=None)


def test_the_systems_memory_and_the_cgroups_limit_are_told_apart(machine):
    machine.write("proc/self/cgroup", "0::/job")
    machine.write("sys/fs/cgroup/job/memory.current", 100 * MB)
    for limit, room in ((1000 * MB, 900 * MB), (9000 * MB, 4096000 * 1024)):
        machine.write("sys/fs/cgroup/job/memory.max", limit)
        found = memory_room(machine.root)
        assert found == MemoryRoom(4096000 * 1024, limit - 100 * MB)
        assert found.bytes == room


def test_the_processor_is_called_by_its_name(machine):
    machine.write("proc/cpuinfo", "processor : 0\nmodel name\t: A processor: fast\n")
    assert processor(machine.root) == "A processor: fast"
    machine.write("proc/cpuinfo", "CPU implementer : 0x41\n")
    assert processor(machine.root)


def test_a_cgroups_limit_bounds_memory_and_its_cached_files_do_not_count(machine):
    machine.write("proc/self/cgroup", "0::/job")
    machine.write("sys/fs/cgroup/job/memory.max", 1000 * MB)
    machine.write("sys/fs/cgroup/job/memory.current", 700 * MB)
    machine.write("sys/fs/cgroup/job/memory.stat", f"anon 1\ninactive_file {500 * MB}\n")
    assert available_memory(machine.root) == 800 * MB


def test_a_cgroup_over_its_limit_has_no_memory_left(machine):
    machine.write("proc/self/cgroup", "0::/")
    machine.write("sys/fs/cgroup/memory.max", 100 * MB)
    machine.write("sys/fs/cgroup/memory.current", 101 * MB)
    assert available_memory(machine.root) == 0


def test_a_cgroup_v1_limit_bounds_memory(machine):
    machine.write("proc/self/cgroup", "9:memory:/docker/0123")
    machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", 900 * MB)
    machine.write("sys/fs/cgroup/memory/memory.usage_in_bytes", 400 * MB)
    machine.write("sys/fs/cgroup/memory/memory.stat", f"total_inactive_file {100 * MB}")
    assert available_memory(machine.root) == 600 * MB


def test_what_every_process_has_counts_as_there_and_what_else_it_took_does_not(
    machine: Machine,
) -> None:
    without = available_memory(machine.root)
    machine.write("proc/self/status", "Name: python\nRssAnon:\t    20480 kB\nRssFile: 9 kB")
    assert available_memory(machine.root) == without + 20 * MB
    machine.write("proc/self/status", "RssAnon:\t  4096000 kB")
    assert available_memory(machine.root) == without + BASE_BYTES
    machine.write("proc/self/cgroup", "0::/group")
    machine.write("sys/fs/cgroup/group/memory.max", 200 * MB)
    machine.write("sys/fs/cgroup/group/memory.current", 150 * MB)
    assert available_memory(machine.root) == 50 * MB + BASE_BYTES


def test_this_machine_has_a_core_and_memory():
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
    assert available_memory() > 0


def windows_record(efficiency: int, mask: int, group: int = 0, padding: int = 0) -> bytes:
    body = struct.pack("<BB20xHQH6x", 1, efficiency, 1, mask, group) + bytes(padding)
    return struct.pack("<II", 0, 8 + len(body)) + body


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 8)), min_size=1, max_size=40))
def test_windows_records_count_the_cores_of_the_highest_class(cores):
    records, affinity, cpu = b"", 0, 0
    for efficiency, padding in cores:
        mask = 3 << cpu if cpu < 62 else 1 << 63
        records += windows_record(efficiency, mask, padding=padding)
        affinity |= mask
        cpu += 2
    classes = [efficiency for efficiency, _ in cores]
    assert windows_core_count(records, affinity) == classes.count(max(classes))


def test_windows_cores_outside_the_affinity_or_the_group_do_not_count():
    records = windows_record(1, 0b11) + windows_record(1, 0b1100) + windows_record(1, 0b11, group=1)
    assert windows_core_count(records, 0b1001) == 2
    assert windows_core_count(records, 0b0100) == 1
    assert windows_core_count(records, 0) == 1
