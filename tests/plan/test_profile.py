"""Stored profiles: found by all that a time depends on, refused when anything is not as it was."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny
from farthing.core import ActivationMode, FarthingError, FileFormatError, KVDtype
from farthing.plan.memory import plan_memory
from farthing.plan.profile import (
    Ceilings,
    Profile,
    ProfileKey,
    ProfilePoint,
    ServerWork,
    find_profile,
    model_digest,
    profile_key,
    read_profile,
    store_profile,
)
from native_steps import model_at

if TYPE_CHECKING:
    from pathlib import Path

RATES = {ActivationMode.FP32: 1e10, ActivationMode.BF16: 2e10, ActivationMode.INT8: 4e10}
KEY = ProfileKey("A processor", "avx512", "k1", 2, "0123", "Q4_1 as Q4_1", "bf16", "default")


def profile(*points: tuple[int, int, int, float]) -> Profile:
    made = tuple(ProfilePoint(s, f, t, x, x / 2, 2 * x) for s, f, t, x in points)
    return Profile(KEY, Ceilings(1e10, RATES), 512, made, "2030-01-02T03:04:05+00:00")


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("FARTHING_CACHE", str(tmp_path))
    return tmp_path / "profiles"


def test_what_is_stored_is_found_again(folder: Path) -> None:
    stored = profile((1, 127, 1, 0.01), (1, 0, 512, 0.5))
    path = store_profile(stored)
    assert path.parent == folder
    assert path.stat().st_mode & 0o777 == 0o600
    assert find_profile(KEY) == (stored, "")


def test_points_measured_before_are_kept_beside_new_ones() -> None:
    store_profile(profile((1, 127, 1, 0.01), (8, 127, 1, 0.02)))
    store_profile(profile((8, 127, 1, 0.03), (1, 0, 64, 0.1)))
    found, _ = find_profile(KEY)
    assert found is not None
    assert {point.place: point.seconds for point in found.points} == {
        (1, 127, 1): 0.01,
        (8, 127, 1): 0.03,
        (1, 0, 64): 0.1,
    }


def test_the_servers_work_is_stored_and_kept_by_who_has_not_measured_it() -> None:
    work = ServerWork(0.001, 0.0, 0.00005)
    store_profile(replace(profile((1, 127, 1, 0.01)), server=work))
    store_profile(profile((8, 127, 1, 0.03)))
    found, _ = find_profile(KEY)
    assert found is not None
    assert found.server == work
    assert work.before(100) == 0.001
    assert ServerWork(0.001, 0.00001, 0.0).before(100) == pytest.approx(0.002)


def test_a_profile_from_before_servers_were_measured_is_read() -> None:
    content = _broken(lambda c: c.pop("server"))
    assert "server" not in content
    assert find_profile(KEY) == (profile((1, 127, 1, 0.01)), "")


@pytest.mark.parametrize("name", [each.name for each in fields(ProfileKey)])
def test_whatever_a_time_depends_on_is_part_of_the_key(name: str) -> None:
    store_profile(profile((1, 127, 1, 0.01)))
    other = replace(KEY, **{name: 3 if name == "threads" else "another"})
    found, why = find_profile(other)
    assert found is None
    assert "farthing bench measures one" in why
    assert (name in why) != (name == "model")


def test_the_nearest_profile_of_the_model_is_named_with_what_differs(folder: Path) -> None:
    store_profile(profile((1, 127, 1, 0.01)))
    far = replace(profile((1, 127, 1, 0.01)), key=replace(KEY, kernels="k0", threads=8))
    store_profile(far)
    (folder / "notes.json").write_text("{}")
    _, why = find_profile(replace(KEY, threads=4))
    assert "its profile of 2030-01-02T03:04:05+00:00 does not apply" in why
    assert "(measured with threads 2, not 4): farthing bench measures one" in why
    _, why = find_profile(replace(KEY, model="another"))
    assert why == "no profile of it is stored: farthing bench measures one"


def test_a_profile_under_anothers_name_is_refused(folder: Path) -> None:
    path = store_profile(profile((1, 127, 1, 0.01)))
    other = replace(KEY, cpu="another")
    path.rename(folder / other.file_name)
    found, why = find_profile(other)
    assert found is None
    assert "was measured with cpu A processor, not another): farthing bench" in why


@pytest.mark.parametrize("content", ["{", "[]", '{"version": 99}', '{"version": 1}'])
def test_a_profile_that_is_none_is_refused_with_one_piece_of_advice(content: str) -> None:
    path = store_profile(profile((1, 127, 1, 0.01)))
    path.write_text(content)
    found, why = find_profile(KEY)
    assert found is None
    assert why.startswith(f"its stored profile is refused ({path} ")
    assert why.endswith("): farthing bench measures it again")
    assert "fetch" not in why


def _broken(change: Any) -> dict[str, Any]:
    path = store_profile(profile((1, 127, 1, 0.01)))
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return content


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(version=2),
        lambda c: c.pop("version"),
        lambda c: c.pop("key"),
        lambda c: c["key"].update(threads="2"),
        lambda c: c["key"].update(more=1),
        lambda c: c["points"][0].update(seconds=-1.0),
        lambda c: c["points"][0].update(seconds=None),
        lambda c: c["points"][0].update(seconds=float("inf")),
        lambda c: c["points"][0].update(tokens=0),
        lambda c: c["points"][0].update(first=-1),
        lambda c: c["points"][0].update(sequences=True),
        lambda c: c["points"][0].update(least=1.0),
        lambda c: c["points"][0].pop("most"),
        lambda c: c.update(points={}),
        lambda c: c.update(step_tokens=0),
        lambda c: c["ceilings"].update(bytes_per_second=0),
        lambda c: c["ceilings"]["products_per_second"].pop("int8"),
        lambda c: c["ceilings"]["products_per_second"].update(int3=1.0),
        lambda c: c.update(unknown=1),
        lambda c: c.update(server={"request": -1.0, "prompt_token": 0.0, "token": 0.0}),
        lambda c: c.update(server={"request": "1", "prompt_token": 0.0, "token": 0.0}),
        lambda c: c.update(server={"more": 1.0}),
        lambda c: c.update(server=[1.0]),
    ],
)
def test_a_damaged_one_or_one_of_another_version_is_refused_and_then_rebuilt(change: Any) -> None:
    _broken(change)
    found, why = find_profile(KEY)
    assert found is None
    assert "is refused" in why
    again = profile((4, 127, 1, 0.5))
    store_profile(again)
    assert find_profile(KEY) == (again, "")


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    path = store_profile(profile((1, 127, 1, 0.01)))
    path.write_bytes(content)
    with pytest.raises(FileFormatError):
        read_profile(path)


def test_a_folder_that_cannot_be_written_to_is_told(folder: Path) -> None:
    folder.write_text("a file")
    with pytest.raises(FarthingError, match="FARTHING_CACHE"):
        store_profile(profile())


def test_a_models_digest_is_of_what_times_depend_on() -> None:
    plain = model_at(tiny.shared("llama", "gguf", "Q4_0"))
    assert model_digest(plain) == model_digest(model_at(tiny.shared("llama", "gguf", "Q4_0")))
    others = [
        model_at(tiny.shared("llama", "gguf", "Q8_0")),
        model_at(tiny.shared("qwen3", "gguf", "Q4_0")),
    ]
    assert len({model_digest(model) for model in (plain, *others)}) == 3


def test_a_key_says_how_a_model_runs() -> None:
    model = model_at(tiny.shared("llama", "gguf", "Q4_0"))
    plan = plan_memory(model, threads=1, kv_dtype=KVDtype.INT8, activations=ActivationMode.BF16)
    key = profile_key(model, plan, cpu="c", isa="i", kernels="k")
    assert (key.threads, key.kv_dtype, key.activations) == (1, "int8", "bf16")
    assert key.formats == "Q4_0 as BF16"
