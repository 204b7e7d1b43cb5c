"""The tiers: which there are, how one is chosen, and that none leaks into the other code."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tiny
from farthing import _native
from matrix_kernels import TIERS, kernels

ROOT = Path(__file__).parents[2]
UNITS = [  # of this machine's build: the others belong to builds for an emulator
    path for path in sorted(ROOT.glob("build/cp*/**/*.o")) if path.parent.name in ("native", "isa")
]
ISA_UNITS = [path for path in UNITS if path.parent.name == "isa"]
EMULATOR = "qemu-x86_64"

# Where CI is set, what is missing fails the test instead.
OPTIONAL = os.environ.get("CI") != "true"
built = pytest.mark.skipif(OPTIONAL and not UNITS, reason="not built in this checkout")
x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="about x86 tiers")


def requires(tool: str) -> pytest.MarkDecorator:
    missing = shutil.which(tool) is None
    return pytest.mark.skipif(OPTIONAL and missing, reason=f"{tool} is not installed")


def unit_name(path: Path) -> str:
    return path.name.partition(".")[0]


@built
def test_the_build_left_every_unit_to_look_at():
    """Without units the tests that are made for each would not exist, and so could not fail."""
    assert {"program", "sampler", "scalar"} <= {unit_name(path) for path in UNITS}


def test_every_machine_runs_the_scalar_tier_and_the_slowest_comes_first():
    orders = (["scalar", "avx2", "avx512"], ["scalar", "neon-dotprod", "neon-i8mm"])
    assert TIERS[0] == "scalar"
    assert any([tier for tier in order if tier in TIERS] == TIERS for order in orders)


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


@built
@requires("nm")
@pytest.mark.parametrize("path", ISA_UNITS, ids=unit_name)
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
    names = [line.split()[0] for line in listing.splitlines()]
    assert names == [f"farthing::{unit_name(path)}::kernels"]


# What only a tier's own unit may use: 256-bit and 512-bit registers, and masks.
WIDE, WIDEST = r"%ymm\d", r"%zmm\d|%k[0-7]\b|%[xy]mm(1[6-9]|2\d|3[01])"


@x86
@built
@requires("objdump")
@pytest.mark.parametrize("path", UNITS, ids=unit_name)
def test_wide_registers_occur_in_the_units_of_their_tiers_only(path):
    allowed = {"avx2": {WIDE}, "avx512": {WIDE, WIDEST}}.get(unit_name(path), set())
    command = ["objdump", "--disassemble", "--no-show-raw-insn", path]
    code = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert {registers for registers in (WIDE, WIDEST) if re.search(registers, code)} == allowed


@x86
@built
@requires("objdump")
@pytest.mark.parametrize("path", [p for p in UNITS if p.parent.name == "native"], ids=unit_name)
def test_code_outside_the_tiers_has_no_instruction_in_avx_encoding(path):
    """Not even on 128-bit registers, which the registers' names would not show."""
    command = ["objdump", "--disassemble", "--no-show-raw-insn", path]
    code = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert re.findall(r"^ *[0-9a-f]+:\t(v[a-z0-9]+) ", code, re.MULTILINE) == []


def answer_of(model: Path, tier: str | None, *prefix: str) -> list[str]:
    """The tiers that run, the one in use, and a tiny model's answer, by another process."""
    script = (
        "import sys; from farthing import Engine, SamplingParams, _native\n"
        "engine = Engine.load(sys.argv[1], threads=2)\n"
        "greedy = SamplingParams(max_tokens=12, temperature=0.0)\n"
        "print(*_native.available_tiers(), sep=',')\n"
        "print(engine.report.isa)\n"
        "print(*engine.generate('ab cd ef', greedy).token_ids)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "FARTHING_ISA"}
    if prefix:  # numpy's OpenBLAS takes the emulated processor for a newer one
        environment["OPENBLAS_CORETYPE"] = prefix[-1]
    if tier is not None:
        environment["FARTHING_ISA"] = tier
    result = subprocess.run(
        [*prefix, sys.executable, "-c", script, str(model)],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout.splitlines()


@pytest.mark.parametrize("tier", TIERS)
def test_the_environment_variable_chooses_the_tier(tier):
    _, used, _ = answer_of(tiny.shared("llama", quant="Q4_0"), tier)
    assert used == tier


@x86
@pytest.mark.skipif(sys.platform != "linux", reason="the emulator runs Linux programs")
@pytest.mark.parametrize(
    ("processor", "tiers"), [("Nehalem", ["scalar"]), ("Haswell", ["scalar", "avx2"])]
)
def test_a_processor_without_the_newer_instructions_gets_the_same_answer(processor, tiers):
    """The emulated processor dies at an instruction it lacks: Nehalem has no AVX at all."""
    if shutil.which(EMULATOR) is None:
        missing = f"{EMULATOR} is not installed (Debian: qemu-user)"
        (pytest.skip if OPTIONAL else pytest.fail)(missing)
    if tiers[-1] not in TIERS:
        pytest.skip(f"this machine has no {tiers[-1]} tier to compare with")
    model = tiny.shared("llama", quant="Q4_0")
    listed, used, answer = answer_of(model, None, EMULATOR, "-cpu", processor)
    assert listed.split(",") == tiers
    assert used == tiers[-1]
    assert answer == answer_of(model, tiers[-1])[2]


@requires("nm")
def test_the_python_module_exports_its_entry_point_only():
    listing = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--format=posix", str(_native.__file__)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    ours = [line.split()[0] for line in listing.splitlines() if "farthing" in line]
    assert ours == []
