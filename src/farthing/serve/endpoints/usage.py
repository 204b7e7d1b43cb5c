"""GET /usage: what the caller's key used, by day and model; of all keys, for an admin's.

`since` and `until` are days, `YYYY-MM-DD` in UTC, the last included; without them the last 31.
`key` names one key, for an admin. `format=csv`, or an Accept header with text/csv, gives a table.
"""

from __future__ import annotations

import asyncio
import csv
import io
from dataclasses import asdict, fields
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from starlette.responses import Response

from farthing.core import FarthingError
from farthing.serve.errors import ApiError, retry_headers
from farthing.serve.keys import ANONYMOUS, Key
from farthing.serve.usage import Usage, total
from farthing.serve.usage_file import Used
from farthing.serve.wire.common import json_response
from farthing.serve.wire.usage import UsageEntry, UsageReport, UsageSums

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from farthing.serve.state import ServerState
    from farthing.serve.usage_file import Row

_USUAL_DAYS = 31


async def usage(state: ServerState, request: Request) -> Response:
    """As JSON or CSV; 404 where usage is not kept."""
    kept = state.usage
    if not isinstance(kept, Usage):
        raise ApiError(
            404,
            "usage is not kept on this server: it was started without a usage_store",
            code="no_usage",
        )
    query = request.query_params
    as_table = _wants_table(query.get("format"), request.headers.get("accept", ""))
    caller = request.state.caller
    key = _whose(caller if isinstance(caller, Key) else ANONYMOUS, query.get("key"))
    until = _day("until", query.get("until")) or datetime.now(UTC).date()
    since = _day("since", query.get("since")) or _days_before(until, _USUAL_DAYS - 1)
    if since > until:
        raise ApiError(400, f"since is {since}, after until, {until}", param="since")
    try:
        rows = await asyncio.to_thread(kept.report, since, until, key)
    except FarthingError as error:
        raise ApiError(
            503, str(error), code="usage_unavailable", headers=retry_headers(5)
        ) from error
    if as_table:
        return Response(_table(rows), media_type="text/csv")
    report = UsageReport(
        since=str(since),
        until=str(until),
        currency=state.settings.currency,
        price_per_hour=state.settings.price_per_hour,
        lasting=kept.path is not None,
        data=[
            UsageEntry(day=day, key=name, model=model, **asdict(used))
            for (day, name, model), used in rows
        ],
        total=UsageSums(**asdict(total(rows))),
    )
    return json_response(report, headers={"cache-control": "no-store"})


def _wants_table(asked: str | None, accept: str) -> bool:
    if asked not in (None, "json", "csv"):
        raise ApiError(400, f"format must be json or csv, not {asked!r:.40}", param="format")
    return asked == "csv" or (asked is None and "text/csv" in accept)


def _whose(caller: Key, asked: str | None) -> str | None:
    """The name of the key whose usage is shown; None for all."""
    if caller.admin:
        return asked
    if asked is not None and asked != caller.name:
        raise ApiError(
            403,
            "this key sees its own usage only: leave out `key`, or ask with an admin's key",
            param="key",
            code="not_admin",
        )
    return caller.name


def _days_before(until: date, days: int) -> date:
    """So long before a day, or the first day that there is."""
    return date.fromordinal(max(1, until.toordinal() - days))


def _day(name: str, text: str | None) -> date | None:
    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ApiError(
            400, f"{name} must be a day such as 2026-01-31, not {text!r:.40}", param=name
        ) from None


def _table(rows: Sequence[tuple[Row, Used]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    names = [each.name for each in fields(Used)]
    writer.writerow(["day", "key", "model", *names])
    for row, used in rows:
        writer.writerow([*row, *(getattr(used, name) for name in names)])
    return text.getvalue()
