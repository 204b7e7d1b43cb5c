"""A head over some of the vocabulary: for drafts, whose cost is their head more than anything else.

A checkpoint says so in a tensor beside the head: `<its name>.token_ids`, I32 (n,), ascending: the
token of each of the head's n rows. The model reads all tokens of its vocabulary and has no other
score for those that are not among them than -inf. Architecture files know nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farthing.core import FileFormatError
from farthing.models.program import Builder

if TYPE_CHECKING:
    from farthing.core import StoredTensor
    from farthing.models.program import Op, Program

TOKEN_IDS = "token_ids"


def take_head_tokens(
    program: Program, head: str, stored: dict[str, StoredTensor], where: str
) -> tuple[int, ...] | None:
    """Removes from `stored`, and reads, the tokens of the rows of `head`; None where it has all.

    `head` is the name of the head's tensor in the checkpoint, which is `where`. Raises
    `FileFormatError` for what is not as this file's first lines say, before it reads more tokens
    than there are, and where the head is the embedding, which has a row for each token.
    """
    tensor = stored.pop(f"{head}.{TOKEN_IDS}", None)
    if tensor is None:
        return None
    advice = "the file is damaged, or was put together wrongly: distil or fetch the model again"
    if head not in stored:
        raise FileFormatError(
            f"{where}: {tensor.name} speaks of rows of a head that is not there: {advice}"
        )
    vocabulary = program.vocabulary_size
    count = tensor.shape[0] if len(tensor.shape) == 1 else 0
    if tensor.format != "I32" or not 0 < count <= vocabulary:
        raise FileFormatError(
            f"{where}: the tensor {tensor.name} must be I32 of shape (n,) with n from 1 to "
            f"{vocabulary}, not {tensor.format} of shape {tensor.shape}: {advice}"
        )
    tokens = tensor.data.view("<i4").astype(np.int64)
    if tokens[0] < 0 or tokens[-1] >= vocabulary or not (np.diff(tokens) > 0).all():
        raise FileFormatError(
            f"{where}: the tensor {tensor.name} must list tokens in ascending order, each once, "
            f"from 0 to {vocabulary - 1}, not {tokens.tolist()!s:.80}: {advice}"
        )
    return tuple(tokens.tolist())


def with_head_over(program: Program, tokens: tuple[int, ...]) -> Program:
    """The Program with a head of a row for each of `tokens`, and scores of -inf for all others."""
    head = next(op for op in program.ops if op.kind == "logits")
    b = Builder()
    for weight in program.weights.values():
        if weight.name == head.weights[0]:
            b.weight(weight.name, len(tokens), weight.shape[1])
        else:
            b.weight(weight.name, *weight.shape)
    for op in program.ops:
        if op is head:
            _append_head(b, op, tokens, program.vocabulary_size)
        else:
            b.op(op.kind, op.output, op.inputs, op.weights, **op.attributes)
    return b.finish(program.output)


def head_rows_only(program: Program) -> Program:
    """The Program up to the scores that its head has rows for: one with a whole head, as it is."""
    last = program.ops[-1]
    if last.kind != "spread":
        return program
    b = Builder()
    for weight in program.weights.values():
        b.weight(weight.name, *weight.shape)
    for op in program.ops[:-1]:
        b.op(op.kind, op.output, op.inputs, op.weights, **op.attributes)
    return b.finish(last.inputs[0])


def _append_head(b: Builder, head: Op, tokens: tuple[int, ...], vocabulary: int) -> None:
    rows = b.op("logits", f"{head.output}.rows", head.inputs, head.weights, **head.attributes)
    b.op("spread", head.output, (rows,), columns=tokens, width=vocabulary)
