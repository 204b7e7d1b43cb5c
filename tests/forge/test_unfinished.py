"""What a killed run leaves is used by the same command, and by no other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import tiny
from farthing.core import FarthingError
from farthing.files.checkpoint import open_checkpoint
from farthing.forge import write
from farthing.forge.patterns import parse_rule
from farthing.forge.quantize import quantize
from farthing.forge.unfinished import unfinished
from farthing.forge.wish import Wish

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from farthing.forge.report import QuantizeReport

COMMAND = {"scheme": "Q4_0", "source": [["m.gguf", 5, 7]]}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def content(out: Path) -> dict[str, bytes]:
    files = out.iterdir() if out.is_dir() else [out]
    return {file.name: file.read_bytes() for file in files}


def run(
    out: Path,
    scheme: str = "Q4_0",
    keep: str | None = None,
    form: str = "gguf",
    **settings: Any,
) -> QuantizeReport:
    wish = Wish(scheme, () if keep is None else (parse_rule(keep),))
    with open_checkpoint(tiny.shared("llama", form)) as checkpoint:
        return quantize(checkpoint, out, wish, **settings)


def killed(out: Path, after: int, scheme: str = "Q4_0", form: str = "gguf") -> None:
    """Quantises in a process that is killed once `after` tensors are in their places."""
    program = (
        "import os, signal, sys\n"
        "from farthing.files.checkpoint import open_checkpoint\n"
        "from farthing.forge.quantize import quantize\n"
        "from farthing.forge.wish import Wish\n"
        "told = []\n"
        "def progress(stage, what, share):\n"
        "    told.append(what)\n"
        f"    if len(told) > {after}:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "quantize(open_checkpoint(sys.argv[1]), sys.argv[2], Wish(sys.argv[3]), progress=progress)"
    )
    arguments = [tiny.shared("llama", form), out, scheme]
    ended = subprocess.run([sys.executable, "-B", "-c", program, *arguments], check=False)
    assert ended.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("form", "name", "scheme"),
    [
        ("gguf", "m.gguf", "Q4_0"),
        ("gguf", "m", "INT4_G32"),
        ("safetensors", "m", "Q4_0"),
        ("safetensors", "m.gguf", "Q4_0"),
    ],
)
def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(
    form: str, name: str, scheme: str, tmp_path: Path
) -> None:
    out = tmp_path / name
    killed(out, 5, scheme, form)
    assert names(tmp_path) == {f".{name}.partial"}
    report = run(out, scheme, form=form)
    assert report.resumed == 5
    assert names(tmp_path) == {name}
    (tmp_path / "other").mkdir()
    assert run(tmp_path / "other" / name, scheme, form=form).resumed == 0
    assert content(out) == content(tmp_path / "other" / name)


def test_what_is_done_is_not_encoded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "m.gguf"
    killed(out, 5)
    began: list[str] = []
    original = write.tasks

    def watched(*arguments: Any) -> Any:
        began.append(arguments[-1].plan.name)
        return original(*arguments)

    monkeypatch.setattr(write, "tasks", watched)
    run(out)
    every = list(open_checkpoint(out).tensors)
    assert began == every[5:]


def test_another_scheme_begins_anew(tmp_path: Path) -> None:
    out = tmp_path / "m.gguf"
    killed(out, 5, "Q8_0")
    assert run(out).resumed == 0
    assert {t.format for t in open_checkpoint(out).tensors.values()} == {"Q4_0", "F32"}
    assert names(tmp_path) == {"m.gguf"}


def test_another_rule_begins_anew(tmp_path: Path) -> None:
    out = tmp_path / "m.gguf"
    killed(out, 5)
    assert run(out, keep="embedding=q8_0").resumed == 0
    assert open_checkpoint(out).tensors["token_embd.weight"].format == "Q8_0"


def test_a_source_that_was_changed_since_begins_anew(tmp_path: Path) -> None:
    source = tiny.build("llama", tmp_path / "source")
    out = tmp_path / "m.gguf"
    with open_checkpoint(source) as checkpoint, pytest.raises(SystemExit):
        quantize(checkpoint, out, Wish("Q4_0"), progress=told_to_end)
    os.utime(source, ns=(1, 1))
    with open_checkpoint(source) as checkpoint:
        assert quantize(checkpoint, out, Wish("Q4_0")).resumed == 0


def told_to_end(stage: str, what: str, share: float) -> None:
    if share > 0.5:
        raise SystemExit(143)


def damaged(folder: Path) -> None:
    model = folder / "model"
    data = bytearray(model.read_bytes())
    data[-20_000:] = bytes(20_000)
    model.write_bytes(data)


def cut_short(folder: Path) -> None:
    model = folder / "model"
    with model.open("r+b") as file:
        file.truncate(model.stat().st_size // 2)


def gone(folder: Path) -> None:
    (folder / "model").unlink()


def half_a_line(folder: Path) -> None:
    journal = folder / "journal.jsonl"
    journal.write_text(journal.read_text()[:-20])


def garbled(folder: Path) -> None:
    (folder / "journal.jsonl").write_bytes(b"\xff\xfe nothing")


@pytest.mark.parametrize("damage", [damaged, cut_short, gone, half_a_line, garbled])
def test_what_is_damaged_since_is_made_again(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    out = tmp_path / "m.gguf"
    killed(out, 15)
    damage(tmp_path / ".m.gguf.partial")
    assert run(out).resumed < 15
    run(tmp_path / "n.gguf")
    assert out.read_bytes() == (tmp_path / "n.gguf").read_bytes()


@pytest.mark.parametrize("failure", [KeyboardInterrupt, FarthingError, OSError(28, "full")])
def test_a_run_that_fails_or_is_interrupted_leaves_nothing(
    failure: BaseException | type[BaseException], tmp_path: Path
) -> None:
    def progress(stage: str, what: str, share: float) -> None:
        if share > 0.5:
            raise failure

    with pytest.raises((KeyboardInterrupt, FarthingError)):
        run(tmp_path / "m.gguf", progress=progress)
    assert not names(tmp_path)


def test_a_run_that_is_told_to_end_can_go_on(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        run(tmp_path / "m.gguf", progress=told_to_end)
    assert names(tmp_path) == {".m.gguf.partial"}
    assert run(tmp_path / "m.gguf").resumed > 0


def test_two_processes_do_not_write_one_model(tmp_path: Path) -> None:
    with unfinished(tmp_path / "m", COMMAND) as made:
        made.lay("layout")
        made.model.write_bytes(b"the first")
        with (
            pytest.raises(FarthingError, match="another process is writing .*m: wait"),
            unfinished(tmp_path / "m", COMMAND),
        ):
            pass
    assert (tmp_path / "m").read_bytes() == b"the first"
    assert names(tmp_path) == {"m"}


def test_another_layout_begins_anew(tmp_path: Path) -> None:
    def part() -> None:
        with unfinished(tmp_path / "m", COMMAND) as made:
            made.lay("one")
            made.model.write_bytes(b"x")
            made.finish_tensor("t", "digest")
            raise SystemExit

    with pytest.raises(SystemExit):
        part()
    with unfinished(tmp_path / "m", COMMAND) as made:
        assert made.went_on
        assert made.finished == {"t": "digest"}
        made.lay("two")
        assert not made.finished
        assert not made.model.exists()
        made.model.write_bytes(b"y")


def test_what_else_lies_in_the_folder_stays(tmp_path: Path) -> None:
    (tmp_path / ".m.partial").mkdir()
    (tmp_path / ".m.partial" / "notes").write_text("mine")
    with unfinished(tmp_path / "m", COMMAND) as made:
        made.model.write_bytes(b"x")
    assert names(tmp_path / ".m.partial") == {"notes"}


def test_a_link_in_place_of_the_journal_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / ".m.partial").mkdir()
    (tmp_path / ".m.partial" / "journal.jsonl").symlink_to(tmp_path / "precious")
    with pytest.raises(FarthingError), unfinished(tmp_path / "m", COMMAND):
        pass
    assert (tmp_path / "precious").read_text() == "kept"


def test_a_journal_of_anothers_lines_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / ".m.partial").mkdir()
    lines = [{"scheme": "Q4_0"}, {"layout": 3}, {"tensor": "t"}, [1]]
    text = "\n".join(map(json.dumps, lines))
    (tmp_path / ".m.partial" / "journal.jsonl").write_text(text)
    with unfinished(tmp_path / "m", COMMAND) as made:
        assert not made.went_on
        made.model.write_bytes(b"x")
    assert names(tmp_path) == {"m"}
