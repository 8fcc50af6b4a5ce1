"""A server of the Open Reward Standard, without its package: python open_reward_server.py PORT LOG.

The game: say the task's word. Moods in a text: "dies" ends the server, "hangs" never answers, "fails" raises.
LOG gets a line for each task that begins and ends, each call, each sign of life. A third argument, `ors` or
`openreward`, serves the game by that package; only without it are there NONSENSE, "page", "breaks", "busy",
"refused", and "floods": later prompts never end.
"""

import asyncio
import json
import os
import sys
import uuid
from collections.abc import AsyncIterator
from itertools import repeat
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse

WORDS = ["sun", "moon", "star", "sea", "  \u2028sky\x85  " * 2000]
SAY = {"properties": {"text": {"type": "string"}}, "required": ["text"], "type": "object"}
TOOLS = [{"name": "say", "description": "Say the word.", "input_schema": SAY}]
NONSENSE = {
    "no_json": "hello",
    "no_object": "[]",
    "no_blocks": '{"ok": true, "output": {"reward": 1.0}}',
    "no_number": '{"ok": true, "output": {"blocks": [], "reward": NaN, "finished": false}}',
    "a_word": '{"ok": true, "output": {"blocks": [], "reward": "high", "finished": false}}',
}


class Game:
    """Game of one word, which counts what it hears."""

    def __init__(self, index: int, log: str) -> None:
        self.index, self._log, self.heard = index, log, 0
        self.note("begins")

    def note(self, what: str) -> None:
        with open(self._log, "a") as file:
            file.write(f"{what} {self.index}\n")

    def say(self, text: str) -> tuple[str, float | None, bool]:
        self.note("call")
        if text == "dies":
            os._exit(1)
        if text == "fails":
            raise RuntimeError("the board broke")
        self.heard += 1
        if text == WORDS[self.index].strip():
            return f"Yes: {WORDS[self.index]}", 1.0, True
        return f"No: {text}, {self.heard}", None if text == "none" else -0.25, False

    def end(self) -> None:
        self.note("ends")


class OwnServer:
    """Server of games by session."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._games: dict[str, Game] = {}
        self._told: dict[str, str] = {}  # answers whose stream broke
        self._is_busy, self._floods = True, False

    def app(self) -> FastAPI:
        app = FastAPI()
        app.get("/list_environments")(lambda: ["game", "other"])
        app.get("/game/splits")(lambda: [{"name": "train", "type": "train"}])
        app.post("/game/num_tasks")(lambda: {"num_tasks": len(WORDS)})
        app.post("/create_session")(lambda: stream([("task_id", uuid.uuid4().hex), ("end", "")]))
        app.post("/create")(self.create)
        app.get("/game/task_tools")(self.tools)
        app.get("/game/prompt")(self.prompt)
        app.post("/game/call")(self.call)
        app.post("/ping")(self.ping)
        app.post("/delete")(self.delete)
        app.post("/delete_session")(lambda: None)
        return app

    def create(self, request: Request, body: dict[str, Any]) -> dict[str, str]:
        name = request.headers["X-Session-ID"]
        if request.headers.get("X-API-Key") == "wrong":
            raise HTTPException(401, "no such key")
        if body["index"] >= len(WORDS):
            raise HTTPException(400, "Invalid index")
        self._games[name] = Game(body["index"], self._log)
        return {"sid": name}

    def tools(self, request: Request) -> dict[str, Any]:
        last = {"name": "grade", "arg": "answer"} if self._game(request).index == 1 else None
        return {"tools": TOOLS, "terminal_tool": last}

    def prompt(self, request: Request) -> Any:
        if self._floods:
            return StreamingResponse(repeat('"' + " " * 2**16), media_type="application/json")
        return [{"type": "text", "text": f"Say '{WORDS[self._game(request).index].strip()}'."}]

    async def call(self, request: Request, body: dict[str, Any]) -> Any:
        game, text = self._game(request), str(body["input"].get("text"))
        if (task_id := body.get("task_id")) is not None:
            return stream([("task_id", task_id), *whole(self._told.pop(task_id))])
        if text == "busy" and self._is_busy:
            self._is_busy = False
            raise HTTPException(503, "Environment still starting.")
        if text == "refused":
            raise HTTPException(400, "no such text")
        if text == "hangs":
            await asyncio.sleep(3600)
        answer = NONSENSE.get(text) or answered(game, body)
        self._floods = text == "floods"
        if text == "page":
            return {"hello": "world"}
        if text == "breaks":
            self._told["t1"] = answer
            return stream([("task_id", "t1")])
        events = [("error", "the board broke")] if text == "fails" else whole(answer)
        return stream([("task_id", "t1"), *events])

    def ping(self, request: Request) -> None:
        self._game(request).note("ping")

    def delete(self, request: Request) -> None:
        self._games.pop(request.headers["X-Session-ID"]).end()

    def _game(self, request: Request) -> Game:
        if (name := request.headers.get("X-Session-ID", "")) not in self._games:
            raise HTTPException(404, "Active environment not found")
        return self._games[name]


def answered(game: Game, body: dict[str, Any]) -> str:
    """The answer to a call, as JSON."""
    arguments = body["input"]
    if body["name"] == "grade":
        return succeeded([], float(arguments == {"answer": WORDS[game.index]}), True)
    if body["name"] != "say":
        return json.dumps({"ok": False, "error": f"{body['name']!r} is not a valid tool"})
    if not isinstance(arguments.get("text"), str):
        return json.dumps({"ok": False, "error": "Tool input validation error: text is missing"})
    try:
        text, reward, ends = game.say(arguments["text"])
    except RuntimeError:
        return ""
    return succeeded([{"type": "text", "text": text, "detail": None}], reward, ends)


def succeeded(blocks: list[Any], reward: float | None, ends: bool) -> str:
    output = {"blocks": blocks, "metadata": None, "reward": reward, "finished": ends}
    return json.dumps({"ok": True, "output": output}, ensure_ascii=False)


def whole(text: str) -> list[tuple[str, str]]:
    pieces = [text[i : i + 4096] for i in range(0, len(text), 4096)]
    return [*(("chunk", piece) for piece in pieces[:-1]), ("end", pieces[-1])]


def stream(events: list[tuple[str, str]]) -> StreamingResponse:
    async def lines() -> AsyncIterator[str]:
        yield ": ping\r\n\r\n"
        for kind, data in events:
            yield f"event: {kind}\r\ndata: {data}\r\n\r\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


def official_app(package: str, log: str) -> Any:
    from pydantic import BaseModel

    if package == "ors":
        from ors import Environment, Server, TextBlock, ToolOutput, tool
    else:
        from openreward.environments import Environment, Server, TextBlock, ToolOutput, tool

    class Said(BaseModel):
        text: str

    class Played(Environment):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return "Game"

        @classmethod
        def list_splits(cls) -> list[str]:
            return ["train"]

        @classmethod
        def list_tasks(cls, split: str) -> list[Any]:
            return [{"index": index} for index in range(len(WORDS))]

        def setup(self) -> None:
            self.game = Game(self.task_spec["index"], log)

        def teardown(self) -> None:
            self.game.end()

        def get_prompt(self) -> list[Any]:
            return [TextBlock(text=f"Say '{WORDS[self.task_spec['index']].strip()}'.")]

        @tool  # type: ignore[untyped-decorator]
        async def say(self, params: Said) -> ToolOutput:
            """Say the word."""
            if params.text == "hangs":
                await asyncio.sleep(3600)
            text, reward, ends = self.game.say(params.text)
            return ToolOutput(blocks=[TextBlock(text=text)], reward=reward, finished=ends)

    return Server([Played]).app


if __name__ == "__main__":
    port, log, *package = sys.argv[1:]
    made = official_app(package[0], log) if package else OwnServer(log).app()
    uvicorn.run(made, host="127.0.0.1", port=int(port), log_level="error")
