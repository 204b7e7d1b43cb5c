"""A model's tokenizer as a folder that `tokenizers` and transformers' `AutoTokenizer` load.

For tools that count or send tokens: load generators above all. The ids are the model's own; what
differs is what these libraries do differently: they read the text of special tokens as tokens
unless told otherwise (`split_special_tokens=True`), and drop what a vocabulary cannot express.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from farthing.core import UnsupportedModelError
from farthing.files.safetensors import SafetensorsFolder
from farthing.text.byte_level import ByteLevelVocabulary
from farthing.text.chat import load_chat_template
from farthing.text.load import load_tokenizer
from farthing.text.sentencepiece import ScoredVocabulary

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import Tokenizer as Machine

    from farthing.files.checkpoint import Checkpoint
    from farthing.text.chat import ChatTemplate
    from farthing.text.tokenizer import Tokenizer

TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"


def export_tokenizer(checkpoint: Checkpoint, folder: Path, context_length: int) -> None:
    """Makes `folder`, and in it tokenizer.json and tokenizer_config.json with the chat template.

    Raises what `load_tokenizer` raises, and `OSError`.
    """
    tokenizer = load_tokenizer(checkpoint)
    template = load_chat_template(checkpoint, tokenizer)
    settings: dict[str, object] = {}
    if isinstance(checkpoint, SafetensorsFolder):
        content = (checkpoint.folder / TOKENIZER_FILE).read_bytes()
        settings = dict(checkpoint.tokenizer_config)
    else:
        content = _machine(tokenizer).to_str().encode()
        settings = {
            **tokenizer.named_tokens,
            "add_bos_token": tokenizer.adds_bos,
            "add_eos_token": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": context_length,
            # The class that does what tokenizer.json says, and nothing else.
            "tokenizer_class": "PreTrainedTokenizerFast",
        }
    if template is not None:
        settings["chat_template"] = _templates(template)
    folder.mkdir()
    (folder / TOKENIZER_FILE).write_bytes(content)
    text = json.dumps(settings, indent=2, ensure_ascii=False)
    (folder / SETTINGS_FILE).write_text(text + "\n", encoding="utf-8")


def _templates(template: ChatTemplate) -> object:
    """One template, or the list by name that transformers reads where there is one for tools."""
    if template.tool_source is None:
        return template.source
    return [
        {"name": "default", "template": template.source},
        {"name": "tool_use", "template": template.tool_source},
    ]


def _machine(tokenizer: Tokenizer) -> Machine:
    from tokenizers import AddedToken, processors

    vocabulary = tokenizer.vocabulary
    if not isinstance(vocabulary, ByteLevelVocabulary | ScoredVocabulary):
        raise UnsupportedModelError("the tokenizer is of a kind that cannot be exported")
    machine = vocabulary.machine()
    added = [
        AddedToken(token.text, special=token.control, normalized=False)
        for token in tokenizer.special_tokens
        if token.text
    ]
    machine.add_special_tokens([token for token in added if token.special])
    machine.add_tokens([token for token in added if not token.special])
    if tokenizer.adds_bos and tokenizer.bos_id is not None:
        bos = tokenizer.token_bytes(tokenizer.bos_id).decode()
        machine.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"],
            pair=[bos, "$A", bos, "$B"],
            special_tokens=[(bos, tokenizer.bos_id)],
        )
    return machine
