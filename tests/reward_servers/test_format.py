"""Rewards for a text's form and length: format, overlong, repetition."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.components import create
from contracts.errors import InputError
from contracts.rollout import FinishReason, Prompt, Rollout, Turn
from contracts.scores import Reward, Sample
from reward_servers.graders import REWARDS
from reward_servers.graders.format import Format
from reward_servers.graders.overlong import Overlong, penalty
from reward_servers.graders.repetition import Repetition
from reward_servers.isolation.confined import Limits
from services.config.reward_view import Judging

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
}


def scores(reward: Format, *texts: str) -> list[float]:
    return list(reward.score([Sample(text) for text in texts]))


def test_a_pattern_has_to_fit_the_whole_text() -> None:
    assert scores(Format(pattern=r"Answer: \d+\."), "Answer: 42.", "So: Answer: 42.", "") == [1.0, 0.0, 0.0]


def test_tags_come_once_closed_and_in_order() -> None:
    texts = (
        "<think>2 + 2</think>\n<answer>4</answer>",
        "Well: <think>a</think> so <answer>b</answer>.",
        "<answer>4</answer><think>2 + 2</think>",
        "<think>a</think><answer>b</answer><answer>c</answer>",
        "<think>a <answer>b</answer></think>",
        "<think>a</think><answer>b",
    )
    tags = ("think", "answer")
    assert scores(Format(tags=tags), *texts) == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert scores(Format(tags=tags, nothing_else=True), *texts[:2]) == [1.0, 0.0]


def test_a_text_may_begin_in_the_thought_that_its_prompt_opened() -> None:
    begun, whole = "2 + 2\n</think>\n<answer>4</answer>", "<think>2 + 2</think>\n<answer>4</answer>"
    texts = (begun, whole, "2 + 2 <answer>4</answer>")
    by_tags = Format(tags=("think", "answer"))
    by_pattern = Format(pattern=r"<think>.*</think>\s*<answer>.*</answer>")
    assert scores(by_tags, *texts) == [1.0, 1.0, 0.0]  # the template is not known
    for opened, expected in (("<think>", [1.0, 1.0, 0.0]), ("", [0.0, 1.0, 0.0])):
        samples = [Sample(text, opened=opened) for text in texts]
        assert by_tags.score(samples) == by_pattern.score(samples) == expected
    assert by_tags.score([Sample(begun, prompt="2 + 2? <think>")]) == [1.0]
    assert scores(Format(tags=("plan", "answer")), "2 + 2</plan><answer>4</answer>") == [
        0.0
    ]  # no thought's mark


def test_json_stands_behind_the_thought() -> None:
    texts = ('<think>{"answer": "no"}</think>\n{"answer": 4}', '<think>{"answer": 4}')
    assert scores(Format(json_schema=SCHEMA), *texts) == [1.0, 0.0]


def test_json_has_to_fit_its_schema(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    texts = ('{"answer": 4}', '```json\n{"answer": 4}\n```', '{"answer": "4"}', "4", "NaN", "[" * 100_000)
    for schema in (SCHEMA, str(file)):
        assert scores(Format(json_schema=schema), *texts) == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    inside = Format(json_schema=SCHEMA, json_tag="answer")
    assert scores(inside, '<answer>{"answer": 4}</answer>', '{"answer": 4}') == [1.0, 0.0]


def test_partial_counts_the_rules_that_are_kept() -> None:
    reward = Format(tags=("a",), pattern=".*!", partial=True)
    assert scores(reward, "<a>x</a>!", "<a>x</a>", "no") == [1.0, 0.5, 0.0]


def test_a_pattern_that_never_ends_costs_its_text_alone() -> None:
    reward = Format(pattern=r"(a+)+b", limits=Limits(seconds=1.0))
    scores(reward, "ab")
    began = time.monotonic()
    assert scores(reward, "ab", "a" * 60, "aab") == [1.0, 0.0, 1.0]
    assert time.monotonic() - began < 15


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "expected a pattern, tags or a json_schema"),
        ({"pattern": "("}, "no regular expression"),
        ({"json_schema": {"type": "nothing"}}, "no JSON schema"),
        ({"json_schema": "nowhere.json"}, "nowhere.json can't be read"),
    ],
)
def test_wrong_rules_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        create("reward", "format", options, REWARDS, Reward)


def test_dapos_penalty_by_hand() -> None:
    """DAPO: L_max 20480, of which the last 4096 are the cache, so that it begins after 16384 tokens."""
    counts = (1, 16_384, 16_385, 18_432, 20_480, 30_000)
    penalties = [penalty(count, max_tokens=20_480, buffer=4_096) for count in counts]
    assert penalties == [0.0, 0.0, -1 / 4096, -0.5, -1.0, -1.0]


def test_overlong_counts_the_tokens_that_the_model_generated() -> None:
    turn = Turn((1,), (7,) * 9, "short text", (0.0,) * 9, (0,) * 9)
    rollout = Rollout(0, 0, Prompt("p/0", "Hi"), (turn,), FinishReason.STOP)
    (sample,) = Judging().samples(rollout)
    assert sample.num_tokens == 9
    assert Overlong(max_tokens=10, buffer=4).score([sample]) == [-0.75]
    with pytest.raises(InputError, match=r"reward\.tokenizer"):
        Overlong(max_tokens=10, buffer=4).score([Sample("short text")])


def test_repetition_by_hand() -> None:
    texts = ("a b c d e", "a b a b a b", "A b a B", "a")
    # n = 2: all differ; ab ba ab ba ab has 2 of 5; ab ba ab has 2 of 3; none
    expected = [0.0, -3 / 5, -1 / 3, 0.0]
    assert Repetition(n=2).score([Sample(text) for text in texts]) == [
        pytest.approx(share) for share in expected
    ]


@given(st.text(alphabet="ab ", max_size=60), st.integers(1, 4))
def test_repetition_is_a_share(text: str, n: int) -> None:
    assert -1.0 < Repetition(n=n).score([Sample(text)])[0] <= 0.0
