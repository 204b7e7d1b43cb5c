"""A folder's tokenizer as GGUF metadata: the same tokens for any text, or a refusal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file
from tokenizers import Tokenizer as Machine

from farthing.core import FarthingError, RequestError, UnsupportedModelError
from farthing.files.checkpoint import open_checkpoint
from farthing.files.gguf_writer import metadata_of
from farthing.files.safetensors import SafetensorsFolder
from farthing.text import Tokenizer, load_tokenizer, tokenizer_from_gguf
from farthing.text.byte_level import CHARACTERS_OF_BYTES
from farthing.text.export import export_tokenizer
from farthing.text.gguf_export import gguf_tokenizer
from farthing.text.merge_scores import scores_of_merges
from farthing.text.pretokenizers import PRE_TOKENIZERS, name_of_pre_tokenizer
from text.json_folders import BYTES, KINDS, added_tokens, description_of, write_folder
from text.test_pretokenizers import PUBLISHED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TOLD = "Write a folder instead"
SPECIAL = ["<s>", "</s>", "<|im_end|>", "</think>"]
texts = st.lists(
    st.text("ab \né🐍1'")
    | st.sampled_from([*SPECIAL, "</think", "<|im_", " ab", "  ", "aaaa", "<0x0A>", "\r\n\t"])
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=3),
    max_size=8,
).map("".join)


def scored(**changed: object) -> dict[str, Any]:
    """A SentencePiece vocabulary whose merges are all pairs, in the order of their tokens."""
    tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += ["▁", "a", "b", "aa", "▁a", "ab", "▁▁", "aaa", "▁ab", "aab", "▁aab"]
    ids = {text: number for number, text in enumerate(tokens)}
    merges = [
        f"{token[:at]} {token[at:]}"
        for token in tokens[256:]
        for at in range(1, len(token))
        if token[:at] in ids and token[at:] in ids
    ]
    model = {**KINDS["replace"]["model"], "vocab": ids, "merges": merges}
    added = added_tokens(len(ids))
    return {"version": "1.0", **KINDS["replace"], "model": model, "added_tokens": added, **changed}


def rows_of(description: dict[str, Any]) -> int:
    return len(description["model"]["vocab"]) + len(description["added_tokens"])


def both(
    folder: Path, description: dict[str, Any], **files: object
) -> tuple[Tokenizer, Tokenizer, dict[str, object]]:
    """The tokenizer of a folder, that of its GGUF metadata, and these."""
    rows = rows_of(description)
    files = {"config": {"model_type": "llama", "vocab_size": rows}, **files}
    checkpoint = open_checkpoint(write_folder(folder, description, **files))
    assert isinstance(checkpoint, SafetensorsFolder)
    metadata = metadata_of(gguf_tokenizer(checkpoint, rows).fields, folder)
    return load_tokenizer(checkpoint), tokenizer_from_gguf(metadata), metadata


def assert_same_tokens(ours: Tokenizer, theirs: Tokenizer, text: str) -> None:
    for special in (False, True):
        try:
            wanted = ours.encode(text, parse_special=special)
        except RequestError:
            with pytest.raises(RequestError):
                theirs.encode(text, parse_special=special)
            continue
        assert theirs.encode(text, parse_special=special) == wanted
        assert theirs.decode(wanted) == ours.decode(wanted)


def byte_level(steps: list[dict[str, Any]], ignores: bool = False) -> dict[str, Any]:
    description = description_of("byte-level")
    letters = {text: number for number, text in enumerate(CHARACTERS_OF_BYTES)}
    merges = ["a b", "Ġ a", "Ġa b", "Ċ Ċ", "1 1", "' a"]
    vocabulary = {**letters, **{merge.replace(" ", ""): 256 + i for i, merge in enumerate(merges)}}
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges, "ignore_merges": ignores}
    return {
        **description,
        "model": model,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "added_tokens": added_tokens(len(vocabulary)),
    }


NAMED = ("gpt-2", "smollm", "llama-bpe", "qwen2", "tekken", "gpt-4o")


@pytest.mark.parametrize("name", NAMED)
def test_a_published_rule_gets_its_name_and_every_text_its_tokens(
    name: str, tmp_path: Path
) -> None:
    ignores = PRE_TOKENIZERS[name].ignore_merges
    ours, theirs, metadata = both(tmp_path, byte_level(PUBLISHED[name], ignores))
    assert metadata["tokenizer.ggml.pre"] == name

    @given(texts)
    def check(text: str) -> None:
        assert_same_tokens(ours, theirs, text)

    check()


@pytest.mark.parametrize("prepends", [False, True])
def test_a_sentencepiece_vocabulary_gets_scores_that_give_every_text_its_tokens(
    prepends: bool, tmp_path: Path
) -> None:
    kind = KINDS["prepend" if prepends else "replace"]
    parts = {part: kind[part] for part in ("normalizer", "decoder")}
    ours, theirs, metadata = both(tmp_path, scored(**parts))
    assert metadata["tokenizer.ggml.model"] == "llama"
    assert metadata["tokenizer.ggml.add_space_prefix"] == prepends

    @given(texts)
    def check(text: str) -> None:
        assert_same_tokens(ours, theirs, text)

    check()


@pytest.mark.parametrize(("name", "fixture"), [("smollm2", "smollm2-135m"), ("gemma3", "gemma3")])
def test_a_real_vocabulary_keeps_the_peers_tokens_for_2000_texts(
    name: str,
    fixture: str,
    request: pytest.FixtureRequest,
    goldens: Callable[[str], dict[str, Any]],
    tmp_path: Path,
) -> None:
    """From GGUF to tokenizer.json, which has merges, and back to GGUF, which has scores."""
    golden = goldens({"gemma3": "gemma3-270m"}.get(fixture, fixture))["tokens"]
    source = open_checkpoint(request.getfixturevalue(f"{name}_path"))
    rows = load_tokenizer(source).vocabulary_size
    export_tokenizer(source, tmp_path / "folder", 1024)
    (tmp_path / "folder" / "config.json").write_text(json.dumps({"vocab_size": rows}))
    save_file({"x": np.zeros(1, np.float32)}, tmp_path / "folder" / "model.safetensors")
    folder = open_checkpoint(tmp_path / "folder")
    assert isinstance(folder, SafetensorsFolder)
    found = metadata_of(gguf_tokenizer(folder, rows).fields, tmp_path)
    tokenizer = tokenizer_from_gguf(found)
    for entry in golden:
        assert tokenizer.encode(entry["text"], add_special_tokens=False) == entry["ids"]
    keys = ["model", "pre", "tokens", "merges", "bos_token_id", "eos_token_id", "add_bos_token"]
    for key in (f"tokenizer.ggml.{key}" for key in keys):
        if key in source.metadata:
            wanted: Any = source.metadata[key]
            assert np.array_equal(np.asarray(found[key]), np.asarray(wanted)), key
    assert found.get("tokenizer.chat_template") == source.metadata.get("tokenizer.chat_template")


def test_what_begins_a_text_and_ends_an_answer_comes_along(tmp_path: Path) -> None:
    described = byte_level(PUBLISHED["gpt-2"])
    first = described["added_tokens"][0]["id"]
    ours, theirs, metadata = both(
        tmp_path,
        described,
        generation_config={"eos_token_id": [first + 1, first + 2, 7, 9]},
        tokenizer_config={
            "bos_token": {"content": "<s>"},
            "eos_token": "</s>",
            "add_bos_token": True,
            "chat_template": [
                {"name": "default", "template": "plain"},
                {"name": "tool_use", "template": "tools"},
            ],
        },
    )
    assert theirs.eos_ids == ours.eos_ids == {first + 1, first + 2, 7, 9}
    assert theirs.encode("a") == ours.encode("a") == [first, *theirs.encode("a")[1:]]
    assert theirs.named_tokens == ours.named_tokens
    assert metadata["tokenizer.ggml.eos_token_id"] == first + 1
    assert metadata["tokenizer.chat_template"] == "plain"
    assert metadata["tokenizer.chat_template.tool_use"] == "tools"


def test_more_ends_of_an_answer_than_gguf_can_name_are_refused(tmp_path: Path) -> None:
    ends = {"eos_token_id": [1, 2, 3, 4]}
    with pytest.raises(UnsupportedModelError, match=f"other tokens that end an answer.*{TOLD}"):
        both(tmp_path, byte_level(PUBLISHED["gpt-2"]), generation_config=ends)


def test_normal_form_c_is_told_and_changes_no_text_that_is_in_it(tmp_path: Path) -> None:
    description = byte_level(PUBLISHED["qwen2"]) | {"normalizer": {"type": "NFC"}}
    folder = SafetensorsFolder(write_folder(tmp_path, description))
    made = gguf_tokenizer(folder, rows_of(description))
    assert ["NFC" in remark for remark in made.remarks] == [True]
    theirs = tokenizer_from_gguf(metadata_of(made.fields, tmp_path))
    assert_same_tokens(load_tokenizer(folder), theirs, "caf\u00e9 a b")


def test_a_plain_token_that_gguf_readers_take_for_a_control_token_is_told(tmp_path: Path) -> None:
    description = byte_level(PUBLISHED["gpt-2"])
    description["added_tokens"][1]["special"] = False  # </s>, as in Gemma's
    files = {"tokenizer_config": {"eos_token": "<|im_end|>"}}
    folder = SafetensorsFolder(write_folder(tmp_path, description, **files))
    made = gguf_tokenizer(folder, rows_of(description))
    assert ["take </s> for a control token" in remark for remark in made.remarks] == [True]


def test_special_tokens_beyond_the_embedding_are_left_out_and_others_refused(
    tmp_path: Path,
) -> None:
    description = byte_level(PUBLISHED["gpt-2"])
    folder = SafetensorsFolder(write_folder(tmp_path, description))
    last = rows_of(description)
    with pytest.raises(UnsupportedModelError, match=f"'</think>' is beyond the .* rows.*{TOLD}"):
        gguf_tokenizer(folder, last - 1)
    description["added_tokens"][-1]["special"] = True
    folder = SafetensorsFolder(write_folder(tmp_path, description))
    texts: Any = metadata_of(gguf_tokenizer(folder, last - 1).fields, tmp_path)[
        "tokenizer.ggml.tokens"
    ]
    assert texts[-1] == "<|im_end|>"


def with_model(description: dict[str, Any], **changes: object) -> dict[str, Any]:
    return {**description, "model": {**description["model"], **changes}}


GPT2 = byte_level(PUBLISHED["gpt-2"])
SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
UNSAYABLE: dict[str, tuple[dict[str, Any], str]] = {
    "unknown rule": (
        GPT2 | {"pre_tokenizer": {**BYTES, "use_regex": False}},
        "a rule that llama.cpp has no name for",
    ),
    "another pattern": (
        byte_level([{**SPLIT, "pattern": {"Regex": "x+"}}, {**BYTES, "use_regex": False}]),
        "a rule that llama.cpp has no name for",
    ),
    "a space in front": (
        GPT2 | {"pre_tokenizer": {**BYTES, "add_prefix_space": True}},
        "a rule that llama.cpp has no name for",
    ),
    "words before merges": (
        byte_level(PUBLISHED["gpt-2"], ignores=True),
        "a rule that llama.cpp has no name for",
    ),
    "no rule": (GPT2 | {"pre_tokenizer": None}, "a rule that llama.cpp has no name for"),
    "lower case": (GPT2 | {"normalizer": {"type": "Lowercase"}}, "normalizer is Lowercase"),
    "stripping tokens": (
        GPT2 | {"added_tokens": added_tokens(262, lstrip=True)},
        "'<s>' is marked lstrip",
    ),
    "suffix": (with_model(GPT2, end_of_word_suffix="</w>"), "end_of_word_suffix = '</w>'"),
    "dropout": (with_model(GPT2, dropout=0.5), "dropout = 0.5"),
    "a space in front of the first": (
        scored(**KINDS["metaspace-first"] | {"model": scored()["model"]}),
        "pre_tokenizer is Metaspace",
    ),
    "spaces as they are": (scored(normalizer=None), "normalizer is absent"),
    "no bytes": (scored() | with_model(scored(), byte_fallback=False), "no token for each byte"),
    "few merges": (
        with_model(scored(), merges=scored()["model"]["merges"][:-1]),
        "'▁aab' has 1 of the 2 pairs",
    ),
    "merges apart": (
        with_model(
            scored(),
            merges=[scored()["model"]["merges"][-1], *scored()["model"]["merges"][:-1]],
        ),
        "merges that stand apart",
    ),
}


@pytest.mark.parametrize("name", UNSAYABLE)
def test_what_gguf_has_no_way_to_say_is_refused_with_a_way_out(name: str, tmp_path: Path) -> None:
    description, message = UNSAYABLE[name]
    with pytest.raises(UnsupportedModelError, match=f"(?i){message}.*{TOLD}"):
        both(tmp_path, description)


@given(st.data())
def test_a_garbled_description_is_read_or_refused_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """One value anywhere in a tokenizer.json is another one."""
    description = json.loads(json.dumps(data.draw(st.sampled_from([GPT2, scored()]))))
    at: Any = description
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(at[key], (dict, list)) or not at[key] or data.draw(st.booleans()):
            break
        at = at[key]
    at[key] = data.draw(
        st.none() | st.booleans() | st.integers(-2, 400) | st.text(max_size=3) | st.just([])
    )
    folder = write_folder(tmp_path_factory.mktemp("garbled"), description)
    try:
        made = gguf_tokenizer(SafetensorsFolder(folder), 300)
    except FarthingError:
        return
    tokenizer = tokenizer_from_gguf(metadata_of(made.fields, folder))
    assert_same_tokens(load_tokenizer(SafetensorsFolder(folder)), tokenizer, "ab <s>\n aab é")


def test_names_are_those_of_rules_that_cut_alike() -> None:
    """The first name of a rule is given for it, and reading by that name gives the rule back."""
    for name, steps in PUBLISHED.items():
        for ignores in (False, True):
            found = name_of_pre_tokenizer({"type": "Sequence", "pretokenizers": steps}, ignores)
            if found is not None:
                assert PRE_TOKENIZERS[found].ignore_merges == ignores
                assert PRE_TOKENIZERS[found].patterns == PRE_TOKENIZERS[name].patterns


def test_scores_are_the_order_in_which_tokens_are_formed() -> None:
    ids = {"a": 0, "b": 1, "ab": 2, "ba": 3, "aba": 4}
    merges = [("b", "a"), ("a", "b"), ("ab", "a"), ("a", "ba")]
    assert scores_of_merges(ids, merges, (), 6, "") == [0, 0, -1, 0, -2, 0]
    with pytest.raises(UnsupportedModelError, match=r"'aba' has 1 of the 2 pairs"):
        scores_of_merges(ids, merges[:3], (), 6, "")
    assert scores_of_merges(ids, merges[:3], ("aba",), 6, "")[:4] == [0, 0, -1, 0]
    with pytest.raises(UnsupportedModelError, match="a token has 257 characters"):
        scores_of_merges({"a" * 257: 0}, [], (), 1, "")


def test_a_merge_that_only_the_library_takes_is_no_second_way_to_spell(tmp_path: Path) -> None:
    """The check at the end asks both tokenizers, whatever was matched before."""
    description = scored()
    machine = Machine.from_str(json.dumps(description))
    ours, theirs, _ = both(tmp_path, description)
    for text in ("aaa", "aaab aab", "a" * 33):
        wanted = machine.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special_tokens=False) == wanted
        assert theirs.encode(text, add_special_tokens=False) == wanted
