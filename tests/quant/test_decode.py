"""Decoding against the `gguf` package: the same bytes give the same floats, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from hypothesis import given
from hypothesis import strategies as st

from farthing.core import FileFormatError, StoredTensor, UnsupportedModelError
from farthing.files.formats import GGUF_FORMATS, stored_bytes
from farthing.files.gguf import GGUFFile
from farthing.quant.formats import bits_per_weight, decode

READABLE = [
    *("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL"),
]
# Where the float16 scales of a block lie.
SCALES = {
    "Q8_0": [0],
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 6e-8, -6e-8, 6.1e-5, 65504.0, -65504.0, 1.0, -1.0]


def peer_decode(data: np.ndarray, name: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return quants.dequantize(data, GGMLQuantizationType[name])


def bits(weights: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(weights, np.float32).view(np.uint32)


def random_tensor(
    generator: np.random.Generator, name: str, shape: tuple[int, ...]
) -> tuple[StoredTensor, np.ndarray]:
    """A tensor of random bytes, and the same bytes as the peer wants them: rows of bytes."""
    data = generator.integers(0, 256, stored_bytes(name, shape), dtype=np.uint8)
    rows = data.reshape(*shape[:-1], -1)
    return StoredTensor("weights", name, shape, data), rows


@pytest.mark.parametrize("name", READABLE)
@given(
    seed=st.integers(0, 2**32 - 1),
    leading=st.lists(st.integers(1, 5), max_size=3),
    blocks=st.integers(1, 4),
)
def test_random_bytes_decode_to_exactly_the_peers_floats(
    name: str, seed: int, leading: list[int], blocks: int
) -> None:
    shape = (*leading, blocks * GGUF_FORMATS[name].block_length)
    tensor, rows = random_tensor(np.random.default_rng(seed), name, shape)
    decoded = decode(tensor)
    assert decoded.dtype == np.float32
    assert decoded.shape == shape
    np.testing.assert_array_equal(bits(decoded), bits(peer_decode(rows, name)))


@pytest.mark.parametrize("name", list(SCALES))
def test_special_scales_decode_as_the_peer_decodes_them(name: str) -> None:
    generator = np.random.default_rng(5)
    block = GGUF_FORMATS[name].block_bytes
    data = generator.integers(0, 256, (len(SPECIAL) ** 2, block), dtype=np.uint8)
    pairs = np.array([(a, b) for a in SPECIAL for b in SPECIAL], np.float16)
    for column, start in enumerate(SCALES[name]):
        data[:, start : start + 2] = pairs[:, column : column + 1].copy().view(np.uint8)
    shape = (len(data), GGUF_FORMATS[name].block_length)
    decoded = decode(StoredTensor("weights", name, shape, data.reshape(-1)))
    np.testing.assert_array_equal(bits(decoded), bits(peer_decode(data, name)))


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_every_sixteen_bit_pattern_decodes_exactly(name: str) -> None:
    data = np.arange(1 << 16, dtype="<u2").view(np.uint8)
    decoded = decode(StoredTensor("weights", name, (1 << 16,), data))
    np.testing.assert_array_equal(bits(decoded), bits(peer_decode(data, name)))


@pytest.mark.parametrize("name", READABLE)
@given(seed=st.integers(0, 2**32 - 1), start=st.integers(-9, 9), stop=st.integers(-9, 9))
def test_a_range_of_rows_is_the_same_rows_of_the_whole(
    name: str, seed: int, start: int, stop: int
) -> None:
    shape = (7, 2, GGUF_FORMATS[name].block_length)
    tensor, _ = random_tensor(np.random.default_rng(seed), name, shape)
    part = decode(tensor, rows=slice(start, stop))
    np.testing.assert_array_equal(bits(part), bits(decode(tensor)[start:stop]))


def test_a_tensor_larger_than_one_piece_decodes_as_a_whole() -> None:
    tensor, rows = random_tensor(np.random.default_rng(1), "Q6_K", (1300, 256))
    np.testing.assert_array_equal(bits(decode(tensor)), bits(peer_decode(rows, "Q6_K")))


def test_decoding_never_shares_memory_with_the_file() -> None:
    tensor, _ = random_tensor(np.random.default_rng(1), "F32", (4, 8))
    assert not np.shares_memory(decode(tensor), tensor.data)


def test_a_scalar_decodes_to_a_scalar() -> None:
    tensor = StoredTensor("one", "F32", (), np.float32([2.5]).view(np.uint8))
    assert decode(tensor).shape == ()
    assert decode(tensor) == 2.5


def test_rows_of_a_vector_are_refused() -> None:
    tensor, _ = random_tensor(np.random.default_rng(1), "F32", (8,))
    with pytest.raises(ValueError, match="two dimensions"):
        decode(tensor, rows=slice(0, 1))


def test_a_format_that_cannot_be_read_is_named_with_the_tensor() -> None:
    tensor = StoredTensor("blk.0.weight", "IQ2_XS", (1, 256), np.zeros(74, np.uint8))
    with pytest.raises(UnsupportedModelError, match=r"blk\.0\.weight.*IQ2_XS.*Q4_K"):
        decode(tensor)


def test_bytes_that_do_not_match_the_shape_are_refused() -> None:
    tensor = StoredTensor("short", "Q8_0", (2, 32), np.zeros(34, np.uint8))
    with pytest.raises(FileFormatError, match=r"short.*68 bytes.*has 34"):
        decode(tensor)


@pytest.mark.parametrize("name", READABLE)
def test_bits_per_weight_are_the_stored_bytes_over_the_weights(name: str) -> None:
    length, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    assert bits_per_weight(name, (7, 3 * length)) * length == size * 8
    assert float(GGUF_FORMATS[name].bits) * length == size * 8


def test_the_table_of_ggufs_formats_is_the_peers() -> None:
    peer = {each.name: (int(each), *GGML_QUANT_SIZES[each]) for each in GGMLQuantizationType}
    ours = {
        each.name: (each.gguf_type, each.block_length, each.block_bytes)
        for each in GGUF_FORMATS.values()
    }
    assert ours == peer


def test_a_row_that_is_no_whole_number_of_blocks_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="rows of 576.*Q4_K.*256"):
        stored_bytes("Q4_K", (8, 576))


@pytest.mark.parametrize("model", ["smollm2_path", "gemma3_path"])
def test_real_tensors_of_every_format_decode_to_the_peers_floats(
    model: str, request: pytest.FixtureRequest
) -> None:
    with GGUFFile(request.getfixturevalue(model)) as file:
        by_format: dict[str, StoredTensor] = {}
        for tensor in file.tensors.values():
            by_format.setdefault(tensor.format, tensor)
        assert len(by_format) >= 3
        for name, tensor in by_format.items():
            rows = np.array(tensor.data.reshape(*tensor.shape[:-1], -1))
            if rows.ndim > 1:
                rows, decoded = rows[:512], decode(tensor, rows=slice(0, 512))
            else:
                decoded = decode(tensor)
            np.testing.assert_array_equal(bits(decoded), bits(peer_decode(rows, name)))
