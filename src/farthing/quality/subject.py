"""A model opened to be measured: with the backend, the files and the settings that serve it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from farthing.core import BLOCK_TOKENS, ActivationMode, KVDtype, RequestError
from farthing.engine.load import computed_as
from farthing.files.catalog import resolve
from farthing.files.checkpoint import DESCRIPTION, open_checkpoint
from farthing.files.formats import stored_bytes
from farthing.files.gguf import GGUFFile
from farthing.files.receipt import Precision, printable, settings_digest, tensors_digest
from farthing.models.load import load_model
from farthing.models.trimmed_head import head_rows_only
from farthing.plan.memory import USUAL_SLOTS, USUAL_STEP_TOKENS, plan_memory
from farthing.quality.vocabulary import Vocabulary
from farthing.text.load import load_tokenizer

if TYPE_CHECKING:
    from farthing.backends.native import NativeBackend
    from farthing.engine.engine import Engine
    from farthing.files.checkpoint import Checkpoint
    from farthing.models.load import Model
    from farthing.text.tokenizer import Tokenizer

LOGIT_FLOATS = 1 << 23
"""About how many logits of one model are held at once."""

_BATTERY_CONTEXT = 512
_BATTERY_CACHE = 2048


@dataclass(frozen=True)
class Settings:
    """How a model is computed: the cache, and what activations are rounded to.

    None for `activations` is what the stored formats default to; these are serve's defaults.
    """

    kv_dtype: KVDtype = KVDtype.BF16
    activations: ActivationMode | None = None


EXACT = Settings(KVDtype.FP32, ActivationMode.FP32)
"""What the weights mean, without any rounding on the way."""


class Subject:
    """An open model with its tokenizer and a native backend, for windows of `window` tokens.

    `bits_per_weight` is that of its matrices as they are stored; `rounded` says whether any is
    stored in fewer than 16 bits. To be closed; the backend's memory goes then.
    """

    def __init__(
        self,
        source: Checkpoint | Path | str,
        settings: Settings,
        *,
        window: int,
        threads: int | None = None,
    ) -> None:
        if isinstance(source, Path | str):
            source = open_checkpoint(resolve(str(source)))
        self.checkpoint = source
        self.settings = settings
        self.name = name_of(source)
        self.model = load_model(source)
        require_whole_head(self.model)
        self.tokenizer: Tokenizer = load_tokenizer(source)
        self.bits_per_weight, self.rounded = _stored_precision(self.model)
        most = self.model.config.context_length
        if window > most:
            raise RequestError(
                f"windows of {window} tokens are longer than the {most} that {self.name} was made "
                "for: use shorter ones"
            )
        vocabulary = self.model.program.vocabulary_size
        # Windows are read side by side, as many as a step has room for.
        together = max(1, USUAL_STEP_TOKENS // (window // 2 + 1)) * -(-window // BLOCK_TOKENS)
        self.plan = plan_memory(
            self.model,
            context_length=min(most, max(window, _BATTERY_CONTEXT)),
            cache_tokens=max(together * BLOCK_TOKENS, _BATTERY_CACHE),
            kv_dtype=settings.kv_dtype,
            activations=settings.activations,
            threads=threads,
            step_rows=max(USUAL_SLOTS, min(USUAL_STEP_TOKENS, LOGIT_FLOATS // vocabulary)),
        )

    @cached_property
    def backend(self) -> NativeBackend:
        """The backend, allocated and packed when it is first asked for."""
        from farthing.backends.native import NativeBackend

        return NativeBackend(self.model, self.plan)

    @cached_property
    def engine(self) -> Engine:
        """An engine over the backend, which is the engine's from then on."""
        from farthing.engine.engine import Engine
        from farthing.engine.limits import Policy

        policy = Policy(latency_target=None, slots=self.plan.slots)
        return Engine(self.backend, self.tokenizer, policy=policy)

    @cached_property
    def digest(self) -> str:
        """The digest of its tensors."""
        return tensors_digest(self.checkpoint)

    @property
    def vocabulary(self) -> Vocabulary:
        """What it gives probabilities to."""
        return Vocabulary(self.name, self.model.program.vocabulary_size, self.tokenizer)

    @property
    def settings_digest(self) -> str:
        """The digest of what its checkpoint says besides."""
        return settings_digest(self.checkpoint)

    @property
    def precision(self) -> Precision:
        """How it is computed, for a receipt."""
        mode = self.settings.activations
        return Precision(
            self.settings.kv_dtype.value,
            "default" if mode is None else mode.value,
            computed_as(self.plan),
            self.backend.tier,
            self.backend.kernel_version,
        )

    def pack(self) -> NativeBackend:
        """Allocates and packs the backend now, unless that is done."""
        return self.backend

    def sign(self) -> str:
        """Takes the digest now, while the files are there."""
        return self.digest

    def close(self) -> None:
        """Gives back memory and threads; the checkpoint stays open."""
        if "engine" in self.__dict__:
            self.engine.close()
        elif "backend" in self.__dict__:
            self.backend.close()

    def __enter__(self) -> Subject:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def require_whole_head(model: Model) -> None:
    """Raises `RequestError` for a model that has no probability for some tokens: any text that
    holds one of them has an infinite perplexity.
    """
    if head_rows_only(model.program) is not model.program:
        raise RequestError(
            f"{model.name} is a draft with a head over some of its vocabulary, so it has neither "
            "perplexity nor divergence: its receipt says how often its guesses are right; to "
            "quantise it, leave the measurement out (--no-receipt)"
        )


def name_of(checkpoint: Checkpoint) -> str:
    """What a model is called in reports: its file, or its folder."""
    if not isinstance(checkpoint, GGUFFile):
        return printable(checkpoint.folder.resolve().name)
    path = checkpoint.path.resolve()
    described = path.name == DESCRIPTION
    return printable(path.parent.name if described else path.name.removesuffix(".gguf"))


def _stored_precision(model: Model) -> tuple[float, bool]:
    """Bits a weight over all matrices, and whether one has fewer than 16."""
    bits = weights = 0
    rounded = False
    for name, weight in model.program.weights.items():
        if len(weight.shape) != 2:
            continue
        stored = 8 * stored_bytes(model.formats[name], weight.shape)
        bits += stored
        weights += prod(weight.shape)
        rounded |= stored < 16 * prod(weight.shape)
    return bits / weights, rounded
