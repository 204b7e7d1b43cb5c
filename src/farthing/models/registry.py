"""The architectures known here. An architecture file describes itself and calls `register`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from farthing.core import UnsupportedModelError
from farthing.models.config import ModelConfig
from farthing.models.fields import Fields
from farthing.models.program import Program

GGUF, SAFETENSORS = 0, 1
"""The two forms of a checkpoint, as they index the pairs of names in `Architecture.modules`."""

_LAYER = re.compile(r"layers\.(\d+)\.")


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
    `gain_offset` is what safetensors' normalisation gains lack. `written_as` is what a GGUF file
    made of the family's safetensors calls it, where that is the name of another.
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
    written_as: str = ""

    def stored_name(self, weight: str, form: int) -> str:
        """What a checkpoint of a form, `GGUF` or `SAFETENSORS`, calls a weight of the Program."""
        module, suffix = weight.rsplit(".", 1)
        layer = _LAYER.match(module)
        pattern = self.modules[template_of(weight)][form]
        return f"{pattern.format(layer=layer[1] if layer else '')}.{suffix}"


def template_of(weight: str) -> str:
    """The key of `Architecture.modules` that stands for one of the Program's weights."""
    return _LAYER.sub("layers.{layer}.", weight.rsplit(".", 1)[0])


_BY_NAME: dict[str, Architecture] = {}
_BY_GGUF: dict[str, Architecture] = {}
_BY_MODEL_TYPE: dict[str, Architecture] = {}


def register(architecture: Architecture) -> None:
    """Makes an architecture known to `load_model`; each name can be taken once."""
    for names, known in (
        ((architecture.name,), _BY_NAME),
        (architecture.gguf, _BY_GGUF),
        (architecture.model_types, _BY_MODEL_TYPE),
    ):
        for name in names:
            if known.setdefault(name, architecture) is not architecture:
                raise ValueError(f"architecture {name} is registered already")


def for_gguf(name: str, where: str) -> Architecture:
    """The architecture that a GGUF calls `name`; raises `UnsupportedModelError`."""
    return _find(_BY_GGUF, name, where)


def written_as_gguf(name: str) -> str | None:
    """The GGUF name of the family that is called `name` here; None where GGUF has none."""
    architecture = _BY_NAME[name]
    return architecture.written_as or next(iter(architecture.gguf), None)


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
