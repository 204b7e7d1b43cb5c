"""farthing: cheap language-model inference on hardware people own, every saving measured.

from farthing import Engine, SamplingParams
engine = Engine.load("smollm2-135m")
print(engine.generate("The capital of France is", SamplingParams(max_tokens=16)).text)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farthing.core import FarthingError, SamplingParams
    from farthing.engine.completion import Completion
    from farthing.engine.engine import Engine

__version__ = "0.1.0"

__all__ = ["Completion", "Engine", "FarthingError", "SamplingParams", "__version__"]

# A name is imported when it is first asked for, so that `import farthing` costs next to nothing.
_HOMES = {
    "Completion": "farthing.engine.completion",
    "Engine": "farthing.engine.engine",
    "FarthingError": "farthing.core",
    "SamplingParams": "farthing.core",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
