"""Addresses of servers that hold environments, for any protocol, and a first request to one."""

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

import httpx
from pydantic import AfterValidator

from contracts.errors import InputError
from contracts.network.access import is_loopback
from contracts.network.bounded_answers import answer_here

SOONER = 0.9  # share of the pool's time after which a call ends: the pool's error names no server
LOOK_S = 10.0
EXAMPLE = "http://127.0.0.1:8000"


def _is_address(value: str) -> str:
    if not value.startswith(("http://", "https://")):
        raise ValueError(f"expected an address such as {EXAMPLE}")
    return value.rstrip("/")


Address = Annotated[str, AfterValidator(_is_address)]


def is_near(url: str) -> bool:
    """Return whether a server is on this machine, so that no proxy leads to it."""
    return is_loopback(urlsplit(url).hostname or "")


def looked_up(
    url: str,
    path: str,
    kind: str,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
    body: Mapping[str, Any] | None = None,
) -> Any:
    """Return the JSON that a server gives for a path; with a body, post it.

    Args:
        kind: kind of server, for a message.

    Raises:
        InputError: no such server answers.
    """
    method = "GET" if body is None else "POST"
    try:
        answer = answer_here(
            method, f"{url}{path}", headers=headers, json=body, timeout=timeout_s, trust_env=not is_near(url)
        )
        return answer.raise_for_status().json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise InputError(
            f"environment.url={url}: {url}{path} gave {type(error).__name__}: {error}; expected a running "
            f"server of {kind}, such as {EXAMPLE}"
        ) from None
