"""Whatever a grader does, its server answers with scores and reasons."""

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InputError, RewardError
from contracts.scores import Answer, MetricValue, Sample, Score
from reward_servers.combine import weighted_sum
from reward_servers.local import LocalRewardClient
from reward_servers.part_checks import check_parts, needs_references
from reward_servers.server import MetricServer, RewardServer
from reward_servers.serving.batches import Batches, TooLate
from reward_servers.settings import Part, parts
from reward_servers.user_rewards.own import scoring_of

GRADERS = "tests.reward_servers.graders"


def texts(*values: str) -> list[Sample]:
    return [Sample(value) for value in values]


def test_a_bad_sample_costs_only_itself() -> None:
    answers = RewardServer(Part(name=f"{GRADERS}:Moody", label="moody")).score(
        texts("fine", "raise", "fine", "nan")
    )
    assert [score for score, _ in answers] == [1.0, None, 1.0, None]
    line = 'graders.py, line 41: raise KeyError("no such mood")'
    assert answers[1][1] == f"reward moody: KeyError: 'no such mood' ({line}); the sample: 'raise'"
    assert "reward moody: score() returned nan, which is no finite number" in (answers[3][1] or "")


def test_a_wrong_number_of_scores_is_traced_to_its_sample() -> None:
    answers = RewardServer(Part(name=f"{GRADERS}:Miscounting", label="m")).score(texts("a", "", "b"))
    assert [score for score, _ in answers] == [1.0, None, 1.0]
    assert "returned 0 scores for 1 samples" in (answers[1][1] or "")


def test_a_long_sample_is_shown_shortened() -> None:
    class Refusing:
        def score(self, samples: Sequence[Sample]) -> list[float]:
            raise ValueError("too long")

    server = RewardServer(Part(name="length"))
    server._grader, server._scoring = Refusing(), scoring_of(Refusing())
    ((score, error),) = server.score(texts("x" * 5000))
    assert score is None
    assert len(error or "") < 350


def test_no_samples_give_no_answers() -> None:
    assert RewardServer(Part(name="length")).score([]) == []


def test_metrics_are_checked_as_well() -> None:
    assert MetricServer(Part(name=f"{GRADERS}:Vowels")).compute(texts("aeiou", "xyz")) == {
        "mine/vowels": MetricValue(corpus=5.0, rows=(5.0, 0.0))
    }
    with pytest.raises(
        RewardError, match=r"metric formless: compute\(\) returned a float 1\.0 for 'mine/formless'"
    ):
        MetricServer(Part(name=f"{GRADERS}:Formless", label="formless")).compute(texts("a"))
    with pytest.raises(RewardError, match="no samples"):
        MetricServer(Part(name="length")).compute([])
    with pytest.raises(RewardError, match=r"metric rouge: rouge compares with references"):
        MetricServer(Part(name="rouge")).compute(texts("a"))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("rogue", "did you mean 'rouge'"),
        (
            {"name": "rouge", "rouge_typ": "rouge1"},
            "rouge_typ: there is no such option; did you mean 'rouge_type'",
        ),
        ({"name": "rouge", "rouge_type": "rouge9"}, "rouge_type: got 'rouge9'"),
        ({"name": "increasing_numbers", "min_tokens": "many"}, "min_tokens: got 'many'"),
        ("no_such_module:Mine", "importing no_such_module failed"),
        (f"{GRADERS}:Word", "did you mean 'Words'"),
        (f"{GRADERS}:Vowels", r"lacks score\(samples\)"),
        ({"name": f"{GRADERS}:Words", "factr": 2.0}, "unexpected keyword argument 'factr'"),
    ],
)
def test_wrong_rewards_are_refused_before_anything_starts(entry: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_parts("reward", parts(entry))


def test_a_user_class_is_checked_without_being_made() -> None:
    check_parts("reward", parts(f"{GRADERS}:Unmakeable"))
    with pytest.raises(InputError, match=r"raised FileNotFoundError: my_reward_model\.bin"):
        RewardServer(*parts(f"{GRADERS}:Unmakeable"))


def test_only_rouge_needs_references() -> None:
    assert needs_references("reward", Part(name="rouge")) and needs_references("metric", Part(name="rouge"))
    assert not needs_references("reward", Part(name=f"{GRADERS}:Words"))


def test_the_total_is_the_weighted_sum_and_parts_stay_unweighted() -> None:
    client = LocalRewardClient(parts([{"name": "length", "weight": 0.5}, {"name": "dates", "weight": -2.0}]))
    # 0.5 · 2 words − 2 · one date; 0.5 · 3 words
    assert client.submit(texts("on 2024-01-31", "a b c")).result() == [
        Score(total=-1.0, parts={"length": 2.0, "dates": 1.0}),
        Score(total=1.5, parts={"length": 3.0, "dates": 0.0}),
    ]


def test_a_failed_part_leaves_no_total_and_keeps_the_others() -> None:
    (score,) = weighted_sum(parts(["length", "dates"]), [[(2.0, None)], [(None, "broken")]])
    assert score == Score(total=None, parts={"length": 2.0}, error="broken")


class Recorder:
    """Answers with the length of each text, and notes the batches; waits for the gate to open."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.gate = threading.Event()

    def score(self, samples: Sequence[Sample]) -> list[Answer]:
        self.gate.wait(10)
        self.batches.append(len(samples))
        return [(float(len(sample.text)), None) for sample in samples]


def test_calls_that_come_meanwhile_make_up_the_next_batch() -> None:
    async def scenario() -> Recorder:
        recorder = Recorder()
        batches = Batches(recorder.score, batch_size=4)
        calls = [asyncio.create_task(batches.score(texts("x"))) for _ in range(1)]
        await asyncio.sleep(0.05)  # the first call is being scored now
        assert batches.busy_s > 0
        calls += [asyncio.create_task(batches.score(texts("x"))) for _ in range(6)]
        await asyncio.sleep(0.05)
        recorder.gate.set()
        await asyncio.gather(*calls)
        assert batches.busy_s == 0
        return recorder

    assert asyncio.run(scenario()).batches == [1, 4, 2]  # nobody waited for company, six calls shared two


def test_a_call_given_up_while_it_waits_is_not_scored() -> None:
    async def scenario() -> Recorder:
        recorder = Recorder()
        batches = Batches(recorder.score, batch_size=4)
        first, second = (asyncio.create_task(batches.score(texts("x"))) for _ in range(2))
        third = asyncio.create_task(batches.score(texts("x", "y")))
        await asyncio.sleep(0.05)
        later = asyncio.create_task(batches.score(texts("a", "b", "c")))
        await asyncio.sleep(0.05)
        later.cancel()
        recorder.gate.set()
        await asyncio.gather(first, second, third)
        await asyncio.sleep(0.05)
        return recorder

    assert sum(asyncio.run(scenario()).batches) == 4


def test_a_group_has_its_time_from_its_own_beginning_on_and_a_late_one_delays_no_other_for_good() -> None:
    def score(samples: Sequence[Sample]) -> list[Answer]:
        time.sleep(4.0 if samples[0].text == "slow" else 0.5)
        return [(1.0, None) for _ in samples]

    async def scenario() -> list[list[Answer] | BaseException]:
        batches = Batches(score, None, timeout_s=2.4)
        calls = [texts("x", "y")] * 5 + [texts("slow", "y")] + [texts("x")]  # the last begins after 6.5 s
        return await asyncio.gather(*map(batches.score, calls), return_exceptions=True)

    *first, late, last = asyncio.run(scenario())
    assert first == [[(1.0, None)] * 2] * 5 and last == [(1.0, None)]
    assert isinstance(late, TooLate)


@given(st.lists(st.lists(st.text(max_size=5), min_size=1, max_size=9), max_size=8), st.integers(1, 6))
def test_batching_changes_no_answer(calls: list[list[str]], batch_size: int) -> None:
    async def scenario() -> list[list[Answer]]:
        recorder = Recorder()
        recorder.gate.set()
        batches = Batches(recorder.score, batch_size)
        answers = await asyncio.gather(*(batches.score(texts(*call)) for call in calls))
        assert all(size <= batch_size for size in recorder.batches)
        return answers

    expected = [[(float(len(text)), None) for text in call] for call in calls]
    assert asyncio.run(scenario()) == expected


def test_a_grader_may_find_answers_to_vote_on() -> None:
    server = RewardServer(Part(name="tests.reward_servers.graders:LastNumber"))
    assert server.answers(["so it is 42", "I do not know", "raise", "7 or 8"]) == ["42", None, None, "8"]
    assert RewardServer(Part(name="length")).answers(["42"]) is None
    assert RewardServer(Part(name="tests.reward_servers.graders:AnswersElse")).answers(["42"]) is None


def test_what_is_compared_as_a_whole_is_its_own_answer() -> None:
    texts_of = [" The Hague. ", "the  hague", " "]
    exact = RewardServer(Part(name="exact_match"))
    assert exact.answers(texts_of) == ["The Hague.", "the  hague", None]
    loose = MetricServer(Part(name="exact_match", options={"normalize": True}))
    assert loose.answers(texts_of) == ["hague", "hague", None]
