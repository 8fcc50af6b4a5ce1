"""Rewards of the text so far: words and lines earn a score's gains."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InputError
from contracts.scores import Grade, Sample
from reward_servers.server import RewardServer
from reward_servers.settings import Part
from reward_servers.user_rewards.prefixes import ends
from reward_servers.user_rewards.trial import MADE_UP

HERE = "tests.reward_servers.test_prefixes"


class Sevens:
    """The share of sevens among the words so far."""

    scores = "words"

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [sample.text.split().count("7") / max(1, len(sample.text.split())) for sample in samples]


def lines(completions: Sequence[str]) -> list[Any]:
    return [{"score": text.count("\n"), "comment": f"{len(text)} characters"} for text in completions]


lines.scores = "lines"  # type: ignore[attr-defined]


async def waits(completions: Sequence[str]) -> list[float | None]:
    await asyncio.sleep(0)
    return [None if text.endswith("?") else float(len(text)) for text in completions]


waits.scores = "words"  # type: ignore[attr-defined]


def spans(completions: Sequence[str]) -> list[Any]:
    return [[(0, 1, 1.0)] for _ in completions]


spans.scores = "words"  # type: ignore[attr-defined]


def of_pages(completions: Sequence[str]) -> list[float]:
    return [0.0 for _ in completions]


of_pages.scores = "pages"  # type: ignore[attr-defined]


def answers(name: str, *texts: str) -> list[Any]:
    server = RewardServer(Part(name=f"{HERE}:{name}"))
    return server.score([Sample(text, num_tokens=9) for text in texts])


def test_each_word_earns_its_gain() -> None:
    # after 7: 1; after 7 3: ½; after 7 3 7 7: ¾
    (first, why), (second, _) = answers("Sevens", "7 3  7 7 ", "")
    assert why is None
    assert first.score == ((0, 1, 1.0), (1, 3, -0.5), (3, 6, 2 / 3 - 0.5), (6, 9, 0.75 - 2 / 3))
    assert second == Grade(0.0) or second == 0.0


def test_each_line_earns_its_gain_and_the_record_is_the_whole_texts() -> None:
    ((grade, _),) = answers("lines", "a\n\nb\n")
    assert grade == Grade(((0, 1, 0.0), (1, 5, 3.0)), comment="5 characters")


def test_a_coroutine_may_say_nothing_of_a_beginning() -> None:
    ((grade, _),) = answers("waits", "So? Yes")
    assert grade.score == ((0, 3, 0.0), (3, 7, 7.0))


def test_a_list_for_the_text_so_far_is_refused_before_anything_depends_on_it() -> None:
    verdict = RewardServer(Part(name=f"{HERE}:spans")).try_out(MADE_UP)
    assert "score() returned a list for the text so far; expected a number" in verdict.refusal


def test_another_unit_is_refused_by_name() -> None:
    expected = "got 'pages'; expected one of 'samples', 'groups', 'words', 'lines'"
    with pytest.raises(InputError, match=expected):
        RewardServer(Part(name=f"{HERE}:of_pages"))


def test_seeing_beginnings_is_no_reading_of_the_group() -> None:
    server = RewardServer(Part(name=f"{HERE}:Sevens"))
    server.score([Sample("7 3", group="train/1")])
    assert not server.reads_groups


@given(st.text(alphabet="7 3\n", max_size=12), st.sampled_from(["words", "lines"]))
def test_all_gains_together_are_the_score_of_the_whole_text(text: str, unit: Any) -> None:
    places = ends(text, unit)
    assert places == sorted(set(places)) and places[-1] == len(text)
    ((score, _),) = RewardServer(Part(name=f"{HERE}:Sevens")).score([Sample(text)])
    total = score.total if isinstance(score, Grade) else score
    assert total == pytest.approx(Sevens().score([Sample(text)])[0])
