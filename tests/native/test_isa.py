"""The tiers: which there are, how one is chosen, and that none leaks into the other code."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from farthing import _native
from matrix_kernels import TIERS, kernels

ROOT = Path(__file__).parents[2]
OBJECTS = sorted(ROOT.glob("build/*/CMakeFiles/farthing_core.dir/native/isa/*.o"))


def test_every_machine_runs_the_scalar_tier_and_the_slowest_comes_first():
    order = ["scalar", "avx2", "avx512"]
    assert TIERS[0] == "scalar"
    assert [tier for tier in order if tier in TIERS] == TIERS


def test_a_tier_needs_the_instructions_that_the_system_reports():
    flags = {
        line.partition(":")[0].strip(): set(line.partition(":")[2].split())
        for line in Path("/proc/cpuinfo").read_text().splitlines()
    }.get("flags")
    if flags is None:
        pytest.skip("this system lists no x86 instructions")
    avx2 = {"avx2", "fma", "f16c"} <= flags
    avx512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16"} <= flags
    assert ("avx2" in TIERS) == avx2
    assert ("avx512" in TIERS) == (avx2 and avx512)


@pytest.mark.parametrize("name", ["sse9", "AVX2", "avx", "avx2 "])
def test_an_unknown_tier_is_refused_by_name(name):
    row = np.zeros(1, np.float32)
    with pytest.raises(ValueError, match=name):
        kernels.add(name, row, row, row)


@pytest.mark.skipif(not OBJECTS, reason="not built in this checkout")
@pytest.mark.skipif(shutil.which("nm") is None, reason="binutils are not installed")
@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.stem)
def test_a_tier_defines_its_table_for_others_and_nothing_else(path):
    """A weak symbol (an inline function of the standard library, say) could become everyone's copy:
    a processor without the tier's instructions would then die in code that never asked for them.
    """
    listing = subprocess.run(
        ["nm", "--defined-only", "--extern-only", "--demangle", "--format=posix", path],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    tier = path.name.partition(".")[0]
    assert [line.split()[0] for line in listing.splitlines()] == [f"farthing::{tier}::kernels"]


def test_the_python_module_exports_its_entry_point_only():
    if shutil.which("nm") is None:
        pytest.skip("binutils are not installed")
    listing = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--format=posix", str(_native.__file__)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    ours = [line.split()[0] for line in listing.splitlines() if "farthing" in line]
    assert ours == []
