"""The stored profile as server and commands have it: told by --check and the log, and learned."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tiny
from cli.serve_process import serving
from farthing.backends.ceilings import tier_and_kernels
from farthing.cli import chat, main, run
from farthing.cli.options import load_engine
from farthing.core import ActivationMode, KVDtype
from farthing.plan.machine import processor
from farthing.plan.memory import plan_memory
from farthing.plan.profile import Ceilings, Profile, ProfilePoint, profile_key, store_profile
from native_steps import model_at

if TYPE_CHECKING:
    from farthing.plan.profile import ProfileKey

MEASURED = "2030-01-02T03:04:05+00:00"


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FARTHING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nowhere"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def path() -> Path:
    return tiny.shared("llama", "gguf", "Q4_0")


def stored(path: Path, kv_dtype: KVDtype = KVDtype.BF16) -> ProfileKey:
    """A profile of steps that take a quarter of a second, and more for longer ones."""
    model = model_at(path)
    plan = plan_memory(model, threads=1, kv_dtype=kv_dtype)
    isa, kernels = tier_and_kernels()
    key = profile_key(model, plan, cpu=processor(), isa=isa, kernels=kernels)
    places = [(1, 0, 64, 0.5), (1, 127, 1, 0.25), (8, 127, 1, 0.5), (64, 127, 1, 2.0)]
    points = tuple(ProfilePoint(s, f, t, x, x, x) for s, f, t, x in places)
    ceilings = Ceilings(1e10, dict.fromkeys(ActivationMode, 1e11))
    store_profile(Profile(key, ceilings, 512, points, MEASURED))
    return key


def checked(capsys: pytest.CaptureFixture[str], path: Path, *flags: str) -> dict[str, object]:
    assert main(["serve", str(path), "--threads", "1", *flags, "--check", "--json"]) == 0
    profile: dict[str, object] = json.loads(capsys.readouterr().out)["profile"]
    return profile


def test_check_says_by_which_profile_times_are_foretold_or_why_by_none(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = checked(capsys, path)
    assert none["measured"] is None
    assert "no profile of it is stored: farthing bench measures one" in str(none["why_none"])
    key = stored(path)
    assert checked(capsys, path) == {"measured": MEASURED, "why_none": None}
    assert main(["serve", str(path), "--threads", "1", "--check"]) == 0
    assert f"times are foretold by the profile of {MEASURED}" in capsys.readouterr().out
    other = checked(capsys, path, "--kv-dtype", "int8")
    assert other["measured"] is None
    assert "(measured with kv_dtype bf16, not int8)" in str(other["why_none"])
    file = Path("cache", "profiles", key.file_name)
    file.write_text(file.read_text().replace('"version": 1', '"version": 2'))
    refused = checked(capsys, path)
    assert refused["measured"] is None
    assert "its stored profile is refused" in str(refused["why_none"])
    assert "is of version 2, and 1 is read here" in str(refused["why_none"])
    stored(path)
    assert checked(capsys, path)["measured"] == MEASURED


def test_a_server_that_starts_says_by_which_profile_it_foretells(
    path: Path, tmp_path: Path
) -> None:
    stored(path)
    flags = ["--threads", "1", "--slots", "2"]
    with serving(tmp_path, path, *flags, FARTHING_CACHE=str(tmp_path / "cache")) as server:
        assert server.url
        told = server.event("foretold")
        assert (told["measured"], told["why"]) == (MEASURED, None)
    with serving(tmp_path, path, *flags, FARTHING_CACHE=str(tmp_path / "other")) as server:
        assert server.url
        told = server.event("foretold")
        assert told["measured"] is None
        assert "no profile of it is stored" in told["why"]


@pytest.mark.parametrize("command", ["run", "chat"])
def test_commands_begin_with_what_the_profile_says_as_the_server_does(
    path: Path, command: str
) -> None:
    """So guesses need not be tried out before it is known what they cost."""
    parser = argparse.ArgumentParser()
    {"run": run, "chat": chat}[command].configure(parser)
    arguments = parser.parse_args([str(path), "--threads", "1", "--quiet"])
    with load_engine(arguments, slots=1) as engine:
        assert engine.pace(1, 128).step_seconds == 0
    stored(path)
    with load_engine(arguments, slots=1) as engine:
        assert engine.pace(1, 128).step_seconds == pytest.approx(0.25, rel=0.2)
