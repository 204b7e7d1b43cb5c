"""The tokenizer of a checkpoint, whichever kind it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.files.gguf import GGUFFile
from farthing.text.gguf_vocabulary import tokenizer_from_gguf
from farthing.text.tokenizer_json import tokenizer_from_folder

if TYPE_CHECKING:
    from farthing.files.checkpoint import Checkpoint
    from farthing.text.tokenizer import Tokenizer


def load_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer of an open GGUF file or safetensors folder.

    Raises `FileFormatError` when it is missing or damaged, and `UnsupportedModelError` when it is
    of a kind that is not known.
    """
    if isinstance(checkpoint, GGUFFile):
        return tokenizer_from_gguf(checkpoint.metadata, str(checkpoint.path))
    return tokenizer_from_folder(checkpoint)
