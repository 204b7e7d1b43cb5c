"""Who tokenizes next: one text at a time, so that the threads of answers stay theirs."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from farthing.serve.errors import ApiError, ClientGoneError, retry_headers
from farthing.serve.settings import raised_by

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request


class Turns:
    """A queue for work that takes a thread for seconds, is admitted by nobody and paid by nobody.

    Bodies of at most `most_bytes` wait in all; the first may be longer. `waiting_bytes` are those
    that do, with the one whose turn it is.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.waiting_bytes = 0
        self._one = asyncio.Semaphore(1)

    @asynccontextmanager
    async def turn(self, request: Request, size: int) -> AsyncIterator[None]:
        """Entered when it is this request's turn; `size` is that of its body.

        Raises `ApiError` 503 where too much waits already, and `ClientGoneError` for a client that
        has left meanwhile.
        """
        if self.waiting_bytes and self.waiting_bytes + size > self._most_bytes:
            raise ApiError(
                503,
                "too many long texts wait for the tokenizer: send it again in a moment, or "
                + raised_by("reading_bytes"),
                code="too_much_at_once",
                headers=retry_headers(1),
            )
        self.waiting_bytes += size
        try:
            async with self._one:
                if await request.is_disconnected():
                    raise ClientGoneError
                yield
        finally:
            self.waiting_bytes -= size
