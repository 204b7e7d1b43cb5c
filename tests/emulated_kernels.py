"""The NEON tiers on any machine: native/test/kernel_server under qemu-user, called as _native is.

`EmulatedKernels` has the functions of `_native.kernels` under the same names, with the same
arguments; sizes, which are no tier's, are `_native`'s own.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from farthing import _native

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[1]
SERVER = ROOT / "build" / "aarch64" / "kernel_server"
EMULATOR = "qemu-aarch64"
NEON_TIERS = ["neon-dotprod", "neon-i8mm"]

_SIZES = ("matrix_bytes", "prepared_bytes", "head_block_bytes", "partial_floats")


def require_server() -> None:
    """Skips the test where the emulator or an up-to-date server is missing; fails it under CI."""
    problem = None
    if shutil.which(EMULATOR) is None:
        problem = f"{EMULATOR} is not installed (Debian: qemu-user)"
    elif not SERVER.exists():
        problem = "no NEON build: `make neon` (Debian: g++-aarch64-linux-gnu)"
    else:
        sources = [path for path in (ROOT / "native").rglob("*.*") if "bind" not in path.name]
        if max(path.stat().st_mtime for path in sources) > SERVER.stat().st_mtime:
            problem = "the NEON build is older than native/: `make neon`"
    if problem is not None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(problem)


def available_tiers(processor: str) -> list[str]:
    """The tiers that the emulated processor runs."""
    command = [EMULATOR, "-cpu", processor, str(SERVER), "list"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


class EmulatedKernels:
    """One running emulator; `close` ends it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [EMULATOR, "-cpu", "max", str(SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(_native.kernels, name) if name in _SIZES else partial(self._call, name)

    def close(self) -> None:
        self._process.stdin.close()
        assert self._process.wait(timeout=10) == 0

    def _call(self, name: str, tier: str, *arguments: Any) -> float:
        request = [struct.pack("<I", len(arguments) + 2), _encode(tier), _encode(name)]
        self._process.stdin.write(b"".join(request + [_encode(each) for each in arguments]))
        self._process.stdin.flush()
        for array in arguments:
            if isinstance(array, np.ndarray):
                content = self._read(array.nbytes)
                if array.flags.writeable:
                    array[...] = np.frombuffer(content, array.dtype).reshape(array.shape)
        return struct.unpack("<d", self._read(8))[0]

    def _read(self, size: int) -> bytes:
        content = self._process.stdout.read(size)
        if len(content) < size:
            raise AssertionError(f"the emulated kernels died: {self._process.wait(timeout=10)}")
        return content


def _encode(argument: Any) -> bytes:
    if isinstance(argument, np.ndarray):
        shape = struct.pack(f"<I{argument.ndim}Q", argument.ndim, *argument.shape)
        return b"a" + shape + struct.pack("<Q", argument.nbytes) + argument.tobytes()
    if isinstance(argument, str):
        return b"s" + struct.pack("<I", len(argument)) + argument.encode()
    if isinstance(argument, (float, np.floating)):
        return b"d" + struct.pack("<d", argument)
    return b"i" + int(argument).to_bytes(8, "little", signed=int(argument) < 2**63)
