"""The stock client and a gateway over a real engine: recorded is what the engine read and drew."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
import torch
from openai import OpenAI

from contracts.conversations.chat_settings import ChatForm
from contracts.rollout import Rollout
from rollout_workers.tools.tool_calls import Call as ToolCall
from rollout_workers.tools.tool_calls import Malformed, Parsed
from tests.chat_templates import TEMPLATES, make_chat_model
from tests.rollout_workers.gateway.served import Served, connect, head, rollout_of, serve
from tests.rollout_workers.generation import load, load_lm, logprobs_T
from tests.until import until

ASK = [{"role": "user", "content": "What is three and four?"}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = make_chat_model(tmp_path_factory.mktemp("model"), TEMPLATES["default_system"])
    with serve(folder) as made:
        yield made


def say(client: OpenAI, talk: list[Any], **options: Any) -> Any:
    return client.chat.completions.create(model="any", messages=talk, **options)


def talk_of(client: OpenAI, turns: int = 3) -> list[Any]:
    talk: list[Any] = list(ASK)
    for _ in range(turns):
        answer = say(client, talk)
        talk += [answer.choices[0].message, {"role": "user", "content": "And then?"}]
    return talk


def assert_is_the_engines(made: Rollout, served: Served) -> None:
    """Each turn's context is what the engine read, and its tokens are what the engine drew from it."""
    for index, turn in enumerate(made.turns):
        read = [
            served.engine.asked[number].tokens
            for number, drawn in served.engine.drawn.items()
            if drawn.tokens == turn.tokens and drawn.behavior_logprobs == turn.behavior_logprobs
        ]
        assert made.context(index) in read


def test_a_talk_of_the_stock_client_is_one_sequence_of_the_engines_own_tokens(served: Served) -> None:
    door = served.door()
    talk_of(served.client(door))
    made = rollout_of(door)

    assert [turn.fresh for turn in made.turns] == [True, False, False]
    assert_is_the_engines(made, served)
    # The model that learns gives each token the probability that it was drawn with: the ratio is one.
    lm, made_places = load_lm(served.folder), [index for index, mine in enumerate(made.loss_mask) if mine]
    expected = logprobs_T(lm, made.tokens[:1], made.tokens[1:])[torch.tensor(made_places) - 1]
    recorded = torch.tensor([made.behavior_logprobs[index] for index in made_places])
    assert float((expected - recorded).abs().max()) < 1e-4


def test_the_first_context_is_what_the_template_writes(served: Served) -> None:
    door = served.door()
    answer = say(served.client(door), ASK)
    its = served.engine.tokenizer
    context = its.apply_chat_template(ASK, add_generation_prompt=True, return_dict=False)
    (turn,) = rollout_of(door).turns
    assert turn.observation == tuple(context) and turn.observation_text == ASK[0]["content"]
    assert answer.choices[0].message.content == turn.text
    assert answer.usage.prompt_tokens == len(context)
    assert answer.usage.completion_tokens == len(turn.tokens)


def test_an_edited_history_begins_a_sequence_and_a_fork_reads_the_recorded_tokens(served: Served) -> None:
    door = served.door()
    client = served.client(door)
    talk = talk_of(client, turns=2)
    say(client, [*talk[:2], {"role": "user", "content": "Go back."}])  # a fork after the first answer
    edited = [*talk[:1], {"role": "assistant", "content": "seven"}, {"role": "user", "content": "Sure?"}]
    say(client, edited)
    made = rollout_of(door)

    assert [[turn.observation_text for turn in segment] for segment in made.segments] == [
        [ASK[0]["content"], "And then?"],
        ["\n".join([ASK[0]["content"], talk[1].content, "Go back."])],
        ["\n".join([ASK[0]["content"], "seven", "Sure?"])],
    ]
    fork, first = made.turns[2], made.turns[0]
    assert fork.observation[: len(first.observation + first.tokens)] == first.observation + first.tokens
    written = served.engine.tokenizer.apply_chat_template(
        edited, add_generation_prompt=True, return_dict=False
    )
    assert made.turns[3].observation == tuple(written)
    assert_is_the_engines(made, served)


def test_several_choices_are_several_sequences_of_one_context(served: Served) -> None:
    door = served.door()
    client = served.client(door)
    answer = say(client, ASK, n=3)
    assert len({choice.message.content for choice in answer.choices}) == 3
    say(client, [*ASK, answer.choices[1].message, *ASK])
    made = rollout_of(door)
    assert [len(segment) for segment in made.segments] == [1, 1, 2]
    assert made.segments[2][0].text == answer.choices[1].message.content
    assert_is_the_engines(made, served)


def test_completions_go_on_from_their_own_tokens(served: Served) -> None:
    door = served.door()
    client = served.client(door)
    its = served.engine.tokenizer
    first = client.completions.create(model="any", prompt="three and four").choices[0]
    text = "three and four" + its.decode(door.history.calls[0].generation.tokens)
    client.completions.create(model="any", prompt=text + " thin")
    client.completions.create(model="any", prompt=[5, 6, 7])
    made = rollout_of(door)
    assert made.turns[0].observation == tuple(its("three and four")["input_ids"])  # with its <bos>
    assert made.turns[1].observation == tuple(its(" thin", add_special_tokens=False)["input_ids"])
    assert made.turns[2].observation == (5, 6, 7)
    assert [turn.fresh for turn in made.turns] == [True, False, True]
    assert first.text == made.turns[0].text
    assert_is_the_engines(made, served)


def test_a_stream_says_what_a_whole_answer_says(served: Served) -> None:
    """Both leases have one seed, so the same call is answered alike."""
    whole = say(served.client(served.door()), ASK, n=2)
    stream = say(served.client(served.door()), ASK, n=2, stream=True, stream_options={"include_usage": True})
    texts, ends, usage = {0: "", 1: ""}, {}, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends |= {choice.index: choice.finish_reason} if choice.finish_reason else {}
    assert list(texts.values()) == [choice.message.content for choice in whole.choices]
    assert list(ends.values()) == [choice.finish_reason for choice in whole.choices]
    assert usage == whole.usage
    text = "".join(
        piece.choices[0].text
        for piece in served.client(served.door()).completions.create(model="any", prompt="a b", stream=True)
    )
    assert text == served.client(served.door()).completions.create(model="any", prompt="a b").choices[0].text


def test_a_call_draws_the_same_in_any_order(served: Served) -> None:
    """Two programs make the same two calls in the other order: the seeds follow what is read."""
    doors = served.door(), served.door()
    one, other = map(served.client, doors)
    replies = [say(one, ASK), say(one, ASK), say(one, [*ASK, *ASK])]
    again = [say(other, [*ASK, *ASK]), say(other, ASK), say(other, ASK)]
    texts = [[answer.choices[0].message.content for answer in answers] for answers in (replies, again)]
    assert texts[0] == [*texts[1][1:], texts[1][0]] and texts[0][0] != texts[0][1]


def test_the_runs_sampling_holds_and_a_call_may_only_ask_for_less(served: Served) -> None:
    door = served.door()
    client = served.client(door)
    say(client, ASK, temperature=0.0, top_p=0.1, seed=5, max_tokens=3, stop=["x"])
    say(client, ASK, max_tokens=500)
    requests = list(served.engine.asked.values())[-2:]
    assert [request.sampling.max_tokens for request in requests] == [3, 8]
    assert requests[0].sampling.stop == ("x",)
    assert {(request.sampling.temperature, request.sampling.top_p) for request in requests} == {(1.0, 1.0)}


def test_a_key_is_its_leases_alone_and_ends_with_it(served: Served) -> None:
    door, other = served.door(), served.door()
    key = served.key(door)
    client = OpenAI(base_url=served.address, api_key=key, max_retries=0)
    say(client, ASK)
    assert (len(door.history.calls), len(other.history.calls)) == (1, 0)
    assert [model.id for model in client.models.list()] == ["whetstone"]

    served.gateway.call_soon(lambda: served.gateway.shut(key))
    with pytest.raises(openai.AuthenticationError):
        say(client, ASK)
    for headers in ({}, {"Authorization": f"Basic {key}"}, {"Authorization": "Bearer ä"}):
        raw_headers = {name: value.encode("latin-1") for name, value in headers.items()}
        assert httpx.get(f"{served.address}/models", headers=raw_headers).status_code == 401  # type: ignore[arg-type]
    assert len(door.history.calls) == 1


def test_an_answer_that_comes_after_the_episodes_end_is_not_recorded(served: Served) -> None:
    door = served.door(max_tokens=400)
    failed: list[Exception] = []

    def call() -> None:
        try:
            say(client, ASK)
        except openai.AuthenticationError as error:
            failed.append(error)

    client, before = served.client(door), len(served.engine.asked)
    caller = threading.Thread(target=call)
    caller.start()
    until(lambda: len(served.engine.asked) > before)
    door.is_shut = True
    caller.join(30)
    assert failed and not door.history.calls


def test_budgets_end_an_episode_and_say_so(served: Served) -> None:
    door = served.door(max_turns=2)
    client = served.client(door)
    talk_of(client, turns=2)
    assert not door.is_cut
    with pytest.raises(openai.PermissionDeniedError, match="max_turns"):
        say(client, ASK)
    assert door.is_cut and len(door.history.calls) == 2 and door.num_refused == 1

    frugal = served.door(token_budget=10)
    client = served.client(frugal)
    with pytest.raises(openai.PermissionDeniedError, match="token_budget"):
        talk_of(client, turns=11)
    drawn = [len(call.generation.tokens) for call in frugal.history.calls]
    assert sum(drawn) <= 10

    with pytest.raises(openai.BadRequestError, match="n=3: expected at most 2, which environment"):
        say(served.client(door := served.door(max_turns=2)), ASK, n=3)
    assert not door.is_cut  # no episode of this run could have so many
    say(served.client(door), ASK)
    with pytest.raises(openai.PermissionDeniedError, match="2 more answers were asked for, and 1 of the"):
        say(served.client(door), ASK, n=2)
    assert door.is_cut


def test_open_calls_are_limited(served: Served) -> None:
    door = served.door(max_tokens=300, max_open_calls=2)
    client = served.client(door)
    texts: list[str] = []

    def call() -> None:
        try:
            say(client, ASK)
            texts.append("answered")
        except openai.RateLimitError:
            texts.append("refused")

    callers = [threading.Thread(target=call) for _ in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert len(texts) == 6 and 2 <= texts.count("answered") < 6
    assert texts.count("answered") == len(door.history.calls)


def test_a_context_beyond_the_window_is_refused_as_openai_does(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = served.door()
    long = [{"role": "user", "content": "x" * 2100}]
    with pytest.raises(openai.BadRequestError) as refused:
        say(served.client(door), long)
    assert refused.value.code == "context_length_exceeded"
    monkeypatch.setattr("rollout_workers.gateway.episode_door.BYTES_AT_EASE", 1000)
    with pytest.raises(openai.BadRequestError, match=r"3\d* bytes do not fit into a context of") as refused:
        say(served.client(door), [{"role": "user", "content": "x" * 300_000}])
    assert refused.value.code == "context_length_exceeded"
    say(served.client(door), [{"role": "user", "content": "x" * 1990}])
    assert len(rollout_of(door).tokens) <= 2048


def test_a_caller_that_has_gone_leaves_no_turn(served: Served) -> None:
    door = served.door(max_tokens=400)
    key, before = served.key(door), len(served.engine.asked)
    body = json.dumps({"messages": ASK}).encode()
    connection = connect(served)
    connection.sendall(head("/v1/chat/completions", key, len(body)) + body)
    until(lambda: len(served.engine.asked) > before)
    connection.close()
    until(lambda: door.patience_s != 60.0)  # no call is open any more
    say(served.client(door), ASK)
    assert len(door.history.calls) == 1


def test_a_body_of_100_mb_is_refused_before_it_is_read(served: Served) -> None:
    key = served.key(served.door())
    connection = connect(served)
    connection.sendall(head("/v1/chat/completions", key, 100 * 2**20))
    assert b"413" in connection.recv(4096).splitlines()[0]
    connection.close()

    connection = connect(served)  # without a length: no more than the limit is read
    connection.sendall(head("/v1/chat/completions", key, None))
    sent, piece = 0, b"%x\r\n" % 2**16 + b"x" * 2**16 + b"\r\n"
    with pytest.raises(OSError):
        while sent < 100 * 2**20:
            connection.sendall(piece)
            sent += 2**16
    assert sent < 20 * 2**20
    connection.close()

    client = OpenAI(base_url=served.address, api_key=key, max_retries=0)
    with pytest.raises(openai.APIStatusError) as refused:
        say(client, [{"role": "user", "content": "x" * 2**21}])
    assert refused.value.status_code == 413
    say(client, ASK)  # the door is still open


def test_a_wrong_path_or_method_is_not_found(served: Served) -> None:
    headers = {"Authorization": f"Bearer {served.key(served.door())}"}
    root = served.address.removesuffix("/v1")
    assert httpx.post(f"{root}/v1/embeddings", headers=headers, content=b"{}").status_code == 404
    assert httpx.get(f"{root}/v1/chat/completions", headers=headers).status_code == 405
    assert httpx.post(f"{root}/v1/chat/completions", headers=headers, content=b"[").status_code == 400


def test_weights_change_between_calls_and_each_token_says_by_which_it_was_drawn(served: Served) -> None:
    door = served.door()
    client, lm = served.client(door), load_lm(served.folder)
    talk = talk_of(client, turns=1)
    load(served.engine, lm, 5)
    say(client, talk)
    load(served.engine, lm, 0)
    made = rollout_of(door)
    assert [set(turn.weight_versions) for turn in made.turns] == [{0}, {5}]
    assert len(made.segments) == 1


def test_a_template_that_changes_history_makes_sequences_of_what_it_writes(tmp_path_factory: Any) -> None:
    folder = make_chat_model(tmp_path_factory.mktemp("model"), TEMPLATES["strips_reasoning"])
    with serve(folder) as served:
        form = ChatForm(follows_template=True)
        door = served.door(form=form)
        talk = talk_of(served.client(door), turns=2)
        its = served.engine.tokenizer
        answers = [{"role": "assistant", "content": talk[1].content}]
        written = its.apply_chat_template(
            [*ASK, *answers, talk[2]], add_generation_prompt=True, return_dict=False
        )
        assert rollout_of(door).context(1) == tuple(written)


TOOLS: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def test_a_call_of_a_tool_and_its_result_go_on_from_recorded_tokens(served: Served) -> None:
    """The parser takes each answer for a call; the template has no place for schemas: a text tells them."""
    with pytest.raises(openai.BadRequestError, match="tools"):
        say(served.client(served.door()), ASK, tools=TOOLS)
    served.parse = lambda text, tools: Parsed("I add.", (ToolCall("add", {"a": 3}),))
    door = served.door()
    served.parse = None
    client, its = served.client(door), served.engine.tokenizer
    answer = say(client, ASK, tools=TOOLS).choices[0]
    (call,) = answer.message.tool_calls
    assert (answer.finish_reason, answer.message.content) == ("tool_calls", "I add.")
    assert (call.function.name, call.function.arguments) == ("add", '{"a": 3}')
    result = {"role": "tool", "tool_call_id": call.id, "content": "7"}
    stream = list(say(client, [*ASK, answer.message, result], tools=TOOLS, stream=True))
    assert stream[0].choices[0].delta.tool_calls[0].function.arguments == '{"a": 3}'
    made = rollout_of(door)
    assert [turn.fresh for turn in made.turns] == [True, False]
    assert '{"name": "add"' in its.decode(made.turns[0].observation)
    assert "<|start|>tool\n7<|stop|>" in its.decode(made.turns[1].observation)
    assert made.turns[1].observation_text == "<tool_response>\n7\n</tool_response>"  # as transcripts find it
    assert_is_the_engines(made, served)


def test_a_malformed_call_reaches_the_program_as_text(served: Served) -> None:
    served.parse = lambda text, tools: Parsed("", (ToolCall("add", {}), Malformed("{", "it is no JSON")))
    door = served.door()
    served.parse = None
    answer = say(served.client(door), ASK, tools=TOOLS).choices[0]
    assert answer.message.tool_calls is None and answer.message.content == rollout_of(door).turns[0].text


def test_a_model_without_a_template_takes_completions_alone(tmp_path_factory: Any) -> None:
    folder = make_chat_model(tmp_path_factory.mktemp("model"), None)
    with serve(folder) as served:
        served.form = None
        client = served.client(served.door())
        with pytest.raises(openai.BadRequestError, match="no chat template"):
            say(client, ASK)
        assert client.completions.create(model="any", prompt="a").usage is not None
