"""What a chat template may spend, and where in it that is paid.

Each loop turn and call costs a step, whatever an operation makes costs its size; both are paid from
one budget, so that a template neither runs nor grows without end.
"""

from __future__ import annotations

from contextvars import ContextVar
from time import monotonic
from typing import TYPE_CHECKING, Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

if TYPE_CHECKING:
    from collections.abc import Callable

    from jinja2 import Environment

BUDGET = 4_000_000
"""What any render may spend: a character costs 1, a turn or call STEP."""
STEP = 32
MEMBER = 8
"""What a place in a list costs; whatever fills it may be a text of one character."""
BUDGET_PER_CHARACTER = 64
"""How many come on top for each character of input."""
SECONDS = 5.0
"""A second bound, for what costs more time than it should."""


class Budget:
    """What a render may still spend; `characters` is the size of its input."""

    def __init__(self, characters: int) -> None:
        self._left = BUDGET + BUDGET_PER_CHARACTER * characters
        self._deadline = monotonic() + SECONDS

    def spend(self, cost: int) -> None:
        """Takes the cost off. Raises `SecurityError` when nothing or no time is left."""
        self._left -= cost
        if self._left < 0:
            raise SecurityError("it makes too much text or loops too long")
        if monotonic() > self._deadline:
            raise SecurityError(f"it runs for more than {SECONDS:.0f} seconds")

    def text_of(self, value: object) -> None:
        """Pays for turning a value into text, before that is done."""
        if isinstance(value, str):
            self.spend(STEP + len(value))
        elif isinstance(value, dict):
            self.spend(STEP)
            for key, each in value.items():
                self.text_of(key)
                self.text_of(each)
        elif isinstance(value, list | tuple):
            self.spend(STEP)
            for each in value:
                self.text_of(each)
        elif isinstance(value, int):
            self.spend(STEP + value.bit_length())
        elif isinstance(value, Namespace):
            raise SecurityError("it writes out a namespace")
        else:
            self.spend(2 * STEP)

    def nodes_of(self, value: object) -> None:
        """Pays for a value that was made: a text's length, a container's members at any depth.

        A container that holds another many times is as dear as if it held copies: comparing it or
        writing it out walks through them all.
        """
        if isinstance(value, str):
            self.spend(1 + len(value))
        elif isinstance(value, list | tuple | dict):
            self.spend(STEP + MEMBER * len(value))
            for each in value.values() if isinstance(value, dict) else value:
                if isinstance(each, list | tuple | dict):
                    self.nodes_of(each)


BUDGET_LEFT: ContextVar[Budget] = ContextVar("BUDGET_LEFT")
"""The budget of the render that runs in this thread."""


class Metering(NodeTransformer):
    """Puts the paying into a parsed template, as filters.

    `_spend` takes a cost, at the top of whatever runs again and again; `_paid_for` passes on what a
    literal or a slice has made; `_concatenate` stands for `a ~ b`.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._visitors: dict[type[nodes.Node], Callable[[Any], Any]] = {
            **dict.fromkeys((nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block), self._repeated),
            **dict.fromkeys((nodes.List, nodes.Tuple, nodes.Dict), self._literal),
            nodes.Getitem: self._subscript,
            nodes.Concat: self._concatenation,
        }

    def get_visitor(self, node: nodes.Node) -> Any:
        """How a node of this type is changed; None where only its children are."""
        return self._visitors.get(type(node))

    def _filter(self, name: str, node: nodes.Expr) -> nodes.Filter:
        made = nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
        made.set_environment(self._environment)
        return made

    def _repeated(self, node: Any) -> Any:
        # The text that stands in the template is written once a turn.
        cost = STEP + sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        payment = self._filter("_spend", nodes.Const(cost, lineno=node.lineno))
        node.body.insert(0, nodes.ExprStmt(payment, lineno=node.lineno))
        return node

    def _literal(self, node: Any) -> Any:
        self.generic_visit(node)
        # The names that a loop or an assignment unpacks into are a tuple too.
        return self._filter("_paid_for", node) if getattr(node, "ctx", "load") == "load" else node

    def _subscript(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return self._filter("_paid_for", node) if isinstance(node.arg, nodes.Slice) else node

    def _concatenation(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return self._filter("_concatenate", nodes.List(node.nodes, "load", lineno=node.lineno))
