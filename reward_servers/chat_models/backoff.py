"""Pauses before a repeated call, doubled each time or as long as the server requests."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0


def pause_s(attempt: int, wanted_s: float | None = None, first_s: float = FIRST_WAIT_S) -> float:
    """Return the seconds to wait after failed attempt number `attempt`, counted from 1.

    >>> pause_s(1), pause_s(2), pause_s(3), pause_s(99), pause_s(1, wanted_s=7.0)
    (1.0, 2.0, 4.0, 60.0, 7.0)
    """
    doubled = first_s * 2 ** min(attempt - 1, 20)
    return min(LONGEST_WAIT_S, doubled if wanted_s is None else wanted_s)


def wanted_s(error: Exception) -> float | None:
    """Return an error's requested pause: its `wanted_wait_s`, or `Retry-After` of its response.

    HTTP clients' errors hold the response, so a user's coroutine need not read this header.
    """
    wait_s = getattr(error, "wanted_wait_s", None)
    if wait_s is not None:
        return float(wait_s)
    headers = getattr(getattr(error, "response", None), "headers", None)
    return None if headers is None else retry_after_s(headers)


def retry_after_s(headers: Any, now: datetime | None = None) -> float | None:
    """Return the seconds of a response's header `Retry-After`, a number or a date; None without one.

    >>> retry_after_s({"retry-after": "2.5"})
    2.5
    >>> retry_after_s({"retry-after": "Fri, 01 Jan 2100 00:00:10 GMT"}, datetime(2100, 1, 1, tzinfo=UTC))
    10.0
    """
    header = headers.get("retry-after") or ""
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(header) - (now or datetime.now(UTC))).total_seconds())
    except (ValueError, TypeError):
        return None
