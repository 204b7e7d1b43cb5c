"""The command line: one thin file a subcommand, imported only when it is the one that runs.

Exit codes: 0 done; 1 the answer is no (it does not fit, a check failed); 2 bad input or usage;
130 interrupted, 143 terminated.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module

from farthing import __version__
from farthing.cli.process import (
    ended_by_signals,
    interrupts_held,
    is_output_error,
    prepare_streams,
    say,
    silence_output,
)

COMMANDS = {
    "run": "stream one completion, or answer a file of requests",
    "chat": "a conversation in the terminal",
    "serve": "the OpenAI-compatible server and its web page",
    "plan": "what fits, for how many, how fast, at what price",
    "quantize": "write a model again in other formats, with what that cost inside",
    "tune": "measure, choose settings for an objective, write farthing.toml",
    "distill": "make a draft model or a small student of a teacher",
    "bench": "prefill, decode and batches, beside what the machine could do",
    "lab": "what the cache, batching and quantisation do here, measured",
    "verify": "the exactness contract, checked on this machine",
    "models": "the catalog and what is on disk: list, pull, rm",
}
"""Every subcommand and what it does. The module of the same name has `configure` and `run`."""

INTERRUPTED = 130

_EPILOG = """\
MODEL is a .gguf file, a folder of safetensors, a hub id (owner/name, or owner/name:Q4_K_M for one
GGUF of a repository), or a name of the catalog; smollm2-135m is a good first one.

examples:
  farthing run smollm2-135m "Why is the sky blue?"
  farthing chat smollm2-135m
  farthing serve smollm2-135m
  farthing COMMAND --help

Every flag can also stand in farthing.toml or in the environment: FARTHING_THREADS=2 is --threads 2
(farthing serve --help says more).
"""


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code; never raises for what a person did wrong."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        prepare_streams()
        with ended_by_signals():
            try:
                code = _dispatch(arguments)
            except SystemExit as end:
                # How argparse ends: 0 after --help, 2 after a usage error that it has explained.
                code = end.code if isinstance(end.code, int) else 2
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        say("")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has left.
        silence_output()
        return 0
    except Exception as error:
        return _explained(error)


def _explained(error: Exception) -> int:
    """Tells what went wrong and returns the exit code."""
    # Imported late, as numpy comes with it: an interrupt must find `main` at work soon.
    from farthing.core import FarthingError

    if isinstance(error, FarthingError):
        say(f"farthing: {error}")
        return error.exit_code
    if isinstance(error, OSError) and is_output_error(error):
        say(f"farthing: the output cannot be written: {error.strerror}")
        silence_output()
        return 2
    if os.environ.get("FARTHING_DEBUG"):
        raise error
    say(
        f"farthing: internal error: {type(error).__name__}: {error}\n"
        "This is a fault of farthing, not yours. Run the command again with FARTHING_DEBUG=1 "
        "and report what it prints."
    )
    return 1


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in COMMANDS:
        return _without_command(arguments)
    name = arguments[0]
    with interrupts_held():
        module = import_module(f"farthing.cli.{name}")
        config = import_module("farthing.cli.config")
    parser = argparse.ArgumentParser(
        prog=f"farthing {name}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # A flag cut short would change its meaning with the next flag that begins like it.
        allow_abbrev=False,
    )
    module.configure(parser)
    sources = config.apply(parser, name, arguments[1:], COMMANDS)
    # Intermixed: a flag may stand between MODEL and PROMPT.
    parsed = parser.parse_intermixed_args(arguments[1:])
    parsed.sources = sources
    return int(module.run(parsed))


def _without_command(arguments: list[str]) -> int:
    """Handles --help and --version, and says what is wrong with anything else."""
    parser = argparse.ArgumentParser(
        prog="farthing",
        description="Cheap language-model inference on hardware people own.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"farthing {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, what in COMMANDS.items():
        commands.add_parser(name, help=what)
    parser.parse_args(arguments)
    return 0
