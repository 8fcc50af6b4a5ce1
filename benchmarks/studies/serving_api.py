"""Compare status and fields of equal calls to vLLM's server and `whetstone serve-model`, by OpenAI's client.

    python -m vllm.entrypoints.launchers.api_server.entry --model MODEL --served-model-name NAME --port 8001 \
        --generation-config vllm --enable-auto-tool-choice --tool-call-parser hermes --enforce-eager
    whetstone serve-model MODEL --port 8002 --engine vllm
    python -m benchmarks.studies.serving_api http://127.0.0.1:8001 http://127.0.0.1:8002 NAME

Writes benchmarks/out/serving_api.md.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
from openai import OpenAI

PAGE = Path(__file__).parents[2] / "benchmarks/out/serving_api.md"
HI = [{"role": "user", "content": "hi"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
HEAD = """# Serving beside plain vLLM

The same calls to vLLM's own server and to `whetstone serve-model` of the same tiny model with a chat
template, by OpenAI's client (`{client}`). `python -m benchmarks.studies.serving_api` makes them and writes this page.
Fields are those of the whole answer with all that is inside of it, without values; an error's type and code
belong to them. Texts and log-probabilities are compared, too: the calls are greedy or have a seed.

{summary}

call | vLLM | serve-model | fields | text and log-probabilities
--- | --- | --- | --- | ---
"""


@dataclass(frozen=True)
class Answer:
    """One server's answer to a call."""

    status: int
    fields: frozenset[str]
    content: Any  # the model's words, compared if the call is greedy


def completion(**options: Any) -> Callable[[OpenAI, str], Any]:
    return lambda client, model: client.completions.create(**{"model": model, "max_tokens": 4, **options})


def chat(**options: Any) -> Callable[[OpenAI, str], Any]:
    request = {"messages": HI, "max_tokens": 4, **options}
    return lambda client, model: client.chat.completions.create(**{"model": model, **request})


def raw(path: str, body: Mapping[str, Any] | None = None, **headers: str) -> Callable[[OpenAI, str], Any]:
    """Return a call of an address or body that OpenAI's client does not know."""

    def ask(client: OpenAI, model: str) -> httpx.Response:
        root = str(client.base_url).removesuffix("/v1/")
        if body is None:
            return httpx.get(f"{root}{path}", headers=headers)
        return httpx.post(f"{root}{path}", json={"model": model, **body}, headers=headers, timeout=60)

    return ask


GREEDY = {"temperature": 0, "seed": 1}
CALLS: Mapping[str, Callable[[OpenAI, str], Any]] = {
    "models.list": lambda client, model: client.models.list(),
    "GET /health": raw("/health"),
    "GET /version": raw("/version"),
    "POST /tokenize": raw("/tokenize", {"prompt": "abc"}),
    "POST /tokenize of messages": raw("/tokenize", {"messages": HI}),
    "POST /detokenize": raw("/detokenize", {"tokens": [5, 6]}),
    "completion, greedy": completion(prompt="abc", **GREEDY),
    "completion of tokens": completion(prompt=[5, 6, 7], **GREEDY),
    "two texts": completion(prompt=["abc", "de"], **GREEDY),
    "two lists of tokens": completion(prompt=[[5, 6], [7]], **GREEDY),
    "echo, max_tokens=0, logprobs=1": completion(prompt="abc", echo=True, max_tokens=0, logprobs=1, **GREEDY),
    "echo, max_tokens=1, logprobs=1, two texts": completion(
        prompt=["abc", "de"], echo=True, max_tokens=1, logprobs=1, **GREEDY
    ),
    "logprobs=5": completion(prompt="abc", logprobs=5, **GREEDY),
    "n=3": completion(prompt="abc", n=3, temperature=1, seed=1),
    "stop": completion(prompt="abc", stop=["a", "b"], **GREEDY),
    "stop, included": completion(
        prompt="abc", stop=["a"], extra_body={"include_stop_str_in_output": True}, **GREEDY
    ),
    "presence_penalty, frequency_penalty": completion(
        prompt="abc", presence_penalty=1.5, frequency_penalty=0.5, **GREEDY
    ),
    "repetition_penalty": completion(prompt="abc", extra_body={"repetition_penalty": 1.5}, **GREEDY),
    "logit_bias": completion(prompt="abc", logit_bias={"70": 100}, **GREEDY),
    "min_tokens, ignore_eos": completion(
        prompt="abc", extra_body={"min_tokens": 4, "ignore_eos": True}, **GREEDY
    ),
    "top_k, min_p": completion(prompt="abc", temperature=1, seed=1, extra_body={"top_k": 5, "min_p": 0.1}),
    "regex": completion(prompt="abc", extra_body={"structured_outputs": {"regex": "[ab]{3}"}}, **GREEDY),
    "completion, streamed": completion(prompt="abc", stream=True, **GREEDY),
    "completion, streamed with usage": completion(
        prompt="abc", stream=True, stream_options={"include_usage": True}, **GREEDY
    ),
    "chat, greedy": chat(**GREEDY),
    "chat with system message": chat(messages=[{"role": "system", "content": "Be brief."}, *HI], **GREEDY),
    "chat of content parts": chat(
        messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}], **GREEDY
    ),
    "chat, logprobs": chat(logprobs=True, top_logprobs=3, **GREEDY),
    "chat, n=2": chat(n=2, temperature=1, seed=1),
    "chat, streamed": chat(stream=True, **GREEDY),
    "chat, json_schema": chat(response_format=JSON_SCHEMA, max_tokens=60, **GREEDY),
    "chat, json_object": chat(response_format={"type": "json_object"}, max_tokens=8, **GREEDY),
    "chat with tools": chat(tools=[TOOL], **GREEDY),
    "chat, a named tool": chat(
        tools=[TOOL], tool_choice={"type": "function", "function": {"name": "add"}}, max_tokens=40, **GREEDY
    ),
    "chat, tool_choice=none": chat(tools=[TOOL], tool_choice="none", **GREEDY),
    "responses.create": lambda client, model: client.responses.create(
        model=model, input="hi", max_output_tokens=4, temperature=0
    ),
    "temperature=3": completion(prompt="abc", temperature=3),
    "top_p=0": completion(prompt="abc", top_p=0),
    "max_tokens=-1": completion(prompt="abc", max_tokens=-1),
    "n=0": completion(prompt="abc", n=0),
    "logprobs=1000": completion(prompt="abc", logprobs=1000),
    "another model": completion(prompt="abc", model="gpt-99"),
    "no prompt": raw("/v1/completions", {}),
    "prompt of no type": raw("/v1/completions", {"prompt": {"a": 1}}),
    "a token that is not there": completion(prompt=[10**9]),
    "a prompt beyond the window": completion(prompt="abc" * 3000),
    "no messages": chat(messages=[]),
    "an unknown role": chat(messages=[{"role": "king", "content": "hi"}], **GREEDY),
    "stream of no type": raw("/v1/completions", {"prompt": "abc", "stream": "perhaps"}),
    "stream_options without stream": completion(prompt="abc", stream_options={"include_usage": True}),
    "a chat template of the caller's": chat(extra_body={"chat_template": "{{ 1 }}"}),
    "models.retrieve": lambda client, model: client.models.retrieve(model),
    "an unknown address": raw("/v1/nothing", {}),
    "another method": raw("/v1/completions"),
    "a foreign Host": raw("/v1/models", None, Host="evil.example"),
    "a foreign Origin": raw("/v1/models", None, Origin="http://evil.example"),
    "POST /scale_elastic_ep, for operators": raw("/scale_elastic_ep", {}),
}


def ask(client: OpenAI, model: str, call: Callable[[OpenAI, str], Any]) -> Answer:
    """Return a server's answer of any kind."""
    try:
        made = call(client, model)
    except openai.APIStatusError as error:
        return _read(error.response)
    if isinstance(made, httpx.Response):
        return _read(made)
    if isinstance(made, openai.Stream):
        made = [piece.model_dump(mode="json") for piece in made]
        return Answer(200, frozenset(_fields(made)), _content(made))
    whole = made.model_dump(mode="json")
    return Answer(200, frozenset(_fields(whole)), _content(whole))


def _read(answer: httpx.Response) -> Answer:
    try:
        body = answer.json()
    except ValueError:
        return Answer(answer.status_code, frozenset({answer.text[:20]} - {""}), None)
    fields = set(_fields(body))
    if isinstance(error := body.get("error") if isinstance(body, dict) else None, dict):
        fields |= {f"type {error.get('type')}", f"code {error.get('code')}"}
    return Answer(
        answer.status_code, frozenset(fields), body.get("tokens") if isinstance(body, dict) else None
    )


def _fields(value: Any, where: str = "") -> Iterator[str]:
    """Yield the paths of all fields; numbers of tokens, which are keys, count as one."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            path = f"{where}.{'#' if name.isdecimal() or 'top_logprobs' in where else name}"
            yield path
            yield from _fields(inner, path)
    elif isinstance(value, list):
        for inner in value:
            yield from _fields(inner, f"{where}[]")


def _content(value: Any) -> Any:
    """Return an answer without ids, times and the server's fingerprint, which always differ."""
    if isinstance(value, Mapping):
        varying = ("id", "created", "created_at", "system_fingerprint", "root", "completed_at")
        return {name: _content(inner) for name, inner in value.items() if name not in varying}
    if isinstance(value, list):
        return [_content(inner) for inner in value]
    return round(value, 4) if isinstance(value, float) else value


def row(label: str, theirs: Answer, ours: Answer) -> str:
    """Return a call's row."""
    lost, more = sorted(theirs.fields - ours.fields), sorted(ours.fields - theirs.fields)
    differs = [f"-{name}" for name in lost] + [f"+{name}" for name in more]
    fields = (
        "same"
        if not differs
        else ", ".join(f"`{name}`" for name in differs[:3]) + (", …" if differs[3:] else "")
    )
    content = "" if theirs.content is None else "same" if theirs.content == ours.content else "differ"
    return f"{label} | {theirs.status} | {ours.status} | {fields} | {content}"


def main(theirs: str, ours: str, model: str) -> None:
    clients = [OpenAI(base_url=f"{root}/v1", api_key="any", max_retries=0) for root in (theirs, ours)]
    answers = {label: [ask(client, model, call) for client in clients] for label, call in CALLS.items()}
    same = sum(a.status == b.status and a.fields == b.fields for a, b in answers.values())
    summary = f"{len(answers)} calls: {same} with the same status and the same fields."
    rows = [row(label, *both) for label, both in answers.items()]
    head = HEAD.format(client=f"openai {openai.__version__}", summary=summary)
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(head + "\n".join(rows) + "\n", encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main(*sys.argv[1:4])
