"""The native core: bindings only, see native/bind.cpp. Numbers stand for the enumerations of
native/kernels.h; indices are what `value`, `vector`, `matrix`, `cache` and `rope` returned, -1 for
none. Arrays are C-contiguous. Raises `ValueError` for whatever does not match.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Source = tuple[int, int, float, float]
"""value, gain or -1, epsilon, fixed scale of int8 activations or 0"""
Product = tuple[int, int]
"""matrix, bias or -1"""
HeadProduct = tuple[int, int, int, float, int]
"""matrix, bias or -1, gain or -1, epsilon, rope or -1"""

class Sizes:
    """The plan's numbers: program.h says what each is."""

    threads: int
    step_tokens: int
    step_rows: int
    total_blocks: int
    context_length: int
    vocabulary: int
    block_bytes: int
    partial_rows: int
    weights: int
    cache: int
    arena: int
    shared_prepared: Sequence[int]
    partials: int
    hidden: int
    hidden_width: int
    scratch: int
    scratch_stride: int
    scratch_row: int
    scratch_tile: Sequence[int]
    scratch_state: int
    scratch_prepared: Sequence[int]
    scratch_sampling: int
    def __init__(self) -> None: ...

class Program:
    """One model's stages over one packed set of weights, one cache and one arena."""

    def __init__(self, tier: str | None, cache_type: int, sizes: Sizes) -> None: ...
    @property
    def tier(self) -> str: ...
    def value(
        self,
        offset: int,
        width: int,
        stride: int,
        wanted: bool,
        mode: int,
        fixed_scale: float,
        /,
    ) -> int: ...
    def vector(self, offset: int, source: NDArray[np.float32], /) -> int: ...
    def matrix(self, offset: int, kind: int, group: int, outputs: int, inputs: int, /) -> int: ...
    def pack(self, matrix: int, output: int, count: int, source: NDArray[np.uint8], /) -> None: ...
    def cache(self, kv_heads: int, head_dim: int, offset: int, /) -> int: ...
    def rope(self, frequencies: Sequence[float], offset: int, /) -> int: ...
    def embed(self, table: int, factor: float, output: int, /) -> None: ...
    def linear(
        self, label: str, source: Source, product: Product, output: int, residual: int, /
    ) -> None: ...
    def gate(
        self, source: Source, gate: Product, up: Product, gelu: bool, output: int, /
    ) -> None: ...
    def heads(
        self,
        source: Source,
        query: HeadProduct,
        key: HeadProduct,
        value: HeadProduct,
        layer: int,
        output: int,
        /,
    ) -> None: ...
    def attend(
        self,
        query: int,
        key: int,
        value: int,
        output: int,
        layer: int,
        heads: int,
        scale: float,
        window: int,
        /,
    ) -> None: ...
    def row(
        self,
        kind: int,
        label: str,
        *,
        a: int,
        b: int,
        output: int,
        gain: int,
        gain_count: int,
        rope: int,
        head_dim: int,
        number: float,
        columns: Sequence[int],
    ) -> None: ...
    def logits(self, value: int, /) -> None: ...
    def run(
        self,
        token_ids: NDArray[np.int32],
        positions: NDArray[np.int32],
        starts: NDArray[np.int32],
        block_tables: NDArray[np.int32],
        rows: NDArray[np.int32],
        hidden_rows: NDArray[np.int32],
        logits: NDArray[np.float32] | None,
    ) -> None: ...
    def run_sampled(
        self,
        token_ids: NDArray[np.int32],
        positions: NDArray[np.int32],
        starts: NDArray[np.int32],
        block_tables: NDArray[np.int32],
        rows: NDArray[np.int32],
        hidden_rows: NDArray[np.int32],
        logits: NDArray[np.float32] | None,
        temperature: NDArray[np.float32],
        top_k: NDArray[np.int32],
        top_p: NDArray[np.float32],
        min_p: NDArray[np.float32],
        repetition_penalty: NDArray[np.float32],
        presence_penalty: NDArray[np.float32],
        frequency_penalty: NDArray[np.float32],
        seed: NDArray[np.uint64],
        choice: NDArray[np.uint32],
        position: NDArray[np.uint32],
        logprobs: NDArray[np.int32],
        target: NDArray[np.int32],
        adjusted_starts: NDArray[np.int32],
        adjusted_ids: NDArray[np.int32],
        adjusted_bias: NDArray[np.float32],
        adjusted_seen: NDArray[np.uint8],
        adjusted_count: NDArray[np.int32],
        tokens: NDArray[np.int32],
        logprob: NDArray[np.float32],
        top_ids: NDArray[np.int32],
        top_logprobs: NDArray[np.float32],
        mask_rows: NDArray[np.int32] | None = None,
        masks: NDArray[np.uint32] | None = None,
    ) -> None: ...
    def reverse_merges(self, on: bool, /) -> None: ...
    def profile(self, on: bool, /) -> None: ...
    def stage_labels(self) -> list[str]: ...
    def stage_seconds(self) -> list[float]: ...
    def hidden(self) -> NDArray[np.float32]: ...
    def rows_of(self, value: int, /) -> NDArray[np.float32]: ...
    def cache_bytes(self) -> NDArray[np.uint8]: ...
    def weight_bytes(self) -> NDArray[np.uint8]: ...

class Ceilings:
    """ceilings.h says what is measured."""

    def __init__(self, tier: str | None, threads: int, buffer_bytes: int) -> None: ...
    @property
    def tier(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    def read(self, huge_pages: bool, ahead: int, /) -> float: ...
    def multiply(self, mode: int, seconds: float, /) -> float: ...

kernel_version: str
"""A digest of all that computes and of how it was compiled."""

def available_tiers() -> list[str]: ...
