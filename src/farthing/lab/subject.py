"""The model under the laboratory's lens, opened once, and the backends that a table asks for."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from farthing.core import ActivationMode, KVDtype, RequestError
from farthing.files.catalog import resolve
from farthing.files.checkpoint import open_checkpoint
from farthing.lab.drift import Gauge
from farthing.lab.facts import facts
from farthing.lab.passage import PASSAGE
from farthing.models.load import load_model
from farthing.plan.machine import usable_cores
from farthing.plan.memory import plan_memory, require_room
from farthing.text.load import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farthing.backends.native import NativeBackend
    from farthing.core import SamplingParams
    from farthing.engine.load import LoadProgress
    from farthing.models.load import Model
    from farthing.text.tokenizer import Tokenizer

NOT_USED = "not used"


class Subject:
    """A model, and how its measurements are to be made.

    `rounds` is how often whatever is measured is measured; `seed` fixes all that is random. `text`
    is what a person gave to be read instead of the usual passage, `matrix` the name of the weight
    that is looked at instead of the most extreme one; `prompts` are a person's own with how each is
    sampled, `draft` and `student` models beside this one. `gauge` watches the machine's own speed.
    """

    def __init__(
        self,
        model: str,
        *,
        progress: LoadProgress,
        threads: int | None = None,
        kv_dtype: KVDtype = KVDtype.BF16,
        activations: ActivationMode | None = None,
        rounds: int = 3,
        seed: int = 0,
        text: str | None = None,
        matrix: str | None = None,
        prompts: tuple[tuple[Any, SamplingParams], ...] = (),
        draft: str | None = None,
        student: str | None = None,
    ) -> None:
        self.name = model
        self.threads = usable_cores() if threads is None else threads
        self.kv_dtype = kv_dtype
        self.activations = activations
        self.rounds = rounds
        self.seed = seed
        self.text = PASSAGE if text is None else text
        self.matrix = matrix
        self.prompts = prompts
        self.draft = draft
        self.student = student
        self.gauge = Gauge(self.threads)
        self.isa = NOT_USED
        self.progress = progress
        progress.phase("find")
        self.path = resolve(model, progress)
        progress.phase("open")
        self.checkpoint = open_checkpoint(self.path)
        self.model = load_model(self.checkpoint)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's own."""
        return load_tokenizer(self.checkpoint)

    def open_native(
        self,
        context_length: int,
        sequences: int = 1,
        kv_dtype: KVDtype | None = None,
        model: Model | None = None,
        *,
        step_tokens: int | None = None,
        step_rows: int | None = None,
        draft_rows: int = 0,
    ) -> NativeBackend:
        """The product's backend with room for `sequences` texts of that context, each with a row.

        `model` is another form of the subject's; what is said of steps is as in `plan_memory`.
        Whoever asks closes it. Raises `DoesNotFitError` where the machine has not the memory.
        """
        from farthing.backends.native import NativeBackend

        model = self.model if model is None else model
        plan = plan_memory(
            model,
            context_length=context_length,
            sequences=sequences,
            kv_dtype=self.kv_dtype if kv_dtype is None else kv_dtype,
            activations=self.activations,
            threads=self.threads,
            step_tokens=step_tokens,
            step_rows=step_rows,
            draft_rows=draft_rows,
        )
        require_room(plan)
        backend = NativeBackend(model, plan)
        self.isa = backend.tier
        return backend

    @contextmanager
    def native(
        self,
        context_length: int,
        sequences: int = 1,
        kv_dtype: KVDtype | None = None,
        model: Model | None = None,
        *,
        step_tokens: int | None = None,
        step_rows: int | None = None,
        draft_rows: int = 0,
    ) -> Iterator[NativeBackend]:
        """`open_native`, closed when the block ends."""
        backend = self.open_native(
            context_length,
            sequences,
            kv_dtype,
            model,
            step_tokens=step_tokens,
            step_rows=step_rows,
            draft_rows=draft_rows,
        )
        try:
            yield backend
        finally:
            backend.close()

    def tokens(self, count: int) -> list[int]:
        """The first `count` token ids of the text, as many as the context holds.

        Raises `RequestError` where the text has fewer, naming both numbers.
        """
        ids = list(self.tokenizer.encode(self.text))
        count = min(count, self.model.config.context_length)
        if len(ids) < count:
            raise RequestError(
                f"the text has {len(ids)} tokens for this model, and {count} are needed: give a "
                "longer one with --text"
            )
        return ids[:count]

    @property
    def texts_digest(self) -> str:
        """Of what a person gave to be read: a file may change its content and keep its name."""
        return blake2b(repr((self.text, self.prompts)).encode(), digest_size=16).hexdigest()

    def provenance(self) -> dict[str, Any]:
        """Version, model with its hash, machine, threads, kernels, settings."""
        return {
            **self._facts,
            "isa": self.isa,
            "kv_dtype": self.kv_dtype.value,
            "activations": "default" if self.activations is None else self.activations.value,
            "rounds": self.rounds,
        }

    @cached_property
    def _facts(self) -> dict[str, Any]:
        """Every byte of the model is read for its hash: once."""
        from farthing.backends.native import NativeBackend

        found = facts(self.name, self.path, self.threads, self.isa)
        return {**found, "kernels": NativeBackend.kernel_version}


def has_torch() -> bool:
    """Whether the torch backend can be used here."""
    from importlib.util import find_spec

    return find_spec("torch") is not None
