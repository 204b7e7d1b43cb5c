"""docs/serving.md leaves out no endpoint, no option of a key and no field of farthing's own."""

from __future__ import annotations

import argparse
import re
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

from farthing.cli import serve, tune
from farthing.serve.app import OPERATIONS
from farthing.serve.keys import Key, load_keys
from farthing.serve.settings import Settings
from farthing.serve.wire.common import FORM_FIELDS, CommonFields

GUIDE = Path(__file__).parents[2].joinpath("docs", "serving.md").read_text()


@pytest.mark.parametrize("path", sorted({each.path for each in OPERATIONS}))
def test_every_endpoint_is_in_the_guide(path: str) -> None:
    assert path.replace("{model:path}", "ID") in re.findall(r"/[\w/]+", GUIDE)


@pytest.mark.parametrize("name", [*FORM_FIELDS, *CommonFields.__struct_fields__])
def test_every_field_beyond_openais_is_in_the_guide(name: str) -> None:
    assert name == "user" or f"`{name}`" in GUIDE


def test_the_guides_file_of_keys_is_read_and_has_every_option(tmp_path: Path) -> None:
    [block] = re.findall(
        r"((?:^    [^\n]*\n|^\n)*^    \[alice\]\n(?:    [^\n]*\n|\n)*)", GUIDE, re.MULTILINE
    )
    text = re.sub(r"(?m)^    ", "", block)
    for option in {each.name for each in fields(Key)} - {"name", "digest"}:
        assert re.search(rf"(?m)^{option} = ", text), option
    path = tmp_path / "keys.toml"
    path.write_text(text.replace("9f86d081...", "0" * 64).replace('"..."', '"' + "x" * 32 + '"'))
    assert [key.name for key in load_keys(Settings(keys_file=str(path))).keys] == [
        "alice",
        "operator",
    ]


def configured(command: ModuleType) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return parser


def test_every_flag_that_the_guide_names_is_one() -> None:
    flags, tunes = (
        {flag for action in parser._actions for flag in action.option_strings}
        for parser in (configured(serve), configured(tune))
    )
    # Commands of other tools go on on lines that are indented further.
    own = re.sub(r"(?m)^    taskset[^\n]*\n(?:      [^\n]*\n)*", "", GUIDE)
    for section in own.split("\n## "):
        known = flags | tunes if section.startswith("Finding settings") else flags
        assert set(re.findall(r"--[a-z][a-z-]+", section)) <= known
