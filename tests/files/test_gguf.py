"""Sound GGUF files: what is read is what the `gguf` package wrote, or reads itself."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from farthing.core import FarthingError, FileFormatError
from farthing.files.gguf import GGUFFile
from farthing.files.gguf_header import StringArray
from files.gguf_bytes import (
    ARRAY,
    STRING,
    UINT8,
    UINT16,
    UINT32,
    Model,
    Tensor,
    array,
    pair,
    string,
)

if TYPE_CHECKING:
    from pathlib import Path


def write_model(path: Path, shards: int = 0) -> dict[str, np.ndarray]:
    """A model of ten tensors written by the peer, in shards of `shards` tensors."""
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=shards)
    writer.add_block_count(3)
    writer.add_float64("some.double", 0.1)
    writer.add_int8("some.byte", -5)
    writer.add_uint64("some.large", 2**63 + 1)
    writer.add_bool("some.flag", False)
    writer.add_string("some.text", "naïve 😀")
    writer.add_array("some.numbers", [3, -1, 2])
    writer.add_token_list(["a", "\u0120b", "", "😀"])
    writer.add_token_scores([0.5, -1.0, -np.inf, 0.0])
    generator = np.random.default_rng(0)
    tensors = {
        f"blk.{index}.weight": generator.standard_normal((index + 1, 64)).astype(np.float32)
        for index in range(10)
    }
    for name, weights in tensors.items():
        writer.add_tensor(name, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def test_metadata_of_every_kind_is_what_the_peer_wrote(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf")
    metadata = GGUFFile(tmp_path / "m.gguf").metadata
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.block_count"] == 3
    assert metadata["some.double"] == 0.1
    assert metadata["some.byte"] == -5
    assert metadata["some.large"] == 2**63 + 1
    assert metadata["some.flag"] is False
    assert metadata["some.text"] == "naïve 😀"
    np.testing.assert_array_equal(metadata["some.numbers"], [3, -1, 2])
    np.testing.assert_array_equal(
        metadata["tokenizer.ggml.scores"], np.float32([0.5, -1.0, -np.inf, 0.0])
    )
    assert list(metadata["tokenizer.ggml.tokens"]) == ["a", "\u0120b", "", "😀"]


def test_tensors_are_the_peers_bytes_in_place_with_the_outermost_dimension_first(
    tmp_path: Path,
) -> None:
    written = write_model(tmp_path / "m.gguf")
    tensors = GGUFFile(tmp_path / "m.gguf").tensors
    assert list(tensors) == list(written)
    for name, weights in written.items():
        stored = tensors[name]
        assert (stored.format, stored.shape) == ("F32", weights.shape)
        assert stored.data.base is not None
        assert not stored.data.flags.writeable
        assert stored.data.tobytes() == weights.tobytes()


@pytest.mark.parametrize("kind", [each for each in GGMLQuantizationType if each.value < 42])
def test_every_tensor_type_of_the_peer_has_its_name_and_size(
    kind: GGMLQuantizationType, tmp_path: Path
) -> None:
    length, size = gguf.GGML_QUANT_SIZES[kind]
    content = Model(tensors=[Tensor("t", (2 * length, 3), int(kind))], data=bytes(6 * size))
    (tmp_path / "m.gguf").write_bytes(content.encoded())
    (tensor,) = GGUFFile(tmp_path / "m.gguf").tensors.values()
    assert (tensor.format, tensor.data.nbytes) == (kind.name, 6 * size)


@pytest.mark.parametrize("version", [2, 3])
def test_versions_two_and_three_are_read(version: int, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(Model(version=version).encoded())
    assert list(GGUFFile(tmp_path / "m.gguf").tensors) == ["a", "b"]


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
def test_data_begins_at_the_alignment_the_file_names(alignment: int, tmp_path: Path) -> None:
    weights = np.arange(64, dtype=np.float32)
    content = Model(
        pairs=[pair("general.alignment", UINT32, struct.pack("<I", alignment))],
        tensors=[Tensor("t", (64,))],
        data=weights.tobytes(),
        alignment=alignment,
    )
    (tmp_path / "m.gguf").write_bytes(content.encoded())
    (tensor,) = GGUFFile(tmp_path / "m.gguf").tensors.values()
    assert tensor.data.tobytes() == weights.tobytes()


def test_arrays_of_arrays_are_lists(tmp_path: Path) -> None:
    inner = array(UINT8, 2, b"\1\2") + array(STRING, 1, string("x"))
    content = Model(pairs=[pair("nested", ARRAY, struct.pack("<IQ", ARRAY, 2) + inner)])
    # The inner arrays follow one another, each with its own element type.
    (tmp_path / "m.gguf").write_bytes(content.encoded())
    numbers, strings = GGUFFile(tmp_path / "m.gguf").metadata["nested"]
    assert numbers.tolist() == [1, 2]
    assert list(strings) == ["x"]


def test_a_token_that_is_not_utf8_is_an_error_only_when_read_as_text(tmp_path: Path) -> None:
    tokens = array(STRING, 2, string(b"\xff\xfe") + string("ok"))
    (tmp_path / "m.gguf").write_bytes(Model(pairs=[pair("tokens", ARRAY, tokens)]).encoded())
    tokens = GGUFFile(tmp_path / "m.gguf").metadata["tokens"]
    assert isinstance(tokens, StringArray)
    assert tokens.to_bytes() == [b"\xff\xfe", b"ok"]
    with pytest.raises(FileFormatError, match=r"m\.gguf.*tokens.*not UTF-8"):
        tokens.to_strings()


def test_closing_drops_the_tensors_and_leaves_those_held_readable(tmp_path: Path) -> None:
    written = write_model(tmp_path / "m.gguf")
    with GGUFFile(tmp_path / "m.gguf") as file:
        held = file.tensors["blk.3.weight"]
    assert file.tensors == {}
    assert held.data.tobytes() == written["blk.3.weight"].tobytes()


@pytest.mark.parametrize("opened", [1, 2, 4])
def test_any_shard_opens_the_whole_model(opened: int, tmp_path: Path) -> None:
    written = write_model(tmp_path / "m.gguf", shards=3)
    file = GGUFFile(tmp_path / f"m-{opened:05d}-of-00004.gguf")
    assert [path.name for path in file.paths] == [f"m-{n:05d}-of-00004.gguf" for n in (1, 2, 3, 4)]
    assert file.metadata["llama.block_count"] == 3
    assert list(file.tensors) == list(written)
    for name, weights in written.items():
        assert file.tensors[name].data.tobytes() == weights.tobytes()


def shard(number: int, count: int, total: int, tensors: list[Tensor]) -> bytes:
    pairs = [
        pair("split.no", UINT16, struct.pack("<H", number)),
        pair("split.count", UINT16, struct.pack("<H", count)),
        pair("split.tensors.count", 5, struct.pack("<i", total)),
    ]
    return Model(pairs=pairs, tensors=tensors).encoded()


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", shards=3)
    (tmp_path / "m-00003-of-00004.gguf").unlink()
    with pytest.raises(FileFormatError, match=r"m-00003-of-00004\.gguf.*fetch"):
        GGUFFile(tmp_path / "m-00001-of-00004.gguf")


def test_a_shard_that_lost_its_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "renamed.gguf").write_bytes(shard(0, 2, 1, [Tensor()]))
    with pytest.raises(FileFormatError, match="part of 2 and its name says 1"):
        GGUFFile(tmp_path / "renamed.gguf")


def test_swapped_shards_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(shard(1, 2, 2, [Tensor("a")]))
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(shard(0, 2, 2, [Tensor("b")]))
    with pytest.raises(FileFormatError, match="swapped"):
        GGUFFile(tmp_path / "m-00001-of-00002.gguf")


def test_shards_that_lack_a_tensor_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(shard(0, 2, 3, [Tensor("a")]))
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(shard(1, 2, 3, [Tensor("b")]))
    with pytest.raises(FileFormatError, match="hold 2 tensors and the first says 3"):
        GGUFFile(tmp_path / "m-00002-of-00002.gguf")


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(shard(0, 2, 2, [Tensor("a")]))
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(shard(1, 2, 2, [Tensor("a")]))
    with pytest.raises(FileFormatError, match="'a' appears twice"):
        GGUFFile(tmp_path / "m-00001-of-00002.gguf")


@pytest.mark.parametrize("name", ["m-00003-of-00002.gguf", "m-00000-of-00002.gguf"])
def test_a_shard_number_that_cannot_be_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(shard(0, 2, 1, [Tensor()]))
    with pytest.raises(FarthingError, match="cannot be"):
        GGUFFile(tmp_path / name)


@pytest.mark.parametrize(
    ("model", "tokens", "tensors"), [("smollm2_path", 49152, 272), ("gemma3_path", 262144, 236)]
)
def test_a_real_model_opens_with_its_vocabulary_in_under_a_third_of_a_second(
    model: str, tokens: int, tensors: int, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(model)
    seconds = []
    for _ in range(3):
        began = time.process_time()
        file = GGUFFile(path)
        strings = file.metadata["tokenizer.ggml.tokens"].to_strings()
        merges = file.metadata.get("tokenizer.ggml.merges")
        if merges is not None:
            merges.to_strings()
        seconds.append(time.process_time() - began)
    assert (len(strings), len(file.tensors)) == (tokens, tensors)
    assert min(seconds) < 0.3


def test_a_real_model_reads_as_the_peer_reads_it(smollm2_path: Path) -> None:
    peer, ours = gguf.GGUFReader(smollm2_path), GGUFFile(smollm2_path)
    for name, value in ours.metadata.items():
        expected = peer.fields[name].contents()
        if isinstance(value, StringArray | np.ndarray):
            assert list(value) == expected, name
        else:
            assert value == expected, name
    assert len(ours.metadata) == len(peer.fields) - 3  # version and counts are fields there
    for theirs in peer.tensors:
        tensor = ours.tensors[theirs.name]
        assert tensor.format == theirs.tensor_type.name
        assert tensor.shape == tuple(reversed(theirs.shape.tolist()))
        assert tensor.data.ctypes.data - ours.tensors["token_embd.weight"].data.ctypes.data == (
            theirs.data_offset
            - next(t for t in peer.tensors if t.name == "token_embd.weight").data_offset
        )
        assert tensor.data.nbytes == theirs.n_bytes
