from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import tiny
from farthing.backends.ceilings import Ceilings
from farthing.backends.native import NativeBackend
from farthing.cli import INTERRUPTED, main
from farthing.core import ContextLengthError
from farthing.engine.engine import Engine
from farthing.lab import bench as lab_bench
from farthing.lab import bench_steps
from farthing.lab.bench_guessing import TOKENS, prompts_within, room_for
from farthing.lab.facts import model_hash

if TYPE_CHECKING:
    from pathlib import Path

FEW = ["--prefill", "16,200", "--decode", "20,500", "--batch", "1,4", "--repeat", "2"]


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_bench, "_BUFFER_BYTES", 1 << 20)


@pytest.fixture(autouse=True)
def profiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where profiles are stored: not where the person who tests keeps theirs."""
    monkeypatch.setattr("farthing.plan.profile.profiles_folder", lambda: tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def path() -> Path:
    return tiny.shared("llama", "gguf", "Q4_1")


@pytest.fixture(scope="module")
def wide_path() -> Path:
    return tiny.shared("llama", "gguf", "BF16")


def found_in_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["bench", *arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


@pytest.mark.parametrize("way", ["ngram", "self=int8"])
def test_texts_are_written_with_guesses_and_without(
    way: str, wide_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(wide_path)
    few = ["--prefill", "16", "--decode", "none", "--batch", "none", "--repeat", "2"]
    found = found_in_json(capsys, model, *few, "--speculate", way, "--threads", "1")
    assert found["speculate"] == way
    assert [each["text"] for each in found["guesses"]] == ["code", "extraction", "story", "chat"]
    for each in found["guesses"]:
        assert each["tokens_per_second"] > 0
        assert each["tokens_per_second_without"] > 0
        low, high = each["gain_range"]
        assert 0 < low <= each["gain"] <= high
        assert 0 <= each["accepted"] <= each["drafted"]
    assert main(["bench", model, *few, "--speculate", way]) == 0
    told = capsys.readouterr().out
    assert f"guesses ({way}): 96 tokens of one text at a time" in told
    assert main(["bench", model, *few]) == 0
    assert "guesses" not in capsys.readouterr().out


def test_texts_that_a_context_does_not_hold_are_left_out(wide_path: Path) -> None:
    with Engine.load(wide_path) as engine:
        found = prompts_within(engine, 300)
        with pytest.raises(ContextLengthError, match="leave --speculate out"):
            prompts_within(engine, TOKENS)
    assert [each.text for each in found] == ["story", "chat"]
    assert room_for(found)[0] <= 300


@pytest.mark.parametrize(
    ("way", "message"),
    [("self=q4-0", "for models of 16 bits"), ("draft=", "must be one of"), ("x", "must be one of")],
)
def test_what_cannot_guess_is_refused_before_anything_is_measured(
    way: str, message: str, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(lab_bench, "bench", None)
    assert main(["bench", str(path), "--speculate", way]) == 2
    assert message in capsys.readouterr().err


def test_json_has_the_stable_names_and_what_they_depend_on(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = found_in_json(capsys, str(path), *FEW, "--threads", "1", "--seed", "9")
    assert found.keys() >= {"version", "machine", "isa", "ceilings", "knee", "ops", "skipped"}
    assert found["model"]["sha256"] == model_hash(path)
    assert (found["threads"], found["seed"], found["repeats"]) == (1, 9, 2)
    assert found["kv_dtype"] == "bf16"
    assert found["weights"] == {"Q4_1": "Q4_1 x int8"}
    assert found["load"]["seconds"] > 0
    assert found["load"]["phases"].keys() >= {"open", "pack"}

    ceilings = found["ceilings"]
    assert ceilings["bytes_per_second"] > 0
    assert set(ceilings["multiply_accumulates_per_second"]) == {"int8", "bf16", "fp32"}
    low, high = ceilings["bytes_per_second_range"]
    assert low <= ceilings["bytes_per_second"] <= high
    assert ceilings["buffer_bytes"] == 1 << 20

    assert [each["tokens"] for each in found["prefill"]] == [16, 200]
    assert [each["context"] for each in found["decode"]] == [20, 500]
    assert [each["sequences"] for each in found["batch"]] == [1, 4]
    for each in (*found["prefill"], *found["decode"], *found["batch"]):
        low, high = each["tokens_per_second_range"]
        assert 0 < low <= each["tokens_per_second"] <= high
        assert each["step_ms"] > 0
        assert each["memory_share"] > 0
        assert each["arithmetic_share"] > 0
    for each in found["batch"]:
        assert each["tokens_per_second"] == pytest.approx(1e3 * each["sequences"] / each["step_ms"])
    assert found["decode"][0]["slowdown"]["measured"] == pytest.approx(
        found["decode"][0]["slowdown"]["predicted"]
    )
    assert found["knee"]["cause"] in ("memory", "arithmetic")
    assert "doubling" in found["knee"]["definition"]

    for phase, point in (("prefill", 200), ("decode", 500), ("batch", 4)):
        ops = [each for each in found["ops"] if each["phase"] == phase]
        assert {each["point"] for each in ops} == {point}
        assert {each["kind"] for each in ops} >= {"attend", "gate", "linear", "logits"}
        assert sum(each["share"] for each in ops) == pytest.approx(1.0)
    assert [each["sequences"] for each in found["python"]] == [1, 4]
    assert all(0 < each["share"] < 1 for each in found["python"])


def test_the_tables_have_a_row_for_every_point(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(path), *FEW]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]
    starts = [row[0] for row in rows if row]
    assert [each for each in starts if each.isdigit()] == ["16", "200", "20", "500", "1", "4"]
    assert {"tokens", "context", "sequences", "knee:", "attend", "sample"} <= set(starts)
    assert "memory ceiling" in out
    assert "predicted and measured slowdown" in out
    assert "Python's share of a step" in out
    assert "skipped" not in out


def test_parts_can_be_left_out_and_what_does_not_fit_is_said(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab_bench, "DECODE_TOKENS", 2)
    assert main(["bench", str(path), "--prefill", "none", "--batch", "none", "--repeat", "1"]) == 0
    out = capsys.readouterr().out
    assert "skipped: decode 2,048, 4,096, 8,192: this model's context is 1,024" in out
    assert "prefill" not in out
    assert "knee" not in out
    assert "1,024" in out


@pytest.mark.parametrize(
    ("family", "form", "quant", "flags", "weights"),
    [
        ("gemma3", "gguf", "Q8_0", ["--kv-dtype", "int8"], "Q8_0 x int8"),
        ("qwen2", "safetensors", "BF16", ["--kv-dtype", "bf16"], "BF16 x bf16"),
        ("mistral", "gguf", "F16", ["--threads", "2"], "F16 x fp32"),
        ("llama3", "gguf", "Q4_0", ["--activations", "fp32", "--kv-dtype", "fp32"], "F32 x fp32"),
    ],
)
def test_any_model_and_settings_can_be_measured(
    family: str,
    form: str,
    quant: str,
    flags: list[str],
    weights: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = tiny.shared(family, form, quant)
    capsys.readouterr()  # what transformers said as it saved
    points = ["--prefill", "33", "--decode", "40", "--batch", "3", "--repeat", "1"]
    found = found_in_json(capsys, str(model), *points, *flags)
    assert weights in found["weights"].values()
    assert found["knee"] is None
    assert found["batch"][0]["context"] == 128
    assert {each["kind"] for each in found["ops"]} >= {"attend", "logits"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--prefill", "16,2000"], "--prefill 2000 is more than 1024, this model's context"),
        (["--decode", "1025"], "--decode 1025 is more than 1024, this model's context"),
        (["--batch", "1,600"], "--batch 600 is more than 512, the most it measures"),
        (["--batch", "0"], "argument --batch: must be at least 1, not 0"),
        (["--decode", "a"], "argument --decode: must be a whole number"),
        (["--decode", "16,,32"], "argument --decode: must be a whole number"),
        (["--repeat", "0"], "argument --repeat: must be at least 1"),
        (["--seed", "-1"], "argument --seed: must be at least 0"),
        (["--kv-dtype", "int3"], "argument --kv-dtype: invalid choice"),
        (["--prefill", "none", "--decode", "none", "--batch", "none"], "nothing is left"),
    ],
)
def test_wrong_usage_is_explained_and_ends_with_2(
    flags: list[str], message: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(path), *flags]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_ctrl_c_gives_everything_back(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[type] = []
    for kind in (NativeBackend, Ceilings):

        def close(self: Any, kind: type = kind, close: Any = kind.close) -> None:
            closed.append(kind)
            close(self)

        monkeypatch.setattr(kind, "close", close)

    def interrupt(*_: object) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_steps.Steps, "decode", interrupt)
    assert main(["bench", str(path), *FEW]) == INTERRUPTED
    # The first was closed after the load that was timed.
    assert closed == [NativeBackend, Ceilings, NativeBackend]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err


def test_prices_are_told_at_each_batch_where_the_machine_has_one(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = ["--prefill", "64", "--decode", "32", "--batch", "1,4", "--repeat", "1"]
    found = found_in_json(capsys, str(path), *points, "--price-per-hour", "3.6")
    for each in found["batch"]:
        # At 3.6 an hour a second costs a thousandth, so a millisecond costs a million tokens one.
        assert each["prices"]["generated"] == pytest.approx(each["step_ms"] / each["sequences"])
        assert each["prices"]["prompt"] > 0
        assert each["prices"]["cached"] >= 0
    assert main(["bench", str(path), *points, "--price-per-hour", "3.6"]) == 0
    assert "a million: prompt / cached / written" in capsys.readouterr().out
    assert found_in_json(capsys, str(path), *points)["batch"][0]["prices"] is None
