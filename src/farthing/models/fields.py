"""Typed, range-checked reading of a model's description, from GGUF metadata or config.json.

Both say the same things under different names, so each question is asked with both names. Every
answer is checked before anyone counts or allocates with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from farthing.core import FileFormatError, UnsupportedModelError


@dataclass(frozen=True)
class Fields:
    """The description in `source`; `where` is the file named in errors.

    `prefix` is GGUF's key prefix (the architecture and a dot), or None for a config.json. Each
    reader takes the GGUF name (without the prefix) and the config.json name; None where that form
    does not have the field, and the default is taken. A JSON null counts as absent.
    Readers raise `FileFormatError` for an absent required field, a wrong type or a value out of
    range.
    """

    source: Mapping[str, Any]
    where: str
    prefix: str | None = None

    @property
    def is_gguf(self) -> bool:
        """Whether this is GGUF metadata rather than a config.json."""
        return self.prefix is not None

    def key(self, gguf: str | None, hf: str | None) -> str | None:
        """The key that this form uses, or None where it has none."""
        if self.prefix is None:
            return hf
        return None if gguf is None else self.prefix + gguf

    def raw(self, gguf: str | None, hf: str | None) -> Any:
        """The unchecked value, or None where it is absent."""
        key = self.key(gguf, hf)
        return None if key is None else self.source.get(key)

    def integer(
        self,
        gguf: str | None,
        hf: str | None,
        default: int | None = None,
        *,
        low: int = 1,
        high: int,
    ) -> int:
        """An integer from `low` to `high`, both included; without a default it must be there."""
        value = self._present(gguf, hf, default)
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))
        if not whole or not low <= int(value) <= high:
            self._fail(gguf, hf, value, f"a whole number from {low} to {high}")
        return int(value)

    def number(
        self,
        gguf: str | None,
        hf: str | None,
        default: float | None = None,
        *,
        high: float = 1e30,
    ) -> float:
        """A finite number above 0 and at most `high`; without a default it must be there."""
        value = self._present(gguf, hf, default)
        number = isinstance(value, (int, float, np.integer, np.floating))
        if not number or isinstance(value, bool) or not 0 < value <= high:
            self._fail(gguf, hf, value, f"a number above 0 and at most {high:g}")
        return float(value)

    def flag(self, gguf: str | None, hf: str | None, default: bool) -> bool:
        """A truth value."""
        value = self._present(gguf, hf, default)
        if not isinstance(value, (bool, np.bool_)):
            self._fail(gguf, hf, value, "true or false")
        return bool(value)

    def text(self, gguf: str | None, hf: str | None, default: str) -> str:
        """A string."""
        value = self._present(gguf, hf, default)
        if not isinstance(value, str):
            self._fail(gguf, hf, value, "a string")
        return str(value)

    def section(self, hf: str) -> Fields | None:
        """The object at `hf` of a config.json, as fields of its own; None where it is absent."""
        value = self.raw(None, hf)
        if value is None:
            return None
        if not isinstance(value, dict):
            self._fail(None, hf, value, "an object")
        return Fields(value, f"{self.where}: {hf}")

    def refuse(self, gguf: str | None, hf: str | None, neutral: Collection[Any], what: str) -> None:
        """Raises `UnsupportedModelError` where the field asks for something not computed here.

        `neutral` are the values that ask for nothing, besides an absent field.
        """
        value = self.raw(gguf, hf)
        if value is None or any(_equal(value, harmless) for harmless in neutral):
            return
        raise UnsupportedModelError(
            f"{self.where}: {self.key(gguf, hf)} is {shown(value)}, but {what} is not supported; "
            "computing without it would change the model's answers"
        )

    def _present(self, gguf: str | None, hf: str | None, default: Any) -> Any:
        value = self.raw(gguf, hf)
        if value is not None:
            return value
        if default is None:
            raise FileFormatError(
                f"{self.where}: {self.key(gguf, hf)} is missing, which this architecture needs; "
                "the file is incomplete, fetch or convert it again"
            )
        return default

    def _fail(self, gguf: str | None, hf: str | None, value: Any, wanted: str) -> None:
        raise FileFormatError(
            f"{self.where}: {self.key(gguf, hf)} must be {wanted}, not {shown(value)}"
        )


def shown(value: Any) -> str:
    """`value` for an error message, cut to a readable length."""
    text = repr(value.tolist() if isinstance(value, np.generic) else value)
    return text if len(text) <= 60 else text[:57] + "..."


def _equal(value: Any, harmless: Any) -> bool:
    if isinstance(value, (list, tuple, dict, np.ndarray)):
        return len(value) == 0 and harmless is None
    return bool(value == harmless)
