"""From what a person types as MODEL to a running engine, and an account of how that went."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING

from farthing.core import ActivationMode, DoesNotFitError, KVDtype, RequestError
from farthing.engine.cost import windows_of
from farthing.engine.drafting import draft_of, drafting_of, refuse_other_tokens, speculation_of
from farthing.engine.engine import Engine
from farthing.engine.limits import Policy
from farthing.files.catalog import resolve
from farthing.files.checkpoint import has_receipt, open_checkpoint
from farthing.files.progress import Progress
from farthing.models.load import load_model
from farthing.plan.machine import usable_cores
from farthing.plan.memory import DRAFT_ROWS, plan_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from enum import Enum
    from pathlib import Path
    from typing import TypeVar

    from farthing.engine.drafting import Draft, Drafting
    from farthing.files.checkpoint import Checkpoint
    from farthing.models.load import Model
    from farthing.plan.memory import MemoryPlan
    from farthing.text.chat import ChatTemplate
    from farthing.text.tokenizer import Tokenizer

    Choice = TypeVar("Choice", bound=Enum)


class LoadProgress(Progress):
    """Told how a load goes: the fetch where there is one, and each phase. This one is silent."""

    def phase(self, name: str) -> None:
        """A phase begins: "find", "open", "plan", "pack"."""


@dataclass(frozen=True)
class LoadReport:
    """How a model was loaded and what it takes. Bytes are what was allocated, not an estimate.

    `phases` are seconds by name, in order; "tokenizer" runs beside "pack". `memory` is bytes by
    kind; "draft" is all that a model which guesses takes. `formats` counts the weight tensors by
    stored format; `computed` says for each of these what it is multiplied as: "Q4_1 x int8" is the
    packed format and the activations' mode.
    `cache_tokens` positions are shared by at most `slots` texts at once. `threads` run, of the
    `threads_asked` for. `has_receipt`: the model came with one (`files/receipt.py`), not yet read.
    """

    model: str
    path: Path
    architecture: str
    parameters: int
    model_context_length: int
    context_length: int
    cache_tokens: int
    slots: int
    kv_dtype: str
    threads: int
    threads_asked: int
    isa: str
    seconds: float
    phases: Mapping[str, float]
    memory: Mapping[str, int]
    formats: Mapping[str, int]
    computed: Mapping[str, str]
    has_receipt: bool = False


class _Clock:
    """Seconds by phase, told to whoever watches."""

    def __init__(self, progress: LoadProgress) -> None:
        self.phases: dict[str, float] = {}
        self._progress = progress
        self._started = perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._progress.phase(name)
        started = perf_counter()
        yield
        self.phases[name] = perf_counter() - started

    @property
    def seconds(self) -> float:
        return perf_counter() - self._started


def load(
    model: str | Path,
    *,
    threads: int | None = None,
    kv_dtype: KVDtype | str = KVDtype.BF16,
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
    planner: Callable[..., MemoryPlan] = plan_memory,
) -> Engine:
    """What `Engine.load` does; see there.

    `planner` is asked as `plan_memory` is, and may choose the sizes that nobody gave.
    """
    cache = _choice(KVDtype, "kv_dtype", kv_dtype)
    mode = None if activations is None else _choice(ActivationMode, "activations", activations)
    for name, number in (
        ("threads", threads),
        ("context_length", context_length),
        ("sequences", sequences),
        ("cache_tokens", cache_tokens),
        ("slots", slots),
        ("queue_tokens", queue_tokens),
    ):
        if number is not None and type(number) is not int:
            raise RequestError(f"{name} must be a whole number, not {number!r:.40}")
    policy = Policy(latency_target, sharing, {} if weights is None else weights, slots)
    drafting = drafting_of(speculate, speculate_rule, lookup_traffic)
    cores = usable_cores()
    asked = cores if threads is None else threads
    progress = LoadProgress() if progress is None else progress
    clock = _Clock(progress)
    with clock.phase("find"):
        path = resolve(str(model), progress)
    with clock.phase("open"):
        checkpoint = open_checkpoint(path)
        loaded = load_model(checkpoint)
        draft = draft_of(drafting, loaded, mode, progress)
    with clock.phase("plan"):
        plan = planner(
            loaded,
            context_length=context_length,
            sequences=sequences,
            cache_tokens=cache_tokens,
            slots=slots,
            kv_dtype=cache,
            activations=mode,
            threads=min(asked, cores),
            draft_rows=0 if drafting.way == "off" else DRAFT_ROWS,
            draft=None if draft is None else draft.model,
            lookup_tokens=drafting.traffic,
            leviathan=drafting.rule == "leviathan",
        )
    policy = replace(policy, slots=plan.slots, windows=windows_of(loaded.program.cache))
    try:
        return _allocated(
            path, checkpoint, loaded, plan, policy, queue_tokens, drafting, draft, asked, clock
        )
    except MemoryError as error:
        raise DoesNotFitError(
            "this process may not take the memory that the machine has: raise its limit (ulimit "
            "-v), or use a shorter context or a smaller model"
        ) from error


def _allocated(
    path: Path,
    checkpoint: Checkpoint,
    loaded: Model,
    plan: MemoryPlan,
    policy: Policy,
    queue_tokens: int | None,
    drafting: Drafting,
    draft: Draft | None,
    threads_asked: int,
    clock: _Clock,
) -> Engine:
    """What of a load takes memory and time."""
    reading = _TextParts(checkpoint)
    try:
        reading.start()
    except RuntimeError as error:
        raise DoesNotFitError(
            f"the system refuses to start a thread ({error}): raise the limit of processes (ulimit "
            "-u), or end others"
        ) from error
    with clock.phase("pack"):
        from farthing.backends.native import NativeBackend

        backend = NativeBackend(loaded, plan)
    drafts = None
    try:
        tokenizer, chat_template, clock.phases["tokenizer"] = reading.result()
        if draft is not None and plan.draft is not None:
            if draft.checkpoint is not None:
                from farthing.text.load import load_tokenizer

                refuse_other_tokens(load_tokenizer(draft.checkpoint), tokenizer)
            with clock.phase("draft"):
                drafts = NativeBackend(draft.model, plan.draft)
    except BaseException:
        backend.close()
        raise
    report = _report(path, checkpoint, loaded, plan, threads_asked, backend.tier, clock)
    return Engine(
        backend,
        tokenizer,
        chat_template,
        report=report,
        policy=policy,
        queue_tokens=queue_tokens,
        speculation=speculation_of(drafting, drafts),
    )


class _TextParts(Thread):
    """Reads tokenizer and chat template beside the packing, which leaves the interpreter free.

    A plain thread: the standard library's pools take longer to import than a model to open.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(name="farthing-tokenizer", daemon=True)
        self._checkpoint = checkpoint
        self._parts: tuple[Tokenizer, ChatTemplate | None, float] | None = None
        self._error: Exception | None = None

    def run(self) -> None:
        """What the thread does."""
        started = perf_counter()
        try:
            from farthing.text.chat import load_chat_template
            from farthing.text.load import load_tokenizer

            tokenizer = load_tokenizer(self._checkpoint)
            chat_template = load_chat_template(self._checkpoint, tokenizer)
            if chat_template is not None:
                # The first chat would have to wait for it.
                import farthing.text.sandbox  # noqa: F401
            self._parts = tokenizer, chat_template, perf_counter() - started
        except Exception as error:
            self._error = error

    def result(self) -> tuple[Tokenizer, ChatTemplate | None, float]:
        """Tokenizer, chat template and seconds; raises what reading them raised."""
        self.join()
        if self._parts is None:
            raise self._error or RuntimeError("the tokenizer's thread was ended")
        return self._parts


def _report(
    path: Path,
    checkpoint: Checkpoint,
    model: Model,
    plan: MemoryPlan,
    threads_asked: int,
    isa: str,
    clock: _Clock,
) -> LoadReport:
    return LoadReport(
        model=model.name,
        path=path,
        architecture=model.config.architecture,
        parameters=sum(prod(weight.shape) for weight in model.program.weights.values()),
        model_context_length=model.config.context_length,
        context_length=plan.context_length,
        cache_tokens=plan.cache_tokens,
        slots=plan.slots,
        kv_dtype=plan.kv_dtype.value,
        threads=plan.threads,
        threads_asked=threads_asked,
        isa=isa,
        seconds=clock.seconds,
        phases=dict(clock.phases),
        memory={
            "weights": plan.weight_bytes,
            "cache": plan.cache_bytes,
            "working": plan.arena.total_bytes,
            **({"draft": plan.draft_bytes} if plan.draft else {}),
        },
        formats=dict(Counter(model.formats.values()).most_common()),
        computed=computed_as(plan),
        has_receipt=has_receipt(checkpoint),
    )


def computed_as(plan: MemoryPlan) -> dict[str, str]:
    """For each stored format of the matrices what it is multiplied as; see `LoadReport`."""
    packed = {place.stored: place.packed for place in plan.weights.values() if place.packed}
    return {stored: f"{format_.name} x {format_.mode.value}" for stored, format_ in packed.items()}


def _choice(kind: type[Choice], name: str, value: str) -> Choice:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(str(each.value) for each in kind)
        raise RequestError(f"{name} must be one of {known}, not {value!r}") from None
