"""farthing run --file: every line is answered once, as it would be alone, whatever happens."""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import tiny
from cli.batch_files import MIXED, Files, says
from engine import scripted
from farthing.backends.native import NativeBackend
from farthing.cli import batch, batch_report, main
from farthing.core import FarthingError, SamplingParams
from farthing.engine.engine import Engine
from farthing.engine.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def model() -> str:
    return str(tiny.shared("llama", "gguf", "Q4_1"))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


# --- what an answer is


@pytest.mark.parametrize(
    "flags",
    [[], ["--slots", "1"], ["--slots", "3", "--threads", "1"], ["--cache-tokens", "480"]],
    ids=" ".join,
)
def test_each_answer_is_bit_for_bit_what_it_is_alone(
    flags: list[str], model: str, files: Files
) -> None:
    files.write(MIXED)
    command = files.command(model, "--quiet", "--token-ids", "--max-tokens", "24", *flags)
    assert main(command) == 0
    found = files.by_index()
    assert sorted(found) == list(range(len(MIXED)))
    with Engine.load(model) as engine:
        for index, line in enumerate(MIXED):
            prompt = line.get("messages", line.get("prompt"))
            if isinstance(prompt, str):
                prompt = [{"role": "user", "content": prompt}]
            fields = {"max_tokens": 24, **{n: line[n] for n in line.keys() - PLAIN_FIELDS}}
            if "logit_bias" in fields:
                fields["logit_bias"] = {tiny.EOS: 1000}
            alone = engine.generate(prompt, SamplingParams(**fields))
            answer = found[index]
            assert answer["token_ids"] == list(alone.token_ids)
            assert answer["text"] == alone.text
            assert answer["finish_reason"] == alone.finish_reason
            assert answer["usage"]["prompt_tokens"] == alone.usage.prompt_tokens
            assert answer["usage"]["completion_tokens"] == len(alone.token_ids)
            assert answer.get("id") == line.get("id")
            if alone.logprobs is not None:
                assert [each["logprob"] for each in answer["logprobs"]] == [
                    each.logprob for each in alone.logprobs
                ]


PLAIN_FIELDS = {"prompt", "messages", "id"}


def hold_steps_until_asked(requests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets no step run before so many requests are in, however fast the model: they meet there."""
    asked = threading.Semaphore(0)
    met = threading.Event()
    stream, run = Engine.stream, NativeBackend.run

    def counted(*arguments: Any, **named: Any) -> Any:
        made = stream(*arguments, **named)
        asked.release()
        return made

    def held(*arguments: Any, **named: Any) -> Any:
        if not met.is_set():
            assert all(asked.acquire(timeout=60) for _ in range(requests))
            met.set()
        return run(*arguments, **named)

    monkeypatch.setattr(Engine, "stream", counted)
    monkeypatch.setattr(NativeBackend, "run", held)


def test_a_real_models_answers_are_bit_for_bit_what_they_are_alone(
    smollm2_path: Path, files: Files
) -> None:
    asked = [f"Name {n} colours." for n in range(2, 8)] + ["Why is the sky blue?"]
    files.write([{"prompt": text, "logprobs": 0} for text in asked])
    command = files.command(str(smollm2_path), "--quiet", "--token-ids", "--max-tokens", "8")
    assert main([*command, "--context", "256", "--cache-tokens", "160"]) == 0
    found = files.by_index()
    params = SamplingParams(max_tokens=8, logprobs=0)
    with Engine.load(smollm2_path, context_length=256) as engine:
        for index, text in enumerate(asked):
            alone = engine.generate([{"role": "user", "content": text}], params)
            assert found[index]["token_ids"] == list(alone.token_ids)
            assert alone.logprobs is not None
            assert [each["logprob"] for each in found[index]["logprobs"]] == [
                each.logprob for each in alone.logprobs
            ]


def test_a_prompt_is_scored_with_an_answer_and_without(model: str, files: Files) -> None:
    files.write(
        [
            {"prompt": [65, 66, 67], "max_tokens": 0, "prompt_logprobs": 1},
            {"prompt": [65, 66, 67], "max_tokens": 2, "prompt_logprobs": 0},
        ]
    )
    assert main(files.command(model, "--quiet")) == 0
    found = files.by_index()
    with Engine.load(model) as engine:
        wanted = engine.score([65, 66, 67], top=1)
    alone, both = (found[index]["prompt_logprobs"] for index in (0, 1))
    assert (found[0]["text"], found[0]["finish_reason"]) == ("", "length")
    assert alone[0] is None
    for entry, answer, plain in zip(wanted[1:], alone[1:], both[1:], strict=True):
        assert entry is not None
        assert answer == {
            "token_id": entry.token_id,
            "logprob": entry.logprob,
            "top": [list(each) for each in entry.top],
        }
        assert plain == {**answer, "top": []}
    assert found[1]["usage"]["completion_tokens"] == 2


def test_an_answer_is_what_run_prints_for_the_prompt_alone(
    model: str, files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--quiet", "--max-tokens", "9", "--temperature", "1", "--seed", "5"]
    for more in ([], ["--raw"], ["--system", "be brief"]):
        files.out.unlink(missing_ok=True)
        files.write([{"prompt": "hello"}])
        assert main(files.command(model, *flags, *more)) == 0
        capsys.readouterr()
        assert main(["run", model, "hello", *flags, *more]) == 0
        assert capsys.readouterr().out == files.answers()[0]["text"] + "\n"


def test_an_answer_has_what_was_asked_for_and_a_seed_that_repeats_it(
    model: str, files: Files
) -> None:
    files.write([{"prompt": "hello", "temperature": 1}, {"prompt": "hello", "logprobs": 1}])
    assert main(files.command(model, "--quiet", "--max-tokens", "5")) == 0
    first, second = files.by_index().values()
    common = ["index", "text", "finish_reason", "usage", "seed", "request", "settings"]
    assert sorted(first) == sorted(common)
    assert sorted(second) == sorted([*common, "logprobs"])
    assert next(iter(first)) == "index"
    assert sorted(first["usage"]) == [
        "cached_tokens",
        "completion_tokens",
        "prompt_tokens",
        "total_tokens",
    ]
    assert sorted(second["logprobs"][0]) == ["logprob", "token_id", "top"]
    files.out.unlink()
    files.write([{"prompt": "hello", "temperature": 1, "seed": first["seed"]}])
    assert main(files.command(model, "--quiet", "--max-tokens", "5")) == 0
    assert files.answers()[0]["text"] == first["text"]


def test_what_a_prompt_shares_with_others_is_counted(model: str, files: Files) -> None:
    files.write([{"prompt": "the same beginning " * 10 + str(n)} for n in range(6)])
    assert main(files.command(model, "--quiet", "--raw", "--max-tokens", "2")) == 0
    cached = [answer["usage"]["cached_tokens"] for answer in files.answers()]
    assert sum(count >= 96 for count in cached) >= 5


# --- what is told


def test_the_report_and_a_summary_go_to_stderr(
    model: str, files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write([{"prompt": "hello"}] * 3)
    command = files.command(model, "--max-tokens", "2", "--slots", "5", "--cache-tokens", "1000")
    assert main(command) == 0
    error = says(capsys)
    assert "bf16 cache of 1024 tokens, 5 slots" in error
    assert "3 answers in " in error
    assert "(3 length)" in error
    assert "6 tokens (" in error
    assert main(command) == 0
    assert "3 answers were there; 0 answers in" in says(capsys)


def test_json_is_one_object_at_the_end(
    model: str, files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write([{"prompt": "hello"}] * 3)
    assert main(files.command(model, "--json", "--max-tokens", "2", "--seed", "4")) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    found = json.loads(captured.out)
    assert found.keys() >= {"version", "model", "machine", "threads", "isa", "seed", "load"}
    assert (found["requests"], found["kept"], found["answered"], found["failed"]) == (3, 0, 3, 0)
    assert found["finish_reasons"] == {"length": 3}
    assert found["usage"]["completion_tokens"] == 6
    assert found["load"]["slots"] == 32
    assert found["seed"] == 4
    assert found["out"] == str(files.out)


def test_preemptions_are_told(
    model: str, files: Files, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_steps_until_asked(4, monkeypatch)
    files.write([{"prompt": f"request {n}", "ignore_eos": True} for n in range(4)])
    command = files.command(model, "--max-tokens", "90", "--cache-tokens", "256")
    assert main(command) == 0
    assert "the cache was full " in says(capsys)
    files.out.unlink()
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["preemptions"] > 0
    assert found["recomputed_tokens"] >= 0


def test_more_threads_than_cores_are_told_and_not_run(
    model: str, files: Files, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farthing.engine.load.usable_cores", lambda: 2)
    files.write([{"prompt": "hello"}])
    assert main(files.command(model, "--max-tokens", "2", "--threads", "8")) == 0
    assert "\n  8 threads asked, 2 cores usable: 2 run\n" in says(capsys)


# --- what is refused, before anything is computed


def test_every_bad_line_is_named_before_a_model_is_looked_for(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write([{"prompt": "good"}, {"prompt": ""}, {"prompt": "good"}, {"top_k": -1}])
    assert main(files.command("missing.gguf")) == 2
    assert says(capsys) == (
        f"farthing: {files.requests} has 2 bad lines, so nothing is answered now:\n"
        "  line 2: the prompt is empty\n"
        "  line 4: it must have either a prompt or messages\n"
    )
    assert not files.out.exists()


def test_every_request_that_the_model_cannot_serve_is_named_before_any_is_answered(
    model: str, files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write(
        [
            {"prompt": "good"},
            {"prompt": "x" * 3000},
            {"prompt": [1, 2, 100_000]},
            {"prompt": "good", "max_tokens": 2000},
            {"prompt": "good", "stop_token_ids": [-1]},
            {"messages": [{"role": "user", "content": 5.5}], "max_tokens": 4},
            {"messages": [{"content": "no role"}]},
            {"prompt": [1] * 300, "max_tokens": 100},
        ]
    )
    assert main(files.command(model, "--quiet", "--cache-tokens", "320")) == 2
    error = says(capsys)
    for number, message in (
        (2, "tokens, and the context holds 1024 with at least one"),
        (3, "the prompt names token 100000"),
        (4, "max_tokens is 2000, together more than the context of 1024"),
        (5, "stop_token_ids names token -1"),
        (7, "message 0 has the role None"),
        (8, "ask for fewer tokens or load with a larger cache"),
    ):
        line = next(line for line in error.splitlines() if line.startswith(f"  line {number}: "))
        assert message in line
    assert "line 1" not in error
    assert files.out.read_bytes() == b""


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--file", "prompts.jsonl"], "--file needs --out"),
        (["--out", "answers.jsonl"], "--out is for the requests of a --file"),
        (["--slots", "3"], "--slots is for the requests of a --file"),
        (["--cache-tokens", "64"], "--cache-tokens is for the requests of a --file"),
        (["--token-ids"], "--token-ids is for the requests of a --file"),
        (["hello", "--file", "a", "--out", "b"], "PROMPT and --file are two ways to ask"),
        (["--slots", "0"], "argument --slots: must be at least 1"),
        (["--file", "none.jsonl", "--out", "b"], "none.jsonl cannot be read: No such file"),
        (["--file", ".", "--out", "b"], ". is no regular file, and a batch is read twice"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_flags_that_do_not_go_together_are_one_clear_error(
    flags: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "missing.gguf", *flags]) == 2
    assert message in says(capsys)


def test_the_files_own_answers_a_folder_a_pipe_and_an_empty_file_are_refused(
    files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write([{"prompt": "hello"}])
    before = files.requests.read_bytes()
    linked = tmp_path / "linked.jsonl"
    linked.hardlink_to(files.requests)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty.jsonl").write_text("\n \n")
    for requests, out, message in (
        (files.requests, files.requests, "--out is the file of the requests"),
        (files.requests, linked, "--out is the file of the requests"),
        (files.requests, tmp_path, "is a folder: --out must be a file"),
        (tmp_path / "pipe", files.out, "is no regular file, and a batch is read twice"),
        (tmp_path / "empty.jsonl", files.out, "has no requests"),
    ):
        command = ["run", "missing.gguf", "--file", str(requests), "--out", str(out)]
        assert main(command) == 2
        assert message in says(capsys)
    assert files.requests.read_bytes() == before


# --- without a model


class Watched:
    """What the engine was asked for, and how many answers were in the making at once."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.most = 0


@pytest.fixture
def scripted_engine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Watched]:
    """Puts an engine without arithmetic in the place of the one that is loaded."""

    def put(script: Any = scripted.rambling, before: Any = lambda: None, **sizes: Any) -> Watched:
        watched = Watched()
        stream, result = Engine.stream, Stream.result

        def watching(self: Engine, *arguments: Any, **settings: Any) -> Any:
            watched.in_flight += 1
            watched.most = max(watched.most, watched.in_flight)
            return stream(self, *arguments, **settings)

        def ending(self: Stream) -> Any:
            watched.in_flight -= 1
            return result(self)

        @contextmanager
        def load(*_: Any, **__: Any) -> Iterator[Engine]:
            before()
            with scripted.engine(script, **sizes) as made:
                yield made

        monkeypatch.setattr(Engine, "stream", watching)
        monkeypatch.setattr(Stream, "result", ending)
        monkeypatch.setattr(batch, "load_engine", load)
        return watched

    return put


def test_few_requests_are_in_the_engine_at_a_time(
    files: Files, scripted_engine: Callable[..., Watched]
) -> None:
    watched = scripted_engine(max_step_rows=8)
    files.write([{"prompt": [n % 256, n // 256]} for n in range(2000)])
    assert main(files.command("model", "--quiet", "--max-tokens", "2")) == 0
    assert sorted(files.by_index()) == list(range(2000))
    assert watched.most == 16


def test_answers_are_written_as_they_end(
    files: Files, scripted_engine: Callable[..., Watched]
) -> None:
    scripted_engine()
    files.write([{"prompt": "a", "max_tokens": most} for most in (90, 2, 30)])
    assert main(files.command("model", "--quiet")) == 0
    assert [answer["index"] for answer in files.answers()] == [1, 2, 0]


def test_a_request_that_fails_is_named_and_the_others_are_answered(
    files: Files, scripted_engine: Callable[..., Watched], capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(prefix: Any) -> Any:
        if prefix[1] == ord("!"):
            raise FarthingError("it broke")
        return scripted.rambling(prefix)

    scripted_engine(failing, max_step_rows=1)
    files.write([{"prompt": text} for text in ("a", "!", "b", "!!", "c")])
    command = files.command("model", "--quiet", "--max-tokens", "2", "--raw")
    assert main(command) == 2
    error = says(capsys)
    assert error == (
        "farthing: 2 requests have failed and are not answered; the same command tries them again "
        "(--slots 1: one by one):\n  line 2: it broke\n  line 4: it broke\n"
    )
    assert sorted(files.by_index()) == [0, 2, 4]
    scripted_engine()
    assert main(command) == 0
    assert sorted(files.by_index()) == [0, 1, 2, 3, 4]


def test_a_file_that_changes_meanwhile_is_noticed(
    files: Files, scripted_engine: Callable[..., Watched], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [{"prompt": "a"}, {"prompt": "b"}]
    for changed in ([asked[1], asked[0]], asked[:1], [*asked, {"prompt": "c"}], [{"wrong": 1}]):
        files.write(asked)
        scripted_engine(before=lambda changed=changed: files.write(changed))
        assert main(files.command("model", "--quiet")) == 2
        assert f"{files.requests} was changed meanwhile" in says(capsys)
        assert files.out.read_bytes() == b""


def test_where_there_is_no_terminal_progress_is_a_line_now_and_then(
    files: Files,
    scripted_engine: Callable[..., Watched],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(batch_report, "LINE_SECONDS", 0.0)
    scripted_engine()
    files.write([{"prompt": "a"}] * 3)
    assert main(files.command("model", "--max-tokens", "2")) == 0
    lines = says(capsys).strip().splitlines()
    assert lines[0].startswith("0 of 3 answered, ")
    assert lines[1].startswith("1 of 3 answered, ")
    assert lines[1].endswith("0:00:00 left")


def test_a_terminal_gets_a_bar_which_is_gone_afterwards(
    files: Files, scripted_engine: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    scripted_engine()
    files.write([{"prompt": "a"}] * 3)
    assert main(files.command("model", "--max-tokens", "2")) == 0
    shown = terminal.getvalue()
    assert "3 of 3 answered" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1  # the cursor is back
