"""Tokenizers of the two real models, and what llama.cpp answers on small vocabularies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from farthing.files.checkpoint import open_checkpoint
from farthing.text import load_tokenizer, tokenizer_from_gguf

if TYPE_CHECKING:
    from farthing.text import Tokenizer

DATA = Path(__file__).parent.parent / "data" / "text"


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_path: Path) -> Tokenizer:
    return load_tokenizer(open_checkpoint(smollm2_path))


@pytest.fixture(scope="session")
def gemma3_tokenizer(gemma3_path: Path) -> Tokenizer:
    return load_tokenizer(open_checkpoint(gemma3_path))


@pytest.fixture(scope="session")
def peer() -> dict[str, Any]:
    """See data/text/record_peer.py."""
    return json.loads((DATA / "peer_tokens.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def byte_level_metadata(peer: dict[str, Any]) -> dict[str, Any]:
    """A small byte-level vocabulary, complete but for the name of its pre-tokenizer."""
    return peer["byte_level"]["metadata"]


@pytest.fixture(scope="session")
def qwen_tokenizer(byte_level_metadata: dict[str, Any]) -> Tokenizer:
    """A small byte-level vocabulary with control and user-defined tokens that adds no BOS."""
    return tokenizer_from_gguf({**byte_level_metadata, "tokenizer.ggml.pre": "qwen2"})


@pytest.fixture(scope="session")
def scored_tokenizer(peer: dict[str, Any]) -> Tokenizer:
    """A small SentencePiece vocabulary that begins every text with a space."""
    return tokenizer_from_gguf(peer["scored"][0]["metadata"])
