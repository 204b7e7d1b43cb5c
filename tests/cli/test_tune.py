"""farthing tune on tiny models, with little time: from the command to what serve reads."""

from __future__ import annotations

import io
import json
import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tiny
from farthing.cli import INTERRUPTED, main
from farthing.cli.tune import usual_of
from farthing.core import KVDtype
from farthing.files.checkpoint import open_checkpoint
from farthing.files.receipt import Estimate, tensors_digest
from farthing.lab import bench as lab_bench
from farthing.lab import bench_steps
from farthing.lab import tune as lab_tune
from farthing.lab.tune_curve import BatchPoint, curve_of
from farthing.lab.tune_points import Load
from farthing.lab.tune_variants import grouped, make_variants
from farthing.models.load import load_model
from farthing.plan.profile import read_profile
from receipts import RECEIPT, folder_with_receipt

LENGTHS = ["--prompt-tokens", "40", "--output-tokens", "8"]
EASY = ["--slo", "ttft=100s,tpot=10s", "--users", "3", *LENGTHS]
QUICK = ["--seconds", "0.1", "--threads", "1", "--kv-dtype", "bf16"]

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the command runs, what it caches, and small buffers for its ceilings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FARTHING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(lab_bench, "_BUFFER_BYTES", 1 << 20)
    return tmp_path


@pytest.fixture(scope="module")
def path() -> Path:
    return tiny.shared("llama", "gguf", "Q4_1")


@pytest.fixture
def found(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    def run(*arguments: object, code: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        assert main(["tune", *map(str, arguments), "--json"]) == code
        captured = capsys.readouterr()
        assert captured.err == ""
        return json.loads(captured.out)

    return run


def test_what_is_chosen_is_what_serve_reads(
    path: Path, folder: Path, found: Callable[..., dict[str, Any]], capsys: Any
) -> None:
    (folder / "farthing.toml").write_text("# mine\n[serve]\nport = 8123\n")
    tuned = found(path, *EASY, "--seconds", 0.1, "--price-per-hour", 0.5)
    assert tuned["kept"]
    text = (folder / "farthing.toml").read_text()
    assert text.startswith("# mine\n[serve]\nport = 8123\n")
    written = tomllib.loads(text)["serve"]
    assert written == {"port": 8123, **tuned["settings"]}
    assert written["model"] == str(path.resolve())
    assert written["most-wait-seconds"] == 100.0
    assert f"farthing tune {path} --slo ttft=100s,tpot=10s --users 3" in text
    assert "measured ms a step by batch" in text

    assert main(["serve", "--check", "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)
    for name, value in tuned["settings"].items():
        entry = checked["configuration"][name]
        assert entry["value"] == value
        assert entry["source"].startswith("farthing.toml, line ")
    plan = checked["plan"]
    assert (plan["slots"], plan["threads"]) == (written["slots"], written["threads"])
    assert plan["cache_tokens"] == written["cache-tokens"]


def test_the_defaults_that_are_chosen_among_are_what_serve_does_without_settings(
    path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (variant,) = make_variants(
        [("it", load_model(open_checkpoint(path)))], [KVDtype.BF16], [1], None
    )
    usual = usual_of(variant, Load(100, ((1000, 24),)))
    assert usual is not None
    assert main(["serve", str(path), "--threads", "1", "--check", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert (usual.slots, usual.cache_tokens) == (plan["slots"], plan["cache_tokens"])
    assert (usual.candidate, usual.step_seconds) == (variant.name, 0.1)
    # Of texts of 1,024 tokens, with a block more each, its cache holds fewer than it has slots.
    assert usual.texts == plan["cache_tokens"] // (1024 + 32) < usual.slots


def test_json_has_what_was_measured_foretold_and_what_it_depends_on(
    path: Path, folder: Path, found: Callable[..., dict[str, Any]]
) -> None:
    tuned = found(path, *EASY, *QUICK, "--price-per-hour", 0.5, "--seed", 4)
    assert tuned.keys() >= {"version", "machine", "isa", "threads", "model", "command"}
    assert (tuned["users"], tuned["prompt_tokens"], tuned["output_tokens"]) == (3, 40, 8)
    assert (tuned["seed"], tuned["margin_wanted"]) == (4, 0.1)
    best = tuned["forecast"]
    assert best["kept"]
    assert best["margin"] >= 0.1
    fastest = max(each["tokens_per_second"] for each in tuned["tried"] if each["kept"])
    # The defaults win where measured times are too unsure for a difference.
    assert best["usual"] or best["tokens_per_second"] >= 0.98 * fastest
    assert all(value >= 0 for value in tuned["server"].values())
    causes = ("memory", "arithmetic", "overhead")
    least, most = tuned["knee"]["within"]
    known = least == most and not tuned["curve"]["contradictions"]
    assert tuned["knee"]["cause"] in (causes if known else (None,))
    points = tuned["curve"]["points"]
    assert [each["batch"] for each in points] == [1, 2, 3, 4, 8]
    assert all(each["low"] <= each["seconds"] <= each["high"] for each in points)
    assert all(each["prices"]["generated"] > 0 for each in points)
    steps = tuned["engines"]["bf16 cache, 1 thread"]["steps"]
    assert all(each["samples"] >= 3 for each in steps)
    [stored] = map(Path, tuned["profiles"])
    assert stored.parent == folder / "cache" / "profiles"
    profile = read_profile(stored)
    single = [step for step in steps if not (step["decoding"] and step["chunk"])]
    assert len(profile.points) == len(single)
    assert (profile.key.threads, profile.key.kv_dtype) == (1, "bf16")
    assert list((folder / "cache" / "tuning").iterdir()) == []


def test_the_tables_tell_the_curve_the_knee_and_the_choice(
    path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", str(path), *EASY, *QUICK]) == 0
    out = capsys.readouterr().out
    for part in ("engines:", "the next doubling adds", "knee:", "chosen: bf16 cache, 1 thread"):
        assert part in out
    assert "foretold: 99% have their first token within" in out
    assert "written to farthing.toml, which farthing serve reads" in out
    assert (folder / "farthing.toml").exists()


def test_a_dry_run_writes_nothing(
    path: Path, folder: Path, found: Callable[..., dict[str, Any]]
) -> None:
    tuned = found(path, *EASY, *QUICK, "--dry-run")
    assert tuned["kept"]
    assert tuned["written"] is None
    assert not (folder / "farthing.toml").exists()
    assert not (folder / "cache" / "profiles").exists()


def test_an_impossible_objective_ends_with_1_tells_what_is_reachable_and_writes_no_settings(
    path: Path, folder: Path, found: Callable[..., dict[str, Any]], capsys: Any
) -> None:
    tuned = found(path, "--slo", "tpot=1ms,ttft=0.001ms", "--users", 2, *LENGTHS, *QUICK, code=1)
    assert not tuned["kept"]
    assert tuned["nearest"]["ttft"] > 1e-6
    assert tuned["reachable_users"] == 0
    assert tuned["settings"] is None
    assert not (folder / "farthing.toml").exists()
    assert main(["tune", str(path), "--slo", "ttft=0.001ms", "--users", "2", *LENGTHS, *QUICK]) == 1
    out = capsys.readouterr().out
    assert (
        "--slo ttft=0.001ms is out of reach for 2 users with 10% to spare: at the nearest," in out
    )
    assert "not even one user can have it: alone, 99% have their first token within" in out


def test_a_run_that_was_interrupted_goes_on_where_it_was(
    path: Path,
    folder: Path,
    found: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    repeat, calls = bench_steps.Steps.repeat, []

    def interrupted(*arguments: Any) -> float:
        calls.append(arguments)
        if len(calls) == 20:
            raise KeyboardInterrupt
        return repeat(*arguments)

    monkeypatch.setattr(bench_steps.Steps, "repeat", interrupted)
    assert main(["tune", str(path), *EASY, *QUICK]) == INTERRUPTED
    told = capsys.readouterr().err
    assert "Traceback" not in told
    assert "what was measured is kept: the same command goes on from there" in told
    assert not (folder / "farthing.toml").exists()
    [journal] = (folder / "cache" / "tuning").iterdir()
    assert journal.stat().st_size > 0
    monkeypatch.setattr(bench_steps.Steps, "repeat", repeat)
    tuned = found(path, *EASY, *QUICK)
    assert tuned["resumed_figures"] >= 8  # short steps were run once before, to warm up
    assert tuned["kept"]


def test_a_candidate_is_chosen_among_where_its_receipt_allows_it_and_else_told(
    folder: Path, found: Callable[..., dict[str, Any]]
) -> None:
    base = tiny.shared("llama", "safetensors", "BF16")
    with open_checkpoint(base) as checkpoint:
        facts = replace(RECEIPT.reference, tensors=tensors_digest(checkpoint))
    good = folder_with_receipt(
        folder / "good", reference=facts, perplexity_ratio=Estimate(1.01, 1.0, 1.015)
    )
    worse = folder_with_receipt(folder / "worse", reference=facts)
    tuned = found(base, *EASY, *QUICK, "--candidates", good, "--candidates", worse, "--dry-run")
    assert list(tuned["engines"]) == [
        f"{base}, bf16 cache, 1 thread",
        f"{good}, bf16 cache, 1 thread",
    ]
    [why] = tuned["left_out"]
    assert why == (f"{worse} is not chosen among: perplexity may be x 1.079, allowed is x 1.02")


def test_engines_that_do_not_fit_together_are_measured_one_after_the_other(
    path: Path, found: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[list[list[str]]] = []

    def spied(needed: list[tuple[str, int]], room: int) -> list[list[str]]:
        groups.append(grouped(needed, max(size for _, size in needed)))
        return groups[-1]

    monkeypatch.setattr("farthing.lab.tune_engines.grouped", spied)
    both = ["--kv-dtype", "bf16,fp32", "--threads", "1", "--seconds", "0.1", "--dry-run"]
    tuned = found(path, *EASY, *both)
    assert groups == [[["bf16 cache, 1 thread"], ["fp32 cache, 1 thread"]]]
    assert list(tuned["engines"]) == ["bf16 cache, 1 thread", "fp32 cache, 1 thread"]
    assert tuned["kept"]


def test_a_cache_that_does_not_fit_is_left_out_and_told(
    path: Path, found: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_checkpoint(path) as checkpoint:
        model = load_model(checkpoint)
        load = Load(3, ((40, 8),))
        needed = {
            each.kv_dtype: each.measured(load, 1)[0].needed_bytes
            for each in make_variants([("", model)], [KVDtype.BF16, KVDtype.FP32], [1], None)
        }
    room = (needed[KVDtype.BF16] + needed[KVDtype.FP32]) // 2 + (2 << 20)
    monkeypatch.setattr("farthing.plan.machine.available_memory", lambda: room)
    both = ["--kv-dtype", "bf16,fp32", "--threads", "1", "--seconds", "0.1", "--dry-run"]
    tuned = found(path, *EASY, *both)
    assert list(tuned["engines"]) == ["bf16 cache, 1 thread"]
    [why] = tuned["left_out"]
    assert why.startswith("fp32 cache, 1 thread: the model needs")


def test_lengths_of_real_requests_are_read(
    path: Path, folder: Path, found: Callable[..., dict[str, Any]]
) -> None:
    (folder / "lengths.txt").write_text("40 8\n100,16\n")
    tuned = found(
        path, "--slo", "tpot=10s", "--users", 2, "--lengths", "lengths.txt", *QUICK, "--dry-run"
    )
    assert (tuned["prompt_tokens"], tuned["output_tokens"]) == (70, 12)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--slo", "ttft=1s"], "the following arguments are required: --users"),
        (["--users", "2"], "the following arguments are required: --slo"),
        (["--slo", "ttft=1s", "--users", "0"], "argument --users: must be at least 1, not 0"),
        (["--slo", "ttft=1s", "--users", "513"], "argument --users: must be at most 512"),
        (["--slo", "soon", "--users", "2"], "--slo 'soon': 'soon' is no limit"),
        (["--slo", "ttft=0s", "--users", "2"], "must be above 0 and at most a day"),
        ([*EASY, "--lengths", "x"], "--lengths says how long texts are: leave out --prompt-tokens"),
        ([*EASY, "--dry-run", "--force"], "--dry-run writes nothing: leave out --force"),
        ([*EASY, "--dry-run", "--output", "x"], "--dry-run writes nothing: leave out --output"),
        ([*EASY, "--quality", "kl=0.1"], "--quality is what --candidates may lose"),
        ([*EASY, "--threads", "4096"], "--threads 4096 is more than the"),
        ([*EASY, "--kv-dtype", "int3"], "--kv-dtype 'int3' is none of fp32"),
        ([*EASY, "--seconds", "0"], "argument --seconds: must be above 0"),
        ([*EASY, "--seconds", "nan"], "argument --seconds: must be above 0"),
        ([*EASY, "--margin", "-1"], "argument --margin: must be from 0 to 1000"),
        ([*EASY, "--price-per-hour", "-1"], "must be a price from 0"),
        ([*EASY, "--prompt-tokens", "1020"], "the longest request has 1,028 tokens"),
        (["--slo", "tpot=1s", "--users", "2", "--output-tokens", "1"], "all have a single token"),
        ([*EASY, "--output", "none/farthing.toml"], "there is no folder none"),
        ([*EASY, "--output", "."], "is a folder: give --output a file"),
        ([*EASY, "--candidates", "no-such-model"], "no-such-model"),
    ],
)
def test_wrong_usage_is_explained_and_ends_with_2_before_anything_is_measured(
    flags: list[str],
    message: str,
    path: Path,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("farthing.lab.tune.tune", None)
    assert main(["tune", str(path), *flags]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("slots = \n", "is not TOML"),
        ("[serve]\nslots = 5\n", "farthing.toml sets slots in [serve]"),
    ],
)
def test_a_file_that_settings_cannot_go_into_is_refused_before_anything_is_measured(
    content: str,
    message: str,
    path: Path,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (folder / "mine.toml").write_text(content)
    monkeypatch.setattr("farthing.lab.tune.tune", None)
    message = message.replace("farthing.toml", "mine.toml")
    assert main(["tune", str(path), *EASY, "--output", "mine.toml"]) == 2
    assert message in capsys.readouterr().err
    assert (folder / "mine.toml").read_text() == content


def test_a_model_that_does_not_fit_ends_with_1_and_the_numbers(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farthing.plan.machine.available_memory", lambda: 1 << 21)
    assert main(["tune", str(path), *EASY, *QUICK]) == 1
    assert "MiB are available" in capsys.readouterr().err


def test_a_step_takes_the_same_time_in_every_table(
    path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", str(path), *EASY, *QUICK]) == 0
    lines = capsys.readouterr().out.splitlines()
    name = "bf16 cache, 1 thread"
    engine = next(line for line in lines if line.split("  ")[1:2] == [name])
    _, first, last = engine.removeprefix(f"  {name}").split()[:3]
    curve = [line.split() for line in lines[lines.index("batches at 44 tokens") :]]
    times = {cells[0]: cells[1] for cells in curve if cells and cells[0] in ("1", "8")}
    assert (first, last) == (times["1"], times["8"])


def test_times_that_do_not_fit_together_are_warned_of_and_no_knee_is_written(
    path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    points = [
        BatchPoint(batch, 0.01 * batch, 0.01 * batch, 0.01 * batch, None, share, 0.1, 0.1, None)
        for batch, share in ((1, 1.71), (2, 0.9))
    ]
    monkeypatch.setattr(lab_tune, "make_curve", lambda *_: curve_of(points, 44))
    assert main(["tune", str(path), *EASY, *QUICK]) == 0
    out = capsys.readouterr().out
    warning = "warning: times that do not fit together: reading its memory alone would take a batch"
    for text in (out, (folder / "farthing.toml").read_text()):
        assert warning in text
        assert "knee: not known, nor its cause" in text
        assert "because of" not in text
    assert out.index(warning) < out.index("chosen: ")


def test_where_the_intervals_leave_the_knee_open_its_bounds_are_told(
    path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    points = [
        BatchPoint(1, 0.01, 0.01, 0.01, None, 0.1, 0.1, 0.1, None),
        BatchPoint(2, 0.015, 0.011, 0.019, None, 0.1, 0.1, 0.1, None),
    ]
    monkeypatch.setattr(lab_tune, "make_curve", lambda *_: curve_of(points, 44))
    assert main(["tune", str(path), *EASY, *QUICK]) == 0
    out = capsys.readouterr().out
    assert "knee: between a batch of 1 and more than 2: the measured intervals leave it open" in out
    assert "warning" not in out


def test_no_column_of_its_tables_is_cut_at_80_characters(
    path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    assert main(["tune", str(path), *EASY, *QUICK, "--price-per-hour", "0.5"]) == 0
    shown = terminal.getvalue()
    tables = shown[shown.index("batches at") : shown.index("knee:")]
    assert "…" not in shown
    assert all(len(line) <= 80 for line in tables.splitlines())
    words = set(tables.replace(",", " ").split())
    assert {"interval", "doubling", "arithmetic", "tokens/s", "Python", "written"} <= words
    assert len(re.findall(r"\d to \d", tables)) == 5
