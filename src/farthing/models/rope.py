"""Rotary position embeddings: the rotation frequency of each pair of dimensions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from farthing.core import FileFormatError, StoredTensor, UnsupportedModelError
from farthing.models.fields import Fields, shown
from farthing.quant.formats import decode

_MAX_CONTEXT = 2**31 - 1


def base_frequencies(head_dim: int, base: float, factor: float = 1.0) -> tuple[float, ...]:
    """Radians a position for each of head_dim/2 pairs: base^(-2i/head_dim) / factor.

    Su et al. 2021, "RoFormer"; `factor` is linear position interpolation (Chen et al. 2023).
    """
    return tuple(base ** (-2 * i / head_dim) / factor for i in range(head_dim // 2))


@dataclass(frozen=True)
class Rope:
    """How a layer rotates: `frequencies` in radians a position, one for each pair of dimensions.

    They are `base_frequencies` with this base and linear factor, but where Llama 3's scaling or a
    GGUF's divisors have changed single ones.
    """

    base: float
    factor: float
    frequencies: tuple[float, ...]

    @property
    def divisors(self) -> tuple[float, ...]:
        """What divides each frequency besides the factor; empty where nothing does."""
        plain = base_frequencies(2 * len(self.frequencies), self.base, self.factor)
        if plain == self.frequencies:
            return ()
        return tuple(whole / part for whole, part in zip(plain, self.frequencies, strict=True))


def base_rope(head_dim: int, base: float, factor: float = 1.0) -> Rope:
    """The rotation of `base_frequencies`."""
    return Rope(base, factor, base_frequencies(head_dim, base, factor))


def read_rope(fields: Fields, head_dim: int, default_base: float) -> Rope:
    """The rotation that a model's description asks for.

    Knows no scaling, linear scaling and, from config.json, Llama 3's; a GGUF says the latter by a
    tensor of divisors (`divided`). Raises `UnsupportedModelError` for any other.
    """
    if fields.is_gguf:
        base = fields.number("rope.freq_base", None, default_base)
        factor = fields.number("rope.scale_linear", None, 1.0)
        factor = fields.number("rope.scaling.factor", None, factor)
        scaling = fields.text("rope.scaling.type", None, "linear")
        if scaling not in ("none", "linear"):
            raise _unknown(fields, "rope.scaling.type", scaling)
        return base_rope(head_dim, base, factor if scaling == "linear" else 1.0)
    # transformers 5 keeps everything in rope_parameters; before, it was rope_theta and
    # rope_scaling.
    rope = fields.section("rope_parameters") or fields.section("rope_scaling")
    base = fields.number(None, "rope_theta", default_base)
    return base_rope(head_dim, base) if rope is None else section_rope(rope, head_dim, base)


def section_rope(rope: Fields, head_dim: int, default_base: float) -> Rope:
    """The rotation that one rope section of a config.json asks for."""
    base = rope.number(None, "rope_theta", default_base)
    kind = rope.text(None, "rope_type", rope.text(None, "type", "default"))
    rope.refuse(None, "partial_rotary_factor", (1,), "rotating a part of each head")
    if kind == "default":
        return base_rope(head_dim, base)
    if kind == "linear":
        return base_rope(head_dim, base, rope.number(None, "factor"))
    if kind == "llama3":
        return Rope(base, 1.0, _llama3(base_frequencies(head_dim, base), rope))
    raise _unknown(rope, "rope_type", kind)


def divided(rope: Rope, tensor: StoredTensor, where: str) -> Rope:
    """`rope` with each frequency divided by its entry of a GGUF's rope_freqs tensor."""
    frequencies = rope.frequencies
    if tensor.shape != (len(frequencies),):
        raise FileFormatError(
            f"{where}: rope_freqs.weight has shape {tensor.shape}, not ({len(frequencies)},)"
        )
    divisors = decode(tensor)
    if not np.all(np.isfinite(divisors) & (divisors > 0)):
        raise FileFormatError(f"{where}: rope_freqs.weight must hold positive finite numbers")
    found = tuple(f / float(d) for f, d in zip(frequencies, divisors, strict=True))
    return replace(rope, frequencies=found)


def _llama3(frequencies: tuple[float, ...], rope: Fields) -> tuple[float, ...]:
    """Llama 3's scaling: long waves are stretched by `factor`, short ones kept, a ramp between.

    As in Hugging Face transformers, `rope_type: llama3`.
    """
    factor = rope.number(None, "factor")
    low = rope.number(None, "low_freq_factor")
    high = rope.number(None, "high_freq_factor")
    context = rope.integer(None, "original_max_position_embeddings", high=_MAX_CONTEXT)
    if not low < high:
        raise FileFormatError(
            f"{rope.where}: high_freq_factor must exceed low_freq_factor, "
            f"not {high:g} beside {low:g}"
        )
    scaled = []
    for frequency in frequencies:
        turns = context * frequency / (2 * math.pi)
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        scaled.append(kept * frequency + (1 - kept) * frequency / factor)
    return tuple(scaled)


def _unknown(fields: Fields, name: str, kind: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{fields.where}: {name} {shown(kind)} is not supported; known are none, linear and llama3"
    )
