"""The HTTP interface of reward servers: routes, JSON schema and status codes."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from contracts.errors import RewardError, did_you_mean
from contracts.network.http_guard import guard
from contracts.scores import Answer, Grade, MetricValue, Sample
from contracts.secrets.redaction import redact

MOST_BYTES = 16 * 2**20  # the largest body: some ten thousand samples
BEARER = HTTPBearer(auto_error=False, description="the service's token")
REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "the header Host names another service"},
    403: {"description": "the request comes from a page of another service"},
}
UNAUTHORIZED: dict[int | str, dict[str, Any]] = {401: {"description": "the token is missing or wrong"}}


class QueueFull(RewardError):
    """A full queue: as many calls wait as the server's settings allow."""


class NotMeasurable(RewardError):
    """A request whose samples the metric can't be computed over."""


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SampleBody(Body):
    text: str = Field(description="the model's text")
    prompt: str = Field(default="", description="the prompt that the model got")
    references: list[str] = Field(default=[], description="reference texts to compare with")
    meta: dict[str, Any] = Field(default={}, description="any other data that the reward reads")
    group: str = Field(default="", description="a name that texts of the same prompt share")
    num_tokens: int | None = Field(default=None, ge=0, description="tokens that the model generated")
    turns: list[str] = Field(default=[], description="the model's answers, of which the text has a line each")


class SamplesBody(Body):
    samples: list[SampleBody] = Field(min_length=1)


class ScoreBody(Body):
    score: float | list[float] | list[tuple[int, int, float]] | None = Field(
        description="null if this sample could not be scored; a list: a number for each token or turn, or "
        "spans of characters: start, end, score"
    )
    error: str | None = Field(description="the reason why there is no score, or null")
    by: Literal["turn"] | None = Field(default=None, description="turn: the list has a number for each turn")
    values: dict[str, float] | None = Field(default=None, description="further numbers, by name")
    comment: str | None = Field(default=None, description="the reward's words about the text")


class ScoresBody(Body):
    scores: list[ScoreBody] = Field(description="one for each sample, in order")


class MetricBody(Body):
    corpus: float = Field(description="the value over all samples")
    rows: list[float] | None = Field(description="one for each sample, or null where that makes no sense")


class MetricsBody(Body):
    metrics: dict[str, MetricBody] = Field(description="the values by key, such as lexical/rouge_rouge1")


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


def http_app(
    rewards: Mapping[str, RemoteReward],
    metrics: Mapping[str, RemoteMetric],
    key: bytes | None = None,
    host: str = "127.0.0.1",
) -> FastAPI:
    """Build the application that serves these rewards and metrics by label.

    Args:
        key: the digest of the token that every request must show; None: no token is required.
        host: the address that the application listens on.
    """
    # FastAPI's own documentation pages would load scripts from other sites.
    app = FastAPI(
        title="Whetstone reward servers",
        version="1",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        dependencies=[] if key is None else [Depends(BEARER)],  # for the description alone; the guard checks
        responses=REFUSALS if key is None else REFUSALS | UNAUTHORIZED,
    )

    @app.get("/openapi.json", include_in_schema=False)
    async def description() -> dict[str, Any]:
        return app.openapi()

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

    @app.post("/score/{label}", response_model_exclude_unset=True, **_takes_samples())
    async def score(label: str, request: Request) -> ScoresBody:
        answers = await _known("reward", label, rewards).score(await _samples(request))
        return ScoresBody(scores=[_score_body(value, error) for value, error in answers])

    @app.post("/metric/{label}", **_takes_samples())
    async def metric(label: str, request: Request) -> MetricsBody:
        values = await _known("metric", label, metrics).compute(await _samples(request))
        return MetricsBody(metrics={key: _metric_body(value) for key, value in values.items()})

    app.add_exception_handler(RewardError, _answer_with_reason)
    return guard(app, host, key, most_bytes=MOST_BYTES, remedy="send fewer samples at a time")


def _takes_samples() -> dict[str, Any]:
    """Return the description of a route whose body is read by hand."""
    schema = SamplesBody.model_json_schema(ref_template="#/components/schemas/{model}")
    schema = _inlined(schema, schema.pop("$defs"))
    descriptions = {
        404: "no reward or metric has this label",
        413: f"the body has more than {MOST_BYTES} bytes",
        422: "the body does not fit the schema, or the samples can't be measured",
        503: "the queue is full; try again after a moment",
    }
    return {
        "openapi_extra": {
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}
        },
        "responses": {code: {"description": text} for code, text in descriptions.items()},
    }


def _inlined(schema: Any, named: Mapping[str, Any]) -> Any:
    """Return the schema with every reference replaced by the schema that it names."""
    if isinstance(schema, Mapping):
        if "$ref" in schema:
            return _inlined(named[schema["$ref"].rpartition("/")[2]], named)
        return {key: _inlined(value, named) for key, value in schema.items()}
    return [_inlined(value, named) for value in schema] if isinstance(schema, list) else schema


def _known(kind: str, label: str, servers: Mapping[str, Any]) -> Any:
    if label not in servers:
        raise HTTPException(404, f"there is no {kind} '{label}'{did_you_mean(label, servers)}")
    return servers[label]


async def _samples(request: Request) -> list[Sample]:
    # Read by hand, whatever the content type says: `curl -d` calls everything a form.
    try:
        return await asyncio.to_thread(_parsed, await request.body())  # the loop answers others meanwhile
    except ValidationError as error:
        raise HTTPException(
            422, error.errors(include_url=False, include_context=False, include_input=False)
        ) from None


def _parsed(content: bytes) -> list[Sample]:
    body = SamplesBody.model_validate_json(content)
    return [
        Sample(
            *(row.text, row.prompt, tuple(row.references), row.meta, row.group, row.num_tokens),
            turns=tuple(row.turns),
        )
        for row in body.samples
    ]


def _score_body(score: float | Grade | None, error: str | None) -> ScoreBody:
    more: dict[str, Any] = score.as_json() if isinstance(score, Grade) else {"score": score}
    if "comment" in more:
        more["comment"] = redact(more["comment"])
    return ScoreBody(error=error and redact(error), **more)


def _metric_body(value: MetricValue) -> MetricBody:
    return MetricBody(corpus=value.corpus, rows=None if value.rows is None else list(value.rows))


async def _answer_with_reason(request: Request, error: Exception) -> JSONResponse:
    body = {"detail": redact(str(error))}
    if isinstance(error, QueueFull):
        return JSONResponse(body, status_code=503, headers={"Retry-After": "1"})
    return JSONResponse(body, status_code=422 if isinstance(error, NotMeasurable) else 500)
