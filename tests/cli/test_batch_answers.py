"""The file of answers: whole lines, taken in again, never mixed and never lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.cli import batch_answers
from farthing.cli.batch_answers import Answers
from farthing.core import FarthingError, RequestError

if TYPE_CHECKING:
    from pathlib import Path

DIGESTS = [f"request {index}" for index in range(5)]


def answer(index: int, text: str = "so it is", /, **changes: Any) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "request": DIGESTS[index],
        "settings": "here",
        **changes,
    }


def line(index: int, text: str = "so it is", /, **changes: Any) -> bytes:
    return json.dumps(answer(index, text, **changes)).encode() + b"\n"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "answers.jsonl"


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(each) for each in path.read_text(encoding="utf-8").splitlines()]


def test_answers_are_whole_lines_in_the_order_they_are_written(out: Path) -> None:
    with Answers(out, DIGESTS) as answers:
        for index in (3, 0, 4):
            answers.write(answer(index, "ä\n\x0b\x1c\x85\u2028\u2029\x00\U0001f600"))
            assert written(out)[-1] == answer(index, "ä\n\x0b\x1c\x85\u2028\u2029\x00\U0001f600")
        assert (answers.kept, answers.written) == (0, 3)
        assert list(answers.done) == [1, 0, 0, 1, 1]
    assert out.read_bytes().count(b"\n") == len(out.read_text(encoding="utf-8").splitlines()) == 3
    assert "\U0001f600".encode() in out.read_bytes()


def test_a_later_run_keeps_what_is_answered_and_appends(out: Path) -> None:
    with Answers(out, DIGESTS) as answers:
        assert answers.settings is None
        answers.write(answer(2))
    with Answers(out, DIGESTS) as answers:
        assert (answers.kept, answers.written, answers.settings) == (1, 0, "here")
        assert list(answers.done) == [0, 0, 1, 0, 0]
        answers.write(answer(1))
    assert [each["index"] for each in written(out)] == [2, 1]


def test_an_answer_torn_anywhere_is_dropped_and_the_others_stay(out: Path) -> None:
    whole = line(0) + line(1)
    torn = line(2)
    for length in range(len(torn) - 1):
        for padding in (b"", b"\0" * 7):
            out.write_bytes(whole + torn[:length] + padding)
            with Answers(out, DIGESTS) as answers:
                assert list(answers.done) == [1, 1, 0, 0, 0], length
                answers.write(answer(2))
            assert out.read_bytes() == whole + torn


def test_an_answer_that_lacks_only_its_line_break_is_kept(out: Path) -> None:
    out.write_bytes(line(0) + line(1).rstrip())
    with Answers(out, DIGESTS) as answers:
        assert answers.kept == 2
    assert out.read_bytes() == line(0) + line(1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"my diary", "line 1, is no answer that farthing has written"),
        (b"my diary\n", "line 1, is no answer"),
        (line(0) + b"\n", "line 2, is no answer"),
        (line(0) + b'{"prompt": "a"}\n', "line 2, is no answer"),
        (line(0) + line(1)[:20] + b"\n" + line(2), "line 2, is no answer"),
        (line(0)[:20] + line(1), "line 1, is no answer"),
        (b"[" * 100_000, "line 1, is no answer"),
        (b'{"index": 7}', "line 1, is no answer"),
        (line(0, index=-1), "line 1, is no answer"),
        (line(0, index=True), "line 1, is no answer"),
        (line(0, request=None), "line 1, is no answer"),
        (line(0, settings=None), "line 1, is no answer"),
        (line(0, index=5), "line 1, answers request 5 of 5"),
        (line(3) + line(3), "line 2, answers request 3, which has an answer above"),
        (line(3) + line(2, request="another"), "line 2, answers request 2 as it was before its id"),
        (line(3) + line(2, settings="there"), "line 2, was made with another model or other"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_a_file_of_anything_else_is_refused_and_left_as_it_is(
    content: bytes, message: str, out: Path
) -> None:
    out.write_bytes(content)
    with pytest.raises(RequestError) as caught:
        Answers(out, DIGESTS)
    assert f"{out}, {message}" in str(caught.value)
    assert out.read_bytes() == content


def test_a_line_longer_than_any_answer_is_not_taken_for_a_torn_one(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_answers, "_LONGEST_ANSWER", 64)
    content = line(0, "x" * 100)
    out.write_bytes(content)
    with pytest.raises(RequestError, match="line 1, is no answer"):
        Answers(out, DIGESTS)
    assert out.read_bytes() == content


def test_two_processes_do_not_write_to_one_file(out: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from farthing.cli.batch_answers import Answers\n"
        "Answers(Path(sys.argv[1]), [])"
    )
    with Answers(out, DIGESTS):
        done = subprocess.run(
            [sys.executable, "-c", code, str(out)], capture_output=True, text=True, check=False
        )
    assert f"another process is writing to {out}" in done.stderr
    Answers(out, DIGESTS).close()


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (tmp_path, "is a folder: --out must be a file"),
        (tmp_path / "pipe", "is no regular file"),
        (tmp_path / "none" / "answers", "there is no folder .*none for answers: make it first"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        with pytest.raises(RequestError, match=message):
            Answers(path, DIGESTS)


FULL = """
import resource, sys
from pathlib import Path
from farthing.cli.batch_answers import Answers
from farthing.core import FarthingError
out = Path(sys.argv[1])
with Answers(out, ["a", "b", "c"]) as answers:
    answers.write({"index": 0, "text": "x", "request": "a", "settings": ""})
    most = out.stat().st_size + 100
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    try:
        answers.write({"index": 1, "text": "y" * 1000, "request": "b", "settings": ""})
    except FarthingError as error:
        print(error)
    assert list(answers.done) == [1, 0, 0]
    answers.write({"index": 2, "text": "z", "request": "c", "settings": ""})
"""


def test_a_full_disk_is_one_clear_error_and_leaves_whole_answers(out: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(out)], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"the disk of {out} is full: make room, or write to another disk\n"
    assert [each["text"] for each in written(out)] == ["x", "z"]


def test_a_disk_that_fails_is_one_clear_error(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    answers = Answers(out, DIGESTS)
    answers.write(answer(0))
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(FarthingError, match=r"answers.jsonl cannot .*Input/output error"):
        answers.close()


@pytest.mark.parametrize(("seconds", "synced"), [(0.0, [1, 2, 3]), (1e9, [3])])
def test_the_disk_is_waited_for_by_the_clock_and_at_the_end(
    seconds: float, synced: list[int], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_answers, "SYNC_SECONDS", seconds)
    sync, seen = os.fsync, []

    def watching(descriptor: int) -> None:
        seen.append(out.read_bytes().count(b"\n"))
        sync(descriptor)

    with Answers(out, DIGESTS) as answers:
        monkeypatch.setattr(os, "fsync", watching)
        for index in range(3):
            answers.write(answer(index))
    assert seen == synced


TEXTS = st.text(max_size=12)


@given(
    cuts=st.lists(st.integers(0, 400), min_size=1, max_size=4),
    texts=st.lists(TEXTS, min_size=5, max_size=5),
    order=st.permutations(range(5)),
)
def test_however_often_a_run_is_cut_off_each_answer_is_there_once(
    cuts: list[int],
    texts: list[str],
    order: list[int],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    out = tmp_path_factory.mktemp("batch") / "answers.jsonl"
    made: list[int] = []
    for cut in [*cuts, None]:
        with Answers(out, DIGESTS) as answers:
            for index in order:
                if not answers.done[index]:
                    answers.write(answer(index, texts[index]))
                    made.append(index)
        if cut is not None:
            content = out.read_bytes()
            survives = content[:cut].count(b"\n")
            out.write_bytes(content[:cut])
            with Answers(out, DIGESTS) as answers:
                # One more where only the line break of the last was cut off.
                assert answers.kept - survives in (0, 1)
    found = written(out)
    assert sorted(each["index"] for each in found) == [0, 1, 2, 3, 4]
    assert all(each == answer(each["index"], texts[each["index"]]) for each in found)
