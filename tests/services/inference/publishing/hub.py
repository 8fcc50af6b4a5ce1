"""A hub on loopback: repositories and commits, as huggingface_hub's client asks for them."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Hub:
    """Requests that were sent: repositories made, and files committed by path."""

    token: str
    made: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    url: str = ""
    is_private: bool = True  # the repositories that are there


class _Handler(BaseHTTPRequestHandler):
    """Answers as the hub: with what was asked for, or 401 for another token."""

    kept: Hub

    def log_message(self, *_: object) -> None:
        return

    def _answer(self, status: int, body: Any) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        if "/tree/" in self.path:  # no files are there
            self._answer(200, [])
            return
        self._answer(
            200, {"id": "me/numbers", "sha": "0" * 40, "siblings": [], "private": self.kept.is_private}
        )

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != f"Bearer {self.kept.token}":
            self._answer(401, {"error": "Invalid credentials"})
        elif self.path == "/api/repos/create":
            request = json.loads(body)
            self.kept.made.append(request)
            self._answer(200, {"url": f"{self.kept.url}/me/{request['name']}", "id": f"me/{request['name']}"})
        elif "/preupload/" in self.path:
            plain = {"uploadMode": "regular", "shouldIgnore": False}
            self._answer(200, {"files": [{**load, **plain} for load in json.loads(body)["files"]]})
        elif "/validate-yaml" in self.path:
            self._answer(200, {"errors": [], "warnings": []})
        else:
            for line in map(json.loads, body.decode().splitlines()):
                if line["key"] == "file":
                    self.kept.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self._answer(
                200, {"commitUrl": f"{self.kept.url}/me/numbers/commit/{'1' * 40}", "commitOid": "1" * 40}
            )


@contextmanager
def hub(token: str) -> Iterator[Hub]:
    """Serve a hub that takes one token; every file travels inside the commit."""
    kept = Hub(token)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"kept": kept}))
    kept.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield kept
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
