"""Folders of safetensors: the tensors are the library's, in place; damage is one clear error."""

from __future__ import annotations

import json
import os
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save, save_file

from farthing.core import FarthingError, FileFormatError, UnsupportedModelError
from farthing.files.checkpoint import open_checkpoint
from farthing.files.gguf import GGUFFile
from farthing.files.safetensors import SafetensorsFolder
from files.bounds import within_bounds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def some_tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "embed": torch.randn(5, 8, generator=generator).bfloat16(),
        "half": torch.randn(3, 2, 4, generator=generator).half(),
        "norm": torch.randn(8, generator=generator),
        "one": torch.tensor(2.5),
        "ids": torch.arange(7),
        "none": torch.zeros(0, 4),
    }


def make_folder(folder: Path, **settings: object) -> Path:
    save_file(some_tensors(), folder / SINGLE, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    for name, value in settings.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def make_sharded(folder: Path) -> dict[str, torch.Tensor]:
    make_folder(folder)
    (folder / SINGLE).unlink()
    tensors, weight_map = some_tensors(), {}
    for number, names in enumerate((["embed", "half", "none"], ["norm", "one", "ids"]), 1):
        shard = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: tensors[name] for name in names}, folder / shard)
        weight_map |= dict.fromkeys(names, shard)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return tensors


def raw_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(folder: SafetensorsFolder, tensors: dict[str, torch.Tensor]) -> None:
    assert set(folder.tensors) == set(tensors)
    for name, tensor in tensors.items():
        stored = folder.tensors[name]
        assert stored.shape == tuple(tensor.shape)
        assert (
            stored.data.tobytes() == raw_bytes(tensor) if tensor.numel() else not stored.data.size
        )


def test_tensors_of_every_dtype_are_the_bytes_that_were_saved(tmp_path: Path) -> None:
    folder = SafetensorsFolder(make_folder(tmp_path))
    assert_same(folder, some_tensors())
    formats = {name: tensor.format for name, tensor in folder.tensors.items()}
    assert formats["embed"] == "BF16"
    assert formats["half"] == "F16"
    assert formats["norm"] == "F32"
    assert formats["ids"] == "I64"


def test_tensors_are_read_only_views_of_the_file(tmp_path: Path) -> None:
    data = SafetensorsFolder(make_folder(tmp_path)).tensors["embed"].data
    assert not data.flags.owndata
    assert not data.flags.writeable


@given(
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=6),
    dtypes=st.lists(
        st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.bool]),
        min_size=6,
        max_size=6,
    ),
)
def test_any_mix_of_shapes_and_dtypes_is_located_as_the_library_locates_it(
    shapes: list[list[int]], dtypes: list[torch.dtype], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = make_folder(tmp_path_factory.mktemp("mixed"))
    tensors = {
        f"t{index}": (torch.arange(int(np.prod(shape))) % 3).to(dtypes[index]).reshape(shape)
        for index, shape in enumerate(shapes)
    }
    save_file(tensors, folder / SINGLE)
    assert_same(SafetensorsFolder(folder), tensors)


def test_shards_are_gathered_by_their_index(tmp_path: Path) -> None:
    tensors = make_sharded(tmp_path)
    assert_same(SafetensorsFolder(tmp_path), tensors)


def test_settings_are_plain_dictionaries_and_absent_ones_empty(tmp_path: Path) -> None:
    folder = SafetensorsFolder(make_folder(tmp_path, generation_config={"eos_token_id": [1, 2]}))
    assert folder.config == {"model_type": "llama"}
    assert folder.generation_config == {"eos_token_id": [1, 2]}
    assert folder.tokenizer_config == {}
    assert folder.special_tokens_map == {}
    assert folder.tokenizer_path is None
    assert folder.chat_template is None
    (tmp_path / "tokenizer.json").write_text("{}")
    assert SafetensorsFolder(tmp_path).tokenizer_path == tmp_path / "tokenizer.json"


def test_the_chat_template_comes_from_its_own_file_first(tmp_path: Path) -> None:
    make_folder(tmp_path, tokenizer_config={"chat_template": "third"})
    assert SafetensorsFolder(tmp_path).chat_template == "third"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "second"}))
    assert SafetensorsFolder(tmp_path).chat_template == "second"
    (tmp_path / "chat_template.jinja").write_text("first é")
    assert SafetensorsFolder(tmp_path).chat_template == "first é"


def test_of_several_named_chat_templates_the_default_one_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    make_folder(tmp_path, tokenizer_config={"chat_template": named})
    assert SafetensorsFolder(tmp_path).chat_template == "d"


def test_a_checkpoint_is_opened_by_what_its_path_is(tmp_path: Path, smollm2_path: Path) -> None:
    make_folder(tmp_path)
    assert isinstance(open_checkpoint(tmp_path), SafetensorsFolder)
    assert isinstance(open_checkpoint(str(smollm2_path)), GGUFFile)
    with pytest.raises(FileFormatError, match="give the folder"):
        open_checkpoint(tmp_path / SINGLE)


def header(entries: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str = "F32", shape: object = (2,), start: int = 0, end: int = 8) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


EMPTY = json.dumps(entry(shape=[0], end=0)).encode()
SOUND = save({"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4).bfloat16()})

ATTACKS: dict[str, bytes] = {
    "empty": b"",
    "shorter than its length": b"\1\2\3",
    "length huge": header({}, length=(1 << 63)),
    "length of all 64 bits": header({}, length=(1 << 64) - 1),
    "length past the end": header({}, length=100),
    "header of 17 MB": header(b" " * (17 << 20)),
    "no JSON": header(b"hello, I am a model"),
    "a list": header([]),
    "not UTF-8": header(b'{"\xff":1}'),
    "nested without end": header(b'{"a":' + b"[" * 100_000),
    "entry no object": header({"a": 5}),
    "dtype unknown": header({"a": entry("Q4_0")}, bytes(8)),
    "dtype missing": header({"a": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
    "shape negative": header({"a": entry(shape=[-2])}, bytes(8)),
    "shape a float": header({"a": entry(shape=[2.5])}, bytes(8)),
    "shape past 64 bits": header({"a": entry(shape=[1 << 40, 1 << 40])}, bytes(8)),
    "shape that does not match": header({"a": entry(shape=[3])}, bytes(8)),
    "offsets reversed": header({"a": entry(start=8, end=0)}, bytes(8)),
    "offsets past the end": header({"a": entry(start=800, end=808)}, bytes(8)),
    "offsets huge": header({"a": entry(start=0, end=(1 << 64) - 1)}, bytes(8)),
    "a gap": header({"a": entry(), "b": entry(start=16, end=24)}, bytes(24)),
    "an overlap": header({"a": entry(), "b": entry(start=4, end=12)}, bytes(12)),
    "data missing": header({"a": entry()}, bytes(7)),
    "data too much": header({"a": entry()}, bytes(9)),
    "more tensors than any model": header(
        b"{%s}" % b",".join(b'"%d":%s' % (n, EMPTY) for n in range((1 << 16) + 1))
    ),
    "a pickle": b"\x80\x02}q\x00.PK\x03\x04 a torch pickle",
}


def open_bounded(folder: Path) -> None:
    within_bounds(lambda: SafetensorsFolder(folder))


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_file_is_one_clear_error(attack: str, tmp_path: Path) -> None:
    path = make_folder(tmp_path) / SINGLE
    path.write_bytes(ATTACKS[attack])
    with pytest.raises(FileFormatError) as caught:
        open_bounded(tmp_path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_file_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    path = make_folder(tmp_path) / SINGLE
    for length in range(len(SOUND)):
        path.write_bytes(SOUND[:length])
        with pytest.raises(FileFormatError):
            SafetensorsFolder(tmp_path)


@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), min_size=1, max_size=4
    ),
    length=st.integers(1, len(SOUND) + 8),
)
def test_a_mutated_file_is_accepted_exactly_when_the_library_accepts_it(
    edits: list[tuple[int, int]], length: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(SOUND)
    for position, value in edits:
        content[position] = value
    folder = make_folder(tmp_path_factory.mktemp("mutated"))
    (folder / SINGLE).write_bytes(content[:length])
    try:
        with safe_open(folder / SINGLE, "numpy") as library:
            names = set(library.keys())
    except (SafetensorError, OSError):
        with pytest.raises(FarthingError):
            open_bounded(folder)
        return
    with suppress(UnsupportedModelError):
        assert set(SafetensorsFolder(folder).tensors) == names


def test_a_dtype_of_less_than_a_byte_is_unsupported_by_name(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / SINGLE).write_bytes(header({"packed": entry("F4", [4], 0, 2)}, bytes(2)))
    with pytest.raises(UnsupportedModelError, match="packed.*F4"):
        SafetensorsFolder(tmp_path)


def remove_shard(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()


def duplicate_tensor(folder: Path) -> None:
    save_file({"embed": torch.ones(2)}, folder / "model-00002-of-00002.safetensors")


def drop_tensor(folder: Path) -> None:
    save_file({"norm": torch.ones(2)}, folder / "model-00002-of-00002.safetensors")


def index_of(value: object) -> Callable[[Path], object]:
    return lambda folder: (folder / INDEX).write_text(json.dumps(value))


def settings_of(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


FOLDER_ATTACKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a shard missing": (remove_shard, "no file .*model-00002-of-00002"),
    "a tensor in two shards": (duplicate_tensor, "'embed' is in model-00001.*and in"),
    "a tensor in no shard": (drop_tensor, "places tensor '(one|ids)'.*does not hold it"),
    "index without a map": (index_of({}), "no weight_map"),
    "index with an empty map": (index_of({"weight_map": {}}), "no weight_map"),
    "index that leaves the folder": (
        index_of({"weight_map": {"a": "../other/model.safetensors"}}),
        "names '../other/model.safetensors' as a shard",
    ),
    "index of numbers": (index_of({"weight_map": {"a": 5}}), "names 5 as a shard"),
    "index a list": (index_of([]), "holds a list where an object is needed"),
    "config missing": (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    "config cut": (settings_of("config.json", b'{"a":'), "not sound JSON"),
    "config empty": (settings_of("config.json", b""), "not sound JSON"),
    "config a string": (settings_of("config.json", b'"a"'), "holds a str where"),
    "config with a NaN": (settings_of("config.json", b'{"a": NaN}'), "NaN"),
    "config not UTF-8": (settings_of("config.json", b'{"\xff": 1}'), "not UTF-8"),
    "config nested": (settings_of("config.json", b"[" * 200_000), "not sound JSON"),
    "config with a huge number": (settings_of("config.json", b"1" * 10_000), "not sound JSON"),
    "config huge": (
        settings_of("config.json", b" " * (5 << 20)),
        "has more than the 4,194,304 bytes",
    ),
    "config of lists": (settings_of("config.json", b"[[]" + b",[]" * 1_300_000 + b"]"), "list"),
    "template a number": (settings_of("tokenizer_config.json", b'{"chat_template": 5}'), "string"),
    "template not UTF-8": (settings_of("chat_template.jinja", b"\xff"), "not UTF-8"),
}


@pytest.mark.parametrize("attack", FOLDER_ATTACKS)
def test_a_hostile_folder_is_one_clear_error(attack: str, tmp_path: Path) -> None:
    make_sharded(tmp_path)
    damage, message = FOLDER_ATTACKS[attack]
    damage(tmp_path)
    with pytest.raises(FileFormatError, match=message) as caught:
        open_bounded(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "config.json").unlink()
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(FileFormatError, match="not a file"):
        SafetensorsFolder(tmp_path)


def test_a_folder_of_pickles_says_that_they_must_be_converted(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / SINGLE).unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    with pytest.raises(FileFormatError, match="pickles.*convert"):
        SafetensorsFolder(tmp_path)


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="is not a folder"):
        SafetensorsFolder(tmp_path / "absent")
