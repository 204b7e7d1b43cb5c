"""The exactness contract, checked on this machine, and two faults that the checks must notice.

A token's logits are a bitwise function of its prefix, the model and the settings. So one text is
made in many ways, and each must give the same tokens and the same bits of logits. Then the cache is
damaged in one bit, and attention's chunks are merged in another order: a check that lets either
pass is worth nothing, so these must come out different.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import cycle
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import numpy as np

from farthing.backends import Backend
from farthing.core import BLOCK_TOKENS, CHUNK_TOKENS, KVDtype, Request, RequestError, SamplingParams
from farthing.engine.engine import limits_of
from farthing.engine.limits import Policy
from farthing.engine.sampler import sample
from farthing.engine.scheduler import Scheduler
from farthing.engine.speculate import Speculation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from collections.abc import Sequence as ListOf

    from numpy.typing import NDArray

    from farthing.engine.sequence import Sequence

    MakeBackend = Callable[[KVDtype, int], "BreakableBackend"]

PROMPT_TOKENS = 600
"""Long enough for three chunks of attention: two commute, so their order could not be noticed."""

SEQUENCES = 4
"""The text itself and its neighbours."""

SAMPLED = SamplingParams(ignore_eos=True, temperature=0.8, top_p=0.95, seed=20_011)
"""How the second of two texts is made; the first is greedy."""

_ODD_CHUNKS = (1, 37, 2, 1, 1, 101, 3, 31, 64)
_MODES = (SamplingParams(ignore_eos=True), SAMPLED)
_ITEM_BYTES = {
    KVDtype.FP32: 4,
    KVDtype.FP16: 2,
    KVDtype.BF16: 2,
    KVDtype.INT8: 1,
}


class BreakableBackend(Backend, Protocol):
    """A backend that can be damaged on purpose."""

    def cache_bytes(self) -> NDArray[np.uint8]:
        """The cache itself, (blocks, bytes of a block), writable."""
        ...

    def set_fault(self, name: str, on: bool) -> None:
        """`reverse_merge`: merges attention's chunks from the last to the first."""
        ...


@dataclass(frozen=True)
class Check:
    """One comparison. `seconds` are of the way checked, `reference_seconds` of what it is held to.

    `passed`: it was identical; or, where it is a `fault`, it was not. `detail` says what differed.
    """

    name: str
    kv_dtype: KVDtype
    reference_seconds: float
    seconds: float
    fault: bool
    passed: bool
    detail: str


@dataclass(frozen=True)
class Text:
    """What one way of making a text gave: tokens, each token's logits, and the time."""

    tokens: tuple[int, ...]
    logits: NDArray[np.float32]
    seconds: float


def prompt_of(ids: ListOf[int]) -> tuple[int, ...]:
    """`PROMPT_TOKENS` tokens made by repeating `ids`."""
    if not ids:
        raise RequestError("the prompt to verify with has no tokens")
    return tuple(ids[i % len(ids)] for i in range(PROMPT_TOKENS))


def verify(
    make_backend: MakeBackend,
    prompt: tuple[int, ...],
    tokens: int,
    threads: int,
    kv_dtypes: Iterable[KVDtype] = KVDtype,
) -> Iterator[Check]:
    """Makes `tokens` tokens after `prompt` in every way, greedy and sampled, for each KV dtype.

    `make_backend(kv_dtype, threads)` gives a backend with room for `SEQUENCES` texts of that
    length. Each check is yielded as soon as it is known.
    """
    if len(prompt) + tokens <= 2 * CHUNK_TOKENS + 1:
        raise RequestError(
            f"{len(prompt)} + {tokens} tokens do not reach the third chunk of {CHUNK_TOKENS} "
            "positions, so a wrong order of merging could not be noticed: use more"
        )
    for kv_dtype in kv_dtypes:
        yield from _Checks(make_backend, kv_dtype, prompt, tokens, threads).run()


class _Checks:
    """All checks of one KV dtype. A way of making the text is made greedily and sampled."""

    def __init__(
        self,
        make_backend: MakeBackend,
        kv_dtype: KVDtype,
        prompt: tuple[int, ...],
        tokens: int,
        threads: int,
    ) -> None:
        self._make_backend = make_backend
        self._kv_dtype = kv_dtype
        self._tokens = tokens
        self._threads = threads
        self._requests = [
            Request("text", prompt, replace(mode, max_tokens=tokens)) for mode in _MODES
        ]

    def run(self) -> Iterator[Check]:
        backend = self._make_backend(self._kv_dtype, self._threads)
        try:
            slow = [recomputed(backend, request) for request in self._requests]
            fast = [made(backend, [request])[0] for request in self._requests]
            yield self._identical("cached against recomputed each step", slow, fast)
            yield self._identical(
                "prompt in odd chunks against whole",
                fast,
                [made(backend, [r], chunks=_ODD_CHUNKS)[0] for r in self._requests],
            )
            yield self._identical(
                "among neighbours against alone",
                fast,
                [among_neighbours(backend, request) for request in self._requests],
            )
            yield self._identical(
                "prompt from cache against computed",
                fast,
                [from_the_cache(backend, request) for request in self._requests],
            )
            yield self._identical(
                "preempted against undisturbed",
                fast,
                [preempted(backend, request) for request in self._requests],
            )
            yield self._identical(
                "speculated against plain",
                fast,
                [
                    speculated(backend, request, text)
                    for request, text in zip(self._requests, fast, strict=True)
                ],
            )
            other = 1 if self._threads > 1 else 2
            yield self._identical(
                f"threads: {other} against {self._threads}", fast, self._with_threads(other)
            )
            yield self._different(
                "fault: one cached bit flipped",
                fast,
                [flipped(backend, self._kv_dtype, request) for request in self._requests],
            )
            backend.set_fault("reverse_merge", True)
            broken = [made(backend, [request])[0] for request in self._requests]
            backend.set_fault("reverse_merge", False)
            yield self._different("fault: chunks merged in reverse", fast, broken)
        finally:
            backend.close()

    def _with_threads(self, threads: int) -> list[Text]:
        backend = self._make_backend(self._kv_dtype, threads)
        try:
            return [made(backend, [request])[0] for request in self._requests]
        finally:
            backend.close()

    def _identical(self, name: str, reference: list[Text], found: list[Text]) -> Check:
        pairs = list(zip(reference, found, strict=True))
        differences = [difference(one, other) for one, other in pairs]
        passed = not any(differences)
        detail = "identical" if passed else "; ".join(filter(None, differences))
        return self._check(name, reference, found, False, passed, detail)

    def _different(self, name: str, reference: list[Text], found: list[Text]) -> Check:
        pairs = list(zip(reference, found, strict=True))
        differences = [difference(one, other) for one, other in pairs]
        passed = all(differences)
        detail = differences[0] if passed else "the fault changed nothing, or not every text"
        return self._check(name, reference, found, True, passed, detail)

    def _check(
        self,
        name: str,
        reference: list[Text],
        found: list[Text],
        fault: bool,
        passed: bool,
        detail: str,
    ) -> Check:
        return Check(
            name,
            self._kv_dtype,
            sum(text.seconds for text in reference),
            sum(text.seconds for text in found),
            fault,
            passed,
            detail,
        )


def made(
    backend: Backend,
    requests: ListOf[Request],
    *,
    chunks: ListOf[int] = (),
    scheduler: Scheduler | None = None,
    after_step: Callable[[Scheduler], None] = lambda scheduler: None,
) -> list[Text]:
    """Makes the requests' texts together.

    `chunks` are the most tokens of each step, over and over; without any, what the backend allows.
    `scheduler` may have served others before; without one, everything is computed. `after_step`
    sees each step end.
    """
    scheduler = scrambled(backend, 0) if scheduler is None else scheduler
    started = perf_counter()
    sequences = [scheduler.submit(request) for request in requests]
    logits: dict[object, list[NDArray[np.float32]]] = {sequence: [] for sequence in sequences}
    sizes = cycle(chunks or (backend.max_step_tokens,))
    while (plan := scheduler.schedule(next(sizes))) is not None:
        result = backend.run(plan, want_logits=True)
        if result.logits is None:
            raise RuntimeError("the backend gave no logits, though they were asked for")
        scores = result.logits
        if not backend.samples and plan.sampling is not None:
            result = sample(scores, plan.sampling)
        scheduler.commit(result)
        for row, sequence in scheduler.kept:
            logits[sequence].append(scores[row])
        after_step(scheduler)
    seconds = perf_counter() - started
    return [Text(tuple(s.output), np.array(logits[s]), seconds) for s in sequences]


def scrambled(
    backend: Backend,
    placement: int,
    *,
    sharing: bool = False,
    speculation: Speculation | None = None,
) -> Scheduler:
    """A scheduler that hands out blocks in an order of its own, which `placement` seeds."""
    policy = Policy(sharing=sharing)
    scheduler = Scheduler(limits_of(backend), policy=policy, speculation=speculation)
    blocks = scheduler.pool.take(scheduler.pool.total)
    random.Random(placement).shuffle(blocks)
    scheduler.pool.give(blocks)
    return scheduler


def recomputed(backend: Backend, request: Request) -> Text:
    """The slow way: for each token everything before it is computed anew, in other blocks."""
    known = list(request.prompt)
    parts: list[Text] = []
    one = replace(request.sampling, max_tokens=1)
    for step in range(request.sampling.max_tokens or 0):
        asked = Request("text", tuple(known), one)
        parts += made(backend, [asked], scheduler=scrambled(backend, step + 1))
        known += parts[-1].tokens
    return Text(
        tuple(known[len(request.prompt) :]),
        np.concatenate([part.logits for part in parts]),
        sum(part.seconds for part in parts),
    )


def among_neighbours(backend: Backend, request: Request) -> Text:
    """The text beside three others, in steps that mix chunks of prompts with decoding."""
    prompt = request.prompt
    greedy = SamplingParams(ignore_eos=True, max_tokens=12)
    sampled = replace(request.sampling, temperature=1.5, seed=3)
    together = [
        Request("before", prompt[7:107], greedy),
        request,
        Request("as long", prompt[::-1], sampled),
        Request("short", prompt[3:4], greedy),
    ]
    return made(backend, together, chunks=(90,), scheduler=scrambled(backend, 99))[1]


def from_the_cache(backend: Backend, request: Request) -> Text:
    """The text after a prompt of which another, that ends differently, left most in the cache.

    They part within a block, so the block is copied.
    """
    scheduler = scrambled(backend, 7, sharing=True)
    prompt = request.prompt
    other = (*prompt[:-40], *prompt[:40])
    one = replace(request.sampling, max_tokens=1)
    made(backend, [Request("left before", other, one)], scheduler=scheduler)
    text = made(backend, [request], scheduler=scheduler)[0]
    if scheduler.counters.reused_tokens < len(prompt) // 2:
        raise RuntimeError("the prompt was not found in the cache")
    return text


def preempted(backend: Backend, request: Request) -> Text:
    """The text of a sequence that gives its blocks away every few steps, for others to use."""
    disturbed_at = -2  # for the first time after the first token

    def disturb(scheduler: Scheduler) -> None:
        nonlocal disturbed_at
        made_so_far = scheduler.counters.generated_tokens
        if not scheduler.running or made_so_far < disturbed_at + 3:
            return
        disturbed_at = made_so_far
        scheduler.preempt(scheduler.running[-1])
        if scheduler.counters.preemptions % 2:
            # Somebody else's: nothing that was cached survives.
            scheduler.pool.give(scheduler.pool.take(scheduler.pool.available))

    scheduler = scrambled(backend, 5, sharing=True)
    text = made(backend, [request], scheduler=scheduler, after_step=disturb)[0]
    if scheduler.counters.recomputed_tokens == 0:
        raise RuntimeError("nothing was computed again")
    return text


def speculated(backend: Backend, request: Request, plain: Text) -> Text:
    """The text made with tokens guessed ahead, of which every fifth is wrong."""
    scheduler = scrambled(backend, 3, speculation=Speculation(_Recalling(plain), always=True))
    text = made(backend, [request], scheduler=scheduler)[0]
    if scheduler.counters.drafts.accepted == 0:
        raise RuntimeError("no guess was accepted")
    return text


class _Recalling:
    """Guesses what a text was when it was made before, and is wrong now and then."""

    def __init__(self, text: Text) -> None:
        self._tokens = text.tokens

    def propose(self, sequences: ListOf[Sequence], most: ListOf[int]) -> list[list[int]]:
        """See `Drafter`."""
        return [
            self._following(len(sequence.output), length)
            for sequence, length in zip(sequences, most, strict=True)
        ]

    def matched(self, sequence: Sequence) -> int:
        """See `Drafter`."""
        return 0

    def chances(self, sequence: Sequence) -> list[NDArray[np.float64]]:
        """See `Drafter`."""
        return []

    def forget(self, sequence: Sequence) -> None:
        """See `Drafter`."""

    def close(self) -> None:
        """See `Drafter`."""

    def _following(self, known: int, most: int) -> list[int]:
        guess = self._tokens[known : known + most]
        return [token ^ (number % 5 == 4) for number, token in enumerate(guess, known)]


def flipped(backend: BreakableBackend, kv_dtype: KVDtype, request: Request) -> Text:
    """The text made with one bit of the cache flipped on the way.

    It is the sign of a number among the keys and values of the first token that was sampled, the
    largest by its exponent, or by its code in int8; of int4 keys, that of a whole key's scale.
    """
    pool = backend.cache_bytes()
    # Earlier texts have left the very bytes that this one will write.
    pool[:] = 0
    signs = _signs(pool, kv_dtype)
    before = signs.copy()
    flips = 0

    def flip(scheduler: Scheduler) -> None:
        nonlocal before, flips
        made_so_far = sum(len(sequence.output) for sequence in scheduler.running)
        if made_so_far == 1:
            before = signs.copy()
        elif made_so_far == 2:
            magnitude = np.where(signs != before, signs & 0x7F, 0)
            signs[np.unravel_index(magnitude.argmax(), signs.shape)] ^= 0x80
            flips += 1

    text = made(backend, [request], after_step=flip)[0]
    if flips != 1:
        raise RequestError("a text of at least 3 tokens is needed to flip a bit on the way")
    return text


def _signs(pool: NDArray[np.uint8], kv_dtype: KVDtype) -> NDArray[np.uint8]:
    """The bytes with numbers' signs, (blocks, numbers): little-endian, a number's last."""
    if kv_dtype is KVDtype.INT4_KEYS:
        # Of the last head, whose fp16 key scales lie before the fp32 ones of its values.
        return pool[:, -(2 + 4) * BLOCK_TOKENS + 1 : -4 * BLOCK_TOKENS : 2]
    size = _ITEM_BYTES[kv_dtype]
    return pool[:, size - 1 :: size]


def difference(one: Text, other: Text) -> str:
    """The first thing that differs between two texts, to the bit; empty where nothing does."""
    if len(one.tokens) != len(other.tokens):
        return f"{len(one.tokens)} tokens against {len(other.tokens)}"
    pairs = zip(one.tokens, other.tokens, one.logits, other.logits, strict=True)
    for number, (token, other_token, logits, other_logits) in enumerate(pairs, 1):
        unequal = int((logits.view(np.uint32) != other_logits.view(np.uint32)).sum())
        if unequal:
            most = float(np.abs(logits - other_logits).max())
            return f"token {number}: {unequal} of {len(logits)} logits differ, by up to {most:.2g}"
        if token != other_token:
            return f"token {number}: {token} against {other_token}, chosen from equal logits"
    return ""
