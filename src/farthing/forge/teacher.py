"""A teacher at work: it writes texts in batches, by the engine, and what it drew from is kept."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from farthing.backends.native import NativeBackend
from farthing.core import BLOCK_TOKENS, SamplingParams
from farthing.engine.engine import Engine
from farthing.engine.limits import Policy
from farthing.forge.lessons import Lessons, lesson_of
from farthing.forge.recorder import RecordingBackend
from farthing.plan.memory import plan_memory, require_room
from farthing.text.chat import load_chat_template
from farthing.text.load import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from farthing.files.checkpoint import Checkpoint
    from farthing.forge.openings import Openings
    from farthing.models.load import Model

TEXT_TOKENS = 256
"""The most tokens that a teacher writes of one text."""

PROMPT_TOKENS = 512

TEMPERATURES = (0.7, 1.0)
"""Each text is sampled at a temperature from here to there."""

_SLOTS = 64


class Teacher:
    """A loaded teacher. `threads` run it, None: all that there are. To be closed.

    `temperature` is that of the labels. Raises `DoesNotFitError` before it takes memory.
    """

    def __init__(
        self, checkpoint: Checkpoint, model: Model, threads: int | None, temperature: float
    ) -> None:
        context = min(model.config.context_length, PROMPT_TOKENS + TEXT_TOKENS)
        self.text_tokens = min(TEXT_TOKENS, context // 2)
        self.prompt_tokens = context - self.text_tokens
        blocks = -(-context // BLOCK_TOKENS)
        plan = plan_memory(
            model,
            context_length=context,
            cache_tokens=_SLOTS * BLOCK_TOKENS * blocks // 2,
            slots=_SLOTS,
            threads=threads,
        )
        require_room(plan)
        self.tokenizer = load_tokenizer(checkpoint)
        self.chat_template = load_chat_template(checkpoint, self.tokenizer)
        self._recorder = RecordingBackend(NativeBackend(model, plan), temperature)
        self._engine = Engine(
            self._recorder, self.tokenizer, policy=Policy(latency_target=None, slots=_SLOTS)
        )

    def write(
        self,
        openings: Openings,
        number: int,
        texts: int,
        seed: int,
        told: Callable[[int, float], bool],
    ) -> Lessons | None:
        """Shard `number` of so many texts: a function of these, `seed` and the teacher alone.

        Shard 0 has the openings that are held out. `told` is given the tokens written so far and
        their seconds again and again; where it answers False, the shard is given up: None.
        """
        started = perf_counter()
        random = np.random.default_rng((seed, 1, number))
        prompts = openings.training if number else openings.held_out
        first = max(0, number - 1) * texts
        chosen = [prompts[(first + at) % len(prompts)] for at in range(texts)]
        temperatures = random.uniform(*TEMPERATURES, texts)
        # Distributions are known by the seed of their text, so no two may have the same.
        seeds = random.integers(0, 1 << 40, texts) * texts + np.arange(texts)
        streams = [
            self._engine.submit(prompt, self._sampling(float(temperature), int(own)))[0]
            for prompt, temperature, own in zip(chosen, temperatures, seeds, strict=True)
        ]
        try:
            for stream in streams:
                for _ in stream:
                    made = len(self._recorder.taken)
                    if not told(made, perf_counter() - started):
                        return None
            answers = [stream.result().token_ids for stream in streams]
            taken = self._recorder.taken
            lessons = [
                lesson_of(
                    prompt,
                    answer,
                    [taken[int(own), len(prompt) + at] for at in range(len(answer))],
                )
                for prompt, answer, own in zip(chosen, answers, seeds, strict=True)
            ]
        finally:
            for stream in streams:
                stream.close()
            self._recorder.taken = {}
        return Lessons(lessons, perf_counter() - started)

    def close(self) -> None:
        """Gives back memory and threads."""
        self._engine.close()

    def _sampling(self, temperature: float, seed: int) -> SamplingParams:
        return SamplingParams(max_tokens=self.text_tokens, temperature=temperature, seed=seed)

    def __enter__(self) -> Teacher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
