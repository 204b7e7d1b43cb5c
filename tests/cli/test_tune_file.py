"""What tune writes into a file that a person has written in."""

from __future__ import annotations

import stat
import tomllib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.cli.tune_file import BEGIN, END, merged, read_file, write_file
from farthing.core import RequestError

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = {"slots": 8, "step-seconds": 0.05, "kv-dtype": "bf16"}


def put(text: str, *, force: bool = False, **settings: object) -> str:
    return merged(text, settings or SETTINGS, ["measured"], "farthing.toml", force=force)


def test_a_new_file_has_the_table_the_settings_and_their_evidence() -> None:
    text = put("")
    assert tomllib.loads(text) == {"serve": SETTINGS}
    assert "# measured\n" in text
    assert text.startswith("[serve]\n")


def test_what_a_person_has_written_stays_with_its_comments() -> None:
    theirs = (
        "# mine\nthreads = 2  # all of them\n\n[serve]\nport = 8080 # the usual one\n\n"
        '[plan]\nkv-dtype = "int8"\n'
    )
    text = put(theirs)
    assert [line for line in text.splitlines() if line in theirs.splitlines()] == (
        theirs.splitlines()
    )
    assert tomllib.loads(text) == {
        "threads": 2,
        "serve": {"port": 8080, **SETTINGS},
        "plan": {"kv-dtype": "int8"},
    }


def test_the_next_run_replaces_what_the_last_one_wrote_and_nothing_else() -> None:
    once = put("[serve]\nport = 80\n[run]\nseed = 1\n")
    again = put(once, slots=16, activations="fp32")
    assert tomllib.loads(again) == {
        "serve": {"port": 80, "slots": 16, "activations": "fp32"},
        "run": {"seed": 1},
    }
    assert again.count(BEGIN) == again.count(END) == 1
    assert put(again) == put(once) == once


@pytest.mark.parametrize("last", ["", "\r\n"])
@pytest.mark.parametrize("theirs", ["[serve]\nport = 80\n\n[run]\nseed = 1", "[run]\nseed = 1"])
def test_lines_that_end_as_an_editor_of_windows_ends_them_stay_so(theirs: str, last: str) -> None:
    whole = theirs.replace("\n", "\r\n") + last
    text = put(whole)
    assert text.replace("\r\n", "\n") == put(theirs)
    assert text.count("\n") == text.count("\r\n") + (not last)
    assert put(text) == text


def test_a_setting_of_the_person_stands_in_the_way_unless_it_says_the_same() -> None:
    with pytest.raises(RequestError, match="sets slots in .serve., which farthing tune would set"):
        put("[serve]\nslots = 4\n")
    same = put("[serve]\nslots = 8\n")
    assert tomllib.loads(same) == {"serve": SETTINGS}
    assert same.splitlines()[1] == "slots = 8"


def test_force_makes_a_comment_of_what_stands_in_the_way() -> None:
    text = put('[serve]\nslots = 4 # few\n"kv-dtype" = "int8"\nport = 1\n', force=True)
    assert tomllib.loads(text) == {"serve": {**SETTINGS, "port": 1}}
    assert "# before farthing tune: slots = 4 # few" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("serve.port = 1\n", "nothing can be added"),
        ("serve = { port = 1 }\n", "nothing can be added"),
        ("serve = 3\n", "sets serve, which is a table"),
        ("[serve]\nmodel = '''\n[serve]\n'''\n[serve.x]\n", "nothing can be added"),
        ("slots = \n", "is not TOML"),
        (f"[serve]\n{BEGIN}\nslots = 3\n", "only a part of what farthing tune wrote"),
        (f"[serve]\n{END}\n{BEGIN}\n", "only a part of what farthing tune wrote"),
    ],
)
def test_a_file_that_cannot_be_added_to_is_refused_with_what_to_do(text: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as error:
        put(text)
    assert "--output" in str(error.value) or "remove" in str(error.value)


@given(
    st.lists(
        st.sampled_from(
            ["", "# c", "port = 1", "[serve]", "[run]", "[[a]]", "x = '''", "'''", "seed = 3"]
        ),
        max_size=12,
    ),
    st.booleans(),
)
def test_whatever_the_file_says_it_still_says_it_or_is_refused(
    lines: list[str], force: bool
) -> None:
    text = "\n".join(lines)
    try:
        result = put(text, force=force)
    except RequestError:
        return
    before = tomllib.loads(text)
    found = tomllib.loads(result)
    assert found == {**before, "serve": {**before.get("serve", {}), **SETTINGS}}


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_text_is_written_as_it_is_and_any_evidence_stays_a_comment(
    value: str, told: str
) -> None:
    text = merged("", {"model": value}, [told], "farthing.toml", force=False)
    assert tomllib.loads(text) == {"serve": {"model": value}}


def test_a_written_file_keeps_who_may_read_it_and_follows_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.toml", tmp_path / "farthing.toml"
    real.write_text("# secret\n")
    real.chmod(0o600)
    link.symlink_to(real)
    write_file(link, put(read_file(link)))
    assert link.is_symlink()
    assert tomllib.loads(real.read_text()) == {"serve": SETTINGS}
    assert stat.S_IMODE(real.stat().st_mode) == 0o600


def test_a_place_that_nothing_can_be_written_to_is_refused_before_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RequestError, match="is a folder: give --output a file"):
        read_file(tmp_path)
    with pytest.raises(RequestError, match="there is no folder"):
        read_file(tmp_path / "none" / "farthing.toml")
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(RequestError, match="cannot be written to"):
        read_file(tmp_path / "farthing.toml")
