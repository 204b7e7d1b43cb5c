"""The peers' answers are about the very files that the tests make."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import PeerLogits

PEER = Path(__file__).parents[1] / "data" / "peer"


def test_the_tiny_models_are_the_files_that_the_peer_was_given(
    tiny_models: dict[str, Path],
) -> None:
    made = {
        name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in tiny_models.items()
    }
    assert made == json.loads((PEER / "logits.json").read_text())["sha256"]


def test_the_peer_answered_at_every_position_of_every_tiny_model(
    tiny_models: dict[str, Path], peer_logits: dict[str, PeerLogits]
) -> None:
    assert peer_logits.keys() == tiny_models.keys()
    for name, answer in peer_logits.items():
        assert len(answer.tokens) == len(answer.logits) == 40, name
        assert np.isfinite(answer.logits).all(), name


@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_the_goldens_hold_twenty_greedy_texts_and_two_thousand_tokenisations(
    name: str, goldens: Callable[[str], dict[str, Any]]
) -> None:
    golden = goldens(name)
    assert [len(text["steps"]) for text in golden["greedy"]] == [64] * 20
    assert len(golden["tokens"]) == 2000
