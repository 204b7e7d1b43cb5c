"""farthing serve: the OpenAI-compatible server and its web page."""

from __future__ import annotations

import argparse
import stat
from dataclasses import fields
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from farthing.cli.options import add_backend_options, add_speculation, positive, whole
from farthing.cli.process import say
from farthing.core import ActivationMode, KVDtype, RequestError
from farthing.serve.settings import Settings, fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import Field

    from farthing.serve.loading import ModelOptions

_DESCRIPTION = """\
Serve a model behind OpenAI's API, with a page to talk to it at /. /health answers 503 with the
phase while the model is loaded, and 200 once it is ready."""

_EPILOG = """\
Unless --slots and --cache-tokens say otherwise:
{rule}
The log tells what was chosen and why. What is asked for and does not fit is refused at once, with
the nearest that does; --check tells without loading.

Each flag can stand in farthing.toml, under its name without the dashes, above all tables or in
[serve], and in the environment (FARTHING_PORT is --port, FARTHING_MODEL is MODEL). What is typed
wins over the environment, that over the file, that over the default. The file is that of --config
or FARTHING_CONFIG, else ./farthing.toml, else ~/.config/farthing/farthing.toml: the first there is.

SIGTERM and Ctrl-C end admission (503 with Retry-After), give running requests --drain-seconds, save
the --prefix-store and end with exit code 0. A second signal ends at once.

examples:
  farthing serve smollm2-135m
  farthing serve smollm2-135m --port 8080 --slots 128 --cache-tokens 65536
  farthing serve model.gguf --prefix-store /var/lib/farthing/prefixes --log-format json
  farthing serve model.gguf --kv-dtype int8 --check
  farthing serve model.gguf --host 0.0.0.0 --keys-file keys.toml
  FARTHING_MODEL=smollm2-135m FARTHING_PORT=8080 farthing serve
  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "smollm2-135m", "messages": [{{"role": "user", "content": "Hello"}}]}}'
"""


def configure(parser: argparse.ArgumentParser) -> None:
    from farthing.serve.sizing import RULE

    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG.format(rule=fill(RULE, 98, initial_indent="  ", subsequent_indent="  "))
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a .gguf file, a folder of safetensors, a hub id or a catalog name (smollm2-135m); "
        "need not be given where the configuration names it",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="show the configuration and the memory plan, load nothing; exit 1 if it does not fit",
    )
    parser.add_argument("--json", action="store_true", help="with --check: as one JSON object")
    group = parser.add_argument_group("model")
    group.add_argument(
        "--context",
        type=positive,
        metavar="N",
        help="most tokens of prompt and answer together (default: the model's own)",
    )
    group.add_argument(
        "--slots", type=positive, metavar="N", help="most texts that run at once (default 64)"
    )
    group.add_argument(
        "--cache-tokens",
        type=positive,
        metavar="N",
        help="tokens in the cache, all texts together (default: by the rule below)",
    )
    add_backend_options(group)
    add_speculation(group)
    groups: dict[str, Any] = {}
    for each in fields(Settings):
        title = each.metadata["group"]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        _add_setting(groups[title], each)


def run(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    if arguments.model is None:
        raise RequestError(
            "MODEL is missing: give it (farthing serve smollm2-135m), or set model in "
            "farthing.toml or FARTHING_MODEL"
        )
    if arguments.json and not arguments.check:
        raise RequestError("--json is for --check: for a log in JSON there is --log-format json")
    warnings = _readers(arguments)
    options = _model_options(arguments)
    if arguments.check:
        from farthing.cli.serve_check import check

        for warning in warnings:
            say(f"warning: {warning}")
        return check(settings, options, arguments)
    from farthing.serve.run import serve

    return serve(settings, options, warnings)


def _readers(arguments: argparse.Namespace) -> list[str]:
    """What to warn of: a secret is not safe where other users of the machine can read it."""
    warnings: list[str] = []
    for each in fields(Settings):
        if not each.metadata.get("secret"):
            continue
        flag = "--" + each.name.replace("_", "-")
        source = str(arguments.sources[each.name])
        path = Path(source.rpartition(", line ")[0] or ".")
        if source == flag:
            warnings.append(
                f"other users of this machine can see what follows {flag} (ps shows it)"
            )
        elif path.is_file() and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            warnings.append(f"{path} holds a secret that other users can read: chmod 600 it")
    return warnings


def settings_of(arguments: argparse.Namespace) -> Settings:
    """The flags of all fields as settings."""
    values = {each.name: getattr(arguments, each.name) for each in fields(Settings)}
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = tuple(value)
    return Settings(**values)


def _model_options(arguments: argparse.Namespace) -> ModelOptions:
    from farthing.serve.loading import ModelOptions

    mode = arguments.activations
    return ModelOptions(
        model=arguments.model,
        context_length=arguments.context,
        cache_tokens=arguments.cache_tokens,
        slots=arguments.slots,
        kv_dtype=KVDtype(arguments.kv_dtype),
        activations=None if mode is None else ActivationMode(mode),
        threads=arguments.threads,
        speculate=arguments.speculate,
        speculate_rule=arguments.speculate_rule,
        lookup_traffic=arguments.lookup_traffic,
    )


def _add_setting(group: Any, setting: Field[Any]) -> None:
    """The flag of a field of `Settings`."""
    metadata, kind = setting.metadata, str(setting.type)
    flag = "--" + setting.name.replace("_", "-")
    text = metadata["help"]
    if kind == "bool":
        negatable = argparse.BooleanOptionalAction if setting.default else "store_true"
        group.add_argument(flag, action=negatable, default=setting.default, help=text)
        return
    several = kind.startswith("tuple")
    if several:
        text += "; may be given several times"
    elif setting.default is not None:
        default = setting.default
        text += f" (default {f'{default:g}' if isinstance(default, float) else default})"
    elif metadata.get("off"):
        text += " (default off)"
    group.add_argument(
        flag,
        action="append" if several else "store",
        type=_type_of(setting),
        default=[] if several else setting.default,
        choices=metadata.get("choices"),
        metavar=metadata.get("metavar") or (None if metadata.get("choices") else "N"),
        dest=setting.name,
        help=text.replace("%", "%%"),
    )


def _type_of(setting: Field[Any]) -> Callable[[str], Any]:
    """An argparse type for a field: in its bounds, and with `off` for None where it says so."""
    kind = str(setting.type).removesuffix(" | None").removeprefix("tuple[").removesuffix(", ...]")
    convert: Callable[[str], Any] = {"int": whole, "float": _number}.get(kind, str)

    def checked(text: str) -> Any:
        if setting.metadata.get("off") and text == "off":
            return None
        value = convert(text)
        if wrong := fault(setting, value):
            raise argparse.ArgumentTypeError(wrong)
        return value

    return checked


def _number(text: str) -> float:
    """An argparse type: a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r:.40}") from None
