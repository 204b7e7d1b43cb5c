"""The type stub of the compiled module names what the module has."""

from __future__ import annotations

import ast
from pathlib import Path

import farthing
from farthing import _native

STUB = Path(farthing.__file__).with_name("_native.pyi")


def members(body: list[ast.stmt]) -> set[str]:
    """Names that a stub's statements define, annotations of attributes included."""
    named = (ast.ClassDef, ast.FunctionDef)
    return {node.name for node in body if isinstance(node, named)} | {
        node.target.id
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_the_stub_has_the_public_names_of_the_compiled_module() -> None:
    body = ast.parse(STUB.read_text(encoding="utf-8")).body
    # The two submodules are for the tests of kernels; the package uses neither.
    assert members(body) == public(_native) - {"kernels", "sizes"}
    for node in body:
        if isinstance(node, ast.ClassDef):
            assert members(node.body) - {"__init__"} == public(getattr(_native, node.name))
