"""Tool calls taken out of text: the same however the text is cut, and garbage stays text."""

from __future__ import annotations

import json
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from farthing.serve.tool_parser import CallParser

NAMES = frozenset({"weather", "add", "no_arguments"})


def parser(*, tagged: bool = True, forced: bool = False) -> CallParser:
    numbers = count()
    return CallParser(NAMES, lambda: f"call_{next(numbers)}", tagged=tagged, forced=forced)


def parsed(pieces: list[str], **kind: bool) -> tuple[str, list[tuple[str, str, str]]]:
    """The content, and (id, name, arguments) of each call, checked to be streamed in order."""
    reading = parser(**kind)
    content = ""
    calls: list[list[str]] = []
    results = [reading.push(piece) for piece in pieces]
    for text, deltas in [*results, reading.finish()]:
        content += text
        for delta in deltas:
            function = delta["function"]
            if delta["index"] == len(calls):
                assert delta["type"] == "function"
                calls.append([delta["id"], function["name"], function["arguments"]])
            else:
                assert delta["index"] == len(calls) - 1
                assert delta.keys() == {"index", "function"}
                assert function.keys() == {"arguments"}
                calls[-1][2] += function["arguments"]
    assert reading.called == bool(calls)
    return content, [(a, b, c) for a, b, c in calls]


def call(name: str = "add", arguments: str = '{"a": 1}', key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


def tagged(*objects: str) -> str:
    return "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in objects)


def found(text: str, **kind: Any) -> tuple[str, list[tuple[str, str]]]:
    content, calls = parsed([text], **kind)
    return content, [(name, arguments) for _, name, arguments in calls]


class TestTagged:
    def test_one_call(self) -> None:
        assert found(tagged(call())) == ("", [("add", '{"a": 1}')])

    def test_text_before_between_and_after_calls_is_content_without_the_space_at_calls(
        self,
    ) -> None:
        text = f"I look.\n\n{tagged(call())}\nThen {tagged(call('weather', '{}'))} done"
        assert found(text) == ("I look.\nThen done", [("add", '{"a": 1}'), ("weather", "{}")])

    def test_calls_are_numbered_and_named(self) -> None:
        _, calls = parsed([tagged(call(), call(), call("weather"))])
        assert [each[:2] for each in calls] == [
            ("call_0", "add"),
            ("call_1", "add"),
            ("call_2", "weather"),
        ]

    @pytest.mark.parametrize(
        "arguments",
        [
            "{}",
            '{"text": "a \\"quoted\\" } ] </tool_call> <tool_call>{"}',
            '{"deep": {"list": [1, -2.5e9, true, null, {"x": []}]}}',
            '{ "spaces" :\n 1 }',
            '{"é": "日本 \\u00e9"}',
        ],
    )
    def test_arguments_are_passed_on_as_they_were_written(self, arguments: str) -> None:
        assert found(tagged(call("weather", arguments))) == ("", [("weather", arguments)])
        assert json.loads(found(tagged(call("weather", arguments)))[1][0][1]) is not None

    def test_the_order_of_the_names_does_not_matter_nor_what_else_there_is(self) -> None:
        text = (
            '{"id": [1, {"name": "no"}], "arguments": {"a": 1}, "type": "function", "name": "add"}'
        )
        assert found(tagged(text)) == ("", [("add", '{"a": 1}')])

    @pytest.mark.parametrize(
        ("object_", "arguments"),
        [
            ('{"name": "add"}', "{}"),
            ('{"name": "add", "arguments": null}', "{}"),
            ('{"name": "add", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
            (call(key="parameters"), '{"a": 1}'),
        ],
    )
    def test_other_ways_to_give_arguments(self, object_: str, arguments: str) -> None:
        assert found(tagged(object_)) == ("", [("add", arguments)])

    @pytest.mark.parametrize(
        "garbage",
        [
            "<tool_call>",
            "<tool_call> nothing of the kind </tool_call>",
            "<tool_call>{}</tool_call>",
            tagged(call("unknown")),
            tagged('{"name": 5, "arguments": {}}'),
            tagged('{"name": "add", "arguments": [1]}'),
            tagged('{"name": "add", "arguments": 7}'),
            tagged('{"name": "add", "name": "add", "arguments": {}}'),
            '<tool_call>{"name": "add", "argu',
            '<tool_call>{"name": "add" "arguments": {}}',
            "<tool_call>" + '{"a":' * 300,
            "a < b <tool </tool_call> <tool_cal",
            "\n\n  \n",
            " " * 500 + "x",
            "",
        ],
    )
    def test_what_is_no_call_is_text_to_the_last_character(self, garbage: str) -> None:
        assert found(garbage) == (garbage, [])

    def test_a_call_after_garbage_is_found(self) -> None:
        garbage = '<tool_call>{"x": <tool_call> '
        assert found(garbage + tagged(call())) == (garbage.rstrip(), [("add", '{"a": 1}')])

    def test_a_call_that_is_cut_off_keeps_what_it_has(self) -> None:
        assert found('<tool_call>{"name": "add", "arguments": {"a": [1, ') == (
            "",
            [("add", '{"a": [1, ')],
        )
        assert found('<tool_call>{"name": "add", "arguments": {"a": 1}') == (
            "",
            [("add", '{"a": 1}')],
        )

    def test_arguments_that_are_no_json_are_passed_on_up_to_the_closing_tag(self) -> None:
        text = tagged('{"name": "add", "arguments": {"a": <b>, "c": 1}}') + " and on"
        assert found(text) == (" and on", [("add", '{"a": <b>, "c": 1}}\n')])
        text = '<tool_call>{"name": "add", "arguments": {"a": 1</tool_call> then'
        assert found(text) == (" then", [("add", '{"a": 1')])

    def test_a_missing_closing_tag_ends_the_call_all_the_same(self) -> None:
        assert found(f"<tool_call>{call()} so") == (" so", [("add", '{"a": 1}')])

    def test_arguments_are_streamed_as_they_come(self) -> None:
        reading = parser()
        assert reading.push("<tool_call>\n{") == ("", [])
        assert reading.push('"name": "add", "arguments": ') == ("", [])
        _, begun = reading.push('{"a')
        assert [delta["function"]["arguments"] for delta in begun] == ["", '{"a']
        assert reading.push('": 12')[1] == [{"index": 0, "function": {"arguments": '": 12'}}]
        assert reading.push("3}")[1] == [{"index": 0, "function": {"arguments": "3}"}}]
        assert reading.push("}\n</tool_call>\n") == ("", [])
        assert reading.finish() == ("", [])

    def test_only_what_may_become_a_call_is_held_back(self) -> None:
        reading = parser()
        assert reading.push("Hello")[0] == "Hello"
        assert reading.push(" world. ")[0] == " world."
        assert reading.push("x <")[0] == " x"
        assert reading.push("b> <tool")[0] == " <b>"
        assert reading.push("_box> ")[0] == " <tool_box>"
        assert reading.push(" " * 1000)[0] == " " * 937
        assert reading.finish()[0] == " " * 64


class TestBare:
    def found(self, text: str) -> tuple[str, list[tuple[str, str]]]:
        return found(text, tagged=False)

    def test_an_object_a_list_or_several_objects(self) -> None:
        one, two = call(key="parameters"), call("weather", '{"city": "Rome"}')
        both = [("add", '{"a": 1}'), ("weather", '{"city": "Rome"}')]
        assert self.found(f" {one}") == ("", both[:1])
        assert self.found(f"[{one}, {two}]") == ("", both)
        assert self.found(f"{one}; {two}\n") == ("", both)
        assert self.found(one + two) == ("", both)

    @pytest.mark.parametrize(
        "text",
        [
            "Hello",
            f"See: {call()}",
            '{"answer": 5}',
            '{"name": "add"}',
            '[{"answer": 5}]',
            '{"name": "add", "argum',
            call("unknown"),
            "[",
            "  ",
        ],
    )
    def test_what_is_no_call_is_text_to_the_last_character(self, text: str) -> None:
        assert self.found(text) == (text, [])

    def test_text_after_a_call_is_content(self) -> None:
        assert self.found(f"{call()}\nDone {call()}") == (f"\nDone {call()}", [("add", '{"a": 1}')])


PIECES = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "<tool", "_call>", "<", ">", "\n", "  ", "text", "{", "}",
        "[", "]", '"', ":", ",", "\\", '"name": "add"', '"arguments": ', '{"a": 1}', "null", "é",
        ";", call(), tagged(call("weather", '{"c": ["x}", {}]}')), '{"name": "add", "arguments": ',
        '{"name": "unknown", "arguments": {}}', '"arguments": {"q": "<tool_call>"}', "5",
    ]
)  # fmt: skip


@given(parts=st.lists(PIECES, max_size=14), cuts=st.lists(st.integers(0, 200)), tags=st.booleans())
@example(
    parts=["<tool_call>", '{"name": "add", "arguments": ', "<", "/tool_call>"], cuts=[], tags=True
)
def test_any_cut_of_any_text_gives_the_same_calls_and_content(
    parts: list[str], cuts: list[int], tags: bool
) -> None:
    text = "".join(parts)
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in pairwise(edges)]
    whole = parsed([text] if text else [], tagged=tags)
    assert parsed(pieces, tagged=tags) == whole
    assert parsed(list(text), tagged=tags) == whole
    if not whole[1]:
        assert whole[0] == text


NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
WORDS = st.text(max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


@given(
    calls=st.lists(
        st.tuples(st.sampled_from(sorted(NAMES)), st.dictionaries(WORDS, JSON, max_size=3)),
        min_size=1,
        max_size=4,
    ),
    ascii_only=st.booleans(),
    tags=st.booleans(),
    before=st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"]), max_size=20),
)
def test_every_call_that_is_written_well_is_read_back(
    calls: list[tuple[str, dict[str, Any]]], ascii_only: bool, tags: bool, before: str
) -> None:
    objects = [
        json.dumps({"name": name, "arguments": arguments}, ensure_ascii=ascii_only)
        for name, arguments in calls
    ]
    text = before + tagged(*objects) if tags else "; ".join(objects)
    content, read = found(text, tagged=tags)
    assert [(name, json.loads(arguments)) for name, arguments in read] == calls
    assert content == (before.rstrip() if tags else "")


@pytest.mark.parametrize("tagged_", [True, False])
def test_of_calls_that_are_forced_no_part_is_text_wherever_they_are_cut_off(tagged_: bool) -> None:
    one, two = call(), call("weather", '{"city": "Rome"}')
    whole = tagged(one) + "\n" + tagged(two) if tagged_ else f"[{one}, {two}]"
    assert found(whole, tagged=tagged_, forced=True)[1] == found(whole, tagged=tagged_)[1]
    for end in range(len(whole) + 1):
        reading = parser(tagged=tagged_, forced=True)
        pieces = [reading.push(whole[:end]), reading.finish()]
        assert [text for text, _ in pieces] == ["", ""]
