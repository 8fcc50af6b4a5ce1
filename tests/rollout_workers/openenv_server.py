"""A server of OpenEnv's protocol, without its package: python openenv_server.py PORT MAX_SESSIONS.

The game echoes a text, and is won by "stop". Moods in a text: "dies" ends the server, "hangs" never
answers, "fails" raises. A third argument, `official`, serves the same game by OpenEnv's own `create_app`.
"""

import asyncio
import os
import sys
import time
from typing import Any

import uvicorn
from fastapi import FastAPI, WebSocket, WebSocketDisconnect

SCHEMA = {
    "properties": {
        "message": {"type": "string"},
        "loud": {"type": "boolean"},
        "metadata": {"type": "object"},
    },
    "required": ["message"],
}


class Game:
    """Game that says what it heard, and counts."""

    def reset(self, seed: int | None) -> dict[str, Any]:
        self.count = 0
        return {"echo": f"ready {seed}", "count": 0}

    def step(self, message: str, loud: bool = False) -> tuple[dict[str, Any], float | None, bool]:
        if message == "dies":
            os._exit(1)
        if message == "hangs":
            time.sleep(3600)
        if message == "fails":
            raise RuntimeError("the board broke")
        self.count += 1
        seen = {"echo": message.upper() if loud else message, "count": self.count}
        return seen, (len(message) / 10 if message != "none" else None), message == "stop"


def own_app(most: int) -> FastAPI:
    app, open_sessions = FastAPI(), set[int]()

    @app.get("/schema")
    def schema() -> dict[str, Any]:
        return {"action": SCHEMA, "observation": {}, "state": {}}

    @app.websocket("/ws")
    async def session(line: WebSocket) -> None:
        await line.accept()
        if len(open_sessions) >= most:
            await line.send_json({"type": "error", "data": {"message": "full", "code": "CAPACITY_REACHED"}})
            await line.close()
            return
        open_sessions.add(id(line))
        game = Game()
        try:
            while (message := await line.receive_json())["type"] != "close":
                await line.send_json(await asyncio.to_thread(answered, game, message))
        except WebSocketDisconnect:
            pass
        finally:
            open_sessions.discard(id(line))

    return app


def answered(game: Game, message: dict[str, Any]) -> dict[str, Any]:
    data = message["data"]
    try:
        if message["type"] == "reset":
            seen, reward, is_done = game.reset(data.get("seed")), None, False
        elif not isinstance(data.get("message"), str):
            return {"type": "error", "data": {"message": "Invalid message", "code": "VALIDATION_ERROR"}}
        else:
            seen, reward, is_done = game.step(data["message"], data.get("loud", False))
    except RuntimeError as error:
        return {"type": "error", "data": {"message": str(error), "code": "EXECUTION_ERROR"}}
    return {"type": "observation", "data": {"observation": seen, "reward": reward, "done": is_done}}


def official_app(most: int) -> Any:
    from openenv.core.env_server import Action, Environment, Observation, State, create_app

    class Say(Action):  # type: ignore[misc]
        message: str
        loud: bool = False

    class Seen(Observation):  # type: ignore[misc]
        echo: str
        count: int

    class Echo(Environment):  # type: ignore[misc]
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self.game = Game()

        def reset(self, seed: int | None = None, **_: Any) -> Any:
            return Seen(**self.game.reset(seed))

        def step(self, action: Any, **_: Any) -> Any:
            seen, reward, is_done = self.game.step(action.message, action.loud)
            return Seen(**seen, reward=reward, done=is_done)

        @property
        def state(self) -> Any:
            return State(step_count=self.game.count)

    return create_app(Echo, Say, Seen, max_concurrent_envs=most)


if __name__ == "__main__":
    port, most, *official = sys.argv[1:]
    made = official_app(int(most)) if official else own_app(int(most))
    uvicorn.run(made, host="127.0.0.1", port=int(port), log_level="warning")
