"""What a plan is about: a model in one precision with one kind of cache, or a mere shape of one.

A subject says what it takes for so many users, and what its steps read and multiply. Costs are
exact for a model, being sums over its Program, and the formula's for a shape.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from farthing.core import ActivationMode, KVDtype, RequestError
from farthing.plan.cost import Cost, Work, step_work
from farthing.plan.memory import DRAFT_ROWS, USUAL_STEP_TOKENS, bytes_per_token, plan_memory
from farthing.plan.packed import packed_format, refuse_heads
from farthing.plan.precision import stored_as
from farthing.plan.sum import plan_sum, shape_sum

if TYPE_CHECKING:
    from collections.abc import Callable

    from farthing.models.load import Model
    from farthing.plan.memory import MemoryPlan
    from farthing.plan.precision import Precision
    from farthing.plan.shapes import Shape
    from farthing.plan.sum import MemorySum

_REMEMBERED = 4096


class Subject(Protocol):
    """One precision and one kind of cache of a model. Bytes and tokens, no machine.

    Where a model guesses beside it, a token takes cache in both.
    `context_length` is the longest context, None where it is not known; a step of a prompt feeds
    at most `step_tokens` tokens.
    """

    name: str
    weights: str
    kv_dtype: KVDtype
    weight_bytes: int
    bytes_per_token: int
    block_bytes: int
    context_length: int | None
    step_tokens: int

    def memory(self, context: int, users: int, tokens: int) -> MemorySum:
        """What `users` texts of at most `context` tokens take that share a cache of `tokens`."""
        ...

    def step(self, first: int, count: int, wanted: int) -> Work:
        """A step that feeds one text `count` tokens from position `first` on, `wanted` rows."""
        ...

    def joining(self, context: int) -> Work:
        """What a text that writes its token number `context` adds to a step of others."""
        ...


class ModelSubject:
    """A model, as `plan_memory` lays it out."""

    step_tokens = USUAL_STEP_TOKENS

    def __init__(
        self,
        model: Model,
        wanted: Precision,
        kv_dtype: KVDtype,
        *,
        activations: ActivationMode | None = None,
        threads: int | None = None,
        file_bytes: int = 0,
        reserve: int = 0,
        draft_rows: int = DRAFT_ROWS,
        draft: Callable[[Model], Model] | None = None,
    ) -> None:
        """`file_bytes` and `reserve` are as in `plan_sum`, `draft_rows` as in `plan_memory`.

        `draft` gives the model that guesses beside this one. Raises what `stored_as` raises.
        """
        self.model = stored_as(model, wanted)
        self.name = model.name
        self.weights = wanted.name
        self.kv_dtype = kv_dtype
        self.context_length: int | None = model.config.context_length
        self.bytes_per_token = bytes_per_token(model.program, kv_dtype)
        self._activations = activations
        self._threads = threads
        self._file_bytes = file_bytes
        self._reserve = reserve
        self._draft_rows = draft_rows
        self._draft = None if draft is None else draft(self.model)
        if self._draft is not None:
            self.bytes_per_token += bytes_per_token(self._draft.program, kv_dtype)
        self.plan = self.planned(1, 1, 1)
        self.weight_bytes = self.plan.weight_bytes
        self.block_bytes = self.plan.block_bytes_in_all
        self.step = lru_cache(_REMEMBERED)(self._step)
        self.joining = lru_cache(_REMEMBERED)(self._joining)
        self.memory = lru_cache(_REMEMBERED)(self._memory)

    def planned(self, context: int, users: int, tokens: int) -> MemoryPlan:
        """The plan that a server would execute. Raises what `plan_memory` raises."""
        return plan_memory(
            self.model,
            context_length=context,
            cache_tokens=tokens,
            slots=users,
            kv_dtype=self.kv_dtype,
            activations=self._activations,
            threads=self._threads,
            draft_rows=self._draft_rows,
            draft=self._draft,
        )

    def _memory(self, context: int, users: int, tokens: int) -> MemorySum:
        return plan_sum(
            self.planned(context, users, tokens),
            self.model.program,
            file_bytes=self._file_bytes,
            reserve=self._reserve,
        )

    def _step(self, first: int, count: int, wanted: int) -> Work:
        return step_work(self.model.program, self.plan, [(first, count)], wanted)

    def _joining(self, context: int) -> Work:
        two = step_work(self.model.program, self.plan, [(context - 1, 1)] * 2, 2)
        return two - self.step(context - 1, 1, 1)


class ShapeSubject:
    """A number of parameters and the shape of the cache: the formula of textbooks."""

    context_length: int | None = None
    step_tokens = USUAL_STEP_TOKENS

    def __init__(
        self,
        shape: Shape,
        wanted: Precision,
        kv_dtype: KVDtype,
        *,
        activations: ActivationMode | None = None,
        reserve: int = 0,
    ) -> None:
        """Raises `RequestError` for a precision whose bits depend on what is not known, and for a
        cache that cannot hold such heads.
        """
        if wanted.bits is None or wanted.format is None:
            raise RequestError(
                f"--weights {wanted.name} needs the model itself: with --params give fp16, int8, "
                "int4 or a format with a fixed number of bits, such as q4_k"
            )
        refuse_heads(kv_dtype, [shape.head_dim])
        self.shape = shape
        self.name = shape.name
        self.weights = wanted.name
        self.kv_dtype = kv_dtype
        self.weight_bytes = shape.weight_bytes(wanted.bits)
        self.bytes_per_token = shape.bytes_per_token(kv_dtype)
        self.block_bytes = shape.block_bytes(kv_dtype)
        self._bits = wanted.bits
        self._reserve = reserve
        self._mode = packed_format(wanted.format, activations, inputs=256).mode

    def memory(self, context: int, users: int, tokens: int) -> MemorySum:
        """The three terms of the formula."""
        return shape_sum(self.shape, self.weights, self._bits, self.kv_dtype, tokens, self._reserve)

    def step(self, first: int, count: int, wanted: int) -> Work:
        """Every parameter multiplies every token; the causal triangle on top of what is there."""
        pairs = count * first + count * (count + 1) // 2
        tokens = Cost(self._products(count), self.weight_bytes)
        return Work(tokens, Cost(), self._attention(pairs, first + count), wanted)

    def joining(self, context: int) -> Work:
        """The weights are read for the others already."""
        return Work(Cost(self._products(1)), Cost(), self._attention(context, context), 1)

    def _products(self, tokens: int) -> dict[ActivationMode, int]:
        return {self._mode: self.shape.parameters * tokens}

    def _attention(self, pairs: int, positions: int) -> Cost:
        """Of so many pairs of a token and a position that it sees."""
        bf16 = self.kv_dtype is KVDtype.BF16
        mode = ActivationMode.BF16 if bf16 else ActivationMode.FP32
        shape = self.shape
        products = 2 * shape.layers * shape.query_heads * shape.head_dim * pairs
        return Cost({mode: products}, 0, self.bytes_per_token * positions)
