"""What every room's tests share: the two real models, and what peers say about models."""

from __future__ import annotations

import gc
import json
import os
import signal
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import settings

from farthing.core import FarthingError
from farthing.files import catalog
from make_tiny_models import write_tiny_models

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

DATA = Path(__file__).parent / "data"

# The oracle's tensors are small: a second thread waits for the first far longer than it helps.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What a shell starts in the background ignores Ctrl-C, what nohup starts a lost terminal, and a
# process hands that down.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A shared machine makes any single example late; a failure prints how to run it again.
settings.register_profile("farthing", deadline=None, print_blob=True)
settings.load_profile("farthing")


def pytest_collection_finish() -> None:
    """What is imported and collected by now stays to the end: no garbage collection looks again."""
    gc.collect()
    gc.freeze()


def _resolve(name: str) -> Path:
    try:
        return Path(catalog.resolve(name))
    except FarthingError as error:
        pytest.fail(
            f"the tests need the model {name}, and it cannot be had: {error}", pytrace=False
        )


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1, 98 MB."""
    return _resolve("smollm2-135m")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma-3-270M, Q4_K_M, 253 MB."""
    return _resolve("gemma3-270m")


@cache
def _read_golden(name: str) -> dict[str, Any]:
    file = {
        "smollm2-135m": "SmolLM2-135M-Instruct.Q4_1.json",
        "gemma3-270m": "gemma-3-270m-Q4_K_M.json",
    }[name]
    return json.loads((DATA / "goldens" / file).read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def goldens() -> Callable[[str], dict[str, Any]]:
    """What llama.cpp answers, by catalog name: see data/goldens/README.md."""
    return _read_golden


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The GGUF files of data/peer/make_tiny_models.py: name -> path."""
    return write_tiny_models(tmp_path_factory.mktemp("tiny_models"))


@dataclass(frozen=True)
class PeerLogits:
    """llama.cpp's logits in float32 (tokens x vocabulary) for `tokens`: see data/peer/README.md."""

    tokens: list[int]
    logits: NDArray[np.float32]


@pytest.fixture(scope="session")
def peer_logits() -> dict[str, PeerLogits]:
    """What llama.cpp computes from `tiny_models`, under the same names."""
    tokens = json.loads((DATA / "peer" / "logits.json").read_text(encoding="utf-8"))["tokens"]
    with np.load(DATA / "peer" / "logits.npz") as answers:
        return {name: PeerLogits(tokens, answers[name]) for name in answers}
