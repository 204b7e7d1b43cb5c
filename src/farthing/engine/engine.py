"""The engine: prompts in, texts out, many at once.

Whoever wants the next piece of a text, and finds none ready, runs one step for everybody: so
threads that generate side by side share their steps, and nothing runs when nobody waits.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast, overload
from weakref import WeakValueDictionary

import numpy as np

from farthing.core import FarthingError, Request, RequestError, SamplingParams
from farthing.engine.sampler import sample
from farthing.engine.scheduler import Limits, Scheduler
from farthing.engine.stream import Stream
from farthing.text.stream import StreamDecoder

if TYPE_CHECKING:
    from collections import abc
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from farthing.backends import Backend
    from farthing.core import ActivationMode, KVDtype
    from farthing.engine.completion import Completion
    from farthing.engine.load import LoadProgress, LoadReport
    from farthing.engine.sequence import Sequence
    from farthing.text.chat import ChatTemplate
    from farthing.text.tokenizer import Tokenizer

    Chat = abc.Sequence[Mapping[str, Any]]
    Prompt = str | abc.Sequence[int] | NDArray[np.integer[Any]] | Chat

_GREEDY = SamplingParams()


class Engine:
    """A loaded model that continues prompts. Safe to call from several threads.

    `tokenizer` turns text into token ids and back; `report` says how the model was loaded, where
    `load` did it.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None = None,
        *,
        report: LoadReport | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.report = report
        self.native_seconds = 0.0
        self.steps = 0
        limits = limits_of(backend)
        self._backend: Backend | None = backend
        self._scheduler = Scheduler(limits, frozenset(tokenizer.eos_ids))
        self._streams: WeakValueDictionary[Sequence, Stream] = WeakValueDictionary()
        # Held while a step runs, and by whoever changes the scheduler's state. Nobody waits for it
        # to abandon a sequence: whoever holds it ends those that were abandoned meanwhile.
        self._lock = threading.Lock()
        self._abandoned: deque[Sequence] = deque()
        self._ids = count()
        self._process = os.getpid()

    @classmethod
    def load(
        cls,
        model: str | Path,
        *,
        threads: int | None = None,
        kv_dtype: KVDtype | str = "fp16",
        activations: ActivationMode | str | None = None,
        context_length: int | None = None,
        sequences: int = 1,
        progress: LoadProgress | None = None,
    ) -> Engine:
        """Loads a model by path, folder, hub id or catalog name; see `farthing.engine.load`.

        `context_length` is the model's own unless given, `sequences` how many texts of that length
        the cache holds (more run at once where they are shorter), `threads` one for each core that
        this process may use. Raises `FileFormatError` or `UnsupportedModelError` for the file,
        `DownloadError` when it cannot be fetched, `DoesNotFitError` when the memory does not
        suffice, before any is taken.
        """
        from farthing.engine.load import load

        return load(
            model,
            threads=threads,
            kv_dtype=kv_dtype,
            activations=activations,
            context_length=context_length,
            sequences=sequences,
            progress=progress,
        )

    @property
    def context_length(self) -> int:
        """The most tokens that a prompt and its answer may have together."""
        return self._scheduler.limits.context_length

    @property
    def idle(self) -> bool:
        """Whether no text is waiting or running, and so no block is held."""
        with self._lock:
            self._end_abandoned()
            return not self._scheduler.waiting and not self._scheduler.running

    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]] | list[list[dict[str, Any]]],
        sampling: SamplingParams | None = None,
    ) -> list[Completion]: ...

    @overload
    def generate(self, prompt: Prompt, sampling: SamplingParams | None = None) -> Completion: ...

    def generate(self, prompt: Any, sampling: SamplingParams | None = None) -> Any:
        """Continues a prompt: a string, token ids, or a chat; a list of these gives a list.

        A chat is a list of {"role": ..., "content": ...}. The prompts of a list run together; each
        text is what it would be alone, to the bit. Raises `RequestError` when one of them cannot be
        served as asked, and then none is.
        """
        several = _is_list_of_prompts(prompt)
        streams: list[Stream] = []
        try:
            # One by one, so that those before a bad one are closed again.
            streams.extend(
                self.stream(each, sampling) for each in (prompt if several else [prompt])
            )
            for stream in streams:
                for _ in stream:
                    pass
            completions = [stream.completion for stream in streams]
        finally:
            for stream in streams:
                stream.close()
        return completions if several else completions[0]

    def stream(self, prompt: Prompt, sampling: SamplingParams | None = None) -> Stream:
        """Continues a prompt, delta by delta; raises `RequestError` at once, not at the first."""
        sampling = _GREEDY if sampling is None else sampling
        if not isinstance(sampling, SamplingParams):
            raise RequestError(f"sampling must be SamplingParams, not {sampling!r:.40}")
        if os.getpid() != self._process:
            # The backend's threads are not in this process, and would be waited for for ever.
            raise RequestError("the engine was loaded before a fork: load the model in the child")
        request = Request(str(next(self._ids)), tuple(self.encode(prompt)), sampling)
        decoder = StreamDecoder(self.tokenizer, () if sampling.min_tokens else sampling.stop)
        with self._lock:
            self._end_abandoned()
            if self._backend is None:
                raise RequestError("the engine is closed: load the model again")
            sequence = self._scheduler.submit(request)
            stream = Stream(sequence, decoder, self._advance, self._abandon, self.native_seconds)
            self._streams[sequence] = stream
        return stream

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids of a prompt: a string gets the model's first token, a chat its template."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, most_tokens=self.context_length)
        if isinstance(prompt, np.ndarray):
            prompt = prompt.tolist()
        if not isinstance(prompt, list | tuple):
            raise RequestError(
                f"a prompt is a string, token ids or a chat, not {type(prompt).__name__}"
            )
        if prompt and all(hasattr(message, "keys") for message in prompt):
            if self.chat_template is None:
                raise RequestError(
                    "this model has no chat template: give the prompt as a string, or take a model "
                    "that was trained for chat"
                )
            return self.chat_template.encode(cast("Chat", prompt), most_tokens=self.context_length)
        ids = [
            int(token) for token in prompt if type(token) is int or isinstance(token, np.integer)
        ]
        if len(ids) != len(prompt):
            raise RequestError("a prompt of token ids holds whole numbers only")
        return ids

    def close(self) -> None:
        """Ends all texts and gives back the model's memory and threads."""
        with self._lock:
            for sequence in (*self._scheduler.waiting, *self._scheduler.running):
                self._scheduler.end(sequence, "cancelled")
            backend, self._backend = self._backend, None
            if backend is not None:
                backend.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _advance(self, stream: Stream) -> None:
        """Runs a step, unless the stream has a delta or an end by the time it may."""
        with self._lock:
            self._end_abandoned()
            if stream.waits:
                self._step()
        self._settle()

    def _step(self) -> None:
        backend, plan = self._backend, self._scheduler.schedule()
        if backend is None or plan is None:
            raise RuntimeError("a text waits for a step, and there is none to run")
        started = perf_counter()
        result = backend.run(plan)
        now = perf_counter()
        self.native_seconds += now - started
        self.steps += 1
        if not backend.samples and plan.sampling is not None and result.logits is not None:
            result = sample(result.logits, plan.sampling)
            if (result.tokens < 0).any():
                raise FarthingError(
                    "no token can be chosen: the model's scores are not numbers. The model file is "
                    "damaged, or its weights overflow: fetch it again"
                )
        for sequence in self._scheduler.commit(result):
            stream = self._streams.get(sequence)
            if stream is not None:
                stream.take(self._scheduler, now, self.native_seconds)

    def _abandon(self, sequence: Sequence) -> None:
        self._abandoned.append(sequence)
        self._settle()

    def _settle(self) -> None:
        """Ends what is abandoned, unless somebody holds the lock, who then does it afterwards."""
        while self._abandoned and self._lock.acquire(blocking=False):
            try:
                self._end_abandoned()
            finally:
                self._lock.release()

    def _end_abandoned(self) -> None:
        while self._abandoned:
            self._scheduler.end(self._abandoned.popleft(), "cancelled")


def limits_of(backend: Backend) -> Limits:
    """What the scheduler of a backend's steps must keep to."""
    return Limits(
        total_blocks=backend.total_blocks,
        context_length=backend.context_length,
        step_tokens=backend.max_step_tokens,
        step_rows=backend.max_step_rows,
        vocabulary_size=backend.vocabulary_size,
    )


def _is_list_of_prompts(prompt: object) -> bool:
    """Whether it is a list of strings, of lists or of chats; a chat is a list of mappings."""
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list | tuple)
