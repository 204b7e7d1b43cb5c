"""The oracle and native on the two real models, both fed the tokens that llama.cpp chose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from farthing.backends.torch import TorchBackend
from farthing.files.checkpoint import open_checkpoint
from farthing.models.load import load_model
from farthing.text.load import load_tokenizer
from goldens_check import Difference, compare, listed
from native_steps import logits_of, native


@dataclass
class Compared:
    """Over all greedy answers of a model: the oracle against the peer, native against the oracle.

    `gaps` are those of the oracle's two best logits, `errors` how far off native's are, and
    `differs` whether native's best is another, at each position of `where`.
    """

    oracle: list[Difference] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    differs: list[bool] = field(default_factory=list)
    where: list[str] = field(default_factory=list)


@pytest.fixture(
    scope="module",
    params=[("smollm2_path", "smollm2-135m"), ("gemma3_path", "gemma3-270m")],
    ids=["smollm2-135m", "gemma3-270m"],
)
def compared(request: pytest.FixtureRequest, goldens: Callable[[str], dict[str, Any]]) -> Compared:
    """Computed once: the oracle's passes over real models are the dearest of all tests."""
    fixture, name = request.param
    checkpoint = open_checkpoint(request.getfixturevalue(fixture))
    model = load_model(checkpoint)
    tokenizer = load_tokenizer(checkpoint)
    oracle = TorchBackend(model)
    backend = native(model)
    found = Compared()
    for golden in goldens(name)["greedy"]:
        prompt = tokenizer.encode(golden["prompt"])
        fed = [*prompt, *(step["id"] for step in golden["steps"][:-1])]
        with torch.no_grad():
            wanted = oracle.forward(fed).numpy()
        scores = logits_of(backend, fed)
        for step, (o, n) in enumerate(zip(wanted, scores, strict=True), 1 - len(prompt)):
            if step < 0:
                continue
            second, first = np.argpartition(o, -2)[-2:]
            found.gaps.append(o[first] - o[second])
            found.errors.append(abs((n[first] - n[second]) - found.gaps[-1]))
            found.differs.append(bool(n.argmax() != first))
            found.where.append(f"{golden['prompt'][:32]!r} step {step}: gap {found.gaps[-1]:.4f}")
        found.oracle += compare(lambda _, rows=wanted: rows, golden, prompt, tokenizer.eos_ids)
    backend.close()
    assert len(found.differs) == 1280
    return found


def test_the_oracles_next_token_is_the_peers_but_for_near_ties(compared: Compared) -> None:
    found = compared.oracle
    assert len(found) <= 0.03 * len(compared.differs), listed(found)
    # The peer rounds activations to 8 bits; wider gaps than this are no rounding.
    assert all(each.gap < 0.5 and each.peer_gap < 0.5 for each in found), listed(found)


def test_native_chooses_the_oracles_token_but_for_ties_within_its_rounding(
    compared: Compared,
) -> None:
    limit = 2 * np.percentile(compared.errors, 99)
    differs = compared.differs
    lines = [line for line, differ in zip(compared.where, differs, strict=True) if differ]
    report = f"{len(lines)} differ, widest allowed gap {limit:.4f}:\n" + "\n".join(lines)
    print(report)
    assert sum(differs) <= 0.03 * len(differs), report
    gaps = zip(compared.gaps, differs, strict=True)
    assert all(gap < limit for gap, differ in gaps if differ), report


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
