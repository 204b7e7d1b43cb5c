"""Who may import what, where import-linter's layers do not reach."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import farthing

PACKAGE = Path(farthing.__file__).parent

# An optional or compiled module, and the only places that may import it.
RESTRICTED = {
    "farthing._native": ("backends/",),
    "torch": ("backends/torch.py", "forge/", "lab/"),
    "ray": ("serve/cluster.py",),
    "matplotlib": ("lab/",),
}


def imported_modules(source: str) -> set[str]:
    """The dotted names that a module's source imports anywhere in it, and all their parents."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {
        ".".join(name.split(".")[: i + 1]) for name in names for i in range(name.count(".") + 1)
    }


@pytest.mark.parametrize("restricted", RESTRICTED)
def test_a_restricted_module_is_imported_only_where_it_may_be(restricted: str) -> None:
    offenders = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if restricted in imported_modules(path.read_text(encoding="utf-8"))
        and not str(path.relative_to(PACKAGE)).startswith(RESTRICTED[restricted])
    ]
    assert offenders == []


@pytest.mark.parametrize(
    "source",
    [
        "import torch",
        "import torch.nn.functional as F",
        "from torch import nn",
        "def f():\n    from torch.nn import Linear",
        "import numpy, torch",
    ],
)
def test_every_form_of_import_is_seen(source: str) -> None:
    assert "torch" in imported_modules(source)


def test_the_package_uses_absolute_imports_only() -> None:
    relative = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []
