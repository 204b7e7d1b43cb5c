"""The structures of /v1/models and /health."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is served. `receipt` is its measured quality, null where none was measured."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["farthing"] = "farthing"
    max_model_len: int
    details: dict[str, Any]
    receipt: dict[str, Any] | None


class ModelList(msgspec.Struct, frozen=True):
    """All of them."""

    data: list[ModelEntry]
    object: Literal["list"] = "list"


class Health(msgspec.Struct, frozen=True):
    """What the server is doing; while it loads, in which phase it is and how far, from 0 to 1."""

    status: Literal["ready", "loading", "failed", "draining"]
    phase: str | UnsetType = UNSET
    progress: float | UnsetType | None = UNSET
    message: str | UnsetType | None = UNSET
