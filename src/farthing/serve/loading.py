"""From the model that a server was told to serve to an engine that runs, told phase by phase."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farthing.core import SPECULATION_RULES, SPECULATIONS, ActivationMode, KVDtype
from farthing.engine.drafting import draft_of, drafting_of, refuse_other_tokens
from farthing.engine.foretold import load_foretold
from farthing.engine.load import LoadProgress
from farthing.files.progress import SILENT
from farthing.plan.machine import processor, usable_cores
from farthing.plan.memory import DRAFT_ROWS, require_room
from farthing.plan.profile import find_profile, profile_key
from farthing.plan.sum import plan_sum
from farthing.serve.log import tell
from farthing.serve.sizing import choose_sizes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from farthing.engine.engine import Engine
    from farthing.engine.load import LoadReport
    from farthing.files.progress import Fetch, Progress
    from farthing.models.load import Model
    from farthing.plan.memory import MemoryPlan
    from farthing.plan.profile import Profile
    from farthing.plan.sum import MemorySum
    from farthing.serve.sizing import Sizes
    from farthing.serve.state import Loading


@dataclass(frozen=True)
class ModelOptions:
    """The model, and how it is to be loaded; what is None is chosen by the rule of `sizing.py`."""

    model: str
    context_length: int | None = None
    cache_tokens: int | None = None
    slots: int | None = None
    kv_dtype: KVDtype = KVDtype.BF16
    activations: ActivationMode | None = None
    threads: int | None = None
    speculate: str = SPECULATIONS[0]
    speculate_rule: str = SPECULATION_RULES[0]
    lookup_traffic: int = 0


class LoggedProgress(LoadProgress):
    """Tells the log of a fetch, and /health of everything."""

    def __init__(self, loading: Loading) -> None:
        self._loading = loading
        self._fetch: Fetch | None = None

    def begin(self, fetch: Fetch) -> None:
        """A fetch starts."""
        self._fetch = fetch
        self._loading.phase = f"fetching {fetch.name}"
        self._loading.fraction = 0.0
        tell(
            "fetch",
            f"fetching {fetch.name} from {fetch.source}, {fetch.bytes / 1e6:,.0f} MB, licence "
            f"{fetch.licence}",
            model=fetch.name,
            source=fetch.source,
            bytes=fetch.bytes,
            licence=fetch.licence,
        )

    def advance(self, done: int) -> None:
        """So many bytes are here."""
        if self._fetch is not None and self._fetch.bytes:
            self._loading.fraction = min(1.0, done / self._fetch.bytes)

    def waiting(self, name: str) -> None:
        """Another process is fetching it."""
        self._loading.phase = f"waiting for another process that fetches {name}"
        tell("fetch", f"another process is fetching {name}: waiting for it", model=name)

    def end(self) -> None:
        """The fetch is over."""
        self._fetch = None
        self._loading.fraction = None

    def phase(self, name: str) -> None:
        """A phase of the load begins."""
        self._loading.phase = name
        self._loading.fraction = None


@dataclass(frozen=True)
class Prospect:
    """What serving a model would take, that part by part, and the profile by which its first times
    would be foretold; or why there is none.
    """

    sizes: Sizes
    memory: MemorySum
    profile: Profile | None
    why_no_profile: str


def prospect_of(
    options: ModelOptions, path: Path, prefix_store: int = 0, progress: Progress = SILENT
) -> Prospect:
    """The prospect of the model at `path`. Reads no weights.

    `prefix_store` are the most bytes of a store on disk. A draft model that is not there is
    fetched, of which `progress` is told. Raises what `draft_of` and `refuse_other_tokens` raise.
    """
    from farthing.backends.ceilings import tier_and_kernels
    from farthing.files.checkpoint import open_checkpoint
    from farthing.models.load import load_model
    from farthing.text.load import load_tokenizer

    drafting = drafting_of(options.speculate, options.speculate_rule, options.lookup_traffic)
    cores = usable_cores()
    with open_checkpoint(path) as checkpoint:
        model = load_model(checkpoint)
        draft = draft_of(drafting, model, options.activations, progress)
        if draft is not None and draft.checkpoint is not None:
            refuse_other_tokens(load_tokenizer(draft.checkpoint), load_tokenizer(checkpoint))
        sizes = choose_sizes(
            model,
            context_length=options.context_length,
            cache_tokens=options.cache_tokens,
            slots=options.slots,
            kv_dtype=options.kv_dtype,
            activations=options.activations,
            threads=min(options.threads or cores, cores),
            draft_rows=0 if drafting.way == "off" else DRAFT_ROWS,
            draft=None if draft is None else draft.model,
            lookup_tokens=drafting.traffic,
            leviathan=drafting.rule == "leviathan",
        )
        file_bytes = sum(tensor.data.nbytes for tensor in checkpoint.tensors.values())
    isa, kernels = tier_and_kernels()
    key = profile_key(model, sizes.plan, cpu=processor(), isa=isa, kernels=kernels)
    memory = plan_sum(sizes.plan, model.program, file_bytes=file_bytes, prefix_store=prefix_store)
    return Prospect(sizes, memory, *find_profile(key))


def load_engine(
    options: ModelOptions,
    loading: Loading,
    *,
    latency_target: float | None,
    weights: Mapping[str, float],
) -> Engine:
    """Loads the model, and tells what each phase took, what was allocated and why.

    `latency_target` and `weights` are as in `Policy`. Raises what `Engine.load` raises, and
    `DoesNotFitError` before anything is allocated.
    """
    chosen: list[Sizes] = []

    def planner(model: Model, *, sequences: int, **asked: Any) -> MemoryPlan:
        sizes = choose_sizes(model, **asked)
        require_room(sizes.plan, sizes.room)
        chosen.append(sizes)
        return sizes.plan

    engine, foretold, why = load_foretold(
        options.model,
        threads=options.threads,
        kv_dtype=options.kv_dtype,
        activations=options.activations,
        context_length=options.context_length,
        cache_tokens=options.cache_tokens,
        slots=options.slots,
        latency_target=latency_target,
        weights=weights,
        speculate=options.speculate,
        speculate_rule=options.speculate_rule,
        lookup_traffic=options.lookup_traffic,
        progress=LoggedProgress(loading),
        planner=planner,
    )
    (sizes,) = chosen
    if engine.report is not None:
        _tell_load(engine.report, sizes.why)
    tell(
        "foretold",
        f"times are foretold by the profile of {foretold.measured}, until steps have run"
        if foretold
        else f"times are learned from steps as they run: {why}",
        measured=None if foretold is None else foretold.measured,
        why=why or None,
    )
    return engine


def _tell_load(report: LoadReport, why: str) -> None:
    phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in report.phases.items())
    tell(
        "loaded",
        f"loaded {report.model} in {report.seconds:.2f} s ({phases}): {report.architecture}, "
        f"{report.parameters / 1e6:,.1f}M parameters, {report.isa}, {report.threads} threads",
        model=report.model,
        path=str(report.path),
        architecture=report.architecture,
        parameters=report.parameters,
        isa=report.isa,
        threads=report.threads,
        seconds=report.seconds,
        phases=dict(report.phases),
    )
    if report.threads_asked > report.threads:
        tell(
            "threads",
            f"{report.threads_asked} threads were asked for, and {report.threads} run: so many "
            "cores are usable",
            level=logging.WARNING,
            threads=report.threads,
            threads_asked=report.threads_asked,
        )
    memory = ", ".join(f"{name} {size / 1e6:,.1f}" for name, size in report.memory.items())
    tell(
        "allocated",
        f"allocated {sum(report.memory.values()) / 1e6:,.1f} MB ({memory}): a context of "
        f"{report.context_length:,} tokens, {report.kv_dtype} cache; {why}",
        memory=dict(report.memory),
        context_length=report.context_length,
        cache_tokens=report.cache_tokens,
        slots=report.slots,
        kv_dtype=report.kv_dtype,
        why=why,
    )
