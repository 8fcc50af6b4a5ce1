"""Warn about a Ray cluster without a token, on which anybody can run any program."""

import httpx

from contracts.network.access import is_loopback

ASK_S = 5.0
MAKE_A_TOKEN = "(umask 077; ray get-auth-token --generate >/dev/null)"
START_ONE = (
    f"`{MAKE_A_TOKEN}` and then `ray start --head --node-ip-address=127.0.0.1` start one on this machine"
)


def warning_if_open(address: str) -> str | None:
    """Return a warning about the cluster of the job server at `address`; None if it needs a token."""
    if not address.startswith(("http://", "https://")) or not _answers_anybody(address):
        return None
    return (
        f"{address} asks for no token: whoever reaches it can run any program there as you, and read your "
        f"data. `ray start` asks for one only where one was made before: ray stop; {MAKE_A_TOKEN}; then "
        "start the cluster again"
    )


def _answers_anybody(address: str) -> bool:
    """Return whether the job server lists its jobs to a client without a token."""
    try:
        by_proxy = not is_loopback(httpx.URL(address).host)
        with httpx.stream(
            "GET", f"{address.rstrip('/')}/api/jobs/", timeout=ASK_S, trust_env=by_proxy
        ) as answered:
            return answered.is_success
    except (httpx.HTTPError, httpx.InvalidURL):
        return False  # unknown; the next request reports the error
