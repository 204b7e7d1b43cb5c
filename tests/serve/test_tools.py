"""Tools: what a request may say of them, and that what must be called is called, and well."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from engine.scripted import EOS, engine, rambling, tokenizer
from farthing.core import Constraint, RequestError, SamplingParams
from farthing.serve.errors import ApiError
from farthing.serve.tools import ModelTools, choice_of, functions_of
from farthing.text.chat import ChatTemplate
from serve.test_tool_templates import template

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from farthing.serve.tools import ToolSession

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 6},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
ADD = {
    "type": "object",
    "properties": {"numbers": {"type": "array", "items": {"enum": [1, 2, 30]}, "maxItems": 4}},
    "required": ["numbers"],
    "additionalProperties": False,
}


def tool(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    function = {"name": name, "description": f"It does {name}.", **more}
    if parameters is not None:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


TOOLS = [tool("weather", WEATHER), tool("add", ADD), tool("now")]
SCHEMAS = {"weather": WEATHER, "add": ADD, "now": {"type": "object", "maxProperties": 0}}
NAMED = {"type": "function", "function": {"name": "add"}}


def session(
    tools: list[dict[str, Any]] = TOOLS,
    choice: Any = None,
    parallel: bool = True,
    form: Constraint | None = None,
    own: ChatTemplate | None = None,
) -> ToolSession:
    with engine() as one:
        used = own or template("qwen2.5")
        return ModelTools(lambda: used, one.prepare).prepare(tools, choice, parallel, form)


def anything(prefix: NDArray[np.int32]) -> NDArray[np.float32]:
    """A model that says anything, and may end anywhere."""
    logits = rambling(prefix)
    logits[EOS] = 2
    return logits


def answer(using: ToolSession, seed: int, **fields: Any) -> tuple[str, list[tuple[str, Any]]]:
    """What a model that says anything answers: the content and the calls, checked."""
    settings = {"temperature": 1.3, "max_tokens": 800, **fields}
    sampling = SamplingParams(constraint=using.constraint, seed=seed, **settings)
    with engine(anything) as one:
        completion = one.generate(f"x{seed}", sampling)
    assert completion.finish_reason == "stop"
    reading = using.parser()
    content, calls = "", {}
    for text, deltas in [reading.push(completion.text), reading.finish()]:
        content += text
        for delta in deltas:
            call = calls.setdefault(delta["index"], ["", ""])
            call[0] += delta["function"].get("name", "")
            call[1] += delta["function"]["arguments"]
    read = [(name, json.loads(arguments)) for name, arguments in calls.values()]
    for name, arguments in read:
        Draft202012Validator(SCHEMAS[name]).validate(arguments)
    return content, read


FORMATS = pytest.mark.parametrize("own", ["qwen2.5", "llama3", "chatml"])


@FORMATS
def test_a_required_call_is_made_and_its_arguments_fit(own: str) -> None:
    using = session(choice="required", own=template(own))
    answers = [answer(using, seed) for seed in range(12)]
    assert all(content == "" and calls for content, calls in answers)
    assert {name for _, calls in answers for name, _ in calls} == set(SCHEMAS)
    several = own != "llama3"  # whose template says that it has one call only
    assert any(len(calls) > 1 for _, calls in answers) == several


@FORMATS
def test_a_named_function_is_called_once(own: str) -> None:
    using = session(choice=NAMED, own=template(own))
    for seed in range(5):
        content, calls = answer(using, seed)
        assert content == ""
        assert [name for name, _ in calls] == ["add"]


def test_calls_that_may_not_be_parallel_are_one() -> None:
    using = session(choice="required", parallel=False)
    assert all(len(answer(using, seed)[1]) == 1 for seed in range(12))


def test_a_model_that_may_call_or_talk_is_not_constrained_unless_that_is_asked_for() -> None:
    assert session().constraint is None
    assert session(choice="auto").constraint is None
    assert session(parallel=False).constraint is not None
    assert session([tool("add", ADD, strict=True)]).constraint is not None
    assert session([tool("add", ADD, strict=False)]).constraint is None


def saying_once(text: str) -> Any:
    """A model that would say the text, and then end; where it may not, it says anything."""

    def script(prefix: NDArray[np.int32]) -> NDArray[np.float32]:
        logits = rambling(prefix)
        said = bytes(prefix[2:].astype(np.uint8))  # after the first token and "x"
        data = text.encode()
        following = data[len(said)] if len(said) < len(data) and data.startswith(said) else EOS
        logits[following] = 40
        return logits

    return script


@pytest.mark.parametrize(
    ("own", "text"),
    [
        ("qwen2.5", "Let me see <b>\n<tool_call>\n{"),
        ("qwen2.5", '<tool_call>\n{"name": "w'),
        ("llama3", '{"name": "add"'),
    ],
)
def test_a_strict_function_is_called_well_when_the_model_chooses_to(own: str, text: str) -> None:
    tools = [tool("weather", WEATHER, strict=True), tool("add", ADD, strict=True)]
    using = session(tools, parallel=False, own=template(own))
    for seed in range(4):
        sampling = SamplingParams(constraint=using.constraint, seed=seed, max_tokens=500)
        with engine(saying_once(text)) as one:
            completion = one.generate("x", sampling)
        reading = using.parser()
        content, deltas = reading.push(completion.text)
        assert (
            content
            == text.partition("\n<tool_call>")[0].partition("<tool_call>")[0].partition("{")[0]
        )
        assert deltas[0]["function"]["name"] in SCHEMAS
        arguments = json.loads("".join(each["function"]["arguments"] for each in deltas))
        Draft202012Validator(SCHEMAS[deltas[0]["function"]["name"]]).validate(arguments)


@pytest.mark.parametrize("own", ["qwen2.5", "llama3"])
@pytest.mark.parametrize("text", ["Just text, and <tool, nothing else.", "", "1 < 2"])
def test_a_model_that_may_call_a_strict_function_may_just_talk(own: str, text: str) -> None:
    using = session([tool("add", ADD, strict=True)], own=template(own))
    with engine(saying_once(text)) as one:
        completion = one.generate("x", SamplingParams(constraint=using.constraint, max_tokens=99))
    assert (completion.text, completion.finish_reason) == (text, "stop")


@FORMATS
def test_with_a_schema_for_the_answer_it_is_a_call_or_a_document(own: str) -> None:
    form = Constraint("json_schema", '{"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3}')
    using = session(form=form, own=template(own))
    kinds = set()
    for seed in range(16):
        content, calls = answer(using, seed)
        assert bool(content) != bool(calls)
        assert calls or set(json.loads(content)) <= {1, 2}
        kinds.add(bool(calls))
    assert kinds == {True, False}


def test_no_tools_are_told_of_where_none_may_be_called() -> None:
    using = session(choice="none")
    assert using.template_tools is None
    assert using.constraint is None
    call = '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'
    assert using.parser().push(call)[1] == []
    assert session().template_tools == TOOLS


class TestRefused:
    @pytest.mark.parametrize(
        ("tools", "said"),
        [
            ([{"type": "retrieval"}], "tools[0] must be"),
            ([{"type": "function"}], "tools[0] must be"),
            ([{"type": "function", "function": {}}], "1 to 64 letters"),
            ([tool("a b")], "1 to 64 letters"),
            ([tool("x" * 65)], "1 to 64 letters"),
            ([tool("a", [])], "no JSON schema"),
            ([tool("a"), tool("b"), tool("a")], "the name a"),
            ([tool(f"f{number}") for number in range(129)], "128 are the most"),
        ],
    )
    def test_tools_that_are_none(self, tools: list[dict[str, Any]], said: str) -> None:
        with pytest.raises(ApiError) as failure:
            functions_of(tools)
        assert failure.value.status == 400
        assert said in failure.value.message

    @pytest.mark.parametrize(
        "choice",
        ["any", {"type": "function"}, {"function": {"name": "missing"}}, {}, "weather"],
    )
    def test_a_choice_that_is_none(self, choice: Any) -> None:
        with pytest.raises(ApiError) as failure:
            choice_of(choice, functions_of(TOOLS))
        assert (failure.value.status, failure.value.param) == (400, "tool_choice")

    def test_a_required_call_without_tools(self) -> None:
        with pytest.raises(ApiError, match="there are no tools"):
            session([], "required")

    def test_parameters_that_cannot_be_followed_where_they_must_be(self) -> None:
        wrong = [tool("a", {"type": "object", "properties": {"b": {"type": "nonsense"}}})]
        assert session(wrong).constraint is None
        with pytest.raises(ApiError, match="nonsense"):
            session(wrong, "required")

    def test_parameters_that_would_take_minutes_to_compile(self) -> None:
        slow = {"properties": {"b": {"type": "integer", "multipleOf": 10**7 + 1}}}
        with pytest.raises(ApiError, match="multipleOf"):
            session([tool("a", slow)], "required")

    def test_a_form_that_is_no_schema_beside_tools(self) -> None:
        with pytest.raises(ApiError, match="leave one of them out"):
            session(form=Constraint("regex", "a+"))
        form = Constraint("regex", "a+")
        assert session(form=form, choice="none").constraint == form

    def test_a_model_without_a_template(self) -> None:
        with engine() as one, pytest.raises(RequestError, match="no chat template"):
            ModelTools(lambda: None, one.prepare).prepare(TOOLS, None, True)


def test_call_ids_are_unique_and_unguessable() -> None:
    using = session()
    text = '<tool_call>{"name": "now"}</tool_call>' * 20
    ids = [delta["id"] for delta in using.parser().push(text)[1] if "id" in delta]
    assert len(set(ids)) == 20
    assert all(each.startswith("call_") and len(each) == 29 for each in ids)


def test_a_scripted_template_is_told_of_tools_too() -> None:
    plain = ChatTemplate(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", tokenizer()
    )
    using = session(own=plain)
    assert "weather" in plain.render(using.chat([{"role": "user", "content": "hi"}]))
