"""The examples of packaging name what exists."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

from farthing.cli import config, serve
from farthing.files import cache

PACKAGING = Path(__file__).parents[2] / "packaging"
UNIT = PACKAGING / "systemd" / "farthing.service"
DOCKERFILE = PACKAGING / "Dockerfile"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    serve.configure(made)
    made.add_argument("--config")
    return made


def known_variables() -> set[str]:
    flags = config._actions(parser())
    return {config._variable(key) for key in flags} | {"FARTHING_CACHE", "FARTHING_CONFIG"}


@pytest.mark.parametrize("path", [UNIT, DOCKERFILE], ids=lambda path: path.name)
def test_every_variable_is_that_of_a_flag(path: Path) -> None:
    named = set(re.findall(r"\bFARTHING_[A-Z_]+", path.read_text()))
    assert named
    assert named <= known_variables()


def test_the_folder_of_models_is_the_one_that_the_examples_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FARTHING_CACHE", str(tmp_path))
    assert cache.models_folder() == tmp_path / "models"


def test_the_commands_of_the_unit_can_be_parsed() -> None:
    commands = re.findall(r"^Exec\w+=(.*)$", UNIT.read_text(), re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        program, subcommand, *arguments = shlex.split(command)
        assert program.endswith("/bin/farthing")
        assert subcommand == "serve"
        parser().parse_args(arguments)


def test_the_service_is_given_longer_than_its_requests() -> None:
    text = UNIT.read_text()
    (stop,) = re.findall(r"TimeoutStopSec=(\d+)", text)
    (drain,) = re.findall(r"FARTHING_DRAIN_SECONDS=(\d+)", text)
    assert int(stop) >= int(drain) + 15


def test_the_image_is_built_of_what_is_in_the_repository() -> None:
    kept = (PACKAGING / "Dockerfile.dockerignore").read_text().splitlines()
    for line in kept:
        if line.startswith("!"):
            assert (PACKAGING.parent / line[1:].removesuffix("/**")).exists(), line
