"""Perplexity and divergence agree with llama.cpp's own tool within the uncertainty it prints.

Same files, same text, same windows, and the 16-bit cache that the tool uses; see data/quality.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from farthing.core import KVDtype
from farthing.files.checkpoint import open_checkpoint
from farthing.forge.quantize import quantize
from farthing.forge.wish import Wish
from farthing.quality.measure import Measurement, measure
from farthing.quality.subject import Settings
from farthing.quality.texts import held_out_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from farthing.files.receipt import Estimate

PEER = json.loads(
    (Path(__file__).parents[1] / "data" / "quality" / "peer.json").read_text(encoding="utf-8")
)
FORMATS = ("Q8_0", "Q4_0")


@pytest.fixture(scope="module")
def measured(
    smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Measurement]:
    folder = tmp_path_factory.mktemp("peer")
    cache = Settings(KVDtype.FP16)
    found: dict[str, Measurement] = {}

    def write(format_name: str) -> Path:
        path = folder / f"{format_name}.gguf"
        if not path.exists():
            with open_checkpoint(smollm2_path) as checkpoint:
                quantize(checkpoint, path, Wish(format_name))
        return path

    def measured(format_name: str) -> Measurement:
        if format_name not in found:
            found[format_name] = measure(
                write(format_name),
                write("F16"),
                tokens=PEER["windows"] * (PEER["window_tokens"] // 2 - 1),
                window=PEER["window_tokens"],
                battery=[],
                settings=cache,
                reference_settings=cache,
            )
        return found[format_name]

    return measured


def assert_within(found: Estimate, printed: dict[str, float]) -> None:
    assert abs(found.value - printed["value"]) <= printed["uncertainty"], (found, printed)


def test_the_peer_was_given_the_same_text_windows_and_weights(
    measured: Callable[[str], Measurement],
) -> None:
    assert PEER["text"] == held_out_text().sha256
    for format_name in FORMATS:
        found = measured(format_name)
        assert found.text.windows == PEER["windows"]
        assert found.candidate.tensors == PEER["models"][format_name]["tensors"]
        assert found.reference.tensors == PEER["models"]["F16"]["tensors"]


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("figure", ["perplexity", "divergence", "probability_rms", "agreement"])
def test_what_a_quantised_file_costs_is_what_the_peer_finds(
    measured: Callable[[str], Measurement], format_name: str, figure: str
) -> None:
    found = measured(format_name)
    ours: dict[str, Any] = {
        "perplexity": found.candidate.perplexity,
        "divergence": found.kl.mean,
        "probability_rms": found.probability_rms,
        "agreement": found.agreement,
    }
    assert_within(ours[figure], PEER["models"][format_name][figure])


def test_the_perplexity_of_the_16_bit_file_is_the_peers_to_a_part_in_a_thousand(
    measured: Callable[[str], Measurement],
) -> None:
    printed = PEER["models"]["F16"]["perplexity"]
    found = measured("Q8_0").reference.perplexity
    assert_within(found, printed)
    # The uncertainty is that of the text; both read the same.
    assert found.value == pytest.approx(printed["value"], rel=1e-3)
