"""Sessions that are away, because they are finished or silent. A trainer can free their models."""

import time

AWAY_S = 600.0  # a client is away after this much silence; the SDK sends a heartbeat every 10 s


class Presence:
    """Time of each session's last call. Any thread may use this."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._heard: dict[str, float] = {}

    def hear(self, session: str) -> None:
        self._heard[session] = time.monotonic()

    def leave(self, session: str) -> None:
        self._heard[session] = float("-inf")

    def is_away(self, session: str) -> bool:
        return self._heard.get(session, self._began) < time.monotonic() - AWAY_S
