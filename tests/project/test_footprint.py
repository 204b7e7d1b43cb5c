"""What farthing costs before it does anything: seconds to import, megabytes on disk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_python(*arguments: str) -> str:
    return subprocess.run(
        [sys.executable, *arguments], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout


def test_importing_farthing_takes_less_than_a_fifth_of_a_second() -> None:
    code = "import time; t = time.perf_counter(); import farthing; print(time.perf_counter() - t)"
    assert min(float(run_python("-c", code)) for _ in range(5)) < 0.2


def test_importing_farthing_imports_no_library() -> None:
    code = "import sys, farthing; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = set(run_python("-c", code).split())
    assert loaded.isdisjoint({"numpy", "tokenizers", "rich", "jinja2", "huggingface_hub", "torch"})


@pytest.mark.parametrize("name", ["Engine", "SamplingParams", "Completion", "FarthingError"])
def test_every_public_name_can_be_had_from_the_package(name: str) -> None:
    assert run_python("-c", f"import farthing; print(farthing.{name}.__name__)").strip() == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    import farthing

    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        farthing.__getattr__("Motor")


def test_the_engine_loads_no_optional_library() -> None:
    code = "import sys, farthing; farthing.Engine; print(*sys.modules)"
    assert {"torch", "transformers", "ray", "matplotlib"}.isdisjoint(run_python("-c", code).split())


def test_the_installation_without_extras_stays_under_160_megabytes() -> None:
    report = json.loads(run_python("benchmarks/installed_size.py", "--json"))
    assert report["packages"].keys() >= {"farthing", "numpy", "tokenizers"}
    assert report["total"] < 160e6, report
