"""The built-in metrics: RL4LMs' keys, and the mean of what the rewards give."""

import pytest

from contracts.components import create
from contracts.scores import Metric, MetricValue, Sample
from reward_servers.metrics import METRICS
from reward_servers.metrics.increasing_numbers import IncreasingNumbers
from reward_servers.metrics.rouge import Rouge
from reward_servers.rewards.rouge import Rouge as RougeReward


@pytest.mark.parametrize(
    ("name", "key", "rows"),
    [
        ("increasing_numbers", "synthetic/increasing_numbers_in_text", (0.3, 0.0)),  # 3 over 20 / 2
        ("dates", "synthetic/dates_in_text", (0.0, 1.0)),
        ("length", "length/mean_words", (3.0, 2.0)),
        ("sentiment", "semantic/sentiment", (0.5, 0.5)),
    ],
)
def test_corpus_value_is_the_mean_of_the_rows(name: str, key: str, rows: tuple[float, float]) -> None:
    metric = create("metric", name, {}, METRICS, Metric)
    values = metric.compute([Sample("1 2 3"), Sample("on 2024-01-31")])
    assert values == {key: MetricValue(corpus=pytest.approx(sum(rows) / 2), rows=rows)}


def test_increasing_numbers_takes_its_option() -> None:
    (value,) = IncreasingNumbers(min_tokens=4).compute([Sample("1 2 3 x")]).values()
    assert value.corpus == 0.75


def test_rouge_gives_all_four_kinds_as_the_reward_does() -> None:
    samples = [Sample("the cat sat", references=("the cat lay down",)), Sample("a", references=("b", "a"))]
    values = Rouge().compute(samples)
    assert list(values) == [f"lexical/rouge_rouge{kind}" for kind in ("1", "2", "L", "Lsum")]
    for kind in ("rouge1", "rouge2", "rougeL", "rougeLsum"):
        assert list(values[f"lexical/rouge_{kind}"].rows) == RougeReward(rouge_type=kind).score(samples)
    assert values["lexical/rouge_rouge1"].corpus == pytest.approx((4 / 7 + 1) / 2)
    assert Rouge(references="first").compute(samples)["lexical/rouge_rouge1"].rows[1] == 0.0
