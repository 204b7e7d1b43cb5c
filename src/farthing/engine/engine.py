"""The engine: prompts in, texts out, many at once.

What is slow and concerns one request alone, such as encoding its prompt, is done by the thread that
asks; the steps are run for all by a thread of their own (`loop.py`).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from itertools import count
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, overload
from weakref import finalize

from farthing.core import Request, RequestError, SamplingParams
from farthing.engine.answer import Answer
from farthing.engine.charge import pace_of
from farthing.engine.completion import Embedding, EngineStats
from farthing.engine.constraints import Grammars, Matcher
from farthing.engine.limits import Limits, Policy, refuse_impossible
from farthing.engine.loop import Loop
from farthing.engine.prompts import encode, is_list_of_prompts
from farthing.engine.scheduler import Scheduler
from farthing.engine.stream import Stream, interleaved
from farthing.text.stream import StreamDecoder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from farthing.backends import Backend
    from farthing.core import ActivationMode, Constraint, KVDtype
    from farthing.engine.charge import Pace
    from farthing.engine.completion import Completion, Delta
    from farthing.engine.cost import StepShape
    from farthing.engine.load import LoadProgress, LoadReport
    from farthing.engine.prefix import PrefixIndex
    from farthing.engine.prompt_rows import TokenLogprob
    from farthing.engine.prompts import Prompt, Prompts
    from farthing.engine.speculate import Speculation
    from farthing.engine.store import Restored, Saved
    from farthing.text.chat import ChatTemplate
    from farthing.text.tokenizer import Tokenizer

_GREEDY = SamplingParams()
_READ = SamplingParams(max_tokens=0)
_MOST_CHOICES = 128


class Engine:
    """A loaded model that continues prompts. Safe to call from several threads, and from asyncio.

    `tokenizer` turns text into token ids and back; `report` says how the model was loaded, where
    `load` did it. With `queue_tokens`, `stream` and `submit` raise `BusyError` rather than let more
    tokens of prompts wait, except for a prompt that finds none waiting. FARTHING_CHECK=1 in the
    environment checks the ownership of every block after every step.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None = None,
        *,
        report: LoadReport | None = None,
        policy: Policy | None = None,
        queue_tokens: int | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        if queue_tokens is not None and (type(queue_tokens) is not int or queue_tokens < 1):
            raise RequestError(
                f"queue_tokens must be a whole number from 1, not {queue_tokens!r:.40}"
            )
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.report = report
        self._limits = limits_of(backend)
        self._backend = backend
        self._grammars = Grammars(tokenizer, backend.vocabulary_size)
        scheduler = Scheduler(self._limits, frozenset(tokenizer.eos_ids), policy, speculation)
        self._loop = Loop(backend, scheduler, queue_tokens)
        self._ids = count()
        self._seen: EngineStats | None = None
        finalize(self, self._loop.drop).atexit = False

    @classmethod
    def load(
        cls,
        model: str | Path,
        *,
        threads: int | None = None,
        kv_dtype: KVDtype | str = "bf16",
        activations: ActivationMode | str | None = None,
        context_length: int | None = None,
        sequences: int = 1,
        cache_tokens: int | None = None,
        slots: int | None = None,
        latency_target: float | None = Policy.latency_target,
        sharing: bool = Policy.sharing,
        weights: Mapping[str, float] | None = None,
        queue_tokens: int | None = None,
        speculate: str = "auto",
        speculate_rule: str = "exact",
        lookup_traffic: int = 0,
        progress: LoadProgress | None = None,
    ) -> Engine:
        """Loads a model by path, folder, hub id or catalog name; see `farthing.engine.load`.

        `context_length` is the model's own unless given. The cache holds `cache_tokens` positions,
        or `sequences` texts of that length; at most `slots` run at once. `latency_target`,
        `sharing` and `weights` are as in `Policy`, `queue_tokens` as in `Engine`. `speculate` is
        "auto", "ngram", "draft=MODEL", "self=SCHEME" or "off": how tokens are guessed ahead, and
        `speculate_rule` "exact" or "leviathan": which are taken (`drafting.py`); `lookup_traffic`
        tokens of texts that ended are looked up in, by the same key alone. `threads` is one for
        each core that this process may use. Raises `FileFormatError` or
        `UnsupportedModelError` for the file, `DownloadError` when it cannot be fetched,
        `DoesNotFitError` when the memory does not suffice, before any is taken.
        """
        from farthing.engine.load import load

        return load(
            model,
            threads=threads,
            kv_dtype=kv_dtype,
            activations=activations,
            context_length=context_length,
            sequences=sequences,
            cache_tokens=cache_tokens,
            slots=slots,
            latency_target=latency_target,
            sharing=sharing,
            weights=weights,
            queue_tokens=queue_tokens,
            speculate=speculate,
            speculate_rule=speculate_rule,
            lookup_traffic=lookup_traffic,
            progress=progress,
        )

    @property
    def context_length(self) -> int:
        """The most tokens that a prompt and its answer may have together."""
        return self._limits.context_length

    @property
    def most_tokens(self) -> int:
        """As `context_length`, where the cache is no smaller: what fits into it."""
        return self._limits.room

    @property
    def embedding_size(self) -> int:
        """How many numbers an embedding has; 0 where the backend gives none."""
        return self._backend.hidden_size

    @property
    def slots(self) -> int:
        """How many texts run at once, at most."""
        return self._loop.scheduler.slots

    @property
    def identity(self) -> Mapping[str, str]:
        """What the bits of a text depend on but its prompt and sampling, by name.

        Reads all weights the first time, which must be before the engine is closed.
        """
        return self._backend.identity

    @property
    def steps(self) -> int:
        """How many steps the backend has run."""
        return self._loop.steps

    @property
    def native_seconds(self) -> float:
        """The seconds that these steps took in the backend."""
        return self._loop.native_seconds

    @property
    def idle(self) -> bool:
        """Whether every text has ended, and so no block is held."""
        return not self._loop.unfinished

    def stats(self) -> EngineStats:
        """What the engine is doing; waits for no step."""
        loop = self._loop
        loop.refuse_fork()
        with loop.state:
            pool = loop.scheduler.pool
            running = len(loop.scheduler.running)
            return EngineStats(
                running=running,
                waiting=loop.unfinished - running,
                held_back=loop.scheduler.held_back,
                queued_tokens=loop.queued_tokens,
                free_blocks=pool.free,
                cached_blocks=pool.cached,
                held_blocks=pool.held,
                steps=loop.steps,
                native_seconds=loop.native_seconds,
                counters=loop.scheduler.counters.copy(),
            )

    def lately(self) -> EngineStats:
        """The same, as it was when a caller last found it unchanging: waits for nobody."""
        state = self._loop.state
        if self._seen is None:
            self._seen = self.stats()
        elif state.acquire(blocking=False):
            try:
                self._seen = self.stats()
            finally:
                state.release()
        return self._seen

    def pace(self, running: int, context: int) -> Pace:
        """How fast it goes with `running` texts that have `context` tokens in all."""
        return pace_of(self._loop.scheduler, running, context)

    def expect(
        self,
        steps: Iterable[tuple[StepShape, float]],
        guesses: Iterable[tuple[StepShape, float]] = (),
    ) -> None:
        """Takes in what steps should take, in seconds, as if they had run (`foretold.py`).

        `guesses` are steps of the model that guesses.
        """

        def observe(scheduler: Scheduler, _: Backend) -> None:
            for shape, seconds in steps:
                scheduler.cost.observe(shape, seconds)
            if scheduler.speculation is not None:
                scheduler.speculation.expect(guesses)

        self._loop.between_steps(observe)

    @overload
    def generate(
        self, prompt: Prompts, sampling: SamplingParams | None = None
    ) -> list[Completion]: ...

    @overload
    def generate(self, prompt: Prompt, sampling: SamplingParams | None = None) -> Completion: ...

    def generate(self, prompt: Any, sampling: SamplingParams | None = None) -> Any:
        """Continues a prompt: a string, token ids, or a chat; a list of these gives a list.

        A chat is a list of {"role": ..., "content": ...}. The prompts of a list run together; each
        text is what it would be alone, to the bit. Waits for its turn where many tokens wait.
        Raises `RequestError` when one of them cannot be served as asked, and then none is.
        """
        several = is_list_of_prompts(prompt)
        prompts = prompt if several else [prompt]
        completions = self._complete([self._request(each, sampling) for each in prompts])
        return completions if several else completions[0]

    @overload
    def embed(self, prompt: Prompts, *, key: str = "", priority: int = 0) -> list[Embedding]: ...

    @overload
    def embed(self, prompt: Prompt, *, key: str = "", priority: int = 0) -> Embedding: ...

    def embed(self, prompt: Any, *, key: str = "", priority: int = 0) -> Any:
        """The embedding of a text, token ids, or a chat; a list of these gives a list.

        It is the mean, over all tokens of the prompt, of the hidden states that the head would
        read (after the final norm), divided by its length; see `PromptMean`. Prompts are read whole
        whatever the cache has of them, and together; each result is what it would be alone, to the
        bit. Raises `RequestError` when one cannot be served.
        """
        several = is_list_of_prompts(prompt)
        prompts = prompt if several else [prompt]
        done = self._complete([self._request(each, None, key, priority, True) for each in prompts])
        embeddings = [
            Embedding(each.embedding, each.usage) for each in done if each.embedding is not None
        ]
        return embeddings if several else embeddings[0]

    @overload
    def score(
        self, prompt: Prompts, top: int = 0, *, key: str = "", priority: int = 0
    ) -> list[tuple[TokenLogprob | None, ...]]: ...

    @overload
    def score(
        self, prompt: Prompt, top: int = 0, *, key: str = "", priority: int = 0
    ) -> tuple[TokenLogprob | None, ...]: ...

    def score(self, prompt: Any, top: int = 0, *, key: str = "", priority: int = 0) -> Any:
        """The log-probability of each token of a prompt given those before it; None for the first.

        Each entry names the `top` likeliest tokens in that place, too. A list of prompts gives a
        list. They are read whole and together, as by `embed`. Raises `RequestError` when one cannot
        be served.
        """
        several = is_list_of_prompts(prompt)
        sampling = SamplingParams(max_tokens=0, prompt_logprobs=top)
        prompts = prompt if several else [prompt]
        done = self._complete([self._request(each, sampling, key, priority) for each in prompts])
        scores = [each.prompt_logprobs for each in done]
        return scores if several else scores[0]

    def _complete(self, requests: Sequence[Request]) -> list[Completion]:
        answers = [self._answer(request) for request in requests]
        streams = [Stream(answer, self._loop, self) for answer in answers]
        try:
            waiting = deque(answers)
            while waiting:
                self._loop.feed(waiting, wait=True)
            completions = [stream.result() for stream in streams]
        finally:
            for stream in streams:
                stream.close()
        return completions

    @overload
    def stream(
        self,
        prompt: Prompts,
        sampling: SamplingParams | None = None,
        *,
        key: str = "",
        priority: int = 0,
        timeout: float | None = None,
    ) -> Iterator[tuple[int, Delta]]: ...

    @overload
    def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        key: str = "",
        priority: int = 0,
        timeout: float | None = None,
    ) -> Stream: ...

    def stream(
        self,
        prompt: Any,
        sampling: SamplingParams | None = None,
        *,
        key: str = "",
        priority: int = 0,
        timeout: float | None = None,
    ) -> Any:
        """Continues a prompt, delta by delta; raises `RequestError` at once, not at the first.

        A list of prompts gives an iterator of (index, delta) in the order in which they come; it
        submits its prompts as there is room for them. For the rest see `submit`.
        """
        if not is_list_of_prompts(prompt):
            return self.submit(prompt, sampling, key=key, priority=priority, timeout=timeout)[0]
        deadline = _deadline(timeout)
        waiting = deque(
            self._answer(self._request(each, sampling, key, priority), deadline=deadline)
            for each in prompt
        )
        streams = {index: Stream(each, self._loop, self) for index, each in enumerate(waiting)}
        self._loop.feed(waiting, wait=False)
        return interleaved(streams, waiting, self._loop)

    def submit(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        n: int = 1,
        key: str = "",
        priority: int = 0,
        timeout: float | None = None,
        embed: bool = False,
    ) -> list[Stream]:
        """Queues `n` answers to a prompt; waits for none, so asyncio may call it.

        Answer i is sampled with choice index i, all with one seed: it is what it would be alone.
        Log-probabilities of the prompt come with the first. With `embed`, which takes no sampling,
        the answer is the prompt's embedding and no text.
        `key` names the caller, for fairness and for what of the cache it may find; a higher
        `priority` goes first. After `timeout` seconds an answer ends as it is, with finish reason
        "timeout". Raises `RequestError` when the request cannot be served as asked, `BusyError`
        when too many wait.
        """
        if type(n) is not int or not 1 <= n <= _MOST_CHOICES:
            raise RequestError(f"n must be a whole number from 1 to {_MOST_CHOICES}, not {n!r:.40}")
        deadline = _deadline(timeout)
        request = self._request(prompt, sampling, key, priority, embed)
        answers = [self._answer(request, deadline=deadline)]
        others = replace(request, sampling=replace(request.sampling, prompt_logprobs=None))
        answers += [
            self._answer(replace(others, choice=choice), fork_of=answers[0], deadline=deadline)
            for choice in range(1, n)
        ]
        streams = [Stream(answer, self._loop, self) for answer in answers]
        self._loop.submit(answers)
        return streams

    def prepare(self, constraint: Constraint | None = None) -> None:
        """Makes a constraint ready, and what all of them need; None makes that alone.

        The engine does so when it is asked for a text; for a server it is better done by another
        thread than the one that serves: a large constraint takes a second, the first of all holds
        up Python for a tenth of a second for 50,000 tokens. What was made is kept for the 32
        constraints used last. Raises `RequestError` for one that no text can follow.
        """
        if constraint is None:
            self._grammars.prepare()
        else:
            self._grammars.compile(constraint)

    def check(self, prompt: Prompt, sampling: SamplingParams | None = None) -> None:
        """Raises the `RequestError` that asking for an answer would raise, and asks for none."""
        self._request(prompt, sampling)

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids of a prompt: a string gets the model's first token, a chat its template."""
        return encode(prompt, self.tokenizer, self.chat_template, self.context_length)

    def save_cache(self, path: str | Path, limit_bytes: int) -> Saved:
        """Saves what the prefix index knows, used last first, in a file of at most `limit_bytes`.

        Texts pause meanwhile. Raises `FarthingError` when it cannot be saved; see `store.py`.
        """
        from farthing.engine.store import save

        return self._loop.between_steps(
            lambda scheduler, backend: save(Path(path), _index(scheduler), backend, limit_bytes)
        )

    def restore_cache(self, path: str | Path) -> Restored:
        """Takes what `save_cache` saved into free blocks; the result says what was not, and why."""
        from farthing.engine.store import restore

        return self._loop.between_steps(
            lambda scheduler, backend: restore(Path(path), _index(scheduler), backend)
        )

    def close(self, drain_seconds: float = 0.0) -> None:
        """Ends all texts and gives back the model's memory and threads.

        Refuses new ones at once; those that were accepted have `drain_seconds` to finish, and what
        is left is cancelled. May be called again, also meanwhile, to shorten that time.
        """
        self._loop.close(drain_seconds)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None,
        key: str = "",
        priority: int = 0,
        embed: bool = False,
    ) -> Request:
        """Raises `RequestError` for what could never be served."""
        if embed and sampling is not None:
            raise RequestError("an embedding is not sampled: leave sampling out, or embed")
        if embed and not self.embedding_size:
            raise RequestError(
                "this model gives no embeddings: between its layers and its head "
                "stands more than a norm"
            )
        if sampling is None:
            sampling = _READ if embed else _GREEDY
        if not isinstance(sampling, SamplingParams):
            raise RequestError(f"sampling must be SamplingParams, not {sampling!r:.40}")
        if not isinstance(key, str):
            raise RequestError(f"key must be a string, not {key!r:.40}")
        if type(priority) is not int:
            raise RequestError(f"priority must be a whole number, not {priority!r:.40}")
        ids = tuple(self.encode(prompt))
        number = str(next(self._ids))
        request = Request(number, ids, sampling, key=key, priority=priority, embed=embed)
        refuse_impossible(request, self._limits)
        if sampling.constraint is not None:
            self._grammars.compile(sampling.constraint)
        return request

    def _answer(
        self, request: Request, *, fork_of: Answer | None = None, deadline: float = math.inf
    ) -> Answer:
        sampling = request.sampling
        decoder = StreamDecoder(self.tokenizer, () if sampling.min_tokens else sampling.stop)
        matcher = None
        if sampling.constraint is not None:
            grammar = self._grammars.compile(sampling.constraint)
            matcher = Matcher(grammar, ignore_eos=sampling.ignore_eos)
        return Answer(request, decoder, fork_of=fork_of, deadline=deadline, matcher=matcher)


def limits_of(backend: Backend) -> Limits:
    """What the scheduler of a backend's steps must keep to."""
    return Limits(
        total_blocks=backend.total_blocks,
        context_length=backend.context_length,
        step_tokens=backend.max_step_tokens,
        step_rows=backend.max_step_rows,
        vocabulary_size=backend.vocabulary_size,
    )


def _index(scheduler: Scheduler) -> PrefixIndex:
    if scheduler.index is None:
        raise RequestError("nothing of the cache is shared, so none is saved: load with sharing")
    return scheduler.index


def _deadline(timeout: float | None) -> float:
    """In seconds of `time.monotonic`, for a timeout that begins now."""
    if timeout is None:
        return math.inf
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise RequestError(f"timeout must be seconds above 0, not {timeout!r:.40}")
    return monotonic() + timeout
