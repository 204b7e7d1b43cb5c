"""The architectures known here. An architecture file describes itself and calls `register`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from farthing.core import UnsupportedModelError
from farthing.models.config import ModelConfig
from farthing.models.fields import Fields
from farthing.models.program import Program


def _unchanged(config: ModelConfig, fields: Fields) -> ModelConfig:
    return config


@dataclass(frozen=True)
class Architecture:
    """One model family: how its Program is built and what files call its weights.

    `modules` maps a weight's name here, without its `.weight` or `.bias` and with the layer's
    number as `{layer}`, to the GGUF name and the safetensors name in the same form.
    `model_types` are config.json's names for the family, `defaults` the values of config.json
    fields that it may leave out. `configure` adds what is particular to the family to the fields
    that all share. `activation` is config.json's name of the one that `build` computes.
    `interleaved` are the modules whose rows a GGUF of this family stores with
    each head's dimension pairs adjacent; loading restores the half-split order that `rope` uses.
    `gain_offset` is what safetensors' normalisation gains lack.
    """

    name: str
    build: Callable[[ModelConfig], Program]
    modules: Mapping[str, tuple[str, str]]
    gguf: tuple[str, ...] = ()
    model_types: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    configure: Callable[[ModelConfig, Fields], ModelConfig] = _unchanged
    activation: str = "silu"
    interleaved: frozenset[str] = frozenset()
    gain_offset: float = 0.0


_BY_GGUF: dict[str, Architecture] = {}
_BY_MODEL_TYPE: dict[str, Architecture] = {}


def register(architecture: Architecture) -> None:
    """Makes an architecture known to `load_model`; each name can be taken once."""
    for names, known in (
        (architecture.gguf, _BY_GGUF),
        (architecture.model_types, _BY_MODEL_TYPE),
    ):
        for name in names:
            if known.setdefault(name, architecture) is not architecture:
                raise ValueError(f"architecture {name} is registered already")


def for_gguf(name: str, where: str) -> Architecture:
    """The architecture that a GGUF calls `name`; raises `UnsupportedModelError`."""
    return _find(_BY_GGUF, name, where)


def for_model_type(name: str, where: str) -> Architecture:
    """The architecture that a config.json calls `name`; raises `UnsupportedModelError`."""
    return _find(_BY_MODEL_TYPE, name, where)


def _find(known: Mapping[str, Architecture], name: str, where: str) -> Architecture:
    if name not in known:
        raise UnsupportedModelError(
            f"{where}: the architecture {name[:60]!r} is not supported; supported are "
            f"{', '.join(sorted(known))}"
        )
    return known[name]
