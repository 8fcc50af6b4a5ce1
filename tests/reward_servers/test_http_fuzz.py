"""Whatever is sent to the reward servers over HTTP: an answer that their description names, and no 5xx."""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import checks
from starlette.testclient import TestClient

from contracts.access import digest
from contracts.errors import RewardError
from contracts.scores import MetricValue, Sample
from reward_servers.http import NotMeasurable, http_app
from reward_servers.server import Answer, MetricServer, RewardServer
from reward_servers.settings import parts

TOKEN = "a-token-of-the-tests-own"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
LABELS = ("rouge", "length", "sentiment")
CHECKS = [
    checks.not_a_server_error,
    checks.response_schema_conformance,
    checks.status_code_conformance,
    checks.content_type_conformance,
]


class Reward:
    """A grader as its replica has it, without the cluster between."""

    num_cached = 0

    def __init__(self, name: str) -> None:
        self._server = RewardServer(parts(name)[0])
        self.num_samples = 0

    async def score(self, samples: Sequence[Sample]) -> list[Answer]:
        self.num_samples += len(samples)
        return await asyncio.to_thread(self._server.score, samples)


class Metric:
    """A metric as its replica has it, without the cluster between."""

    def __init__(self, name: str) -> None:
        self._server = MetricServer(parts(name)[0])

    async def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        try:
            return await asyncio.to_thread(self._server.compute, samples)
        except RewardError as error:  # as the client does with what its replica hands over
            raise NotMeasurable(str(error)) from None


APP = http_app(
    {name: Reward(name) for name in LABELS}, {name: Metric(name) for name in LABELS}, digest(TOKEN)
)
SCHEMA = schemathesis.openapi.from_dict(APP.openapi())
SCHEMA.app = APP


def with_labels_that_are_there(case: Any) -> Any:
    """A random label is a 404 nearly always; most requests are to get further."""
    if "label" in (case.path_parameters or {}) and len(str(case.path_parameters["label"])) % 4:
        case.path_parameters["label"] = LABELS[len(str(case.path_parameters["label"])) % 3]
    return case


@SCHEMA.parametrize()
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_request_is_answered_with_a_server_error(case: schemathesis.Case) -> None:
    case.headers = {**(case.headers or {}), **AUTHORIZED}
    response = with_labels_that_are_there(case).call()
    case.validate_response(response, checks=CHECKS)


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(APP, raise_server_exceptions=False)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"samples": [{"text": "\\ud800"}]}',
        b'{"samples": [{"text": "a\\u0000b", "references": [""]}]}',
        b'{"samples": [{"text": "a", "meta": {"n": 1e999, "m": NaN}}]}',
        b'{"samples": [{"text": "a", "references": []}, {"text": "", "references": ["b"]}]}',
        b'{"samples": [{"text": "' + b"a " * 200_000 + b'"}]}',
        b'{"samples": ' + b'[{"text": "a"}' + b', {"text": "b"}' * 2_000 + b"]}",
    ],
)
@pytest.mark.parametrize("route", ["score", "metric"])
def test_what_a_schema_would_not_send(client: TestClient, route: str, body: bytes) -> None:
    for label in LABELS:
        answer = client.post(f"/{route}/{label}", content=body, headers=AUTHORIZED)
        assert answer.status_code in (200, 422), answer.text[:500]
        answer.json()


def test_samples_say_what_group_they_are_of() -> None:
    app = http_app({"Ranked": Reward("tests.reward_servers.graders:Ranked")}, {})
    samples = [{"text": "aa", "group": "p"}, {"text": "b", "group": "q"}, {"text": "a", "group": "p"}]
    answer = TestClient(app).post("/score/Ranked", json={"samples": samples})
    assert [row["score"] for row in answer.json()["scores"]] == [1.0, 0.0, 0.0]
    wrong = TestClient(app).post("/score/Ranked", json={"samples": [{"text": "a", "group": 3}]})
    assert wrong.status_code == 422


def test_without_the_token_nothing_is_told(client: TestClient) -> None:
    good = {"samples": [{"text": "a"}]}
    for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": f"Basic {TOKEN}"}):
        answers: list[httpx.Response] = [
            client.get(path, headers=headers) for path in ("/", "/counts", "/schema", "/openapi.json")
        ]
        answers.append(client.post("/score/length", json=good, headers=headers))
        assert {answer.status_code for answer in answers} == {401}
        assert all(answer.headers["www-authenticate"] == "Bearer" for answer in answers)
    assert client.post("/score/length", json=good, headers=AUTHORIZED).status_code == 200


def test_the_description_says_that_a_token_is_asked_for() -> None:
    described = APP.openapi()
    assert described["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
    body = described["paths"]["/score/{label}"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["properties"]["samples"]["items"]["required"] == ["text"]
    assert "securitySchemes" not in http_app({}, {}).openapi().get("components", {})
