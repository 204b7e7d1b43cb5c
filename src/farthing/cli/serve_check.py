"""farthing serve --check: what the server would do and take, before it takes anything."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from farthing import __version__
from farthing.cli.config import DEFAULT_SOURCE
from farthing.cli.plan_report import shown_size, sum_facts, sum_table
from farthing.cli.process import say
from farthing.cli.progress import terminal_progress
from farthing.cli.terminal import write_table
from farthing.cli.threads import warn_of_threads
from farthing.core import DoesNotFitError
from farthing.files.catalog import resolve
from farthing.plan.memory import require_room
from farthing.serve.loading import prospect_of
from farthing.serve.places import usage_in_memory
from farthing.serve.run import refuse_early
from farthing.serve.settings import Settings

if TYPE_CHECKING:
    import argparse

    from farthing.serve.loading import ModelOptions, Prospect

_MODEL_FLAGS = (
    "model",
    "context",
    "slots",
    "cache_tokens",
    "threads",
    "kv_dtype",
    "activations",
    "speculate",
    "speculate_rule",
    "lookup_traffic",
)
_MASK = "***"


def check(settings: Settings, options: ModelOptions, arguments: argparse.Namespace) -> int:
    """Shows the configuration and the memory plan; 1 where it does not fit.

    Fetches the model where it is not on disk, as serving it would, and reads no weights.
    """
    refuse_early(settings)
    if (warning := usage_in_memory(settings)) is not None:
        say(f"warning: {warning}")
    store = settings.prefix_store_bytes if settings.prefix_store else 0
    with terminal_progress(quiet=arguments.json) as progress:
        path = resolve(options.model, progress)
        prospect = prospect_of(options, path, store, progress)
    try:
        require_room(prospect.sizes.plan, prospect.sizes.room)
        advice = None
    except DoesNotFitError as error:
        advice = str(error)
    warn_of_threads(options.threads)
    configuration = _configuration(settings, arguments)
    if arguments.json:
        _print_json(str(path), configuration, prospect, advice)
    else:
        _print(str(path), configuration, prospect, advice)
    return 0 if advice is None else DoesNotFitError.exit_code


def _configuration(
    settings: Settings, arguments: argparse.Namespace
) -> dict[str, tuple[object, str]]:
    """Each flag's value and where it comes from; secrets are masked."""
    sources: dict[str, str] = arguments.sources
    shown: dict[str, tuple[object, str]] = {
        name: (getattr(arguments, name), sources.get(name, "typed")) for name in _MODEL_FLAGS
    }
    if sources.get("model", DEFAULT_SOURCE) == DEFAULT_SOURCE:
        shown["model"] = arguments.model, "typed"
    for each in fields(settings):
        value = getattr(settings, each.name)
        if each.metadata.get("secret") and value:
            value = (_MASK,) * len(value) if isinstance(value, tuple) else _MASK
        shown[each.name] = value, sources[each.name]
    return {name.replace("_", "-"): entry for name, entry in shown.items()}


def _print_json(
    path: str,
    configuration: dict[str, tuple[object, str]],
    prospect: Prospect,
    advice: str | None,
) -> None:
    sizes, memory = prospect.sizes, prospect.memory
    plan = sizes.plan
    whole: dict[str, Any] = {
        "version": __version__,
        "path": path,
        "configuration": {
            name: {"value": value, "source": source}
            for name, (value, source) in configuration.items()
        },
        "plan": {
            "context_length": plan.context_length,
            "cache_tokens": plan.cache_tokens,
            "slots": plan.slots,
            "threads": plan.threads,
            "kv_dtype": plan.kv_dtype.value,
            "why": sizes.why,
        },
        "profile": {
            "measured": prospect.profile and prospect.profile.measured,
            "why_none": prospect.why_no_profile or None,
        },
        "memory_bytes": memory.groups(),
        "sum": sum_facts(memory),
        "needed_bytes": sizes.needed,
        "available_bytes": sizes.room,
        "fits": advice is None,
        "advice": advice,
    }
    print(json.dumps(whole, indent=2))


def _print(
    path: str,
    configuration: dict[str, tuple[object, str]],
    prospect: Prospect,
    advice: str | None,
) -> None:
    sizes, memory = prospect.sizes, prospect.memory
    plan = sizes.plan
    values = {name: _shown(value) for name, (value, _) in configuration.items()}
    width = max(map(len, values))
    value_width = min(40, max(map(len, values.values())))
    print("configuration")
    for name, (_, source) in configuration.items():
        print(f"  {name:{width}}  {values[name]:{value_width}}  {source}")
    write_table(sum_table(memory, f"memory for {path}"))
    print(f"{shown_size(sizes.needed)} of {shown_size(sizes.room)} available")
    print(
        f"a context of {plan.context_length:,} tokens, a {plan.kv_dtype.value} cache of "
        f"{plan.cache_tokens:,}, {plan.slots} slots, {plan.threads} threads\n  {sizes.why}"
    )
    print(
        f"times are foretold by the profile of {prospect.profile.measured}"
        if prospect.profile
        else f"times are learned from steps as they run: {prospect.why_no_profile}"
    )
    print("it fits" if advice is None else f"it does not fit: {advice}")


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "-"
    return str(value)
