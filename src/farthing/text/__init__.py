"""Text to token ids and back: tokenizers, chat templates, and the streaming decoder."""

from __future__ import annotations

from farthing.text.chat import ChatTemplate, load_chat_template
from farthing.text.gguf_vocabulary import tokenizer_from_gguf
from farthing.text.load import load_tokenizer
from farthing.text.stream import StreamDecoder
from farthing.text.tokenizer import Tokenizer
from farthing.text.tokenizer_json import tokenizer_from_folder

__all__ = [
    "ChatTemplate",
    "StreamDecoder",
    "Tokenizer",
    "load_chat_template",
    "load_tokenizer",
    "tokenizer_from_folder",
    "tokenizer_from_gguf",
]
