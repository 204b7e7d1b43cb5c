"""farthing quantize: write a model again in other formats, with what that cost inside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

# Several matrices are worked on at once, a thread for each. numpy's BLAS, which reads this when
# numpy is first imported, would start as many threads again for every one of them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

if TYPE_CHECKING:
    import argparse

    from farthing.files.checkpoint import Checkpoint
    from farthing.forge.wish import Wish
    from farthing.quality.texts import Text

_DESCRIPTION = """\
Store every matrix of a model in one scheme, the embedding and the head included, or some of them in
others. Norms and biases stay as they are. A GGUF file becomes a GGUF file where GGUF has all that
is written, and a folder of safetensors becomes one where OUT ends in .gguf: settings and tokenizer
go into it as llama.cpp reads them, and what it has no way to say is refused. Everything else
becomes a folder of safetensors. All commands take either as MODEL.
A killed run goes on where it was when the same command is given again."""

_PATTERNS = """\
patterns of --keep: embedding, head, or layers.NUMBER.PART with the parts query, key, value, output
(together: attention), gate, up, down (together: mlp). The layer may be left out (down, mlp.down); *
stands for any name, 0-3 for a range, a comma for or (layers.0-1,28-29); a name stands for all that
begins with it (layers.0). The last pattern that matches a matrix counts. SCHEME may be keep.
"""

_METHODS = """\
methods, which are combined by naming several; all but rotate calibrate with a text:
  gptq           each column's rounding error is made good by the columns after it
  awq            inputs that matter are scaled up before rounding, ranges are clipped
  smoothquant    part of the activations' range is moved into the weights
  llm.int8       inputs with large activations stay out of the int8 codes, in bf16
  rotate         the residual stream is rotated, which spreads what is large over all of it
  static-inputs  the inputs of products are quantised with one fixed scale each
"""

_EXAMPLES = """\
examples:
  farthing quantize folder-of-safetensors smaller --scheme int4-g128
  farthing quantize folder-of-safetensors smaller.gguf --scheme q4_k
  farthing quantize model-bf16.gguf model.gguf --scheme q4_k --keep embedding=q6_k
  farthing quantize folder smaller --scheme int4 --method gptq --keep head=int8 mlp.down=keep
  farthing quantize folder smaller --scheme int8 --method smoothquant static-inputs
"""

_DEFAULT = "default"


def configure(parser: argparse.ArgumentParser) -> None:
    from farthing.cli.options import add_model
    from farthing.files.formats import STORAGE_FORMATS, as_spelled, spelling
    from farthing.forge.methods import Method
    from farthing.forge.schemes import SHORT
    from farthing.quant.formats import WRITABLE_FORMATS

    schemes = {spelling(name): STORAGE_FORMATS[name].bits for name in WRITABLE_FORMATS}
    short = ", ".join(f"{word} is {spelling(name)}" for word, name in SHORT.items())
    parser.description = _DESCRIPTION
    table = "\n".join(f"  {scheme:16}{bits}" for scheme, bits in schemes.items())
    parser.epilog = (
        f"schemes and their bits a weight (K: the length of a row):\n{table}\n  {short}\n\n"
        "Q4_K, q4-k and q4_k are one scheme, and so it is with all of them.\n\n"
        f"{_METHODS}\n{_PATTERNS}\n{_EXAMPLES}"
    )
    add_model(parser)
    parser.add_argument(
        "out",
        metavar="OUT",
        help="the .gguf file or the folder to write; its name says which, where both can be",
    )
    parser.add_argument(
        "--scheme",
        required=True,
        type=as_spelled,
        choices=(*schemes, *SHORT),
        metavar="SCHEME",
        help="see the list below",
    )
    parser.add_argument(
        "--keep",
        action="extend",
        nargs="+",
        metavar="PATTERN=SCHEME",
        help="other schemes for some matrices: head=int8, layers.0-1=q8_0, mlp.down=keep",
    )
    parser.add_argument(
        "--method",
        action="extend",
        nargs="+",
        type=str.lower,
        choices=[str(method) for method in Method],
        metavar="METHOD",
        help="calibrate: see the list below",
    )
    parser.add_argument(
        "--calibrate",
        metavar="TEXT",
        help="the text to calibrate with: a file, or default (a book that comes with farthing); "
        "without a method it weighs the search for scales (of GGUF's schemes of 6 bits and fewer)",
    )
    parser.add_argument(
        "--no-receipt", action="store_true", help="do not measure the result against its source"
    )
    parser.add_argument(
        "--text", metavar="FILE", help="measure on this text (default: a novel, held out)"
    )
    parser.add_argument(
        "--reference",
        metavar="MODEL",
        help="measure against this model (default: the one that is quantised)",
    )
    parser.add_argument("--force", action="store_true", help="replace a model that is at OUT")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    from farthing.cli.progress import terminal_progress
    from farthing.cli.quantize_report import print_json, print_report
    from farthing.cli.stages import stage_bar
    from farthing.files.catalog import resolve
    from farthing.files.checkpoint import open_checkpoint
    from farthing.forge.quantize import quantize

    _check_receipt_flags(arguments)
    with terminal_progress() as progress:
        source = resolve(arguments.model, progress)
        reference = None
        if arguments.reference is not None:
            reference = open_checkpoint(resolve(arguments.reference, progress))
    with open_checkpoint(source) as checkpoint, stage_bar() as bar:
        wish = _wish(arguments, checkpoint, reference)
        report = quantize(
            checkpoint, Path(arguments.out), wish, force=arguments.force, progress=bar
        )
    if arguments.json:
        print_json(report, source, wish)
    else:
        print_report(report, source)
    return 0


def _check_receipt_flags(arguments: argparse.Namespace) -> None:
    from farthing.core import FarthingError

    for flag in ("text", "reference"):
        if arguments.no_receipt and getattr(arguments, flag) is not None:
            raise FarthingError(
                f"--{flag} says how the receipt is measured, and --no-receipt that none is: leave "
                "one of them out"
            )


def _wish(
    arguments: argparse.Namespace, checkpoint: Checkpoint, reference: Checkpoint | None
) -> Wish:
    from farthing.forge.calibrate import calibration_with
    from farthing.forge.methods import NEEDS_TEXT, parse_methods
    from farthing.forge.patterns import parse_rule
    from farthing.forge.receipt import ReceiptWish
    from farthing.forge.schemes import format_of
    from farthing.forge.wish import Wish
    from farthing.quality.texts import read_text

    methods = parse_methods(arguments.method or ())
    text = arguments.calibrate
    if text is None and NEEDS_TEXT & {*methods}:
        text = _DEFAULT
    measured_on = None if arguments.text is None else read_text(arguments.text)
    return Wish(
        format_of(arguments.scheme),
        tuple(map(parse_rule, arguments.keep or ())),
        methods,
        None if text is None else calibration_with(_calibration_text(text), checkpoint),
        None if arguments.no_receipt else ReceiptWish(measured_on, reference),
    )


def _calibration_text(name: str) -> Text:
    from farthing.quality.texts import calibration_text, read_text

    return calibration_text() if name == _DEFAULT else read_text(name)
