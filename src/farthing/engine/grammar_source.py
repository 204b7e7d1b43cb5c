"""What llguidance is given for a constraint: its source read, bounded and refused where it must be.

What llguidance bounds by itself is left to it; here is what it would spend minutes or gigabytes on.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from farthing.core import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farthing.core import Constraint

MOST_CHARACTERS = 100_000
"""Of a constraint's source."""

_MOST_CHOICES = 1_000
_EMBEDDED_SCHEMA = re.compile(r"%json\s*")
_LARGEST_MULTIPLE = 10_000

# For llguidance. A space, or a line break and an indentation, where JSON allows white space: a
# model that may write any can write nothing else for ever. What is not supported is refused, not
# left out.
JSON_OPTIONS: Any = {"whitespace_pattern": r"[ ]|\n[ \t]{0,32}", "lenient": False}


def grammar_source(constraint: Constraint) -> str:
    """The grammar of a constraint, for llguidance's matcher, which checks the rest.

    Raises `RequestError` where the source is too large or malformed.
    """
    source = constraint.source
    if len(source) > MOST_CHARACTERS:
        raise RequestError(
            f"the constraint ({constraint.kind}) has {len(source)} characters, and at most "
            f"{MOST_CHARACTERS} are read: make it smaller"
        )
    try:
        source.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the constraint ({constraint.kind}) holds half a surrogate pair at character "
            f"{error.start}: write the whole character"
        ) from None
    return _READERS[constraint.kind](source)


def _json_schema(source: str) -> str:
    from llguidance import LLMatcher

    schema = _parsed(source, "JSON schema")
    if not isinstance(schema, dict):
        raise RequestError(f"a JSON schema is an object, not {source:.40}")
    _check_multiples(schema)
    return LLMatcher.grammar_from_json_schema(schema, overrides=JSON_OPTIONS)


def _choice(source: str) -> str:
    from llguidance import LLMatcher

    choices = _parsed(source, "list of choices")
    if not isinstance(choices, list) or not 1 <= len(choices) <= _MOST_CHOICES:
        raise RequestError(f"a choice is a list of 1 to {_MOST_CHOICES} texts, not {source:.40}")
    for each in choices:
        if not isinstance(each, str) or not each:
            raise RequestError(f"a choice is a text that is not empty, and not {each!r:.40}")
    texts = " | ".join(json.dumps(each, ensure_ascii=False) for each in choices)
    # One terminal: as alternatives of a rule, no more than 500 could begin alike.
    return LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {texts}")


def _regex(source: str) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_regex(source)


def _lark(source: str) -> str:
    from llguidance import LLMatcher

    for place in _EMBEDDED_SCHEMA.finditer(source):
        with suppress(ValueError, RecursionError):  # of which llguidance says where it stands
            _check_multiples(json.JSONDecoder().raw_decode(source, place.end())[0])
    return LLMatcher.grammar_from_lark(source)


_READERS = {"json_schema": _json_schema, "choice": _choice, "regex": _regex, "lark": _lark}


def _parsed(source: str, what: str) -> Any:
    try:
        return json.loads(source)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the {what} is not JSON: {error!s:.100}") from None


def _check_multiples(schema: Any) -> None:
    for part in _objects(schema):
        _check_multiple(part.get("multipleOf", 1))


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """All objects of a JSON value, itself among them."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            yield each
            left += each.values()
        elif isinstance(each, list):
            left += each


def _check_multiple(value: object) -> None:
    """Its automaton has a state for each remainder: a million of them take ten seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return  # a property may be called multipleOf; what is no number is llguidance's to refuse
    try:
        exact = Decimal(str(value)).normalize()
        digits = int(exact.scaleb(-min(0, int(exact.as_tuple().exponent))))
    except (InvalidOperation, ValueError, OverflowError, TypeError):
        digits = _LARGEST_MULTIPLE + 1
    if abs(digits) > _LARGEST_MULTIPLE:
        raise RequestError(
            f"multipleOf is {value!r:.40}, which has more than {_LARGEST_MULTIPLE} remainders: "
            "take a rounder number, or leave it out"
        )
