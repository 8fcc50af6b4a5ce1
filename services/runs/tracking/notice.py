"""Notice of a run's end by webhook: one JSON object, by POST. It never ends a run or delays it long."""

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
from pydantic import Field, field_validator

from contracts.secrets.redaction import redact
from contracts.secrets.secret_values import remember_secret
from contracts.settings import Settings
from services.runs.folder import RunFolder
from services.runs.json_lines import merged, without_nan

log = logging.getLogger(__name__)

PASSING = (408, 409, 425, 429)  # statuses to try again, as all 5xx are
FIRST_WAIT_S = 1.0  # doubled after each attempt
Event = Literal["finished", "stopped_by_rule", "interrupted", "failed"]


class NotifySettings(Settings):
    """Address that gets a notice of a run's end. Example: `notify.url=https://host/hook`"""

    url: str | None = None  # gets a POST when the run ends, even by a rule or an error; None: no notice
    timeout_s: float = Field(default=10.0, gt=0)  # deadline of one attempt, in seconds
    attempts: int = Field(default=3, ge=1)  # number of attempts to send a notice; then the run warns

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        """Check the address, and remember its secret parts, which are the path and query of a hook."""
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("expected http://HOST/… or https://HOST/…")
        for secret in (parts.path.strip("/"), parts.query):
            if len(secret) >= 8:
                remember_secret(secret)
        return value


def notice(folder: RunFolder, event: Event, words: str) -> dict[str, Any]:
    """Return the content of a notice: run, event, reason, and the newest numbers; NaN is null."""
    rows = merged(folder.rollout_info(), folder.training_info())
    evaluations = folder.evaluations("val")
    newest: Mapping[str, Any] = rows[-1] if rows else {}
    evaluated = evaluations[-1]["metrics"] if evaluations else {}
    return {
        "run": folder.path.name,
        "event": event,
        "iteration": int(newest.get("iteration", 0)),
        "words": redact(words),
        "metrics": without_nan(
            {key: value for key, value in newest.items() if key != "iteration"}
            | {f"val/{key}": value for key, value in evaluated.items()}
        ),
    }


def send(settings: NotifySettings, body: Mapping[str, Any], warn: Callable[[str], None]) -> None:
    """Send a notice; warn if all attempts fail."""
    if settings.url is None:
        return
    reason = ""
    for attempt in range(settings.attempts):
        if attempt:
            time.sleep(FIRST_WAIT_S * 2 ** (attempt - 1))
        try:
            with httpx.stream(
                "POST",
                settings.url,
                content=json.dumps(body, ensure_ascii=False),
                headers={"content-type": "application/json"},
                timeout=settings.timeout_s,
            ) as response:
                pass  # only the status counts
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            reason = f"{type(error).__name__}: {error}"
            continue
        if response.is_success:
            return
        reason = f"status {response.status_code}"
        if response.status_code not in PASSING and response.status_code < 500:
            break
    warn(redact(f"notify.url={settings.url}: the notice was not accepted: {reason}"))


def notify(
    settings: NotifySettings, folder: RunFolder, event: Event, words: str, warn: Callable[[str], None]
) -> None:
    """Send a notice of a run's end. No failure here may hide how the run ended."""
    if settings.url is None:
        return
    try:
        send(settings, notice(folder, event, words), warn)
    except Exception as error:
        log.debug("the notice failed", exc_info=True)
        warn(redact(f"notify.url: {type(error).__name__}: {error}"))
