"""Cores and memory as macOS and Windows tell them; `machine` reads Linux itself."""

from __future__ import annotations

import ctypes
import struct
import sys


def windows_core_count(records: bytes, affinity: int) -> int:
    """Cores of the highest efficiency class that have a processor in the `affinity` mask.

    `records` is what GetLogicalProcessorInformationEx(RelationProcessorCore) fills in, of which
    processor group 0 is counted: a process runs in one group unless it asks for more. At least 1.
    """
    classes: list[int] = []
    while records:
        size = struct.unpack_from("<I", records, 4)[0]
        efficiency = records[9]
        mask, group = struct.unpack_from("<QH", records, 32)
        if group == 0 and mask & affinity:
            classes.append(efficiency)
        records = records[size:]
    return max(1, classes.count(max(classes, default=0)))


if sys.platform == "darwin":

    def macos_cores() -> int:
        """Physical performance cores."""
        return max(1, _sysctl("hw.perflevel0.physicalcpu") or _sysctl("hw.physicalcpu"))

    def macos_available_memory() -> int:
        """Bytes in pages that are free, purgeable or hold a file's content."""
        pages = sum(
            _sysctl(name)
            for name in (
                "vm.page_free_count",
                "vm.page_purgeable_count",
                "vm.page_pageable_external_count",
            )
        )
        return pages * _sysctl("hw.pagesize")

    def _sysctl(name: str) -> int:
        """0 where there is no such number. They are of 4 or 8 bytes, little-endian."""
        value, size = ctypes.c_uint64(0), ctypes.c_size_t(8)
        library = ctypes.CDLL(None)
        failed = library.sysctlbyname(
            name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)
        )
        return 0 if failed else value.value


if sys.platform == "win32":

    def windows_cores() -> int:
        """Physical performance cores within the process's affinity."""
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        size = ctypes.c_uint32(0)
        kernel.GetLogicalProcessorInformationEx(0, None, ctypes.byref(size))
        records = ctypes.create_string_buffer(size.value)
        if not kernel.GetLogicalProcessorInformationEx(0, records, ctypes.byref(size)):
            raise ctypes.WinError(ctypes.get_last_error())
        affinity, machine = ctypes.c_size_t(0), ctypes.c_size_t(0)
        kernel.GetCurrentProcess.restype = ctypes.c_void_p
        process = ctypes.c_void_p(kernel.GetCurrentProcess())
        if not kernel.GetProcessAffinityMask(
            process, ctypes.byref(affinity), ctypes.byref(machine)
        ):
            raise ctypes.WinError(ctypes.get_last_error())
        return windows_core_count(records.raw[: size.value], affinity.value)

    def windows_available_memory() -> int:
        """Bytes of physical memory that are available."""
        status = ctypes.create_string_buffer(64)  # MEMORYSTATUSEX
        struct.pack_into("<I", status, 0, 64)
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        if not kernel.GlobalMemoryStatusEx(status):
            raise ctypes.WinError(ctypes.get_last_error())
        available: int = struct.unpack_from("<Q", status, 16)[0]
        return available
