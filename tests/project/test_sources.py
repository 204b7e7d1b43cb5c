"""What every file of the project keeps to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUFFIXES = {".py", ".cpp", ".h", ".inl"}
SOURCES = [
    path
    for folder in ("src", "native", "tests", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in SUFFIXES
]


def test_no_source_file_is_too_long_to_read_in_one_sitting() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: length for name, length in lengths.items() if length > 600} == {}


def test_no_build_flag_breaks_the_exactness_contract() -> None:
    flags = re.sub(r"#.*", "", (ROOT / "CMakeLists.txt").read_text())
    assert "-ffp-contract=off" in flags
    assert "-ffast-math" not in flags
    assert "march=native" not in flags


@pytest.mark.parametrize("tier", ["avx2", "avx512", "neon_dotprod", "neon_i8mm"])
def test_a_unit_compiled_for_one_instruction_set_instantiates_no_shared_template(tier: str) -> None:
    # The linker may keep this unit's copy of a template for everyone, and others' machines would
    # meet its instructions: so only headers of macros, types and intrinsics are included.
    seen: set[Path] = set()
    pending = [ROOT / "native" / "isa" / f"{tier}.cpp"]
    system: set[str] = set()
    while pending:
        path = pending.pop()
        if path in seen:
            continue
        seen.add(path)
        text = path.read_text()
        system |= set(re.findall(r"#include <([^>]+)>", text))
        for name in re.findall(r'#include "([^"]+)"', text):
            found = [p for p in (path.parent / name, ROOT / "native" / name) if p.exists()]
            assert found, f"{path} includes {name}, which is not there"
            pending.append(found[0].resolve())
    intrinsics = {"immintrin.h", "arm_neon.h"}
    assert system <= intrinsics | {"cstdint", "cstddef", "cstring", "stdint.h", "stddef.h"}
