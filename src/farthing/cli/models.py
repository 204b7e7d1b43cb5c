"""farthing models: what is on disk and what can be fetched by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from farthing.cli.process import say
from farthing.core import FarthingError, RequestError

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
List the models on disk and the catalog; fetch one; remove one. export-tokenizer writes a folder
with tokenizer.json and tokenizer_config.json, which `tokenizers` and transformers' AutoTokenizer
load: load generators want one. Its ids are the model's own."""

_EXPORT = "export-tokenizer"

_EPILOG = """\
examples:
  farthing models
  farthing models pull smollm2-135m
  farthing models pull owner/name:Q4_K_M
  farthing models rm smollm2-135m
  farthing models export-tokenizer smollm2-135m smollm2-tokenizer
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument("--json", action="store_true", help="the list as one JSON object")
    parser.add_argument(
        "action",
        nargs="?",
        choices=("list", "pull", "rm", _EXPORT),
        default="list",
        help="list (default); pull: fetch; rm: remove a fetched model from disk; "
        f"{_EXPORT}: write its tokenizer to DIR",
    )
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help=f"a catalog name or a hub id; for {_EXPORT} also a .gguf file or a folder",
    )
    parser.add_argument(
        "folder",
        nargs="?",
        metavar="DIR",
        help=f"for {_EXPORT}: a new folder, or one that such an export made",
    )


def run(arguments: argparse.Namespace) -> int:
    from farthing.cli.progress import terminal_progress
    from farthing.files import catalog

    if (arguments.name is None) != (arguments.action == "list"):
        needs = "takes no NAME" if arguments.name else "needs a NAME"
        raise RequestError(f"models {arguments.action} {needs}: see farthing models --help")
    if (arguments.folder is not None) != (arguments.action == _EXPORT):
        needs = "takes no DIR" if arguments.folder else "needs a DIR"
        raise RequestError(f"models {arguments.action} {needs}: see farthing models --help")
    if arguments.action == "pull":
        with terminal_progress() as progress:
            path = catalog.resolve(arguments.name, progress)
        print(path)
    elif arguments.action == "rm":
        with terminal_progress() as progress:
            freed = catalog.remove(arguments.name, progress)
        say(f"removed {arguments.name}, {freed / 1e6:,.1f} MB")
    elif arguments.action == _EXPORT:
        _export(arguments.name, Path(arguments.folder))
    elif arguments.json:
        _print_json()
    else:
        _print_table()
    return 0


def _export(name: str, folder: Path) -> None:
    from farthing.cli.progress import terminal_progress
    from farthing.files import catalog
    from farthing.files.checkpoint import open_checkpoint
    from farthing.forge.output import written_whole
    from farthing.models.load import load_model
    from farthing.text.export import SETTINGS_FILE, TOKENIZER_FILE, export_tokenizer

    ours = {TOKENIZER_FILE, SETTINGS_FILE}
    if os.path.lexists(folder) and not (
        folder.is_dir() and {each.name for each in folder.iterdir()} <= ours
    ):
        raise FarthingError(
            f"{folder} exists and holds more than an exported tokenizer: choose another name"
        )
    if not folder.parent.is_dir():
        raise FarthingError(f"there is no folder {folder.parent}: make it first")
    with terminal_progress() as progress:
        path = catalog.resolve(name, progress)
    with open_checkpoint(path) as checkpoint, written_whole(folder) as partial:
        context_length = load_model(checkpoint).config.context_length
        export_tokenizer(checkpoint, partial, context_length)
    print(folder)


def _print_json() -> None:
    import json

    from farthing import __version__
    from farthing.files import catalog

    installed = [
        {
            "name": model.name,
            "path": str(model.path),
            "bytes": model.bytes,
            "licence": model.licence,
            "source": model.source,
        }
        for model in [*catalog.installed(), catalog.shipped()]
    ]
    known = [
        {
            "name": entry.name,
            "bytes": entry.bytes,
            "sha256": entry.sha256,
            "licence": entry.licence,
            "source": entry.source,
        }
        for entry in catalog.CATALOG.values()
    ]
    print(json.dumps({"version": __version__, "installed": installed, "catalog": known}, indent=2))


def _print_table() -> None:
    from rich.table import Table
    from rich.text import Text

    from farthing.cli.terminal import visible, write_table
    from farthing.files import catalog

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("model", "size", "on disk", "licence", "from"):
        table.add_column(heading, justify="right" if heading == "size" else "left", overflow="fold")
    installed = [*catalog.installed(), catalog.shipped()]
    here = {model.name for model in installed}
    absent = [entry for entry in catalog.CATALOG.values() if entry.name not in here]
    for model, on_disk in [(each, "yes") for each in installed] + [(each, "no") for each in absent]:
        size = f"{model.bytes / 1e6:,.1f} MB"
        cells = (model.name, size, on_disk, model.licence, model.source)
        # As plain text: a licence from a hub may hold what rich takes for markup.
        table.add_row(*(Text(visible(cell)) for cell in cells))
    write_table(table)
