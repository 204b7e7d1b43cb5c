"""Flags that nobody types: from the environment, and from `farthing.toml`.

What is typed wins over the environment, that over the file, and that over the default. The file is
the one that --config or FARTHING_CONFIG names, else `farthing.toml` in the current folder, else
`farthing/farthing.toml` in $XDG_CONFIG_HOME (`~/.config`); the first that is there is read, alone.

A key is a flag without its dashes. Above all tables it is for every command that has such a flag,
in the table of a command for that one, and there it wins:

    threads = 2
    [serve]
    port = 8080
    cors-origins = ["http://localhost:3000"]

The variable is FARTHING_ and the flag in capitals: FARTHING_PORT. A flag that may be given several
times takes an array, in a variable too (`["a", "b"]`, or one value as it is); one without a value
takes true or false.
"""

from __future__ import annotations

import argparse
import os
import re
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farthing.core import RequestError
from farthing.files.text_files import read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Actions = Mapping[str, argparse.Action]

FILE_NAME = "farthing.toml"
DEFAULT_SOURCE = "default"
_PREFIX = "FARTHING_"
_TYPED_ONLY = ("--help", "--config", "--check")
"""What is asked once. FARTHING_CHECK is the engine's own, and checks its blocks."""
_MOST_FILE_BYTES = 1 << 20
_TABLE = re.compile(r"\s*\[\s*[\"']?([\w-]+)[\"']?\s*\]")
_KEY = re.compile(r"\s*[\"']?([\w-]+)[\"']?\s*=")
_LINKED_SERVICE = re.compile(r"(tcp|udp|sctp)://")
"""What Kubernetes puts into FARTHING_PORT where a service is called farthing: meant for nobody."""


def apply(
    parser: argparse.ArgumentParser, command: str, arguments: list[str], commands: Iterable[str]
) -> dict[str, str]:
    """Gives `parser` the configured values as defaults, and the flag --config.

    Returns where the value of each flag comes from, by its name in the parsed arguments. Raises
    `RequestError` for a key that is unknown, with the nearest that is not, and for a value of the
    wrong type, with file and line.
    """
    parser.add_argument(
        "--config",
        metavar="FILE",
        help=f"read defaults for flags from this file instead of {FILE_NAME}",
    )
    actions = _actions(parser)
    typed = _typed(arguments)
    if "--help" in typed or "-h" in arguments:
        return {}  # told whatever the configuration looks like
    sources = dict.fromkeys((action.dest for action in actions.values()), DEFAULT_SOURCE)
    path = _path(typed.get("--config"))
    configured = {} if path is None else _from_file(path, command, actions, commands)
    configured |= _from_environment(actions, commands)
    for key, (value, source) in configured.items():
        action = actions[key]
        flag = next((each for each in action.option_strings if each in typed), None)
        if flag is None:
            parser.set_defaults(**{action.dest: value})
            action.required = False
            sources[action.dest] = source
    for action in actions.values():
        for flag in action.option_strings:
            if flag in typed:
                sources[action.dest] = flag
    return sources


def _actions(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """What can be configured, by key: every flag, and MODEL where it need not be typed."""
    found: dict[str, argparse.Action] = {}
    for action in parser._actions:
        flags = [each for each in action.option_strings if each.startswith("--")]
        if flags and flags[0] not in _TYPED_ONLY:
            found[flags[0].removeprefix("--")] = action
        elif action.dest == "model" and action.nargs == "?":
            found["model"] = action
    return found


def _typed(arguments: list[str]) -> dict[str, str | None]:
    """The flags that were typed, and what comes after each."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    typed: dict[str, str | None] = {}
    for at, argument in enumerate(arguments[:end]):
        flag, equals, value = argument.partition("=")
        if flag.startswith("--"):
            following = arguments[at + 1] if at + 1 < end else None
            typed[flag] = value if equals else following
    return typed


def _path(typed: str | None) -> Path | None:
    """The file to be read; None where there is none."""
    for name, who in ((typed, "--config"), (os.environ.get(f"{_PREFIX}CONFIG"), "FARTHING_CONFIG")):
        if name:
            if not Path(name).is_file():
                raise RequestError(f"{who} names {name}, and there is no such file")
            return Path(name)
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111
    for path in (Path(FILE_NAME), Path(home, "farthing", FILE_NAME)):
        with suppress(PermissionError):  # a home that is closed to this user has no file for it
            if path.is_file():
                return path
    return None


def _from_file(
    path: Path, command: str, actions: Actions, commands: Iterable[str]
) -> dict[str, tuple[object, str]]:
    text = read_text(path, _MOST_FILE_BYTES)
    content = _parse(text, path)
    lines = _lines(text)
    configured: dict[str, tuple[object, str]] = {}
    tables = {name: value for name, value in content.items() if isinstance(value, dict)}
    for name in tables:
        if name not in commands:
            raise RequestError(
                f"{path}, line {lines.get((name, ''), 1)}: there is no command {name!r:.60}"
                f"{_did_you_mean(name, commands)}"
            )
    general = {name: value for name, value in content.items() if name not in tables}
    for table, entries in (("", general), (command, tables.get(command, {}))):
        for key, value in entries.items():
            source = f"{path}, line {lines.get((table, key), 1)}"
            if key in actions:
                configured[key] = _value(actions[key], value, f"{source}: {key}"), source
            elif table:
                raise RequestError(
                    f"{source}: farthing {command} has no flag --{key:.60}"
                    f"{_did_you_mean(key, actions)}"
                )
            elif key not in (known := {*actions, *_keys_of(commands)}):
                raise RequestError(
                    f"{source}: no command has a flag --{key:.60}{_did_you_mean(key, known)}"
                )
    return configured


def _parse(text: str, path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RequestError(f"{path} is not TOML: {error}") from None


def _lines(text: str) -> dict[tuple[str, str], int]:
    """The line of each key by table and name; of a table itself, by an empty name."""
    lines: dict[tuple[str, str], int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if heading := _TABLE.match(line):
            table = heading[1]
            lines.setdefault((table, ""), number)
        elif key := _KEY.match(line):
            lines.setdefault((table, key[1]), number)
    return lines


def _from_environment(actions: Actions, commands: Iterable[str]) -> dict[str, tuple[object, str]]:
    by_name = {_variable(key): key for key in actions}
    configured: dict[str, tuple[object, str]] = {}
    for name, text in os.environ.items():
        if not name.startswith(_PREFIX) or _LINKED_SERVICE.match(text):
            continue
        key = by_name.get(name)
        if key is not None:
            configured[key] = _value_of_text(actions[key], text, name), name
            continue
        # Most others belong to somebody else; one of another command's is spelled rightly.
        near = get_close_matches(name, by_name, n=1, cutoff=0.9)
        if near and name not in map(_variable, _keys_of(commands)):
            raise RequestError(f"there is no variable {name:.80}; did you mean {near[0]}?")
    return configured


def _variable(key: str) -> str:
    return _PREFIX + key.replace("-", "_").upper()


def _keys_of(commands: Iterable[str]) -> set[str]:
    """The keys of all commands, which have to be imported for it."""
    keys: set[str] = set()
    for name in commands:
        parser = argparse.ArgumentParser()
        import_module(f"farthing.cli.{name}").configure(parser)
        keys |= _actions(parser).keys()
    return keys


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name.replace("_", "-"), list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def _value_of_text(action: argparse.Action, text: str, what: str) -> object:
    """The value that a variable stands for; `what` names it in messages."""
    if action.nargs == 0:
        known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        if text.lower() not in known:
            raise RequestError(f"{what} must be true or false, not {text!r:.60}")
        return known[text.lower()]
    if _is_list(action):
        if not text.startswith("["):
            return [_converted(action, text, what)]
        return _value(action, _parse(f"value = {text}", Path(what))["value"], what)
    return _converted(action, text, what)


def _value(action: argparse.Action, value: object, what: str) -> object:
    """The value that TOML's value stands for; `what` names it in messages."""
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise RequestError(f"{what} must be true or false, not {value!r:.60}")
        return value
    if _is_list(action):
        if not isinstance(value, list):
            raise RequestError(f"{what} must be an array, not {value!r:.60}")
        return [_of_its_type(action, each, what) for each in value]
    return _of_its_type(action, value, what)


def _of_its_type(action: argparse.Action, value: object, what: str) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RequestError(f"{what} must be {_wanted(action)}, not {value!r:.60}")
    converted = _converted(action, str(value), what)
    # A number in quotes is text to TOML, and text without them is none.
    numeric = isinstance(converted, int | float)
    if numeric == isinstance(value, str):
        raise RequestError(f"{what} must be {_wanted(action)}, not {value!r:.60}")
    return converted


def _converted(action: argparse.Action, text: str, what: str) -> object:
    convert: Any = action.type or str
    try:
        value: object = convert(text)
    except argparse.ArgumentTypeError as error:
        raise RequestError(f"{what} {error}") from None
    except (TypeError, ValueError):
        raise RequestError(f"{what} must be {_wanted(action)}, not {text!r:.60}") from None
    if action.choices is not None and value not in action.choices:
        near = _did_you_mean(text, map(str, action.choices))
        known = ", ".join(map(str, action.choices))
        raise RequestError(f"{what} must be one of {known}, not {text!r:.60}{near}")
    return value


def _wanted(action: argparse.Action) -> str:
    if action.type is float:
        return "a number"
    try:
        number = isinstance(action.type("1"), int) if callable(action.type) else False
    except (argparse.ArgumentTypeError, ValueError):
        number = False
    return "a whole number" if number else "text in quotes"


def _is_list(action: argparse.Action) -> bool:
    return isinstance(action, argparse._AppendAction)
