"""Parts of a call that reach vLLM's application: known paths, within limits, with the model's defaults."""

import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request

from contracts.network.http_guard import guarded
from contracts.rollout import Sampling
from rollout_workers.gateway.vllm_front import CHAT, COMPLETION, RESPONSES, TOKENIZE, Defaults, VLLMFront

MOST = 2**20
SAMPLING = Sampling(max_tokens=8, min_tokens=2, temperature=0.5, top_k=3, stop=("\n",))
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # uvicorn's


def front(*, chats: bool = True, system: str | None = "Be brief.", seed: int | None = 7) -> Any:
    """The front before an application that answers with the body it got."""
    app = FastAPI()

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    async def echo(path: str, request: Request) -> Any:
        body = await request.body()
        assert int(request.headers.get("content-length", 0)) == len(body)
        return {"path": path, "call": json.loads(body) if body else None}

    return VLLMFront(app, "tiny", Defaults(SAMPLING, seed, system, window=64), MOST, chats=chats)


async def asked(app: Any, path: str, body: Any = None, method: str = "POST", **headers: str) -> Any:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        return await client.request(method, path, content=content, headers=headers)


async def passed(path: str, body: Mapping[str, Any], **settings: Any) -> Any:
    answer = await asked(front(**settings), path, body)
    assert answer.status_code == 200, answer.text
    return answer.json()["call"]


@pytest.mark.anyio
async def test_what_a_call_leaves_open_is_the_models_own() -> None:
    warps = {"temperature": 0.5, "top_p": 1.0, "top_k": 3, "repetition_penalty": 1.0}
    assert await passed(COMPLETION, {"prompt": "a"}) == {
        **{"prompt": "a", "max_tokens": 8, "min_tokens": 2, "stop": ["\n"], "seed": 7},
        **warps,
    }
    chosen = {"prompt": "a", "max_tokens": 1, "stop": "b", "temperature": 0, "seed": 1, "top_k": None}
    assert await passed(COMPLETION, chosen) == {
        **warps,
        **{"prompt": "a", "max_tokens": 1, "min_tokens": 1, "stop": ["\n", "b"], "seed": 1, "temperature": 0},
    }
    system = {"role": "system", "content": "Be brief."}
    chat = await passed(CHAT, {"messages": HI, "max_tokens": 3})
    assert (chat["messages"], chat["max_tokens"]) == ([system, *HI], 3)
    assert "max_completion_tokens" not in chat
    its_own = [{"role": "developer", "content": "Be long."}, *HI]
    assert (await passed(CHAT, {"messages": its_own}))["messages"] == its_own
    assert await passed(TOKENIZE, {"messages": HI}) == {"messages": [system, *HI]}
    assert await passed(TOKENIZE, {"prompt": "a"}) == {"prompt": "a"}
    response = await passed(RESPONSES, {"input": "a"})
    assert (response["instructions"], response["max_output_tokens"]) == ("Be brief.", 8)
    assert "seed" not in await passed(COMPLETION, {"prompt": "a"}, seed=None)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        ("/scale_elastic_ep", {}, 404, "no such address"),
        ("/v1/load_lora_adapter", {}, 404, "no such address"),
        ("/v1/models/other", {}, 404, "no such address"),
        (COMPLETION, b"[" * 10**6, 400, "no JSON object"),
        (COMPLETION, b'{"prompt": "\xff"}', 400, "no JSON object"),
        (COMPLETION, b'{"prompt": "\\ud800"}', 400, "surrogate"),
        (COMPLETION, b'{"prompt": "a", "temperature": NaN}', 400, "NaN or infinite"),
        (COMPLETION, b'{"prompt": "a", "top_p": 1e999}', 400, "NaN or infinite"),
        (COMPLETION, {"prompt": ["a"] * 40, "n": 40}, 400, "at most 1024"),
        (COMPLETION, {"prompt": "a", "stop": ["b"] * 65}, 400, "at most 64"),
        (COMPLETION, b"x" * (MOST + 1), 413, f"at most {MOST}"),
    ],
)
async def test_what_vllm_shall_not_read_is_refused_in_openais_form(
    path: str, body: Any, status: int, reason: str
) -> None:
    answer = await asked(front(), path, body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert reason in error["message"]


@pytest.mark.anyio
async def test_a_wrong_method_a_known_model_and_a_model_without_a_template() -> None:
    assert (await asked(front(), COMPLETION, method="GET")).status_code == 405
    assert (await asked(front(), "/v1/models/tiny", method="GET")).json()["id"] == "tiny"
    assert (await asked(front(), "/health", method="GET")).json() == {"path": "health", "call": None}
    plain = front(chats=False, system=None)
    for path, body in ((CHAT, {"messages": HI}), (TOKENIZE, {"messages": HI}), (RESPONSES, {"input": "a"})):
        refused = await asked(plain, path, body)
        assert (refused.status_code, "no chat template" in refused.text) == (400, True)
    assert (await asked(plain, COMPLETION, {"prompt": "a"})).status_code == 200


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 400),
        ({"Host": "127.0.0.1:1@evil.example"}, 400),
        ({"Host": "localhost.evil.example"}, 400),
        ({"Host": ""}, 400),
        ({"Host": "[::1]:8020"}, 200),
        ({"Host": "LOCALHOST:8020"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Length": str(MOST + 1)}, 413),
    ],
)
async def test_the_guard_refuses_in_openais_form(headers: dict[str, str], status: int) -> None:
    app = guarded(front(), "127.0.0.1", None, most_bytes=MOST, remedy="send less")
    answer = await asked(app, "/health", method="GET", **headers)
    assert answer.status_code == status
    if status != 200:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
