"""A server of environments on a free port, which can be killed and started again."""

import subprocess
import time

import httpx

from tests.free_ports import free_port

PATIENCE_S = 300.0


class Server:
    """A running server; its command's words are `before`, the port, and `behind`."""

    def __init__(self, before: list[str], behind: list[str], path: str) -> None:
        self.port = free_port()
        self.url, self._path = f"http://127.0.0.1:{self.port}", path
        self._words = [*before, str(self.port), *behind]
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.process = subprocess.Popen(self._words, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                httpx.get(f"{self.url}{self._path}", trust_env=False)
                return
            except httpx.TransportError:
                time.sleep(0.05)
        raise AssertionError("the server did not start")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
