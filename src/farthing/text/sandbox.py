"""The jinja2 environment of chat templates: what transformers offers them, within bounds.

A chat template comes with a model, from anyone. Jinja2's immutable sandbox keeps it from Python,
`metering.py` from running or growing without end, and filters and methods are those whose cost is
known.
"""

from __future__ import annotations

from types import UnionType
from typing import TYPE_CHECKING, Any

from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from farthing.text.metering import BUDGET_LEFT, STEP, Budget, Metering
from farthing.text.template_functions import (
    finalize,
    pay_product,
    pay_replace,
    template_filters,
    template_globals,
)

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.parser import Parser
    from jinja2.runtime import Context

_STRING_METHODS = (
    "capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit "
    "islower isnumeric isspace istitle isupper join lower lstrip partition removeprefix "
    "removesuffix replace rfind rindex rpartition rsplit rstrip split splitlines startswith strip "
    "swapcase title upper"
)
_METHODS: tuple[tuple[type | UnionType, frozenset[str]], ...] = (
    (str, frozenset(_STRING_METHODS.split())),
    (dict, frozenset({"get", "items", "keys", "values"})),
    (list | tuple, frozenset({"count", "index"})),
    (int | float | bytes, frozenset()),
)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and renders chat templates; one may be shared between threads."""

    template_error = TemplateError
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, _GenerationExtension],
            finalize=finalize,
        )
        self.filters = template_filters(self.filters)
        self.globals = template_globals(self.globals)

    def compile_source(self, source: str) -> Template:
        """A template ready to render. Raises what jinja2 raises."""
        BUDGET_LEFT.set(Budget(len(source)))
        return self.from_string(source)

    def variables(self, source: str) -> frozenset[str]:
        """The names of what a template reads and does not set. Raises what jinja2 raises."""
        BUDGET_LEFT.set(Budget(len(source)))
        return frozenset(meta.find_undeclared_variables(self.parse(source)))

    def render(self, template: Template, variables: dict[str, object], characters: int) -> str:
        """The rendered text; `characters` is the size of the input, which the budget grows with.

        Raises `jinja2.TemplateError` for what the template refuses and for what it may not do, and
        whatever its expressions raise.
        """
        BUDGET_LEFT.set(Budget(characters))
        return "".join(template.generate(variables))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        Metering(self).visit(tree)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Only the methods that are known to be cheap, or sized in `call`."""
        for kind, methods in _METHODS:
            if isinstance(obj, kind):
                return attr in methods
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """`str.format` is none of the methods offered."""

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Calls something on the template's behalf, and has it paid."""
        budget = BUDGET_LEFT.get()
        budget.spend(STEP)
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            name = __obj.__name__
            if name == "replace" and len(args) >= 2:
                pay_replace(budget, owner, args[0], args[1])
            elif name == "join" and args:
                args = (list(args[0]),)
                budget.text_of(args[0])
                budget.spend(len(owner) * len(args[0]))
        result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(owner, str):
            # The parts of a text are copies.
            budget.text_of(result)
        else:
            budget.nodes_of(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Computes `left operator right`, once it is paid for."""
        budget = BUDGET_LEFT.get()
        if operator == "*":
            pay_product(budget, left, right)
        elif operator == "+":
            budget.nodes_of(left)
            budget.nodes_of(right)
        elif operator == "**":
            if not (abs(left) <= 2**32 and abs(right) <= 64):
                raise SecurityError("it computes too large a power")
        elif isinstance(left, str):
            raise SecurityError("it formats text with %, which is not offered; join it with ~")
        return super().call_binop(context, operator, left, right)


class _GenerationExtension(Extension):
    """`{% generation %}` marks what the model wrote, for training; here it is only a block."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)
