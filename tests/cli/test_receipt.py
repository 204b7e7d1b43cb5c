"""What the command line says of a model's receipt."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import httpx
import pytest

import tiny
from cli.serve_process import serving
from engine.threads import eventually
from farthing.cli import main
from farthing.files.checkpoint import RECEIPT_FILE
from receipts import folder_with_receipt

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nowhere"))


def load_lines(model: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> list[str]:
    assert main(["run", str(model), "--raw", "--max-tokens", "1", *flags, "Hello"]) == 0
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return [line.strip() for line in error.splitlines() if line.strip().startswith("receipt")]


def test_the_load_report_says_what_quantising_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = load_lines(folder_with_receipt(tmp_path / "model"), capsys)
    assert line.startswith("receipt int4-g128 gptq, 4.125 bits a weight; against a-model (16 bits)")
    assert "perplexity x 1.065 (1.051 to 1.079)" in line


def test_other_settings_than_the_measured_ones_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = folder_with_receipt(tmp_path / "model")
    (line,) = load_lines(model, capsys, "--kv-dtype", "int8")
    assert "measured with a cache of bf16, not int8" in line


def test_a_receipt_for_other_weights_is_refused_and_the_model_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = load_lines(folder_with_receipt(tmp_path / "model", tensors="c" * 32), capsys)
    assert line.startswith("receipt refused: the receipt speaks of other weights")


def test_a_model_without_one_has_no_such_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert load_lines(tiny.shared("llama", "safetensors", "BF16"), capsys) == []


def test_a_plan_shows_it_and_says_that_no_weights_were_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = folder_with_receipt(tmp_path / "model")
    asked = ["plan", str(model), "--ceilings", "none", "--memory", "1GiB"]
    assert main(asked) == 0
    told = capsys.readouterr().out
    assert "receipt int4-g128 gptq, 4.125 bits a weight; against a-model (16 bits)" in told
    assert "not held against the weights" in told
    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["receipt"]["agreement"]["value"] == 0.92
    (model / RECEIPT_FILE).write_text("[]")
    assert main(asked) == 0
    assert "receipt refused: " in capsys.readouterr().out
    (model / RECEIPT_FILE).unlink()
    assert main(asked) == 0
    assert "receipt" not in capsys.readouterr().out


def test_a_server_shows_it_soon_after_it_is_ready(tmp_path: Path) -> None:
    model = folder_with_receipt(tmp_path / "model")
    with serving(tmp_path, model) as server:
        told = server.event("receipt")
        assert told["receipt"]["scheme"] == "int4-g128"

        def entry() -> dict[str, object]:
            return httpx.get(f"{server.url}/v1/models").json()["data"][0]

        assert eventually(lambda: entry()["receipt"] is not None)
        assert [line["event"] for line in server.lines].index("ready") < [
            line["event"] for line in server.lines
        ].index("receipt")


def test_a_server_refuses_one_for_other_weights_and_serves(tmp_path: Path) -> None:
    model = folder_with_receipt(tmp_path / "model", tensors="c" * 32)
    with serving(tmp_path, model) as server:
        refused = server.event("receipt_refused")
        assert refused["level"] == "warning"
        assert "other weights" in refused["message"]
        assert httpx.get(f"{server.url}/v1/models").json()["data"][0]["receipt"] is None
