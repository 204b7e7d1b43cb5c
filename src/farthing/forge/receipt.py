"""The receipt of a model that is being written: measured as it will be served, and put inside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from farthing.core import ActivationMode, DoesNotFitError, KVDtype
from farthing.files.checkpoint import RECEIPT_FILE, RECEIPT_KEY, open_checkpoint
from farthing.files.gguf_writer import rewrite_text
from farthing.files.receipt import to_json
from farthing.models.load import load_model
from farthing.plan.machine import available_memory
from farthing.plan.memory import plan_memory
from farthing.quality.measure import TOKENS, measure, receipt_of
from farthing.quality.subject import name_of, require_whole_head
from farthing.quality.texts import held_out_text
from farthing.quality.vocabulary import Vocabulary, require_same_tokenizer
from farthing.quality.windows import WINDOW_TOKENS, cut_windows
from farthing.text.load import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from farthing.files.checkpoint import Checkpoint
    from farthing.files.receipt import Receipt
    from farthing.quality.battery import Question
    from farthing.quality.texts import Text


@dataclass(frozen=True)
class ReceiptWish:
    """What a model is measured with: a text, the test text unless given, and the model's reference.

    The reference is the model that is quantised unless given. `tokens` are scored at least;
    `battery` are the questions asked, all of them unless given.
    """

    text: Text | None = None
    reference: Checkpoint | None = None
    tokens: int = TOKENS
    battery: Sequence[Question] | None = None


def check_measurable(wish: ReceiptWish, source: Checkpoint, bytes_written: int) -> None:
    """Raises `FarthingError` for what would keep the receipt from being measured in the end.

    That is a text too short, a reference with another tokenizer, and too little memory for the
    reference in float32 and what is written beside it.
    """
    reference = load_model(source if wish.reference is None else wish.reference)
    require_whole_head(reference)
    text = held_out_text() if wish.text is None else wish.text
    if wish.reference is not None:
        require_same_tokenizer(_vocabulary(source), _vocabulary(wish.reference))
    cut_windows(load_tokenizer(source), text, wish.tokens, _window(reference.config.context_length))
    plan = plan_memory(
        reference,
        context_length=min(2 * WINDOW_TOKENS, reference.config.context_length),
        kv_dtype=KVDtype.FP32,
        activations=ActivationMode.FP32,
    )
    needed, room = plan.needed_bytes + bytes_written, available_memory()
    if needed > room:
        raise DoesNotFitError(
            f"the receipt is measured beside the reference in float32, which together takes "
            f"{needed / 1e6:,.0f} MB, and {room / 1e6:,.0f} MB are available: leave it out "
            "(--no-receipt), or measure on a machine with more memory"
        )


def measured_receipt(
    wish: ReceiptWish,
    made: Path,
    source: Checkpoint,
    *,
    scheme: str,
    methods: Sequence[str],
    calibration_sha256: str | None,
    bits_per_weight: float,
    progress: Callable[[str, float], None],
) -> Receipt:
    """Measures the model at `made`, a GGUF file or a folder, against its reference.

    The scheme and what follows it are as in `Receipt`. `progress` is told what is being done, and
    the share of it. Raises `FarthingError` as `measure` does.
    """
    with open_checkpoint(made) as candidate:
        measurement = measure(
            candidate,
            source if wish.reference is None else wish.reference,
            text=wish.text,
            tokens=wish.tokens,
            window=_window(load_model(candidate).config.context_length),
            battery=wish.battery,
            progress=progress,
        )
    return receipt_of(
        measurement,
        scheme=scheme,
        methods=methods,
        calibration_sha256=calibration_sha256,
        bits_per_weight=bits_per_weight,
    )


def put_inside(receipt: Receipt, made: Path) -> None:
    """Stores the receipt with the model: in the room that a GGUF file has for it, or a folder."""
    if made.is_dir():
        (made / RECEIPT_FILE).write_text(to_json(receipt) + "\n", encoding="utf-8")
    else:
        rewrite_text(made, RECEIPT_KEY, to_json(receipt))


def _vocabulary(checkpoint: Checkpoint) -> Vocabulary:
    size = load_model(checkpoint).program.vocabulary_size
    return Vocabulary(name_of(checkpoint), size, load_tokenizer(checkpoint))


def _window(context_length: int) -> int:
    return min(WINDOW_TOKENS, context_length)
