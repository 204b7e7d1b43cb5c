"""The structures of embeddings, as OpenAI's clients send and read them."""

from __future__ import annotations

from typing import Literal

import msgspec

from farthing.serve.errors import ApiError
from farthing.serve.wire.common import CommonFields
from farthing.serve.wire.prompts import Texts, texts_of

CHANGING: dict[str, tuple[object, ...]] = {
    "add_special_tokens": (),
    "embed_dtype": ("float32",),
    "embedding_types": (["float"],),
    "input_type": (),
    "late_chunking": (False,),
    "normalize": (True,),
    "output_dimension": (),
    "output_dtype": ("float",),
    "prompt_name": (),
    "task": (),
    "truncate": ("NONE",),
    "truncate_prompt_tokens": (),
}
"""Fields of other servers that would change the vectors: the values that change nothing."""


class EmbeddingRequest(CommonFields, kw_only=True):
    """POST /v1/embeddings."""

    input: Texts
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None

    def inputs(self) -> list[str] | list[list[int]]:
        """The texts, each a string or its token ids. Raises `ApiError` 400 for a mixture."""
        return texts_of(self.input, "input")

    def check_dimensions(self, size: int) -> None:
        """Raises `ApiError` 400 unless the vectors' own size is wanted, or none said."""
        if self.dimensions not in (None, size):
            raise ApiError(
                400,
                f"the embeddings of this model have {size} dimensions, and it was not trained for "
                "fewer to mean anything: leave dimensions out",
                param="dimensions",
                code="invalid_value",
            )


class EmbeddingEntry(msgspec.Struct, frozen=True):
    """One text's vector: numbers, or the base64 of their little-endian float32 bytes."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """Tokens read, of all texts of a request."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """All vectors, in the order of their texts."""

    object: Literal["list"] = "list"
    data: list[EmbeddingEntry]
    model: str
    usage: EmbeddingUsage
