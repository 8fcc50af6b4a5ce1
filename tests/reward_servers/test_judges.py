"""Chat models as rewards, against a real server on loopback: scores, order, faults, counts, and the key."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from fastapi import Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.chat_models import backoff
from reward_servers.chat_models.asked_model import Malformed, as_json
from reward_servers.graders.judge_group import form, ranking_of, shuffled, spread
from reward_servers.part_checks import check_at_hand, check_parts
from reward_servers.server import RewardServer
from reward_servers.serving.replicas import RewardReplica, Scored
from reward_servers.settings import Part, RewardServersSettings, ServerSettings, parts
from reward_servers.user_rewards.apart import try_apart
from reward_servers.user_rewards.own import wants_groups
from reward_servers.user_rewards.trial import MADE_UP
from tests.chat_server import reply, serving

KEY = "sk-very-secret-0123456789"
TOKENS = (100, 10)  # for each question and reply


class Model:
    """A chat model whose verdict on a text is its length, of at most 10, or ranks the longest first."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.faults: Callable[[str, int], Response | None] = lambda text, attempt: None
        self.delay_s: Callable[[str], float] = lambda text: 0.0
        self.at_once = self.most_at_once = 0

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        self.keys.append(request.headers.get("authorization"))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        question = body["messages"][0]["content"]
        attempt = sum(earlier["messages"][0]["content"] == question for earlier in self.requests)
        fault = self.faults(question, attempt)
        await asyncio.sleep(self.delay_s(question))
        self.at_once -= 1
        return fault or reply(verdict(question), TOKENS)


def verdict(question: str) -> dict[str, Any]:
    texts = re.findall(r"^=== Answer \d+\n(.*)$", question, re.MULTILINE)
    if texts:
        order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
        return {"reason": "longer", "ranking": [place + 1 for place in order]}
    (text,) = re.findall(r"^=== The assistant's answer\n(.*)$", question, re.MULTILINE)
    return {"reason": "its length", "score": min(10, len(text))}


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def url(model: Model) -> Iterator[str]:
    with serving(model.answer) as address:
        yield address


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff.pause_s, "__defaults__", (None, 0.01))


def judge(url: str, name: str = "judge", **options: Any) -> Part:
    (made,) = parts({"name": name, "url": url, "model": "wise", **options})
    check_parts("reward", [made])
    return made


def texts(*lengths: int, group: str = "train/0") -> list[Sample]:
    return [Sample("x" * length, "How long?", group=group) for length in lengths]


def value(length: int) -> float:
    return (length - 1) / 9


# Scores


def test_scores_are_right_and_in_order_whatever_answers_first(url: str, model: Model) -> None:
    """The first of ten texts comes last; ten requests are open at a time."""
    model.delay_s = lambda text: 0.5 if "\nx\n" in text else 0.05
    answers = RewardServer(judge(url)).score(texts(*range(1, 11)))
    assert answers == [(pytest.approx(value(length)), None) for length in range(1, 11)]
    assert model.most_at_once > 3
    request = model.requests[0]
    assert (request["model"], request["temperature"]) == ("wise", 0)
    schema = request["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["score"] == {"type": "number", "minimum": 1.0, "maximum": 10.0}


def test_rubric_references_meta_data_and_scale_reach_the_model(
    url: str, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rubric.md").write_text("Is it {solution}?")
    part = judge(url, rubric="rubric.md", with_references=True, scale=[20, 0], structured=False)
    sample = Sample("x" * 5, "How many?", ("five", "5"), {"solution": "five {text}"})
    assert RewardServer(part).score([sample]) == [(0.75, None)]  # 5 on the way from 20, the worst, to 0
    request = model.requests[0]
    assert "response_format" not in request
    question = request["messages"][0]["content"]
    for phrase in ("Is it five {text}?", "How many?", "2 of 2 right answers\n5", "from 20, the worst, to 0"):
        assert phrase in question


def test_a_form_of_ones_own(url: str, model: Model) -> None:
    schema = {
        "type": "object",
        "properties": {"polite": {"type": "boolean"}, "points": {"type": "integer"}},
        "required": ["polite", "points"],
    }
    model.faults = lambda text, attempt: reply('{"polite": true, "points": 3}')
    part = judge(url, answer_schema=schema, score_key="points", scale=[1, 5], body={"max_tokens": 9})
    assert RewardServer(part).score(texts(2)) == [(0.5, None)]
    assert model.requests[0]["max_tokens"] == 9
    with pytest.raises(InputError, match="is no JSON schema"):
        judge(url, answer_schema={"type": 3})
    with pytest.raises(InputError, match="expected two different numbers"):
        judge(url, scale=[1, 1])


# Ranks


def test_a_group_is_ranked_in_one_question(url: str, model: Model) -> None:
    part = judge(url, "judge_group")
    assert wants_groups([part])
    samples = texts(3, 9, 6, group="a") + texts(5, group="b") + texts(2, 2, group="c") + texts(4, group="a")
    scores = [score for score, _ in RewardServer(part).score(samples)]
    # a has 9, 6, 4, 3; b is alone; the texts of c are equal
    assert scores == [0.0, 1.0, pytest.approx(2 / 3), 0.5, 0.5, 0.5, pytest.approx(1 / 3)]
    assert len(model.requests) == 1


def test_equal_texts_share_their_places(url: str) -> None:
    answers = RewardServer(judge(url, "judge_group")).score(texts(1, 7, 7, 3))
    assert [score for score, _ in answers] == pytest.approx([0.0, 5 / 6, 5 / 6, 1 / 3])


def test_judges_read_answers_without_thoughts(url: str, model: Model) -> None:
    """The verdict is the length of what the judge reads: 3, nothing, 5, and 3."""
    samples = [
        Sample(text, "Why?", group="train/0")
        for text in ("<think>long, long</think>abc", "<think>cut off", "thinking</think>abcde", "abc")
    ]
    scores = [score for score, _ in RewardServer(judge(url)).score(samples)]
    assert scores == [pytest.approx(value(3)), 0.0, pytest.approx(value(5)), pytest.approx(value(3))]
    assert not any("long, long" in str(request) or "cut off" in str(request) for request in model.requests)
    ranked = [score for score, _ in RewardServer(judge(url, "judge_group")).score(samples)]
    # places: abcde 1, abc and abc (2/3 + 1/3) / 2, nothing 0
    assert ranked == pytest.approx([0.5, 0.0, 1.0, 0.5])


@given(st.lists(st.sampled_from("abcdef"), min_size=2, max_size=9).filter(lambda texts: len(set(texts)) > 1))
def test_places_are_from_zero_to_one_and_have_the_mean_of_a_half(texts: list[str]) -> None:
    ranked = sorted(set(texts))
    scores = spread(texts, ranked)
    assert sum(scores) / len(scores) == pytest.approx(0.5)
    assert all(0.0 <= score <= 1.0 for score in scores)
    by_text = dict(zip(texts, scores, strict=True))
    assert [by_text[text] for text in ranked] == sorted(by_text.values(), reverse=True)


def test_the_order_in_which_answers_are_shown_depends_on_them_alone() -> None:
    assert shuffled({"a", "b", "c"}) == shuffled({"c", "b", "a"})
    orders = {tuple(shuffled({f"{n}", f"{n}x"})) for n in range(20)}
    assert len({order[0] < order[1] for order in orders}) == 2  # not always the same one first


def test_a_ranking_has_each_number_once() -> None:
    assert ranking_of({"ranking": [2, 1]}, 2) == [2, 1]
    with pytest.raises(Malformed, match="each number from 1 to 2 once"):
        ranking_of({"ranking": [2, 2]}, 2)
    for wrong in ([1], [1, 3], [1, 2, 2], ["1", 2]):
        with pytest.raises(Malformed):
            as_json(json.dumps({"reason": "", "ranking": wrong}), form(2))


# Faults


@pytest.mark.usefixtures("soon")
def test_busy_servers_are_asked_again_and_single_texts_fail(url: str, model: Model) -> None:
    """One of six texts is answered, three meet a fault that passes, one is refused, one gets no answer."""

    def faults(question: str, attempt: int) -> Response | None:
        length = verdict(question)["score"]
        passing: dict[int, Callable[[], Response]] = {
            2: lambda: JSONResponse({"error": {"message": "slow down"}}, 429, {"retry-after": "0"}),
            3: lambda: PlainTextResponse("overloaded", 503),
            4: lambda: PlainTextResponse("<html>"),  # no chat model's reply
        }
        if length in passing and attempt == 1:
            return passing[length]()
        if length == 5:
            return JSONResponse({"error": {"message": "too long for my window"}}, 400)
        return PlainTextResponse("gone", 500) if length == 6 else None

    model.faults = faults
    server = RewardServer(judge(url), ServerSettings(retries=2))
    answers = server.score(texts(*range(1, 7)))
    assert [score for score, _ in answers] == [*map(pytest.approx, map(value, range(1, 5))), None, None]
    assert "status 400: too long for my window" in (answers[4][1] or "")
    assert "status 500: gone" in (answers[5][1] or "")
    # one, two, two, two; one refused; three
    assert len(model.requests) == 1 + 2 + 2 + 2 + 1 + 3
    counts = server.take_counts()
    assert (counts["requests"], counts["faults"], counts["tokens"]) == (11.0, 6.0, 4 * sum(TOKENS))


def test_an_endless_reply_scores_nothing_and_is_asked_for_once(url: str, model: Model) -> None:
    model.faults = lambda question, attempt: StreamingResponse(repeat(" " * 2**16))
    ((score, reason),) = RewardServer(judge(url), ServerSettings(retries=2)).score(texts(3))
    assert score is None and "the answer has more than 16777216 bytes. Expected a chat" in (reason or "")
    assert len(model.requests) == 1


def test_a_server_without_response_format_is_answered_with_the_setting(url: str, model: Model) -> None:
    refused = {"error": {"message": "response_format is not supported here"}}
    model.faults = lambda question, attempt: JSONResponse(refused, 400)
    ((_, reason),) = RewardServer(judge(url), ServerSettings(retries=2)).score(texts(1))
    assert "set structured=false" in (reason or "") and len(model.requests) == 1


@pytest.mark.usefixtures("soon")
def test_a_late_reply_is_asked_for_again(url: str, model: Model) -> None:
    model.delay_s = lambda text: 9.0 if len(model.requests) == 1 else 0.0
    server = RewardServer(judge(url), ServerSettings(timeout_s=4.0, retries=1))
    assert server.score(texts(4)) == [(pytest.approx(value(4)), None)]
    model.delay_s = lambda text: 9.0
    impatient = RewardServer(judge(url), ServerSettings(timeout_s=0.3, retries=1))
    ((score, error),) = impatient.score(texts(5))
    assert score is None and "no answer within 0.3 s" in (error or "")


@pytest.mark.parametrize(
    "wrong",
    [
        *("Seven.", '{"score": 7}', '{"reason": "r", "score": 70}', '{"reason": "r", "score": true}', ""),
        *("{" * 50, '{"reason": "r", "score": NaN}', '{"reason": "r", "score": "7"}', '["score"]'),
    ],
)
def test_a_malformed_reply_is_asked_for_again_up_to_a_limit(url: str, model: Model, wrong: str) -> None:
    """The first text is answered at the second question; the second never is, and fails alone."""
    model.faults = lambda text, attempt: (
        reply(wrong, TOKENS) if attempt == 1 or verdict(text)["score"] == 9 else None
    )
    server = RewardServer(judge(url, asks=3))
    answers = server.score(texts(8, 9))
    assert answers[0] == (pytest.approx(value(8)), None)
    assert answers[1][0] is None and "none of 3 replies was as asked for; the last, " in (answers[1][1] or "")
    counts = server.take_counts()
    assert (counts["malformed"], counts["requests"], counts["tokens"]) == (4.0, 5.0, 5 * sum(TOKENS))
    second = model.requests[-1]["messages"]
    assert [message["role"] for message in second] == ["user", "assistant", "user"]
    assert "This was not as asked for: " in second[2]["content"]


def test_words_and_thoughts_around_the_json_are_passed_over() -> None:
    schema = {"type": "object", "required": ["score"]}
    for text in (
        '{"score": 2}',
        'Sure!\n```json\n{"score": 2}\n```\nDone.',
        '<think>{"score": 9} {maybe}</think> {"score": 2}',
        '{"deep": {"score": 1}, "score": 2}',
    ):
        assert as_json(text, schema)["score"] == 2


def test_tokens_and_cost_are_counted_and_what_is_known_costs_nothing(url: str, model: Model) -> None:
    async def twice() -> list[Scored]:
        replica = RewardReplica(judge(url, prices=[2.0, 10.0]), ServerSettings())
        return [await replica.score(texts(2, 3, 2)) for _ in range(2)]

    first, second = asyncio.run(twice())
    assert first.answers == second.answers and (first.num_cached, second.num_cached) == (1, 3)
    # two questions of 100 tokens at 2, and two replies of 10 at 10, for a million each
    assert first.counts == {"requests": 2.0, "tokens": 220.0, "cost": pytest.approx(6e-4)}
    assert second.counts == {} and len(model.requests) == 2


def test_a_known_group_is_not_asked_about_again(url: str, model: Model) -> None:
    async def thrice() -> list[Scored]:
        replica = RewardReplica(judge(url, "judge_group"), ServerSettings())
        batches = [texts(2, 5, group="a"), texts(2, 5, group="b"), texts(2, 6, group="a")]
        return [await replica.score(samples) for samples in batches]

    first, second, third = asyncio.run(thrice())
    assert [scored.num_cached for scored in (first, second, third)] == [0, 2, 0]
    assert first.answers == second.answers == third.answers == [(0.0, None), (1.0, None)]
    assert len(model.requests) == 2


# Before the start


def test_the_key_is_read_from_the_environment_and_shown_nowhere(
    url: str, model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    part = judge(url, key_variable="MY_JUDGE")
    with pytest.raises(InputError, match="key_variable MY_JUDGE: this environment variable is not set"):
        check_at_hand("reward", [part])
    monkeypatch.setenv("MY_JUDGE", f"{KEY}\n")
    check_at_hand("reward", [part])
    server = RewardServer(part)
    assert server.score(texts(3))[0][1] is None and model.keys == [f"Bearer {KEY}"]
    model.faults = lambda text, attempt: JSONResponse({"error": {"message": f"wrong key {KEY}"}}, 401)
    ((score, error),) = server.score(texts(4))
    assert score is None and "refuses, status 401: wrong key ***" in (error or "")
    assert "an environment variable with a key that is accepted: key_variable" in (error or "")
    assert len(model.requests) == 2  # no other attempt would change that
    assert KEY not in repr(server._grader) + str(part) + caplog.text + (error or "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "localhost:1"}, "reward's url localhost:1: expected an address such as"),
        ({"rubric": "nowhere.md"}, "rubric=nowhere.md: can't be read"),
    ],
)
def test_what_is_wrong_shows_before_the_start(url: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_at_hand("reward", [judge(**{"url": url, **options})])


def test_judges_are_tried_before_the_start(url: str, model: Model) -> None:
    judges = [judge(url), judge(url, "judge_group")]
    assert try_apart(judges, [], RewardServersSettings(), MADE_UP) == []
    assert len(model.requests) == 2 + 1  # two texts alone, and both ranked
    model.faults = lambda text, attempt: JSONResponse({"error": {"message": "no such model"}}, 404)
    (warning,) = try_apart(judges[:1], [], RewardServersSettings(), MADE_UP)  # the texts are made up
    assert "status 404: no such model. Expected a base URL up to /v1, and a model that is served" in warning
