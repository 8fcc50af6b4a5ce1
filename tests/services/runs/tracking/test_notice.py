"""The notice of a run's end: what is sent, when it is sent again, and that nobody sees the hook's secret."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from contracts.secrets.redaction import without_secrets
from contracts.settings import build
from services.runs.folder import RunFolder
from services.runs.tracking.notice import NotifySettings, notify


class Hook:
    """A server that answers with these statuses in turn, and keeps what it gets."""

    def __init__(self, *statuses: int) -> None:
        got: list[Any] = []
        left = list(statuses)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                got.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(left.pop(0))
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.got = got
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def settings(self, path: str = "hook") -> NotifySettings:
        url = f"http://127.0.0.1:{self.server.server_port}/{path}"
        return build(NotifySettings, {"url": url}, where="notify")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunFolder]:
    monkeypatch.setattr("services.runs.tracking.notice.FIRST_WAIT_S", 0.01)
    made = RunFolder.open(tmp_path, "run", {}, "auto")
    made.append_rollout_info(3, {"reward/mean": 0.5})
    made.append_training_info(3, {"entropy": float("nan")})
    made.append_evaluation(2, "validation", {"reward/mean": 0.25})
    yield made


def test_a_notice_has_run_event_and_numbers_and_is_sent_again_where_that_helps(folder: RunFolder) -> None:
    hook, warnings = Hook(503, 429, 204), []
    notify(hook.settings(), folder, "stopped_by_rule", "entropy<1", warnings.append)
    assert warnings == [] and len(hook.got) == 3
    assert hook.got[2] == {
        "run": "run",
        "event": "stopped_by_rule",
        "iteration": 3,
        "words": "entropy<1",
        "metrics": {"reward/mean": 0.5, "entropy": None, "val/reward/mean": 0.25},
    }


@pytest.mark.parametrize(("statuses", "sent"), [((404,), 1), ((500, 500, 500), 3)])
def test_a_hook_that_refuses_is_warned_of_without_its_secret(
    folder: RunFolder, statuses: tuple[int, ...], sent: int
) -> None:
    hook, warnings = Hook(*statuses), []
    notify(hook.settings("services/T0123/abcdefgh"), folder, "failed", "a fault", warnings.append)
    assert len(hook.got) == sent and len(warnings) == 1
    assert f"status {statuses[-1]}" in warnings[0] and "abcdefgh" not in warnings[0]
    shown = without_secrets(hook.settings("services/T0123/abcdefgh").model_dump())
    assert "abcdefgh" not in str(shown)


def test_a_hook_that_is_not_there_is_warned_of(folder: RunFolder) -> None:
    hook, warnings = Hook(), []
    settings = hook.settings()
    hook.server.shutdown()
    hook.server.server_close()
    notify(settings, folder, "finished", "", warnings.append)
    assert len(warnings) == 1 and "ConnectError" in warnings[0]


def test_a_wrong_address_is_refused() -> None:
    with pytest.raises(InputError, match=r"notify\.url: .*expected http://HOST"):
        build(NotifySettings, {"url": "ftp://host/x"}, where="notify")
