"""`whetstone watch RUN --web`: a page with a run's episodes, which loads new ones during the run.

page ── filters, an episode's name ──▶ guard ──▶ LiveIndex ──▶ summaries, or a group's whole episodes
"""

import json
import threading
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query
from fastapi.responses import HTMLResponse, JSONResponse

from contracts.network.access import digest
from contracts.network.http_guard import guard
from services.runs.claim import is_held
from services.runs.folder import RunFolder
from services.runs.json_lines import without_nan
from services.runs.report.live_index import LiveIndex
from services.terminal.web_pages import page_of

PAGE = Path(__file__).with_name("live.html.j2")
MOST_ROWS = 200  # limit of rows in one answer
MOST_BYTES = 64 * 1024  # limit of a request

Letters = Annotated[str, Query(max_length=500)]
Reward = Annotated[float | None, Query(allow_inf_nan=False)]


class Escaped(JSONResponse):
    """Answer in ASCII, because a run's texts may hold half a surrogate pair, which has no UTF-8."""

    def render(self, content: Any) -> bytes:
        return json.dumps(without_nan(content)).encode()


def live_app(folder: RunFolder, host: str, token: str | None) -> Any:
    """Return the application: the page, summaries of episodes, and whole episodes of a group."""
    app = FastAPI(title="Whetstone watch", openapi_url=None, default_response_class=Escaped)
    index, reading = LiveIndex(folder), threading.Lock()  # FastAPI calls in threads

    @app.get("/")
    def page() -> HTMLResponse:
        return page_of(PAGE)

    @app.get("/api/episodes")
    def episodes(
        prompt: Letters = "",
        low: Reward = None,
        high: Reward = None,
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_ROWS)] = 50,
    ) -> dict[str, Any]:
        is_running = is_held(folder.path)  # read first, so that nothing written before the end is missed
        with reading:
            index.look()
            entries = index.chosen(prompt, low, high)
            return {
                "name": folder.path.resolve().name,
                "running": is_running,
                "all": len(index.entries),
                "newest": index.entries[0].iteration if index.entries else None,
                "total": len(entries),
                "episodes": [entry.shown() for entry in entries[offset : offset + limit]],
            }

    @app.get("/api/group")
    def group(id: Annotated[str, Query(max_length=100)]) -> dict[str, Any]:
        with reading:
            index.look()
            rows = index.group(id)
        if not rows:
            raise HTTPException(404, "this episode is no longer in the run's folder; choose another one")
        return {"episodes": rows}

    key = None if token is None else digest(token)
    return guard(app, host, key, most_bytes=MOST_BYTES, remedy="ask for less", below="/api/")
