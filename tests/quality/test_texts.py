"""Texts: what comes with the package, and a person's own files with what can be wrong with them."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from typing import TYPE_CHECKING

import pytest

from farthing.core import RequestError
from farthing.quality import texts
from farthing.quality.texts import calibration_text, held_out_text, read_text

if TYPE_CHECKING:
    from pathlib import Path

SHA256 = {
    "persuasion": "aa1893d80967ad0ea5c23f8d4a8c060222c4a6571e4a9782fa35944d16105da1",
    "opticks": "77ae39bbebe74dd0731199da6032d51274f1490c8367f5cb0d0eab5390ececf2",
}


def test_the_two_texts_are_the_files_that_the_peers_were_measured_on() -> None:
    for text in (held_out_text(), calibration_text()):
        assert text.sha256 == SHA256[text.name]
        assert 150_000 < len(text.content.encode()) < 250_000


def test_calibration_text_and_test_text_share_no_sentence() -> None:
    def sentences(text: str) -> set[str]:
        return {each for each in re.split(r"[.!?;:]\s", text) if len(each) > 40}

    one, other = sentences(held_out_text().content), sentences(calibration_text().content)
    assert len(one) > 1000
    assert len(other) > 500
    assert one.isdisjoint(other)


def test_every_shipped_file_has_its_source_and_licence_beside_it() -> None:
    data = files("farthing.quality") / "data"
    told = (data / "README.md").read_text(encoding="utf-8")
    for file in data.iterdir():
        assert file.name == "README.md" or f"`{file.name}`" in told
    assert "public domain" in told


def test_a_file_of_ones_own_is_read_whole_and_known_by_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_bytes("\ufeffÆther\r\nand more".encode())
    text = read_text(str(path))
    assert (text.name, text.content) == ("own.txt", "Æther\r\nand more")
    assert text.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b" \n\t\n", "is empty"),
        (b"good until \xff here", "not UTF-8 text.*at byte 11"),
        ("Æther".encode("utf-16"), "not UTF-8 text"),
    ],
)
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "own.txt"
    path.write_bytes(content)
    with pytest.raises(RequestError, match=problem):
        read_text(path)


def test_a_folder_and_a_file_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="is a folder"):
        read_text(tmp_path)
    with pytest.raises(RequestError, match="no text file.*nothing.txt"):
        read_text(tmp_path / "nothing.txt")


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        read_text(tmp_path / ("a" * 300))


def test_more_text_than_any_measurement_reads_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "MOST_BYTES", 1 << 20)
    path = tmp_path / "own.txt"
    path.write_bytes(b"a" * ((1 << 20) + 1))
    with pytest.raises(RequestError, match="more than the 1,048,576 bytes"):
        read_text(path)
