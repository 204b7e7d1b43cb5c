"""What a load and a completion took, for people in lines and for machines in JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farthing.core import FarthingError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from farthing.engine.completion import Completion, Usage
    from farthing.engine.engine import Engine
    from farthing.engine.load import LoadReport


def load_lines(engine: Engine) -> list[str]:
    """The load report in a few lines."""
    report = engine.report
    if report is None:
        return []
    phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in report.phases.items())
    total = sum(report.memory.values())
    memory = ", ".join(f"{name} {size / 1e6:,.1f}" for name, size in report.memory.items())
    # A matrix's product is told beside its format; vectors have none.
    formats = ", ".join(
        f"{count} {name}{_computed(name, report.computed)}"
        for name, count in report.formats.items()
    )
    head = f"{report.model}: {report.architecture}, {report.parameters / 1e6:,.1f}M parameters"
    threads = f"{report.threads} thread{'s' if report.threads > 1 else ''}"
    context = f"{report.context_length} of the model's {report.model_context_length}"
    cache = f"{report.kv_dtype} cache of {report.cache_tokens} tokens"
    slots = f"{report.slots} slot{'s' if report.slots > 1 else ''}"
    lines = [
        f"{head}, {report.path}",
        f"  loaded in {report.seconds:.2f} s ({phases})",
        f"  memory {total / 1e6:,.1f} MB ({memory})",
        f"  tensors {formats}",
        f"  context {context}, {cache}, {slots}, {report.isa}, {threads}",
    ]
    if report.has_receipt:
        lines.append(f"  receipt {_receipt(report)}")
    if report.threads_asked > report.threads:
        cores = f"{report.threads} core{'s' if report.threads > 1 else ''}"
        lines.append(
            f"  {report.threads_asked} threads asked, {cores} usable: {report.threads} run"
        )
    return lines


def _receipt(report: LoadReport) -> str:
    """What the receipt says, or why it is refused: the model runs without one as well."""
    from farthing.engine.receipts import checked_receipt, measured_otherwise

    try:
        receipt = checked_receipt(report)
    except FarthingError as error:
        return f"refused: {error}"
    if receipt is None:
        return "gone since"
    otherwise = measured_otherwise(receipt, report)
    return receipt.summary() + (f"; measured with {otherwise}" if otherwise else "")


def figures(completion: Completion) -> str:
    """One line: tokens and speed of both parts, Python's share, and the seed."""
    usage, timing = completion.usage, completion.timing
    read = _rate(usage.prompt_tokens, timing.prefill_seconds)
    # The first token comes with the prompt.
    written = _rate(usage.completion_tokens - 1, timing.decode_seconds)
    return (
        f"{usage.prompt_tokens} prompt tokens in {timing.prefill_seconds:.2f} s ({read}), "
        f"{usage.completion_tokens} tokens in {timing.decode_seconds:.2f} s ({written}), "
        f"Python {timing.python_share:.1%}, seed {completion.seed}{_guessed(usage)}"
    )


def _guessed(usage: Usage) -> str:
    if not usage.drafted_tokens:
        return ""
    return f", {usage.accepted_tokens} of {usage.drafted_tokens} tokens guessed ahead were right"


def engine_facts(engine: Engine) -> dict[str, Any]:
    """What every JSON carries, and the load report; nothing where an engine was not loaded."""
    from dataclasses import asdict

    from farthing.lab.facts import facts

    report = engine.report
    if report is None:
        return {}
    return {
        **facts(report.model, report.path, report.threads, report.isa),
        "load": {**asdict(report), "path": str(report.path)},
    }


def completion_facts(completion: Completion) -> dict[str, Any]:
    """A completion as JSON has it."""
    usage, timing = completion.usage, completion.timing
    return {
        "seed": completion.seed,
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "usage": usage_facts(usage),
        "guessed_ahead": {"tokens": usage.drafted_tokens, "right": usage.accepted_tokens},
        "timing": {
            "prefill_seconds": timing.prefill_seconds,
            "decode_seconds": timing.decode_seconds,
            "native_seconds": timing.native_seconds,
            "python_share": timing.python_share,
        },
    }


def usage_facts(usage: Usage) -> dict[str, int]:
    """Tokens read and written as JSON has them."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }


def _computed(stored: str, computed: Mapping[str, str]) -> str:
    return f" (as {computed[stored]})" if stored in computed else ""


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:,.0f} tokens/s" if tokens > 0 and seconds > 0 else "-"
