"""The oracle on the two real models, fed the tokens that llama.cpp chose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from farthing.backends.torch import TorchBackend
from farthing.files.checkpoint import open_checkpoint
from farthing.models.load import load_model
from farthing.text.load import load_tokenizer
from goldens_check import Difference, compare, listed


def differences(path: Path, goldens: dict[str, Any]) -> list[Difference]:
    checkpoint = open_checkpoint(path)
    oracle = TorchBackend(load_model(checkpoint))
    tokenizer = load_tokenizer(checkpoint)
    found = []
    with torch.no_grad():
        for golden in goldens["greedy"]:
            found += compare(
                lambda ids: oracle.forward(ids).numpy(),
                golden,
                tokenizer.encode(golden["prompt"]),
                tokenizer.eos_ids,
            )
    return found


@pytest.mark.parametrize(
    ("fixture", "name"), [("smollm2_path", "smollm2-135m"), ("gemma3_path", "gemma3-270m")]
)
def test_the_next_token_is_the_peers_but_for_near_ties(
    fixture: str,
    name: str,
    goldens: Callable[[str], dict[str, Any]],
    request: pytest.FixtureRequest,
) -> None:
    golden = goldens(name)
    positions = sum(len(prompt["steps"]) for prompt in golden["greedy"])
    assert positions == 1280
    found = differences(request.getfixturevalue(fixture), golden)
    assert len(found) <= 0.03 * positions, listed(found)
    # The peer rounds activations to 8 bits; wider gaps than this are no rounding.
    assert all(each.gap < 0.5 and each.peer_gap < 0.5 for each in found), listed(found)


def test_a_comparison_sees_another_choice_and_its_gap() -> None:
    golden = {
        "prompt": "p",
        "steps": [
            {"id": 2, "top": [[2, -0.5], [1, -0.75]]},
            {"id": 0, "top": [[0, -0.5], [1, -1.0]]},
        ],
    }
    rows = np.array([[9, 0, 0, 0], [0, 1.5, 1, 7], [3, 1, 2, 7]], np.float32)
    assert compare(lambda ids: rows[: len(ids)], golden, [5, 6], banned=[3]) == [
        Difference("p", 0, chosen=1, peer=2, gap=0.5, peer_gap=0.25)
    ]
