"""The reward servers over HTTP: routes, JSON schema and status codes, whoever answers behind them."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from contracts.errors import RewardError, did_you_mean
from contracts.scores import MetricValue, Sample
from reward_servers.server import Answer


class QueueFull(RewardError):
    """The server has as many calls waiting as its settings allow."""


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SampleBody(Body):
    text: str = Field(description="what the model wrote")
    prompt: str = Field(default="", description="what it was asked")
    references: list[str] = Field(default=[], description="what it should have written")
    meta: dict[str, Any] = Field(default={}, description="anything else the reward wants to know")


class SamplesBody(Body):
    samples: list[SampleBody] = Field(min_length=1)


class ScoreBody(Body):
    score: float | None = Field(description="null when this sample could not be scored")
    error: str | None = Field(description="why not, or null")


class ScoresBody(Body):
    scores: list[ScoreBody] = Field(description="one a sample, in order")


class MetricBody(Body):
    corpus: float = Field(description="over all samples")
    rows: list[float] | None = Field(description="one a sample, or null where that makes no sense")


class MetricsBody(Body):
    metrics: dict[str, MetricBody] = Field(description="by key, such as lexical/rouge_rouge1")


class RemoteReward(Protocol):
    num_samples: int
    num_cached: int

    async def score(self, samples: Sequence[Sample]) -> list[Answer]: ...


class RemoteMetric(Protocol):
    async def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]: ...


SCHEMA = {
    "POST /score/{label}": {
        "request": SamplesBody.model_json_schema(),
        "response": ScoresBody.model_json_schema(),
    },
    "POST /metric/{label}": {
        "request": SamplesBody.model_json_schema(),
        "response": MetricsBody.model_json_schema(),
    },
}


def http_app(rewards: Mapping[str, RemoteReward], metrics: Mapping[str, RemoteMetric]) -> FastAPI:
    """The application that serves these, by label."""
    app = FastAPI(title="Whetstone reward servers", openapi_url=None)

    @app.get("/")
    async def names() -> dict[str, Any]:
        return {"rewards": sorted(rewards), "metrics": sorted(metrics), "schema": "/schema"}

    @app.get("/counts")
    async def counts() -> dict[str, Any]:
        return {
            label: {"samples": reward.num_samples, "cached": reward.num_cached}
            for label, reward in rewards.items()
        }

    @app.get("/schema")
    async def schema() -> dict[str, Any]:
        return SCHEMA

    @app.post("/score/{label}")
    async def score(label: str, request: Request) -> ScoresBody:
        answers = await _known("reward", label, rewards).score(await _samples(request))
        return ScoresBody(scores=[ScoreBody(score=value, error=error) for value, error in answers])

    @app.post("/metric/{label}")
    async def metric(label: str, request: Request) -> MetricsBody:
        found = await _known("metric", label, metrics).compute(await _samples(request))
        return MetricsBody(metrics={key: _metric_body(value) for key, value in found.items()})

    app.add_exception_handler(RewardError, _answer_with_reason)
    return app


def _known(kind: str, label: str, servers: Mapping[str, Any]) -> Any:
    if label not in servers:
        raise HTTPException(404, f"there is no {kind} '{label}'{did_you_mean(label, servers)}")
    return servers[label]


async def _samples(request: Request) -> list[Sample]:
    # Read by hand, whatever its content type: `curl -d` calls everything a form.
    try:
        body = SamplesBody.model_validate_json(await request.body())
    except ValidationError as error:
        raise HTTPException(
            422, error.errors(include_url=False, include_context=False, include_input=False)
        ) from None
    return [Sample(row.text, row.prompt, tuple(row.references), row.meta) for row in body.samples]


def _metric_body(value: MetricValue) -> MetricBody:
    return MetricBody(corpus=value.corpus, rows=None if value.rows is None else list(value.rows))


async def _answer_with_reason(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, QueueFull):
        return JSONResponse({"detail": str(error)}, status_code=503, headers={"Retry-After": "1"})
    return JSONResponse({"detail": str(error)}, status_code=500)
