"""The kernel version follows from the sources: nobody counts it up."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from farthing import _native

NATIVE = Path(__file__).parents[2] / "native"
CMAKE = shutil.which("cmake", path=Path(sys.executable).parent) or shutil.which("cmake")


def version(
    root: Path, *sources: str, settings: str = "GNU 14.2 Release", cmake: str | None = CMAKE
) -> str:
    if cmake is None:
        pytest.fail("the tests need cmake: make test installs it beside Python", pytrace=False)
    output = root / "version.cpp"
    subprocess.run(
        [
            cmake,
            f"-DROOT={root}",
            f"-DSOURCES={';'.join(sources)}",
            f"-DSETTINGS={settings}",
            f"-DOUTPUT={output}",
            "-P",
            str(NATIVE / "kernel_version.cmake"),
        ],
        check=True,
    )
    found = re.fullmatch(
        r"namespace farthing \{\n"
        r"extern const char\* const kernel_version;\n"
        r'const char\* const kernel_version = "([0-9a-f]{32})";\n'
        r"\}  // namespace farthing\n",
        output.read_text(),
    )
    assert found is not None
    return found[1]


def test_the_module_has_a_version() -> None:
    assert re.fullmatch("[0-9a-f]{32}", _native.kernel_version)


def test_the_version_changes_with_any_source_its_name_and_the_compiler(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text("int one = 1; // [;] ${X}\n")
    (tmp_path / "b.inl").write_text("int two = 2;\n")
    first = version(tmp_path, "a.cpp", "b.inl")
    assert version(tmp_path, "b.inl", "a.cpp") == first
    others = {version(tmp_path, "a.cpp"), version(tmp_path, "a.cpp", "b.inl", settings="Clang 19")}
    (tmp_path / "b.inl").write_text("int two = 3;\n")
    others.add(version(tmp_path, "a.cpp", "b.inl"))
    (tmp_path / "b.inl").write_text("int two = 2;\n")
    (tmp_path / "c.inl").write_text("int two = 2;\n")
    others.add(version(tmp_path, "a.cpp", "c.inl"))
    assert len(others | {first}) == 5
    assert version(tmp_path, "a.cpp", "b.inl") == first


def test_a_missing_source_stops_the_build(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        version(tmp_path, "absent.cpp")


def test_the_build_counts_every_source_that_computes() -> None:
    text = (NATIVE.parent / "CMakeLists.txt").read_text()
    patterns = re.search(r"GLOB farthing_computing[^)]*\$\{CMAKE_SOURCE_DIR\}\n([^)]*)\)", text)
    assert patterns is not None
    counted = {path for each in patterns[1].split() for path in NATIVE.parent.glob(each)}
    compiled = {path for path in NATIVE.rglob("*") if path.suffix in {".cpp", ".h", ".inl"}}
    assert {path.relative_to(NATIVE).parts[0] for path in compiled - counted} == {"test"}
