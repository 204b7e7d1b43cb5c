from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from farthing.core import FarthingError, FileFormatError, StoredTensor, UnsupportedModelError
from farthing.models.fields import Fields
from farthing.models.rope import Rope, base_frequencies, divided, read_rope

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def of_config(**source: Any) -> tuple[float, ...]:
    return read_rope(Fields(source, "config.json"), 64, 10_000.0).frequencies


def of_gguf(**source: Any) -> tuple[float, ...]:
    renamed = {"llama.rope." + name.replace("__", "."): value for name, value in source.items()}
    return read_rope(Fields(renamed, "m.gguf", "llama."), 64, 10_000.0).frequencies


def stored(numbers: list[float]) -> StoredTensor:
    data = np.array(numbers, np.float32)
    return StoredTensor("rope_freqs.weight", "F32", data.shape, data.view(np.uint8))


def test_frequencies_fall_from_one_radian_a_position() -> None:
    assert base_frequencies(4, 100.0) == (1.0, 0.1)
    assert base_frequencies(4, 100.0, 2.0) == (0.5, 0.05)


@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
@pytest.mark.parametrize("scaling", [LLAMA3, {"rope_type": "linear", "factor": 4.0}])
def test_scalings_agree_with_transformers(base: float, scaling: dict[str, Any]) -> None:
    peer = LlamaConfig(
        hidden_size=64 * 4,
        num_attention_heads=4,
        max_position_embeddings=131_072,
        rope_parameters={"rope_theta": base, **scaling},
    )
    wanted = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](peer, device="cpu")[0].numpy()
    ours = of_config(rope_theta=base, rope_scaling=scaling)
    np.testing.assert_allclose(ours, wanted, rtol=1e-6)


def test_old_and_new_spellings_of_config_json_mean_the_same() -> None:
    old = of_config(rope_theta=5e5, rope_scaling={**LLAMA3})
    assert of_config(rope_parameters={"rope_theta": 5e5, **LLAMA3}) == old
    older = of_config(rope_scaling={"type": "linear", "factor": 2.0})
    assert older == of_config(rope_scaling={"rope_type": "linear", "factor": 2.0})
    assert of_config() == of_config(rope_scaling=None) == base_frequencies(64, 10_000.0)


def test_a_gguf_scales_linearly_or_not_at_all() -> None:
    assert of_gguf(freq_base=1e6) == base_frequencies(64, 1e6)
    linear = of_gguf(scaling__type="linear", scaling__factor=8.0)
    assert linear == of_gguf(scale_linear=8.0) == base_frequencies(64, 1e4, 8.0)
    assert of_gguf(scaling__type="none", scaling__factor=8.0) == base_frequencies(64, 1e4)


@pytest.mark.parametrize("kind", ["yarn", "longrope", "dynamic", "no such"])
def test_an_unknown_scaling_is_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedModelError, match=kind):
        of_config(rope_scaling={"rope_type": kind, "factor": 2.0})
    with pytest.raises(UnsupportedModelError, match=kind):
        of_gguf(scaling__type=kind)


@pytest.mark.parametrize(
    "change",
    [
        {"factor": 0.0},
        {"factor": None},
        {"factor": float("nan")},
        {"low_freq_factor": 4.0},
        {"original_max_position_embeddings": 0},
        {"original_max_position_embeddings": 2**40},
        {"partial_rotary_factor": 0.5},
        {"rope_theta": -1.0},
        {"rope_type": 3},
    ],
)
def test_a_bad_scaling_is_one_error(change: dict[str, Any]) -> None:
    with pytest.raises(FarthingError, match=r"config\.json: rope_scaling"):
        of_config(rope_scaling={**LLAMA3, **change})


def test_a_ggufs_divisors_divide() -> None:
    rope = divided(Rope(4.0, 1.0, (1.0, 0.5)), stored([1.0, 4.0]), "m.gguf")
    assert rope.frequencies == (1.0, 0.125)
    assert rope.divisors == (1.0, 4.0)


@pytest.mark.parametrize("divisors", [[1.0], [1.0, 0.0], [1.0, -1.0], [1.0, np.nan], [1.0, np.inf]])
def test_divisors_that_cannot_be_are_refused(divisors: list[float]) -> None:
    with pytest.raises(FileFormatError, match=r"m\.gguf: rope_freqs\.weight"):
        divided(Rope(4.0, 1.0, (1.0, 0.5)), stored(divisors), "m.gguf")
