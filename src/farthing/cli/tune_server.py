"""What a server's own work takes: reading requests, tokenising, writing tokens to clients.

The application that serves answers here over the loopback, in this process, with an engine that
computes nothing. What counts is the time of processors that neither that engine's thread nor the
client's takes: so it does not matter how busy the machine is besides.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from farthing.core import FarthingError, StepResult
from farthing.plan.profile import ServerWork

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from farthing.core import StepPlan
    from farthing.lab.tune_points import Load
    from farthing.text.tokenizer import Tokenizer

_ROUNDS = 5
_MOST_USERS = 16
_ASKED_BY_EACH = 2
_SHORT_PROMPT = 8
_MOST_ANSWER = 32
_STEP_SECONDS, _ROW_SECONDS = 0.002, 0.0005
"""Of a step of the engine: as much as the server needs to write one step's tokens before the next
come, or two would go out as one."""

_PATIENCE = 60.0
_DONE = b"data: [DONE]\n\n"


def measure_server(tokenizer: Tokenizer, load: Load) -> ServerWork:
    """The work for as many users of the load at once, its prompts and its answers.

    Takes a few seconds. Raises `FarthingError` where the loopback cannot be used.
    """
    draw = np.random.default_rng(0)
    users = min(load.users, _MOST_USERS)
    count = users * _ASKED_BY_EACH
    short = [_prompt(tokenizer, _SHORT_PROMPT, draw) for _ in range(count)]
    long = [_prompt(tokenizer, max(load.prompt, 4 * _SHORT_PROMPT), draw) for _ in range(count)]
    answer = min(max(load.answer, 2), _MOST_ANSWER)
    longest = max(prompt.tokens for prompt in [*short, *long])
    kinds = ((short, 1), (long, 1), (long, answer))
    rounds: list[list[_Taken]] = [[] for _ in kinds]
    with _serving(tokenizer, longest + answer, users) as served:
        for number in range(_ROUNDS + 1):
            for of_kind, (prompts, tokens) in zip(rounds, kinds, strict=True):
                taken = served.answer(prompts, tokens, users)
                if number:  # the first one imports, and learns its way
                    of_kind.append(taken)
    brief, read, written = (
        _Taken(*(median(values) for values in zip(*each, strict=True))) for each in rounds
    )
    token = max(0.0, (written.seconds - read.seconds) / max(1.0, written.events - read.events))
    more = sum(each.tokens for each in long) - sum(each.tokens for each in short)
    prompt_token = max(0.0, (read.seconds - brief.seconds) / max(1, more))
    of_prompts = prompt_token * sum(each.tokens for each in short)
    request = max(0.0, brief.seconds - of_prompts - token * brief.events) / count
    return ServerWork(request, prompt_token, token)


class _Prompt(NamedTuple):
    text: str
    tokens: int


class _Taken(NamedTuple):
    """By all requests of a round: seconds of processors, and events with text that came."""

    seconds: float
    events: float


def _prompt(tokenizer: Tokenizer, tokens: int, draw: np.random.Generator) -> _Prompt:
    """A text of about so many tokens that no other is like."""
    ids = draw.integers(0, tokenizer.vocabulary_size, tokens).tolist()
    text = tokenizer.decode(ids) or "."
    return _Prompt(text, len(tokenizer.encode(text)))


class _Paced:
    """A backend that computes nothing, but lets some time pass; `thread_seconds` are its thread's
    when the latest step began.
    """

    hidden_size = 0
    samples = True

    def __init__(self, vocabulary_size: int, context_length: int, rows: int) -> None:
        self.vocabulary_size = vocabulary_size
        self.context_length = context_length
        self.total_blocks = 2 * rows * (context_length // 32 + 2)
        self.max_step_tokens = max(512, rows)
        self.max_step_rows = rows
        self.thread_seconds = 0.0
        self._draw = np.random.default_rng(1)
        self._cache = np.zeros((self.total_blocks, 1), np.uint8)

    @property
    def identity(self) -> Mapping[str, str]:
        """There is nothing in a block."""
        return {"backend": "paced"}

    def cache_bytes(self) -> NDArray[np.uint8]:
        """A byte for each block."""
        return self._cache

    def run(self, plan: StepPlan, want_logits: bool = False) -> StepResult:
        """Any tokens."""
        self.thread_seconds = time.thread_time()
        rows = len(plan.rows)
        time.sleep(_STEP_SECONDS + _ROW_SECONDS * rows)
        return StepResult(
            tokens=self._draw.integers(0, self.vocabulary_size, rows).astype(np.int32),
            logprob=np.full(rows, np.nan, np.float32),
            top_ids=np.empty((rows, 0), np.int32),
            top_logprobs=np.empty((rows, 0), np.float32),
        )

    def close(self) -> None:
        """There is nothing to give back."""


@dataclass(frozen=True)
class _Served:
    """A server that runs in another thread of this process."""

    port: int
    backend: _Paced

    def answer(self, prompts: Sequence[_Prompt], tokens: int, users: int) -> _Taken:
        """Has so many users ask for the prompts, each for one after another."""
        before = self._others()
        events = asyncio.run(self._ask(prompts, tokens, users))
        return _Taken(self._others() - before, events)

    def _others(self) -> float:
        """Seconds of all threads but the engine's and this one."""
        return time.process_time() - time.thread_time() - self.backend.thread_seconds

    async def _ask(self, prompts: Sequence[_Prompt], tokens: int, users: int) -> int:
        async with asyncio.timeout(_PATIENCE):
            shares = (prompts[user::users] for user in range(users))
            return sum(await asyncio.gather(*(self._user(share, tokens) for share in shares)))

    async def _user(self, prompts: Sequence[_Prompt], tokens: int) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        events = 0
        try:
            for prompt in prompts:
                writer.write(_request(prompt.text, tokens))
                answer = await reader.readuntil(_DONE)
                if not answer.startswith(b"HTTP/1.1 200 "):
                    raise FarthingError(f"the server that is measured answers {answer[:200]!r}")
                events += answer.count(b"data: {")
                await reader.readuntil(b"\r\n0\r\n\r\n")
        finally:
            writer.close()
        return events


def _request(prompt: str, tokens: int) -> bytes:
    body = json.dumps(
        {
            "model": _MODEL,
            "prompt": prompt,
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


_MODEL = "measured"


@contextmanager
def _serving(tokenizer: Tokenizer, context_length: int, users: int) -> Iterator[_Served]:
    """The server as `farthing serve` makes it, without a store of usage and without a log."""
    import uvicorn

    from farthing.engine.engine import Engine
    from farthing.serve.admission import Admission, objective_of
    from farthing.serve.app import build_app
    from farthing.serve.connection import server_config
    from farthing.serve.keys import load_keys
    from farthing.serve.listen import bind
    from farthing.serve.metrics import Metrics
    from farthing.serve.settings import Settings
    from farthing.serve.state import ServerState, card_of

    settings = Settings(host="127.0.0.1", port=0, usage_store=None)
    keys = load_keys(settings)
    backend = _Paced(tokenizer.vocabulary_size, context_length, users)
    engine = Engine(backend, tokenizer)
    state = ServerState(settings, keys=keys)
    state.admission = Admission(engine, keys.keys, objective_of(settings), settings.queue_tokens)
    state.metrics = Metrics()
    state.serve(engine, card_of(engine, _MODEL))
    with bind(settings.host, settings.port) as listener:
        server = uvicorn.Server(server_config(build_app(state), settings))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield _Served(listener.getsockname()[1], backend)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            raise FarthingError(
                f"the server's work cannot be measured over the loopback ({error!r:.200}): allow "
                "connections to 127.0.0.1"
            ) from error
        finally:
            server.should_exit = server.force_exit = True
            engine.close()
            thread.join(_PATIENCE)
