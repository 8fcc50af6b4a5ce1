"""Models, sessions and checkpoints of a service, at the routes of the SDK's REST client."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI, Request

from services.training.service import bodies
from services.training.service.checkpoints import KINDS, SAMPLER, TRAINING, path_of, spec_of
from services.training.service.service import NotThere, Service, read
from services.training.service.training_calls import metadata_of

OWNER = "whetstone"


def add_catalogue(app: FastAPI, service: Service) -> None:
    """Add the routes that read, and the route that deletes a checkpoint."""
    _add_models(app, service)
    _add_checkpoints(app, service)

    @app.get("/api/v1/sessions")
    async def sessions(limit: int = 20, offset: int = 0) -> dict[str, Any]:
        rows = service.journal.rows(
            "SELECT id FROM sessions ORDER BY rowid DESC LIMIT ? OFFSET ?", limit, offset
        )
        return {"sessions": [row["id"] for row in rows]}

    @app.get("/api/v1/sessions/{session}")
    async def session(session: str) -> dict[str, Any]:
        models = service.journal.rows("SELECT id FROM models WHERE session = ?", session)
        samplers = service.journal.rows("SELECT id FROM samplers WHERE session = ?", session)
        return {
            "training_run_ids": [row["id"] for row in models],
            "sampler_ids": [row["id"] for row in samplers],
        }

    @app.get("/api/v1/samplers/{sampler}")
    async def sampler(sampler: str) -> dict[str, Any]:
        row = service.need_sampler(sampler)
        return {"sampler_id": sampler, "base_model": service.base.name, "model_path": row["path"]}


def _add_models(app: FastAPI, service: Service) -> None:
    @app.get("/api/v1/get_server_capabilities")
    async def capabilities() -> dict[str, Any]:
        base, window = service.base, service.base.limits.window
        model = {"model_name": base.name, "max_context_length": window, "trainable": True, "sampleable": True}
        return {"supported_models": [model]}

    @app.post("/api/v1/get_info")
    async def info(request: Request) -> dict[str, Any]:
        return service.info(read(bodies.InfoBody, await request.body()).model_id)

    @app.get("/api/v1/training_runs")
    async def models(limit: int = 20, offset: int = 0) -> dict[str, Any]:
        rows = service.journal.rows("SELECT * FROM models ORDER BY rowid DESC")
        shown = [_model(service, dict(row)) for row in rows[offset : offset + limit]]
        cursor = {"offset": offset, "limit": limit, "total_count": len(rows)}
        return {"training_runs": shown, "cursor": cursor}

    @app.get("/api/v1/training_runs/{model}")
    async def model(model: str) -> dict[str, Any]:
        return _model(service, service.need_model(model))


def _add_checkpoints(app: FastAPI, service: Service) -> None:
    @app.get("/api/v1/checkpoints")
    async def all_checkpoints(limit: int = 100, offset: int = 0) -> dict[str, Any]:
        rows = service.journal.rows("SELECT * FROM checkpoints WHERE hidden = 0 ORDER BY made DESC")
        cursor = {"offset": offset, "limit": limit, "total_count": len(rows)}
        return {"checkpoints": [_checkpoint(row) for row in rows[offset : offset + limit]], "cursor": cursor}

    @app.get("/api/v1/training_runs/{model}/checkpoints")
    async def checkpoints(model: str) -> dict[str, Any]:
        service.need_model(model)
        rows = service.journal.rows(
            "SELECT * FROM checkpoints WHERE model = ? AND hidden = 0 ORDER BY made DESC", model
        )
        return {"checkpoints": [_checkpoint(row) for row in rows]}

    @app.delete("/api/v1/training_runs/{model}/checkpoints/{part}/{name}")
    async def delete(model: str, part: str, name: str) -> dict[str, Any]:
        path = path_of(model, part, name)
        if not await asyncio.to_thread(service.checkpoints.delete, path):
            raise NotThere(f"there is no checkpoint {path}")
        return {}

    @app.post("/api/v1/weights_info")
    async def weights_info(request: Request) -> dict[str, Any]:
        path = read(bodies.PathBody, await request.body()).tinker_path
        row = service.checkpoints.row(path)
        if row is None:
            raise NotThere(f"there is no checkpoint {path}")
        spec = spec_of(row["spec"])
        return {
            "base_model": service.base.name,
            "is_lora": spec.rank is not None,
            "lora_rank": spec.rank,
            "train_unembed": spec.rank is None,
            "train_mlp": spec.train_mlp,
            "train_attn": spec.train_attn,
        }


def _model(service: Service, row: Mapping[str, Any]) -> dict[str, Any]:
    spec = spec_of(row["spec"])
    newest = {
        part: service.journal.row(
            "SELECT * FROM checkpoints WHERE model = ? AND kind = ? AND hidden = 0 "
            "ORDER BY made DESC LIMIT 1",
            row["id"],
            part,
        )
        for part in (TRAINING, SAMPLER)
    }
    return {
        "training_run_id": row["id"],
        "base_model": service.base.name,
        "model_owner": OWNER,
        "is_lora": spec.rank is not None,
        "lora_rank": spec.rank,
        "last_request_time": _time(row["served"]),
        "last_checkpoint": newest[TRAINING] and _checkpoint(newest[TRAINING]),
        "last_sampler_checkpoint": newest[SAMPLER] and _checkpoint(newest[SAMPLER]),
        "user_metadata": metadata_of(row["metadata"]),
    }


def _checkpoint(row: Any) -> dict[str, Any]:
    return {
        "checkpoint_id": f"{row['kind']}/{row['name']}",
        "checkpoint_type": KINDS[row["kind"]],
        "time": _time(row["made"]),
        "tinker_path": row["path"],
        "size_bytes": row["size"],
        "user_metadata": metadata_of(row["metadata"]),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
