"""`whetstone serve-model`: a finished model for the stock client, from start to Ctrl-C."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import psutil
import pytest
from openai import OpenAI

from contracts.errors import InputError
from services.commands.serve_model import run
from tests.chat_templates import TEMPLATES, make_chat_model
from tests.until import served_until_ctrl_c

TOKEN = "a-token-of-the-tests-own"
ASK = [{"role": "user", "content": "What is three and four?"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("models") / "tiny", TEMPLATES["default_system"])


@pytest.fixture(scope="module")
def address(model: Path) -> Iterator[str]:
    """The address of a served model; at the end Ctrl-C ends the command with code 0."""
    words = (str(model), "--engine", "transformers", "--max-tokens", "6")
    with served_until_ctrl_c("serve-model", *words) as root:
        yield f"{root}/v1"


def test_the_stock_client_draws_as_it_asks_to(address: str) -> None:
    client = OpenAI(base_url=address, api_key="any")
    assert [served.id for served in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"

    def said(**options: object) -> str:
        made = client.chat.completions.create(model="tiny", messages=ASK, **options)  # type: ignore[call-overload]
        assert made.usage.completion_tokens <= 12
        return str(made.choices[0].message.content)

    assert said(seed=3) == said(seed=3) != said(seed=4)
    assert said() != said()
    assert said(temperature=0) == said(temperature=0, seed=9)
    longer = client.chat.completions.create(model="tiny", messages=ASK, max_tokens=12, seed=3)  # type: ignore[arg-type]
    assert longer.usage is not None and longer.usage.completion_tokens > 6
    choices = client.completions.create(model="tiny", prompt="a", n=3, seed=1).choices
    assert len({choice.text for choice in choices}) == 3


def test_a_page_of_another_site_and_a_large_body_are_refused(address: str) -> None:
    body = {"messages": ASK}
    root = address.removesuffix("/v1")
    refused = httpx.post(f"{address}/chat/completions", json=body, headers={"Origin": "http://evil.example"})
    assert refused.status_code == 403
    assert httpx.get(f"{address}/models", headers={"Host": "evil.example"}).status_code == 400
    assert httpx.post(f"{root}/v1/completions", content=b"x" * (9 * 2**20)).status_code == 413
    assert httpx.post(f"{root}/v1/completions", content=iter([b"x" * 2**20] * 9)).status_code == 413


def test_what_the_engine_does_not_take_is_refused_and_the_next_call_is_answered(address: str) -> None:
    client = OpenAI(base_url=address, api_key="any", max_retries=0)
    with pytest.raises(openai.BadRequestError, match="context length"):
        client.completions.create(model="tiny", prompt="x" * 3000)
    with pytest.raises(openai.BadRequestError, match="response_format"):
        client.chat.completions.create(
            model="tiny",
            messages=ASK,  # type: ignore[arg-type]
            response_format={"type": "json_object"},
        )
    with pytest.raises(openai.BadRequestError, match="temperature: expected 0 to 2"):
        client.completions.create(model="tiny", prompt="x", temperature=3)
    with pytest.raises(openai.NotFoundError, match="model='gpt-99': there is only 'tiny' here"):
        client.completions.create(model="gpt-99", prompt="x")
    assert client.completions.create(model="tiny", prompt="x").choices[0].text


def test_no_tiny_value_ends_the_server(address: str) -> None:
    def answer(**options: float) -> httpx.Response:
        body = {"prompt": "Once upon", "max_tokens": 8, **options}
        return httpx.post(f"{address}/completions", json=body, timeout=60)

    for temperature in (5e-324, 1e-300, 1e-40, 1e-38, 1e-3):
        cold = answer(temperature=temperature, seed=1)
        assert (cold.status_code, cold.json()["model"]) == (200, "tiny")  # the body names no model
        assert cold.json()["choices"] == answer(temperature=0.01, seed=1).json()["choices"]
    for penalty in (1e-300, 1e-40, 0.009, 101):
        refused = answer(repetition_penalty=penalty)
        assert refused.status_code == 400
        assert "repetition_penalty: expected 0.01 to 100" in refused.json()["error"]["message"]
    for penalty in (0.01, 100):
        assert answer(repetition_penalty=penalty, temperature=1e-300).status_code == 200
    assert answer(top_p=1e-300).status_code == 200


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "0.0.0.0"], "WHETSTONE_TOKEN"),
        (["--token", "short"], "--token"),
        (["--max-tokens", "4000"], "leaves no room"),
        (["--port", "99999"], "--port 99999"),
    ],
)
def test_what_must_not_be_served_is_refused_before_the_model_is_loaded(
    model: Path, words: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        run([str(model), "--engine", "transformers", *words])


@contextmanager
def served_by_vllm(model: Path) -> Iterator[tuple[subprocess.Popen[str], str, psutil.Process]]:
    """The command, its address, and its engine's process."""
    command = [sys.executable, "-m", "services.cli", "serve-model", str(model), "--engine", "vllm"]
    command += ["--port", "0", "--max-tokens", "6", "--seed", "3", "--system", "Be brief."]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = re.findall(r"http://[\d.:]+/v1", process.stdout.readline())[0]
            (engine,) = [
                child
                for child in psutil.Process(process.pid).children(recursive=True)
                if "EngineCore" in " ".join(child.cmdline())
            ]
            yield process, address, engine
        finally:
            process.kill()


@pytest.mark.vllm
@pytest.mark.timeout(900)  # the server's start, on a machine that does other work
def test_vllms_own_server_answers_behind_the_guard_and_ends_with_its_engine(model: Path) -> None:
    with served_by_vllm(model) as (process, address, engine):
        _answers_as_vllm_does(OpenAI(base_url=address, api_key="any", max_retries=0), address)
        engine.kill()
        assert process.wait(60) == 1
        assert process.stderr is not None
        assert "vLLM's engine has died" in process.stderr.read()


@pytest.mark.vllm
@pytest.mark.timeout(900)
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_vllms_engine_ends_with_the_server(model: Path, by: signal.Signals) -> None:
    with served_by_vllm(model) as (process, _, engine):
        process.send_signal(by)
        process.wait(60)
        assert not psutil.wait_procs([engine], timeout=30)[1]


def _answers_as_vllm_does(client: OpenAI, address: str) -> None:
    scored = client.completions.create(model="tiny", prompt=["ab", "cd"], echo=True, max_tokens=0, logprobs=1)
    assert [choice.text for choice in scored.choices] == ["ab", "cd"]
    for choice in scored.choices:  # what a harness sums: one of each token but the first
        first, *others = choice.logprobs.token_logprobs  # type: ignore[union-attr, misc]
        assert first is None
        assert len(others) == 2
        assert all(logprob < 0 for logprob in others)
    drawn = client.completions.create(model="tiny", prompt="a")
    assert drawn.usage is not None
    assert drawn.usage.completion_tokens <= 6
    assert drawn.choices[0].text == client.completions.create(model="tiny", prompt="a").choices[0].text
    biased = client.completions.create(
        model="tiny",
        prompt=[[5, 6], [7]],
        logit_bias={"70": 100},
        presence_penalty=1,
        extra_body={"min_tokens": 4, "repetition_penalty": 1.2},
        max_tokens=4,
    )
    assert [choice.text for choice in biased.choices] == ["bbbb", "bbbb"]
    read = httpx.post(f"{address.removesuffix('/v1')}/tokenize", json={"messages": ASK}).json()
    bare = httpx.post(f"{address.removesuffix('/v1')}/tokenize", json={"prompt": "Be brief."}).json()
    assert "".join(map(str, bare["tokens"][1:])) in "".join(map(str, read["tokens"]))  # the system message
    for body, status in (({"temperature": 3}, 400), ({"model": "gpt-99"}, 404), ({"n": 2000}, 400)):
        refused = httpx.post(f"{address}/completions", json={"model": "tiny", "prompt": "a", **body})
        assert refused.status_code == status
        assert set(refused.json()["error"]) == {"message", "type", "param", "code"}
    assert httpx.get(f"{address}/models", headers={"Host": "evil.example"}).status_code == 400
    assert httpx.post(f"{address}/completions", content=b"x" * (9 * 2**20)).status_code == 413
