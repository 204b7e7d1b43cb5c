"""POST /v1/embeddings."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import TYPE_CHECKING

from farthing.serve.asking import Asked, is_slow
from farthing.serve.endpoints.models import check_model
from farthing.serve.generation import Generation
from farthing.serve.reading import read_structure
from farthing.serve.wire.common import check_count, json_response, priority_of, seconds_of
from farthing.serve.wire.embeddings import (
    CHANGING,
    EmbeddingEntry,
    EmbeddingList,
    EmbeddingRequest,
    EmbeddingUsage,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from starlette.requests import Request
    from starlette.responses import Response

    from farthing.engine.engine import Engine
    from farthing.serve.state import ServerState

_QUICK_NUMBERS = 4096
"""So many numbers are written sooner than another thread is woken."""


async def embeddings(state: ServerState, request: Request) -> Response:
    """The mean final hidden state of each text, as a vector of length 1."""
    engine, card = state.ready()
    settings = state.settings
    fields, _, body = await read_structure(request, state, EmbeddingRequest, CHANGING)
    check_model(card, fields.model)
    inputs = fields.inputs()
    check_count("input", len(inputs), settings, "most_inputs", least=1)
    fields.check_dimensions(engine.embedding_size)
    texts = [each for each in inputs if isinstance(each, str)]
    size = sum(len(each.encode("utf-8", "replace")) for each in texts)
    asked = Asked(
        param="input",
        prompts=len(inputs),
        body=body,
        prompt_bytes=size,
        prompt_tokens=None if texts else sum(map(len, inputs)),
        max_tokens=0,
        n=1,
        priority=priority_of(fields),
        seconds=seconds_of(fields, settings),
        slow=is_slow(size),
        prepare=lambda: (_encoded(engine, inputs), None),
    )
    generation = await Generation.begin(state, request, asked)
    try:
        done = await generation.completions(request.receive)
        vectors = [each.embedding for each in done if each.embedding is not None]
        usage = EmbeddingUsage(generation.prompt_tokens, generation.prompt_tokens)

        def written() -> Response:
            data = _entries(vectors, as_text=fields.encoding_format == "base64")
            return json_response(EmbeddingList(data=data, model=card.id, usage=usage))

        if len(vectors) * engine.embedding_size > _QUICK_NUMBERS:
            return await asyncio.to_thread(written)
        return written()
    finally:
        generation.close()


def _encoded(engine: Engine, inputs: list[str] | list[list[int]]) -> list[list[int]]:
    most = engine.most_tokens
    return [
        engine.tokenizer.encode(each, most_tokens=most) if isinstance(each, str) else each
        for each in inputs
    ]


def _entries(vectors: Sequence[NDArray[np.float32]], *, as_text: bool) -> list[EmbeddingEntry]:
    return [
        EmbeddingEntry(
            index,
            b64encode(each.astype("<f4").tobytes()).decode("ascii") if as_text else each.tolist(),
        )
        for index, each in enumerate(vectors)
    ]
