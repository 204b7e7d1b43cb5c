"""What chat templates can call, each paid for: filters of jinja2, and what transformers adds.

Where one could make much at once, its result is sized before it is made.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import SecurityError, TemplateError
from jinja2.filters import do_indent, do_join, do_replace
from jinja2.utils import Namespace, pass_context, pass_eval_context

from farthing.text.metering import BUDGET_LEFT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jinja2.nodes import EvalContext
    from jinja2.runtime import Context

    from farthing.text.metering import Budget

_FILTERS = (
    "abs attr count d default dictsort first float groupby int items last length list map max min "
    "reject rejectattr reverse safe select selectattr sort unique"
)
_TEXT_FILTERS = "capitalize lower title trim upper wordcount"
_MAX_INDENT = 64
_MAX_LAYOUT = 256
_MAX_INTEGER_BITS = 128


def template_filters(defaults: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The filters of a template; `defaults` are jinja2's, of which those with a known cost stay."""
    return {
        **{name: _paid(defaults[name]) for name in _FILTERS.split()},
        **{name: _paid_text(defaults[name]) for name in _TEXT_FILTERS.split()},
        "join": _join,
        "replace": _replace,
        "indent": _indent,
        "string": _string,
        "tojson": _tojson,
        "_spend": _spend,
        "_paid_for": _paid_for,
        "_concatenate": _concatenate,
    }


def template_globals(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The functions of a template; `defaults` are jinja2's."""
    return {
        **{name: defaults[name] for name in ("range", "cycler", "joiner")},
        "dict": _make_dict,
        "namespace": _TemplateNamespace,
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
    }


class _TemplateNamespace(Namespace):
    """A namespace without names that begin with an underscore, which lead into Python.

    A template may well call one of its names `self`.
    """

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *given = args
        values = dict(*given, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"it stores {name!r} in a namespace; names must not begin with _")


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _raise_exception(message: object) -> None:
    BUDGET_LEFT.get().text_of(message)
    raise TemplateError(str(message))


def _strftime_now(layout: str) -> str:
    """The local time. A width, as in %999d, would make it as long as one likes."""
    if len(layout) > _MAX_LAYOUT or re.search(r"%[^a-zA-Z%]*\d", layout):
        raise SecurityError(f"it asks for the date as {layout!r:.40}, which is not offered")
    return datetime.now().strftime(layout)


@pass_context
def finalize(context: Context, value: Any) -> Any:
    """Pays for what `{{ value }}` writes."""
    BUDGET_LEFT.get().text_of(value)
    return value


# Passing the context keeps jinja2 from computing a filter when it compiles the template.
@pass_context
def _spend(context: Context, cost: int) -> None:
    BUDGET_LEFT.get().spend(cost)


@pass_context
def _paid_for(context: Context, value: Any) -> Any:
    BUDGET_LEFT.get().nodes_of(value)
    return value


@pass_context
def _concatenate(context: Context, values: Sequence[Any]) -> str:
    BUDGET_LEFT.get().text_of(values)
    return "".join(map(str, values))


def _paid(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)  # keeps jinja2's mark of what else the filter is passed
    def paid(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        BUDGET_LEFT.get().nodes_of(result)
        return result

    return paid


def _paid_text(function: Callable[..., Any]) -> Callable[..., Any]:
    """For filters that turn whatever they are given into text first."""

    def paid(value: Any, *args: Any, **kwargs: Any) -> Any:
        BUDGET_LEFT.get().text_of(value)
        return function(value, *args, **kwargs)

    return paid


def pay_product(budget: Budget, left: Any, right: Any) -> None:
    """Pays for `left * right`, before that is computed."""
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > _MAX_INTEGER_BITS:
            raise SecurityError("it computes too large a number")
        return
    value, times = (right, left) if isinstance(left, int) else (left, right)
    if isinstance(value, (str, list, tuple)) and isinstance(times, int):
        budget.spend(len(value) * max(times, 0))
        if not isinstance(value, str):
            for _ in range(times):
                budget.nodes_of(value)


def pay_replace(budget: Budget, text: str, old: Any, new: Any) -> None:
    """Pays for `text.replace(old, new)`, before that is done."""
    budget.spend(len(text) + text.count(str(old)) * len(str(new)))


@pass_eval_context
def _join(context: EvalContext, value: Any, d: str = "", attribute: Any = None) -> str:
    budget = BUDGET_LEFT.get()
    items = list(value)
    budget.text_of(items)
    budget.text_of(d)
    budget.spend(len(str(d)) * len(items))
    joined: str = do_join(context, items, d, attribute)
    return joined


@pass_eval_context
def _replace(context: EvalContext, s: str, old: str, new: str, count: int | None = None) -> str:
    budget = BUDGET_LEFT.get()
    budget.text_of([s, old, new])
    pay_replace(budget, str(s), old, new)
    return do_replace(context, s, old, new, count)


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    if (width if isinstance(width, int) else len(width)) > _MAX_INDENT:
        raise SecurityError(f"it indents by more than {_MAX_INDENT} characters")
    BUDGET_LEFT.get().spend((1 + _MAX_INDENT) * (1 + len(s)))
    return do_indent(s, width, first, blank)


def _string(value: Any) -> str:
    BUDGET_LEFT.get().text_of(value)
    return str(value)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: no escaping for HTML."""
    if (indent or 0) > _MAX_INDENT or any(len(each) > _MAX_INDENT for each in separators or ()):
        raise SecurityError(f"it indents JSON by more than {_MAX_INDENT} characters")
    BUDGET_LEFT.get().text_of(value)
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
