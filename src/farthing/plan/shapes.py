"""A model of which no more is known than a few sizes: the sum of textbooks.

memory = weights + resident tokens * bytes a token + reserve, where weights = parameters * bits / 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from farthing.core import BLOCK_TOKENS, KVDtype, RequestError
from farthing.plan import packed

if TYPE_CHECKING:
    from farthing.plan.precision import Precision

MOST_PARAMETERS = 10**14
_MOST_SIZE = 1 << 20


@dataclass(frozen=True)
class Shape:
    """Parameters, and what a token of context takes: `layers` times `kv_heads` of `head_dim`.

    `heads` are the query heads, which only arithmetic depends on: as many as `kv_heads` unless
    given. Raises `RequestError` for sizes that no model has.
    """

    name: str
    parameters: int
    layers: int
    kv_heads: int
    head_dim: int
    heads: int | None = None

    def __post_init__(self) -> None:
        for what, value, most in (
            ("params", self.parameters, MOST_PARAMETERS),
            ("layers", self.layers, _MOST_SIZE),
            ("kv-heads", self.kv_heads, _MOST_SIZE),
            ("head-dim", self.head_dim, _MOST_SIZE),
            ("heads", self.query_heads, _MOST_SIZE),
        ):
            if not 1 <= value <= most:
                raise RequestError(f"--{what} must be from 1 to {most:g}, not {value:g}")
        if self.query_heads % self.kv_heads:
            raise RequestError(
                f"--heads {self.heads} cannot share --kv-heads {self.kv_heads} evenly: a group of "
                "query heads shares each key-value head"
            )

    @property
    def query_heads(self) -> int:
        """Heads of queries."""
        return self.kv_heads if self.heads is None else self.heads

    @property
    def least_parameters(self) -> int:
        """Of the matrices that make keys and values, whose inputs are as wide as a head at least.

        2 * layers * kv_heads * head_dim * head_dim
        """
        return 2 * self.layers * self.kv_heads * self.head_dim**2

    def weight_bytes(self, bits: float) -> int:
        """Bytes of all parameters at so many bits, rounded up."""
        scaled = self.parameters * bits / 8
        return -int(-scaled // 1)

    def bytes_per_token(self, kv_dtype: KVDtype) -> int:
        """2 * layers * kv_heads * head_dim * bytes an element, and int8's scales."""
        return self.layers * packed.token_bytes(kv_dtype, self.kv_heads, self.head_dim)

    def block_bytes(self, kv_dtype: KVDtype) -> int:
        """Bytes of a block of 32 tokens, as the engine would lay it out."""
        return self.layers * self.kv_heads * packed.head_block_bytes(kv_dtype, self.head_dim)


EXAMPLES = (
    Shape("7B", 7_000_000_000, layers=32, kv_heads=8, head_dim=128, heads=32),
    Shape("13B", 13_000_000_000, layers=40, kv_heads=40, head_dim=128),
    Shape("70B", 70_000_000_000, layers=80, kv_heads=8, head_dim=128, heads=64),
)
"""Usual sizes of models."""

EXAMPLE_MEMORIES = (8 << 30, 16 << 30, 24 << 30)
EXAMPLE_WEIGHTS = ("fp16", "int8", "int4")
DEFAULT_RESERVE = 3 << 29
"""1.5 GiB for working memory, the process and the system, where no plan says how much: assumed."""


@dataclass(frozen=True)
class Formula:
    """memory = weights + tokens * bytes a token + reserve, solved for the tokens.

    `missing_bytes` is what weights and reserve alone lack; then `tokens` is 0.
    `allocated_tokens` are those of whole blocks.
    """

    model: str
    weights: str
    kv_dtype: str
    memory_bytes: int
    weight_bytes: int
    bytes_per_token: int
    tokens: int
    allocated_tokens: int
    missing_bytes: int


def formula(
    shape: Shape, wanted: Precision, kv_dtype: KVDtype, memory: int, reserve: int
) -> Formula:
    """The sum for one shape. Raises `RequestError` where the precision has no fixed bits."""
    if wanted.bits is None:
        raise RequestError(f"weights {wanted.name} have no fixed number of bits: name a format")
    weights = shape.weight_bytes(wanted.bits)
    left = memory - reserve - weights
    return Formula(
        shape.name,
        wanted.name,
        kv_dtype.value,
        memory,
        weights,
        shape.bytes_per_token(kv_dtype),
        max(0, left // shape.bytes_per_token(kv_dtype)),
        max(0, left // shape.block_bytes(kv_dtype) * BLOCK_TOKENS),
        max(0, -left),
    )
