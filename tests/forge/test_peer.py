"""llama.cpp reads what farthing writes as GGUF, and makes the same of it; see data/forge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data.forge.record_peer import CASES, WINDOW_TOKENS, WINDOWS, write_model
from farthing.core import KVDtype
from farthing.quality.measure import measure_alone
from farthing.quality.subject import Settings
from farthing.quality.texts import held_out_text

PEER = json.loads(
    (Path(__file__).parents[1] / "data" / "forge" / "peer.json").read_text(encoding="utf-8")
)


def test_the_peer_was_given_the_same_text() -> None:
    assert PEER["text"] == held_out_text().sha256
    assert PEER["perplexities"].keys() == CASES.keys()


@pytest.mark.parametrize("case", CASES)
def test_the_perplexity_of_a_file_is_the_peers(
    case: str, smollm2_path: Path, tmp_path: Path
) -> None:
    measured = measure_alone(
        write_model(case, tmp_path, smollm2_path),
        tokens=WINDOWS * (WINDOW_TOKENS // 2 - 1),
        window=WINDOW_TOKENS,
        settings=Settings(KVDtype.FP16),
    )
    # Both round activations to 8 bits on the way, each in its own blocks.
    assert measured.perplexity.value == pytest.approx(PEER["perplexities"][case], rel=0.02)
