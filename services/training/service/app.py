"""Routes of the service that train and sample, as Tinker's SDK calls them."""

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from contracts.errors import InputError
from contracts.network.access import digest
from contracts.network.http_guard import guard
from services.training.service import bodies
from services.training.service.catalogue import add_catalogue
from services.training.service.service import Gone, NotThere, Service, read
from services.training.service.wire import unpacked

MOST_BYTES = 64 * 2**20  # limit of a request
PROTO = "application/x-protobuf"
TRY_AGAIN = 408
FLAGS = {
    "pjwt_auth_enabled": False,
    "proto_compress_fwdbwd": True,
    "parallel_fwdbwd_chunks": True,
    "use_pyqwest_transport": False,
    "sample_use_retrieve_futures": False,
    "custom_loss_server_side": False,
}


def training_app(service: Service, host: str, token: str | None, state: Callable[[], dict[str, Any]]) -> Any:
    """Return the application, behind the guard.

    Args:
        state: returns the state of the processes, for `healthz`.
    """
    app = FastAPI(title="Whetstone training service", openapi_url=None)
    _add_errors(app)
    _add_sessions(app, service, state)
    _add_training(app, service)
    _add_sampling(app, service)
    add_catalogue(app, service)
    key = None if token is None else digest(token)
    guard(app, host, key, most_bytes=MOST_BYTES, remedy="send fewer data in a call")
    return KeyAsBearer(app)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(InputError)
    async def refuse(request: Request, error: InputError) -> JSONResponse:
        status = 410 if isinstance(error, Gone) else 404 if isinstance(error, NotThere) else 400
        return JSONResponse({"detail": str(error), "category": "user"}, status)


def _add_sessions(app: FastAPI, service: Service, state: Callable[[], dict[str, Any]]) -> None:
    @app.get("/api/v1/healthz")
    async def healthz() -> dict[str, Any]:
        return {"status": "ok", **state()}

    @app.post("/api/v1/client/config")
    async def flags() -> dict[str, Any]:
        return FLAGS

    @app.post("/api/v1/client/dynamic_config")
    async def changing_flags() -> dict[str, Any]:
        return {"sample_cancel_enabled": True}

    @app.post("/api/v1/telemetry")
    async def telemetry() -> dict[str, Any]:
        return {"status": "accepted"}  # and discarded

    @app.post("/api/v1/create_session")
    async def create_session(request: Request) -> dict[str, Any]:
        body = read(bodies.SessionBody, await request.body())
        return {"type": "create_session", "session_id": await asyncio.to_thread(service.create_session, body)}

    @app.post("/api/v1/session_heartbeat")
    async def heartbeat(request: Request) -> dict[str, Any]:
        session = read(bodies.HeartbeatBody, await request.body()).session_id
        await asyncio.to_thread(service.hear, session)
        return {"type": "session_heartbeat"}

    @app.post("/api/v1/sessions/{session}/finish")
    async def finish(session: str) -> dict[str, Any]:
        await asyncio.to_thread(service.finish_session, session)
        return {}


def _add_training(app: FastAPI, service: Service) -> None:
    @app.post("/api/v1/create_model")
    async def create_model(request: Request) -> dict[str, Any]:
        return await asyncio.to_thread(service.create_model, read(bodies.CreateBody, await request.body()))

    @app.post("/api/v1/load_weights")
    async def load_weights(request: Request) -> dict[str, Any]:
        return await asyncio.to_thread(service.load, await request.body())

    @app.post("/api/v1/forward_backward")
    async def forward_backward(request: Request) -> dict[str, Any]:
        body = unpacked(await request.body(), request.headers.get("content-encoding", ""))
        return await asyncio.to_thread(service.forward_backward, body)

    @app.post("/api/v1/optim_step")
    async def optim_step(request: Request) -> dict[str, Any]:
        return await asyncio.to_thread(service.ordered, "optim_step", await request.body())

    @app.post("/api/v1/save_weights")
    async def save_weights(request: Request) -> dict[str, Any]:
        return await asyncio.to_thread(service.ordered, "save_weights", await request.body())

    @app.post("/api/v1/save_weights_for_sampler")
    async def save_for_sampler(request: Request) -> dict[str, Any]:
        return await asyncio.to_thread(service.ordered, "save_weights_for_sampler", await request.body())

    @app.post("/api/v1/save_weights_external")
    async def save_external(request: Request) -> dict[str, Any]:
        return await asyncio.to_thread(service.ordered, "save_weights_external", await request.body())

    @app.post("/api/v1/retrieve_future")
    async def retrieve(request: Request) -> Response:
        call = read(bodies.FutureBody, await request.body()).request_id
        answer = await service.answer_of(call)
        if answer is None:
            waits = {"type": "try_again", "request_id": call, "queue_state": "active"}
            return JSONResponse(waits, TRY_AGAIN)
        return Response(answer.body, media_type=PROTO if answer.is_proto else "application/json")


def _add_sampling(app: FastAPI, service: Service) -> None:
    @app.post("/api/v1/create_sampling_session")
    async def create_sampling_session(request: Request) -> dict[str, Any]:
        body = read(bodies.SamplingSessionBody, await request.body())
        sampler = await asyncio.to_thread(service.create_sampling_session, body)
        return {"type": "create_sampling_session", "sampling_session_id": sampler}

    @app.post("/api/v1/join_sampling_session")
    async def join(request: Request) -> dict[str, Any]:
        body = read(bodies.JoinBody, await request.body())
        number = await asyncio.to_thread(service.join_sampling_session, body)
        return {"type": "join_sampling_session", "client_counter": number}

    @app.post("/api/v1/asample")
    async def sample(request: Request) -> dict[str, Any]:
        return await asyncio.to_thread(service.sample, read(bodies.SampleBody, await request.body()))

    @app.post("/api/v1/cancel_future")
    async def cancel(request: Request) -> dict[str, Any]:
        service.cancel(read(bodies.FutureBody, await request.body()).request_id)
        return {}


class KeyAsBearer:
    """Pass the SDK's header `X-API-Key` to the guard as a bearer token."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = [pair for pair in scope["headers"] if pair[0] != b"authorization"]
            keys = [value for name, value in scope["headers"] if name == b"x-api-key"]
            if keys:
                scope = {**scope, "headers": [*headers, (b"authorization", b"Bearer " + keys[0])]}
        await self._app(scope, receive, send)
