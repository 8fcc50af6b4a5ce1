"""Whatever is sent to the reward servers over HTTP: an answer that their description names, and no 5xx."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import checks
from starlette.testclient import TestClient

from contracts.errors import RewardError
from contracts.network.access import digest
from contracts.scores import Answer, MetricValue, Sample
from reward_servers.server import MetricServer, RewardServer
from reward_servers.serving import http
from reward_servers.serving.http import MOST_BYTES, NotMeasurable, http_app
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
    client = TestClient(app, base_url="http://127.0.0.1:8000")
    answer = client.post("/score/Ranked", json={"samples": samples})
    assert [row["score"] for row in answer.json()["scores"]] == [1.0, 0.0, 0.0]
    wrong = client.post("/score/Ranked", json={"samples": [{"text": "a", "group": 3}]})
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


GOOD = {"samples": [{"text": "a"}]}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:1"}, 200),  # a port that is forwarded
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "evil.example"}, 400),  # a name that was made to point here
        ({"Host": "127.0.0.1.evil.example:8000"}, 400),
        ({"Host": "[" * 3}, 400),
        ({"Origin": "http://127.0.0.1:8000"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_without_a_token_no_other_page_is_answered(headers: dict[str, str], status: int) -> None:
    open_client = TestClient(http_app({"length": Reward("length")}, {}), base_url="http://127.0.0.1:8000")
    answered = open_client.post("/score/length", json=GOOD, headers=headers)
    assert answered.status_code == status
    assert answered.headers["x-content-type-options"] == "nosniff"
    assert open_client.get("/", headers=headers).status_code == status


def test_with_the_token_any_name_will_do_but_no_other_page(client: TestClient) -> None:
    known = {**AUTHORIZED, "Host": "rewards.example.org"}
    assert client.post("/score/length", json=GOOD, headers=known).status_code == 200
    other = {**known, "Origin": "http://evil.example"}
    assert client.post("/score/length", json=GOOD, headers=other).status_code == 403


def test_a_body_that_is_too_large_is_refused_and_not_kept(client: TestClient) -> None:
    """One that says so at once; one that does not say how large it is as soon as it is too large."""

    def pieces() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * (MOST_BYTES // 8)

    headers = {**AUTHORIZED, "Content-Length": str(MOST_BYTES + 1)}
    declared = client.post("/score/length", content=b"{}", headers=headers)
    counted = client.post("/score/length", content=pieces(), headers=AUTHORIZED)
    for answered in (declared, counted):
        assert answered.status_code == 413
        assert (
            answered.json()["detail"] == f"expected at most {MOST_BYTES} bytes: send fewer samples at a time"
        )


def test_a_long_body_is_parsed_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    loops: list[bool] = []
    parsed = http._parsed

    def spied(content: bytes) -> list[Sample]:
        try:
            asyncio.get_running_loop()
            loops.append(True)
        except RuntimeError:
            loops.append(False)
        return parsed(content)

    monkeypatch.setattr(http, "_parsed", spied)
    TestClient(APP).post("/score/length", json=GOOD, headers=AUTHORIZED)
    assert loops == [False]


def test_the_description_says_that_a_token_is_asked_for() -> None:
    described = APP.openapi()
    assert described["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
    body = described["paths"]["/score/{label}"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["properties"]["samples"]["items"]["required"] == ["text"]
    assert "securitySchemes" not in http_app({}, {}).openapi().get("components", {})
