"""A model folder as the GGUF file it can become: the names, order of rows and settings of one.

The settings are written from what was read of config.json and read again as those of a GGUF file
are; what does not come back is what GGUF has no way to say, and is refused. Keys and tensors are
those that llama.cpp's converter writes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isclose
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import StoredTensor, UnsupportedModelError
from farthing.files.formats import stored_bytes
from farthing.files.gguf_writer import float_field, metadata_of, number_field, text_field
from farthing.models.fields import Fields
from farthing.models.graph import HEAD
from farthing.models.load import configured, stored_form
from farthing.models.registry import GGUF, for_gguf, written_as_gguf

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from farthing.models.config import ModelConfig
    from farthing.models.load import Model, StoredForm
    from farthing.models.rope import Rope

ROPE_DIVISORS = "rope_freqs.weight"

_NO_WINDOW = (
    "llama.cpp lets every layer of this family attend to all tokens, where the model attends to "
    "the latest ones only: its answers differ once a text is longer than that window"
)
_ROUNDED = frozenset({"epsilon", "attention_scale", "embedding_scale"})
"""Numbers that GGUF has in 32 bits, or derives from others."""


@dataclass(frozen=True)
class GGUFForm:
    """`settings` are metadata records, `forms` says how the file holds each of the Program's
    weights, and `divisors` is a tensor that says how to compute, where there is one. `remarks`
    are sentences on what llama.cpp does otherwise.
    """

    settings: Mapping[str, bytes]
    forms: Mapping[str, StoredForm]
    divisors: StoredTensor | None
    remarks: tuple[str, ...] = ()


def gguf_form(model: Model, where: Path) -> GGUFForm:
    """How a GGUF file holds a model that was read from the folder `where`.

    Raises `UnsupportedModelError` for what GGUF, as llama.cpp reads it, has no way to say.
    """
    config, program = model.config, model.program
    family = written_as_gguf(config.architecture)
    if family is None:
        raise _unsayable(where, f"the architecture {config.architecture}")
    if program.ops[-1].kind == "spread":
        raise _unsayable(where, "a head over some of the tokens, as drafts have")
    if "output" in config.biases and family != "llama":
        raise _unsayable(where, f"a bias of {family}'s output projections")
    architecture = for_gguf(family, str(where))
    weights = {*program.weights, HEAD}
    forms = {name: stored_form(architecture, GGUF, config, name) for name in weights}
    whole = next(
        (rope for rope, window in zip(config.ropes, config.windows, strict=True) if not window),
        config.ropes[0],
    )
    divisors = _divisors(whole)
    remarks = (_NO_WINDOW,) if family == "llama" and any(config.windows) else ()
    form = GGUFForm(_settings(model.name, family, config, whole), forms, divisors, remarks)
    tensors = {
        forms[name].name: _without_data(forms[name].name, weight.shape)
        for name, weight in program.weights.items()
    }
    if divisors is not None:
        tensors[divisors.name] = divisors
    described = Fields(metadata_of(form.settings, where), str(where), f"{family}.")
    _check(config, configured(architecture, described, tensors), where)
    return form


def _settings(name: str, family: str, config: ModelConfig, whole: Rope) -> dict[str, bytes]:
    texts = {"general.architecture": family, "general.type": "model", "general.name": name}
    numbers = {
        "vocab_size": config.vocabulary_size,
        "context_length": config.context_length,
        "embedding_length": config.hidden_size,
        "block_count": config.layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "rope.dimension_count": config.head_dim,
    }
    floats = {
        "attention.layer_norm_rms_epsilon": config.epsilon,
        "rope.freq_base": whole.base,
    }
    if whole.factor != 1:
        texts[f"{family}.rope.scaling.type"] = "linear"
        floats["rope.scaling.factor"] = whole.factor
    window = max(config.windows)
    if window:
        local = config.ropes[config.windows.index(window)]
        numbers["attention.sliding_window"] = window
        if local != whole:
            floats["rope.freq_base_swa"] = local.base
        if 0 in config.windows:
            numbers["attention.sliding_window_pattern"] = config.windows.index(0) + 1
    return {
        **{key: text_field(key, text) for key, text in texts.items()},
        **{
            key: number_field(key, number)
            for key, number in ((f"{family}.{key}", number) for key, number in numbers.items())
        },
        **{
            key: float_field(key, number)
            for key, number in ((f"{family}.{key}", number) for key, number in floats.items())
        },
    }


def _divisors(rope: Rope) -> StoredTensor | None:
    if not rope.divisors:
        return None
    numbers = np.array(rope.divisors, np.float32)
    return StoredTensor(ROPE_DIVISORS, "F32", numbers.shape, numbers.view(np.uint8))


def _without_data(name: str, shape: tuple[int, ...]) -> StoredTensor:
    """A tensor that has its name and shape, and bytes that take no memory."""
    none = np.broadcast_to(np.uint8(0), (stored_bytes("F32", shape),))
    return StoredTensor(name, "F32", shape, none)


def _check(wanted: ModelConfig, found: ModelConfig, where: Path) -> None:
    """Raises `UnsupportedModelError` unless the settings came back as they were."""
    for name in (each.name for each in fields(wanted)):
        one, other = getattr(wanted, name), getattr(found, name)
        if name in _ROUNDED:
            same = isclose(one, other, rel_tol=1e-6)
        else:
            # A family may be written as another one, with the same Program.
            same = one == other or name in ("architecture", "ropes")
        if not same:
            what = name.replace("_", " ")
            read = f"({one!s:.60}, which would be read as {other!s:.60})"
            raise _unsayable(where, f"its {what} {read}")
    if not np.allclose(wanted.frequencies, found.frequencies, rtol=1e-6, atol=0):
        raise _unsayable(where, "the rotary frequencies of its layers")


def _unsayable(where: Path, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{where}: a GGUF file has no way to say {what}: write a folder instead, by an OUT without "
        ".gguf"
    )
