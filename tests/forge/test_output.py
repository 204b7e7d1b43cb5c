"""A model appears whole or not at all, and replaces only what it may."""

from __future__ import annotations

import os
import resource
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import tiny
from farthing.core import FarthingError
from farthing.files import catalog
from farthing.files.catalog import CATALOG, FLOAT_MODEL
from farthing.files.checkpoint import open_checkpoint
from farthing.forge import output
from farthing.forge.output import written_whole
from farthing.forge.quantize import quantize
from farthing.forge.wish import Wish


def write(out: Path, scheme: str, form: str = "gguf", force: bool = False) -> None:
    with open_checkpoint(tiny.shared("llama", form)) as checkpoint:
        quantize(checkpoint, out, Wish(scheme), force=force)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("name", [FLOAT_MODEL, *CATALOG])
@pytest.mark.parametrize("where", ["", "./", "below/", "absolute"])
def test_a_model_never_hides_one_of_the_catalog(
    name: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "below").mkdir()
    out = tmp_path / name if where == "absolute" else Path(f"{where}{name}")
    with pytest.raises(FarthingError, match=f"{name} is the name of a model, .* another name"):
        write(out, "INT8_ROW")
    with pytest.raises(FarthingError, match="is the name of a model"):
        write(out, "INT8_ROW", force=True)
    assert names(tmp_path) == {"below"}
    assert not names(tmp_path / "below")


def test_a_model_never_hides_one_of_the_hub_that_was_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        catalog.cache, "find", lambda name: (None, tmp_path) if "small" in name else None
    )
    (tmp_path / "owner").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FarthingError, match="owner/small is the name of a model"):
        write(Path("owner/small"), "INT8_ROW")
    write(Path("owner/other"), "INT8_ROW")
    # From here it is the path of a folder, and no id.
    monkeypatch.chdir(tmp_path / "owner")
    write(Path("small"), "INT8_ROW")
    assert names(tmp_path / "owner") == {"other", "small"}


@pytest.mark.parametrize(("name", "scheme"), [("m.gguf", "Q8_0"), ("m", "INT8_ROW")])
def test_what_is_there_is_replaced_only_by_force(name: str, scheme: str, tmp_path: Path) -> None:
    out = tmp_path / name
    write(out, scheme)
    before = snapshot(out)
    other = "Q4_0" if scheme == "Q8_0" else "INT4_ROW"
    with pytest.raises(FarthingError, match="exists.*--force"):
        write(out, other)
    assert snapshot(out) == before
    write(out, other, force=True)
    assert snapshot(out) != before
    assert names(tmp_path) == {name}
    assert {t.format for t in open_checkpoint(out).tensors.values()} == {other, "F32"}


def snapshot(out: Path) -> dict[str, bytes]:
    files = out.iterdir() if out.is_dir() else [out]
    return {file.name: file.read_bytes() for file in files}


def test_a_folder_of_other_things_is_not_replaced_even_by_force(tmp_path: Path) -> None:
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "thesis.tex").write_text("years of work")
    nested = tmp_path / "nested"
    write(nested, "INT8_ROW")
    (nested / "more").mkdir()
    for name in ("papers", "nested"):
        with pytest.raises(FarthingError, match="nothing else.*--force does not"):
            write(tmp_path / name, "INT8_ROW", force=True)
    assert (tmp_path / "papers" / "thesis.tex").read_text() == "years of work"


def test_a_file_and_a_folder_do_not_replace_each_other(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("notes")
    with pytest.raises(FarthingError, match="no folder that holds a model"):
        write(tmp_path / "notes", "INT8_ROW", force=True)
    (tmp_path / "folder.gguf").mkdir()
    with pytest.raises(FarthingError, match="is a folder, and the result a file"):
        write(tmp_path / "folder.gguf", "Q4_0", force=True)
    assert (tmp_path / "notes").read_text() == "notes"


def test_a_link_is_replaced_and_what_it_points_to_stays(tmp_path: Path) -> None:
    write(tmp_path / "old", "INT8_ROW")
    before = snapshot(tmp_path / "old")
    (tmp_path / "link").symlink_to(tmp_path / "old")
    write(tmp_path / "link", "INT4_ROW", force=True)
    assert snapshot(tmp_path / "old") == before
    assert not (tmp_path / "link").is_symlink()


def fail_halfway(out: Path, made: str, failure: BaseException) -> None:
    with written_whole(out) as partial:
        if made == "folder":
            partial.mkdir()
            (partial / "model.safetensors").write_bytes(b"half of")
        else:
            partial.write_bytes(b"half of")
        raise failure


@pytest.mark.parametrize("made", ["file", "folder"])
@pytest.mark.parametrize("failure", [KeyboardInterrupt, ValueError, OSError])
def test_a_failure_leaves_what_was_there_and_nothing_else(
    failure: type[BaseException], made: str, tmp_path: Path
) -> None:
    out = tmp_path / "model"
    out.mkdir()
    (out / "model.safetensors").write_bytes(b"old")
    with pytest.raises(FarthingError if failure is OSError else failure):
        fail_halfway(out, made, failure())
    assert names(tmp_path) == {"model"}
    assert snapshot(out) == {"model.safetensors": b"old"}


def test_the_old_folder_comes_back_when_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "model"
    write(out, "INT8_ROW")
    before = snapshot(out)
    rename = type(out).rename

    def refusing(self: Path, target: Path) -> Path:
        if self.parent.name.endswith(".partial"):
            raise PermissionError(13, "refused")
        return rename(self, target)

    monkeypatch.setattr(type(out), "rename", refusing)
    with pytest.raises(FarthingError, match="cannot be written to"):
        write(out, "INT4_ROW", force=True)
    assert names(tmp_path) == {"model"}
    assert snapshot(out) == before


def test_what_a_killed_process_left_does_not_stand_in_the_way(tmp_path: Path) -> None:
    out = tmp_path / "model"
    (tmp_path / f".model.{os.getpid()}.replaced").mkdir()
    (tmp_path / ".model.partial").mkdir()
    (tmp_path / ".model.partial" / "journal.jsonl").write_text('{"half of a li')
    write(out, "INT8_ROW")
    write(out, "INT4_ROW", force=True)
    assert names(tmp_path) == {"model"}


def test_a_folder_is_as_open_to_others_as_any_new_one(tmp_path: Path) -> None:
    write(tmp_path / "model", "INT8_ROW")
    (tmp_path / "plain").mkdir()
    assert mode(tmp_path / "model") == mode(tmp_path / "plain")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_disk_without_room_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(output.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(FarthingError, match=r"needs 0\.\d MB.*0\.0 MB free.*make room"):
        write(tmp_path / "m.gguf", "Q8_0")
    assert not names(tmp_path)


@pytest.mark.parametrize(("name", "scheme"), [("m.gguf", "Q8_0"), ("m", "INT8_ROW")])
def test_a_disk_that_fills_up_is_a_clear_error_that_leaves_nothing(
    name: str, scheme: str, tmp_path: Path
) -> None:
    program = (
        "import sys\n"
        "from farthing.files.checkpoint import open_checkpoint\n"
        "from farthing.forge.quantize import quantize\n"
        "from farthing.forge.wish import Wish\n"
        "quantize(open_checkpoint(sys.argv[1]), sys.argv[2], Wish(sys.argv[3]))"
    )
    limit = 50_000  # what a file may grow to: the nearest to a full disk without being root
    ended = subprocess.run(
        [sys.executable, "-B", "-c", program, tiny.shared("llama"), tmp_path / name, scheme],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert "FarthingError: the disk of" in ended.stderr
    assert "make room" in ended.stderr
    assert not names(tmp_path)


def test_a_place_that_may_not_be_written_to_is_named(tmp_path: Path) -> None:
    with pytest.raises(FarthingError, match="model cannot be written to: .*may write to"):
        fail_halfway(tmp_path / "model", "file", PermissionError(13, "refused"))
