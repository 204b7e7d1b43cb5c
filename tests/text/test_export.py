"""Exported tokenizers: the same ids in the libraries as in farthing and its peer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer as Machine
from transformers import AutoTokenizer

from farthing.core import FarthingError
from farthing.files.checkpoint import open_checkpoint
from farthing.text import load_chat_template, load_tokenizer
from farthing.text.export import export_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from farthing.text import ChatTemplate, Tokenizer

NAMES = ["smollm2-135m", "gemma3-270m"]
RUNS = [
    part * count
    for part in ("a", "ha", "-", "=-", ".", "1", "0.", " ", "\n", "\t", " x", "\u2581", "é", "笑")
    for count in range(1, 40)
]
CHAT = [
    {"role": "user", "content": "Hello there"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "Name a colour."},
]


class Exported:
    """A model's tokenizer, ours and as the libraries load it."""

    def __init__(self, path: Path, folder: Path) -> None:
        with open_checkpoint(path) as checkpoint:
            export_tokenizer(checkpoint, folder, 1234)
            self.ours: Tokenizer = load_tokenizer(checkpoint)
            self.template: ChatTemplate | None = load_chat_template(checkpoint, self.ours)
        self.folder = folder
        self.transformers: Any = AutoTokenizer.from_pretrained(folder)
        self.machine = Machine.from_file(str(folder / "tokenizer.json"))
        self.machine.encode_special_tokens = True


@pytest.fixture(scope="module", params=NAMES)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    fixture = {"smollm2-135m": "smollm2_path", "gemma3-270m": "gemma3_path"}[request.param]
    folder = tmp_path_factory.mktemp("export") / "tokenizer"
    made = Exported(request.getfixturevalue(fixture), folder)
    made.name = request.param  # type: ignore[attr-defined]
    return made


def test_2000_texts_have_the_ids_that_the_peer_gives(
    exported: Exported, goldens: Callable[[str], dict[str, Any]]
) -> None:
    golden = goldens(exported.name)["tokens"]  # type: ignore[attr-defined]
    assert len(golden) == 2000
    for entry in golden:
        text, ids = entry["text"], entry["ids"]
        assert exported.machine.encode(text, add_special_tokens=False).ids == ids, text
        plain = exported.transformers.encode(
            text, add_special_tokens=False, split_special_tokens=True
        )
        assert plain == ids, text


def test_long_runs_of_one_thing_have_our_ids(exported: Exported) -> None:
    for text in RUNS:
        ours = exported.ours.encode(text, add_special_tokens=False)
        assert exported.machine.encode(text, add_special_tokens=False).ids == ours, text


def test_texts_begin_as_the_model_wants_them_to(exported: Exported) -> None:
    for text in ("", "Hello", " two words"):
        assert exported.transformers.encode(text) == exported.ours.encode(text)


def test_special_tokens_in_a_text_are_tokens_as_where_we_read_them(exported: Exported) -> None:
    for token in exported.ours.special_tokens[:300]:
        text = f"before{token.text} after"
        ours = exported.ours.encode(text, add_special_tokens=False, parse_special=True)
        assert exported.transformers.encode(text, add_special_tokens=False) == ours, text


def test_ids_become_the_text_they_came_from(exported: Exported) -> None:
    for text in ("Hello, world .", "  two  spaces", "naïve 笑 🙂\n\tx", " ' s"):
        ids = exported.transformers.encode(text)
        assert exported.transformers.decode(ids, skip_special_tokens=True) == text


def test_a_chat_has_our_ids(exported: Exported) -> None:
    if exported.template is None:
        assert exported.transformers.chat_template is None
        return
    for add_generation_prompt in (True, False):
        theirs = exported.transformers.apply_chat_template(
            CHAT, add_generation_prompt=add_generation_prompt, return_dict=False
        )
        ours = exported.template.encode(CHAT, add_generation_prompt=add_generation_prompt)
        assert theirs == ours


def test_the_settings_name_the_tokens_that_begin_and_end(exported: Exported) -> None:
    assert exported.transformers.model_max_length == 1234
    for name in ("bos_token", "eos_token"):
        assert getattr(exported.transformers, name) == exported.ours.named_tokens[name]


def test_the_export_is_a_tokenizer_that_farthing_loads_too(
    exported: Exported, tmp_path: Path
) -> None:
    from farthing.text.tokenizer_json import tokenizer_from_folder

    class Folder:
        folder = exported.folder
        config: dict[str, object] = {}  # noqa: RUF012
        generation_config: dict[str, object] = {}  # noqa: RUF012
        special_tokens_map: dict[str, object] = {}  # noqa: RUF012
        tokenizer_config = json.loads((exported.folder / "tokenizer_config.json").read_text())

    again = tokenizer_from_folder(Folder())  # type: ignore[arg-type]
    for text in ("Hello, world", "<|im_end|>", "naïve 笑 🙂", *RUNS[::50]):
        assert again.encode(text) == exported.ours.encode(text), text


def test_a_folder_that_is_there_is_not_written_into(smollm2_path: Path, tmp_path: Path) -> None:
    with open_checkpoint(smollm2_path) as checkpoint, pytest.raises((OSError, FarthingError)):
        export_tokenizer(checkpoint, tmp_path, 1)
    assert list(tmp_path.iterdir()) == []
