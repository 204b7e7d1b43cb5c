"""Tools: what a request says of them, checked; what the model is told; what its calls become.

`tool_choice` "none" tells the model of no tools; "auto" lets it call or talk; "required", or a
named function, has a grammar see to it that it calls, with arguments that fit their schema. So do
functions that are `strict`, and `parallel_tool_calls` false, for the calls of "auto".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from farthing.core import Constraint, RequestError
from farthing.serve.errors import ApiError
from farthing.serve.ids import new_id
from farthing.serve.tool_grammar import Function, forced_calls, optional_calls
from farthing.serve.tool_parser import CallParser
from farthing.serve.tool_templates import ToolTemplate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from farthing.text.chat import ChatTemplate

    Tool = Mapping[str, Any]

MOST_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class ModelTools:
    """The tools of one model's requests, in the form of state.Tools.

    `template` gives the chat template of the model that is served, and `prepare` compiles a
    constraint for it.
    """

    def __init__(
        self,
        template: Callable[[], ChatTemplate | None],
        prepare: Callable[[Constraint], None],
    ) -> None:
        self._template = template
        self._prepare = prepare
        self._known: WeakKeyDictionary[ChatTemplate, ToolTemplate] = WeakKeyDictionary()

    def prepare(
        self,
        tools: Sequence[Tool],
        tool_choice: str | Mapping[str, Any] | None,
        parallel_tool_calls: bool,
        form: Constraint | None = None,
    ) -> ToolSession:
        """What becomes of one request's tools; without any, of calls in its history.

        `form` is what an answer that is no call has to follow. May take a second: for another
        thread than the server's. Raises `ApiError` 400 when they cannot be used as asked.
        """
        functions = functions_of(tools)
        choice, named = choice_of(tool_choice, functions)
        template = self._tool_template()
        constraint = form
        if choice == "none":
            functions = []
        if functions:
            several = parallel_tool_calls and template.format.several
            if choice == "required":
                allowed = [each for each in functions if named in (None, each.name)]
                several = several and named is None
                constraint = forced_calls(allowed, template.format, several=several)
            elif form is not None:
                schema = _schema_of(form)
                constraint = optional_calls(
                    functions, template.format, several=several, schema=schema
                )
            elif not parallel_tool_calls or any(each.strict for each in functions):
                constraint = optional_calls(functions, template.format, several=several)
        if constraint is not None and constraint is not form:
            try:
                self._prepare(constraint)
            except RequestError as error:
                raise _refusal("tools", str(error)) from error
        forced = bool(functions) and choice == "required"
        return ToolSession(tools if functions else (), functions, template, constraint, forced)

    def _tool_template(self) -> ToolTemplate:
        template = self._template()
        if template is None:
            raise RequestError(
                "this model has no chat template, without which it cannot be told of tools: serve "
                "a model that was trained for chat"
            )
        known = self._known.get(template)
        if known is None:
            known = self._known[template] = ToolTemplate(template)
        return known


class ToolSession:
    """How the tools of one request are used. `constraint` is what its answers have to follow, and
    where it is `forced` they are calls alone.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        functions: Sequence[Function],
        template: ToolTemplate,
        constraint: Constraint | None,
        forced: bool,
    ) -> None:
        self.constraint = constraint
        self._forced = forced
        self._tools = tools
        self._names = frozenset(each.name for each in functions)
        self._template = template

    @property
    def template_tools(self) -> Sequence[Tool] | None:
        """What the chat template is given; None where it knows nothing of tools."""
        return self._tools if self._tools and self._template.native else None

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The messages as the chat template is given them."""
        return self._template.chat(messages, self._tools)

    def parser(self) -> CallParser:
        """A new parser, for one answer."""
        tagged = self._template.format.tagged or not self._names
        return CallParser(self._names, _new_id, tagged=tagged, forced=self._forced)


def functions_of(tools: Sequence[Tool]) -> list[Function]:
    """The functions that a request's tools are. Raises `ApiError` 400 for what is none."""
    if len(tools) > MOST_TOOLS:
        raise _refusal("tools", f"there are {len(tools)} tools, and {MOST_TOOLS} are the most")
    functions = [_function(tool, f"tools[{number}]") for number, tool in enumerate(tools)]
    names = [each.name for each in functions]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise _refusal(f"tools[{number}]", f"two tools have the name {name}: rename one")
    return functions


def choice_of(
    tool_choice: str | Mapping[str, Any] | None, functions: Sequence[Function]
) -> tuple[str, str | None]:
    """One of "none", "auto" and "required", and which function must be called where one must.

    Raises `ApiError` 400 for anything else, and for a choice without tools.
    """
    if tool_choice is None:
        return "auto", None
    if tool_choice in ("none", "auto", "required"):
        if tool_choice == "required" and not functions:
            raise _refusal("tool_choice", "tool_choice is required, and there are no tools")
        return str(tool_choice), None
    function = tool_choice.get("function") if not isinstance(tool_choice, str) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise _refusal(
            "tool_choice",
            'tool_choice must be none, auto, required or {"type": "function", "function": '
            f'{{"name": ...}}}}, not {tool_choice!r:.100}',
        )
    if name not in [each.name for each in functions]:
        raise _refusal(
            "tool_choice", f"tool_choice names {name!r:.100}, which is none of the tools"
        )
    return "required", name


def _function(tool: Tool, where: str) -> Function:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        raise _refusal(
            where, f'{where} must be {{"type": "function", "function": {{"name": ...}}}}'
        )
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _refusal(
            f"{where}.function.name",
            f"{where} has the name {name!r:.100}, which must be 1 to 64 letters, digits, _ or -",
        )
    parameters = function.get("parameters")
    if parameters is None:
        parameters = {"additionalProperties": False}
    if not isinstance(parameters, dict):
        raise _refusal(f"{where}.function.parameters", f"{where} has no JSON schema as parameters")
    return Function(name, {"type": "object", **parameters}, function.get("strict") is True)


def _schema_of(form: Constraint) -> str:
    if form.kind != "json_schema":
        raise _refusal(
            "tools",
            f"a form that is no JSON schema ({form.kind}) cannot be asked for together with tools: "
            'leave one of them out, or set tool_choice to "none"',
        )
    return form.source


def _new_id() -> str:
    return f"call_{new_id()[:24]}"


def _refusal(param: str, message: str) -> ApiError:
    return ApiError(400, message, param=param, code="invalid_value")
