"""What a line of a batch means, and what is said of one that means nothing."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.cli import batch_requests
from farthing.cli.batch_requests import BatchRequest, Defaults, LineErrors, read_requests
from farthing.core import Constraint, RequestError, SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

DEFAULTS = Defaults(SamplingParams(max_tokens=7, temperature=0.5))


def read(path: Path, content: bytes | str, defaults: Defaults = DEFAULTS) -> list[BatchRequest]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    errors = LineErrors()
    requests = list(read_requests(path, defaults, errors))
    if errors.count:
        raise RequestError(f"{errors.count} bad{errors}")
    return requests


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    return tmp_path / "prompts.jsonl"


def problem(path: Path, content: bytes | str, defaults: Defaults = DEFAULTS) -> str:
    """What is said of a file with one bad line, without the head and the line's number."""
    with pytest.raises(RequestError) as caught:
        read(path, content, defaults)
    head, _, said = str(caught.value).partition("\n")
    assert head == "1 bad"
    number, _, what = said.strip().partition(": ")
    assert number == "line 1"
    return what


def test_prompts_ids_and_chats_are_read_with_the_flags_as_defaults(batch: Path) -> None:
    chat = [{"role": "user", "content": "hi"}]
    lines = [
        {"prompt": "hello"},
        {"prompt": [1, 2, 3], "id": "b", "temperature": 0},
        {"messages": chat, "id": 7, "max_tokens": None, "stop": "x", "logit_bias": {"5": -2}},
    ]
    requests = read(batch, "\n".join(map(json.dumps, lines)))
    assert [(each.index, each.line, each.id) for each in requests] == [
        (0, 1, None),
        (1, 2, "b"),
        (2, 3, 7),
    ]
    assert [each.prompt for each in requests] == ["hello", [1, 2, 3], chat]
    assert requests[0].sampling == DEFAULTS.sampling
    assert requests[1].sampling == SamplingParams(max_tokens=7)
    assert requests[2].sampling == SamplingParams(temperature=0.5, stop=("x",), logit_bias={5: -2})


def test_every_field_of_sampling_may_stand_in_a_line(batch: Path) -> None:
    params = SamplingParams(
        max_tokens=9,
        temperature=0.75,
        top_k=5,
        top_p=0.5,
        min_p=0.25,
        seed=2**64 - 1,
        stop=("a", "b"),
        stop_token_ids=(1, 2),
        ignore_eos=True,
        min_tokens=3,
        repetition_penalty=1.5,
        presence_penalty=-1.0,
        frequency_penalty=2.0,
        logit_bias={3: 1.0, 4: -1e30},
        logprobs=4,
        prompt_logprobs=2,
        constraint=Constraint("regex", "a+"),
        max_draft_tokens=0,
    )
    line = {each.name: getattr(params, each.name) for each in fields(params)}
    line["constraint"] = {"kind": "regex", "source": "a+"}
    assert all(line[each.name] != getattr(SamplingParams(), each.name) for each in fields(params))
    assert read(batch, json.dumps({"prompt": "p", **line}))[0].sampling == params


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n  \n"])
def test_empty_lines_line_ends_and_a_byte_order_mark_do_not_matter(end: str, batch: Path) -> None:
    content = b"\xef\xbb\xbf" + (f'{{"prompt": "a"}}{end}{{"prompt": "b"}}{end}').encode()
    requests = read(batch, content)
    assert [(each.index, each.prompt) for each in requests] == [(0, "a"), (1, "b")]
    assert requests[1].line == 1 + content[: content.index(b'"b"')].count(b"\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "it is not JSON: Expecting property name"),
        ("hello", "it is not JSON: Expecting value, at character 1"),
        ('{"prompt": "a"} {}', "it is not JSON: Extra data"),
        ('"hello"', 'it must be an object like {"prompt": "..."}'),
        ("[1]", "it must be an object"),
        ("null", "it must be an object"),
        ("[" * 100_000, "it cannot be read as JSON"),
        ('{"prompt": [' + "9" * 5000 + "]}", "it cannot be read as JSON"),
        ('{"prompt": "a", "constraint": "a+"}', 'constraint must be {"kind": "json_schema"'),
        ('{"prompt": "a", "constraint": {"kind": "xml", "source": ""}}', "a constraint is one of"),
        ("{}", "it must have either a prompt or messages"),
        ('{"prompt": "a", "messages": []}', "it must have either a prompt or messages"),
        ('{"prompt": ""}', "the prompt is empty"),
        ('{"prompt": []}', "the prompt has no tokens"),
        ('{"prompt": null}', "prompt must be a string or a list of token ids, not None"),
        ('{"prompt": ["a"]}', "prompt must be a string or a list of token ids"),
        ('{"prompt": [1, true]}', "prompt must be a string or a list of token ids"),
        ('{"prompt": [1.0]}', "prompt must be a string or a list of token ids"),
        ('{"messages": []}', "messages must be a list of"),
        ('{"messages": ["hi"]}', "messages must be a list of"),
        ('{"messages": {"role": "user"}}', "messages must be a list of"),
        ('{"prompt": "a", "id": null}', "id must be a string or a whole number, not None"),
        ('{"prompt": "a", "id": 1.5}', "id must be a string or a whole number, not 1.5"),
        ('{"prompt": "a", "id": true}', "id must be a string or a whole number, not True"),
        ('{"prompt": "a", "max_token": 5}', "no field 'max_token': did you mean max_tokens?"),
        (
            '{"prompt": "a", "zzz": 5}',
            "no field 'zzz': fields are constraint, frequency_penalty, id,",
        ),
        ('{"prompt": "a", "prompt": "b"}', "it has the field 'prompt' twice"),
        ('{"prompt": "a", "logit_bias": {"1": 1, "1": 2}}', "it has the field '1' twice"),
        ('{"prompt": "a", "temperature": -1}', "temperature must be from 0 to 100, not -1"),
        ('{"prompt": "a", "temperature": "1"}', "temperature must be from 0 to 100, not '1'"),
        ('{"prompt": "a", "temperature": NaN}', "NaN is no number of JSON"),
        ('{"prompt": "a", "max_tokens": 1.0}', "max_tokens must be a whole number from 0"),
        ('{"prompt": "a", "min_tokens": 8}', "min_tokens must be from 0 to max_tokens"),
        ('{"prompt": "a", "stop": null}', "stop must be a list, not None"),
        ('{"prompt": "a", "stop": {"a": 1}}', "stop must be a list, not {'a': 1}"),
        ('{"prompt": "a", "stop": [""]}', "stop must be made of non-empty strings"),
        ('{"prompt": "a", "logit_bias": [1]}', "logit_bias must be an object, not [1]"),
        ('{"prompt": "a", "logit_bias": {"x": 1}}', "logit_bias must have token ids as its names"),
        ('{"prompt": "a", "logit_bias": {"1": 1e999}}', "logit_bias must be token ids with"),
        ('{"prompt": "\\ud800"}', "it holds half a surrogate pair (U+D800)"),
        ('{"prompt": "a", "id": "\\udfff"}', "it holds half a surrogate pair (U+DFFF)"),
        (b'{"prompt": "caf\xe9"}', "it is not UTF-8 text: byte 16 of it is 0xE9"),
        (b"\xff\xfe{\0}\0", "it is not UTF-8 text: byte 1 of it is 0xFF"),
        (
            '{"custom_id": "a", "method": "POST", "url": "/v1", "body": {"messages": []}}',
            "it is a line of OpenAI's batch format",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_bad_line_is_named_with_what_is_wrong(
    line: str | bytes, message: str, batch: Path
) -> None:
    assert message in problem(batch, line)


@pytest.mark.parametrize(
    ("line", "changes", "message"),
    [
        ({"messages": [{}]}, {"raw": True}, "it has messages, which need the template that --raw"),
        ({"messages": [{}]}, {"system": "s"}, "write what --system says into them"),
        ({"prompt": [1]}, {"system": "s"}, "before which --system cannot stand"),
    ],
)
def test_a_flag_that_a_line_cannot_follow_is_an_error(
    line: dict[str, Any], changes: dict[str, Any], message: str, batch: Path
) -> None:
    assert message in problem(batch, json.dumps(line), replace(DEFAULTS, **changes))


def test_the_first_ten_bad_lines_are_shown_and_all_are_counted(batch: Path) -> None:
    lines = ['{"prompt": "good"}', *(["{"] * 4), "", *(["[]"] * 1230), '{"prompt": "good"}']
    with pytest.raises(RequestError) as caught:
        read(batch, "\n".join(lines))
    said = str(caught.value).splitlines()
    assert said[0] == "1234 bad"
    assert [line.split(":")[0].strip() for line in said[1:11]] == [
        *(f"line {n}" for n in (2, 3, 4, 5)),
        *(f"line {n}" for n in (7, 8, 9, 10, 11, 12)),
    ]
    assert said[11:] == ["  and 1,224 more"]


def test_an_id_twice_is_an_error_that_names_both_lines(batch: Path) -> None:
    lines = [{"prompt": "a", "id": "x"}, {"prompt": "b", "id": "1"}, {"prompt": "c", "id": 1}]
    assert len(read(batch, "\n".join(map(json.dumps, lines)))) == 3
    with pytest.raises(RequestError, match="line 4: the id 'x' is line 1's"):
        read(batch, "\n".join(map(json.dumps, [*lines, lines[0]])))


def test_a_line_without_end_is_refused_and_never_held(
    batch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_requests, "LONGEST_LINE", 1 << 20)
    content = b'{"prompt": "a"}\n' + b"x" * (3 << 20) + b"\n" + b"{\n" + b"y" * (1 << 21)
    with pytest.raises(RequestError) as caught:
        read(batch, content)
    said = [line.strip() for line in str(caught.value).splitlines()[1:]]
    assert said[0] == "line 2: it is longer than 1 MiB"
    assert said[1].startswith("line 3: it is not JSON")
    assert said[2] == "line 4: it is longer than 1 MiB"


def test_a_line_as_long_as_allowed_is_read(batch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = json.dumps({"prompt": "p" * 100})
    monkeypatch.setattr(batch_requests, "LONGEST_LINE", len(line))
    assert len(read(batch, line)) == 1
    monkeypatch.setattr(batch_requests, "LONGEST_LINE", len(line) - 1)
    assert "longer" in problem(batch, line)


def test_a_file_that_cannot_be_read_is_one_clear_error(tmp_path: Path) -> None:
    for path, why in (
        (tmp_path, "is no regular file, and a batch is read twice"),
        (tmp_path / "none", "cannot be read: No such file or directory"),
        (tmp_path / ("x" * 300), "cannot be read: File name too long"),
    ):
        with pytest.raises(RequestError, match=f"{path} {why}"):
            list(read_requests(path, DEFAULTS, LineErrors()))


def digest(path: Path, line: dict[str, Any], defaults: Defaults = DEFAULTS) -> str:
    return read(path, json.dumps(line), defaults)[0].digest


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "hello "},
        {"id": 1},
        {"id": "1"},
        {"temperature": 0.25},
        {"seed": 0},
        {"max_tokens": None},
        {"logit_bias": {"1": 1}},
        {"stop": ["x"]},
    ],
    ids=str,
)
def test_the_digest_changes_with_everything_that_the_answer_depends_on(
    change: dict[str, Any], batch: Path
) -> None:
    line = {"prompt": "hello"}
    assert digest(batch, {**line, **change}) != digest(batch, line)


def test_the_digest_knows_nothing_of_guesses_which_change_no_answer(batch: Path) -> None:
    line = {"prompt": "x"}
    assert digest(batch, {**line, "max_draft_tokens": 3}) == digest(batch, line)
    loose = replace(DEFAULTS, guesses_matter=True)
    assert digest(batch, {**line, "max_draft_tokens": 3}, loose) != digest(batch, line, loose)


def test_the_digest_holds_the_flags_and_not_how_a_line_is_written(batch: Path) -> None:
    line = {"prompt": "hello", "temperature": 0.5, "max_tokens": 7, "logit_bias": {"1": 1, "2": 2}}
    same = {"logit_bias": {"2": 2, "1": 1}, "prompt": "hello"}
    assert digest(batch, line) == digest(batch, same)
    for changes in ({"raw": True}, {"system": "s"}, {"sampling": SamplingParams(max_tokens=7)}):
        assert digest(batch, same, replace(DEFAULTS, **changes)) != digest(batch, same)


@given(data=st.data())
def test_no_file_of_bytes_does_anything_but_requests_and_line_errors(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    fragments = st.sampled_from(
        [b'{"prompt": "a"}', b'"', b"{", b"}", b"[1]", b"\n", b"\r\n", b"\xff", b"\0", b",", b":"]
    )
    content = data.draw(st.lists(fragments | st.binary(max_size=4), max_size=12).map(b"".join))
    path = tmp_path_factory.mktemp("batch") / "prompts.jsonl"
    path.write_bytes(content)
    errors = LineErrors()
    found = [each.line for each in read_requests(path, DEFAULTS, errors)]
    listed = [line for line in str(errors).splitlines() if line.startswith("  line ")]
    refused = {int(line.split()[1].rstrip(":")) for line in listed}
    assert len(listed) == len(refused) == errors.count
    assert not refused & set(found)
    text = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    filled = {number for number, line in enumerate(text, 1) if line.strip()}
    assert refused | set(found) == filled


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
NAMES = st.sampled_from(["id", "prompt", "messages", *sorted(batch_requests.SAMPLING_FIELDS)])


@given(entry=st.dictionaries(NAMES, JSON, max_size=4))
def test_an_object_of_known_fields_is_a_request_or_an_error_whatever_they_hold(
    entry: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("batch") / "prompts.jsonl"
    try:
        request = read(path, json.dumps(entry))[0]
    except RequestError:
        return
    assert request.prompt == entry.get("prompt", entry.get("messages"))
    assert request.id == entry.get("id")
