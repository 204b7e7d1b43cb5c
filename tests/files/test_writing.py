"""A file whose tensors are written in any order, in one go or two."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from farthing.files.gguf_writer import lay_gguf
from farthing.files.safetensors_writer import lay_safetensors
from farthing.files.writing import LaidFile, Layout, TensorPlan, write_laid

if TYPE_CHECKING:
    from pathlib import Path

PLANS = [TensorPlan(f"t{size}", "I8", (1, size), size) for size in (5, 64, 1, 100)]
LAYOUTS = {"gguf": lay_gguf({}, PLANS), "safetensors": lay_safetensors(PLANS)}


def content(plan: TensorPlan) -> np.ndarray:
    return np.random.default_rng(plan.bytes).integers(0, 256, plan.bytes, dtype=np.uint8)


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> Layout:
    return LAYOUTS[request.param]


def whole(layout: Layout, path: Path) -> bytes:
    write_laid(path, layout, lambda plan: [content(plan)])
    return path.read_bytes()


def test_the_order_in_which_tensors_are_written_does_not_matter(
    layout: Layout, tmp_path: Path
) -> None:
    with LaidFile(tmp_path / "file", layout) as file:
        for plan in reversed(PLANS):
            file.write(plan, np.array_split(content(plan), 3))
    found = (tmp_path / "file").read_bytes()
    assert found == whole(layout, tmp_path / "other")
    assert len(found) == layout.size


def test_a_file_that_is_opened_again_keeps_what_was_written(layout: Layout, tmp_path: Path) -> None:
    with LaidFile(tmp_path / "file", layout) as file:
        digests = {plan: file.write(plan, [content(plan)]) for plan in PLANS[::2]}
    with LaidFile(tmp_path / "file", layout, go_on=True) as file:
        assert {plan: file.digest(plan) for plan in PLANS[::2]} == digests
        for plan in PLANS[1::2]:
            assert file.write(plan, [content(plan)]) == file.digest(plan)
    assert (tmp_path / "file").read_bytes() == whole(layout, tmp_path / "other")


def test_a_digest_tells_what_is_not_the_tensor(layout: Layout, tmp_path: Path) -> None:
    with LaidFile(tmp_path / "file", layout) as file:
        digest = file.write(PLANS[1], [content(PLANS[1])])
    with LaidFile(tmp_path / "file", layout) as file:
        assert file.digest(PLANS[1]) != digest


@pytest.mark.parametrize("length", [4, 6])
def test_bytes_that_are_not_as_many_as_planned_do_not_reach_the_next_tensor(
    length: int, layout: Layout, tmp_path: Path
) -> None:
    with LaidFile(tmp_path / "file", layout) as file:
        following = file.write(PLANS[1], [content(PLANS[1])])
        with pytest.raises(ValueError, match=f"t5: {length} bytes were given and 5 planned"):
            file.write(PLANS[0], [np.zeros(length, np.uint8)])
        assert file.digest(PLANS[1]) == following


def test_layouts_that_differ_have_other_digests() -> None:
    layouts = [lay_gguf({}, plans) for plans in (PLANS, PLANS[::-1], PLANS[:3])]
    assert len({layout.digest for layout in [*layouts, LAYOUTS["safetensors"]]}) == 4
    assert lay_gguf({}, PLANS).digest == layouts[0].digest
