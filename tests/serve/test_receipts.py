"""The receipt on the model's card: only once it is known to speak of the weights served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import tiny
from farthing.engine.engine import Engine
from farthing.files.checkpoint import RECEIPT_FILE
from farthing.serve.receipts import show_receipt
from receipts import PRECISION, folder_with_receipt
from serve.server import serving

if TYPE_CHECKING:
    from pathlib import Path


def entries(model: Path, **settings: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The entry of /v1/models before the receipt was checked, and after."""
    engine = Engine.load(model, threads=1, context_length=64, **settings)
    with serving(engine) as served:
        before = served.http.get("/v1/models").json()["data"][0]
        show_receipt(served.state)
        after = served.http.get("/v1/models").json()["data"][0]
    return before, after


def test_a_receipt_that_matches_is_shown_whole(tmp_path: Path) -> None:
    before, after = entries(folder_with_receipt(tmp_path / "model"))
    assert before["receipt"] is None
    assert before["details"]["receipt"] == "being checked"
    assert after["details"]["receipt"].startswith("matches the weights")
    receipt = after["receipt"]
    assert receipt["scheme"] == "int4-g128"
    assert receipt["kl"]["mean"] == {"value": 0.05, "low": 0.045, "high": 0.055}
    assert receipt["reference"]["bits_per_weight"] == 16.0
    assert receipt["warnings"] == ["the reference is no full precision"]
    before["details"].pop("receipt")
    after["details"].pop("receipt")
    assert after["details"] == before["details"]


def test_it_says_where_the_measurement_was_computed_otherwise(tmp_path: Path) -> None:
    _, after = entries(folder_with_receipt(tmp_path / "model"), kv_dtype="int8")
    assert "measured with a cache of bf16, not int8" in after["details"]["receipt"]
    assert after["receipt"]["precision"]["kv_dtype"] == PRECISION.kv_dtype


def test_a_receipt_for_other_weights_is_not_shown_and_the_reason_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, after = entries(folder_with_receipt(tmp_path / "model", tensors="c" * 32))
    assert after["receipt"] is None
    assert after["details"]["receipt"].startswith("refused: the receipt speaks of other weights")
    assert "refused" in caplog.text


@pytest.mark.parametrize("content", ["", "{", '{"version": 9}', "[" * 100_000])
def test_a_receipt_that_is_none_keeps_nobody_from_being_served(
    tmp_path: Path, content: str
) -> None:
    folder = folder_with_receipt(tmp_path / "model")
    (folder / RECEIPT_FILE).write_text(content)
    _, after = entries(folder)
    assert after["receipt"] is None
    assert after["details"]["receipt"].startswith("refused: ")


def test_a_model_without_a_receipt_says_nothing_of_one() -> None:
    before, after = entries(tiny.shared("llama", "safetensors", "BF16"))
    assert before == after
    assert after["receipt"] is None
    assert "receipt" not in after["details"]


def test_a_receipt_that_went_away_is_told(tmp_path: Path) -> None:
    folder = folder_with_receipt(tmp_path / "model")
    engine = Engine.load(folder, threads=1, context_length=64)
    (folder / RECEIPT_FILE).unlink()
    with serving(engine) as served:
        show_receipt(served.state)
        entry = served.http.get("/v1/models").json()["data"][0]
    assert (entry["receipt"], entry["details"]["receipt"]) == (None, "gone since")


def test_a_server_without_a_model_has_none_to_check() -> None:
    from farthing.serve.settings import Settings
    from farthing.serve.state import ServerState

    state = ServerState(Settings())
    show_receipt(state)
    assert state.card is None
