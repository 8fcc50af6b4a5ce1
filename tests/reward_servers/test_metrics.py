"""The built-in metrics: RL4LMs' keys, and means of the rewards."""

import pytest

from contracts.components import create
from contracts.scores import Metric, MetricValue, Sample
from reward_servers.graders import METRICS
from reward_servers.graders.distinct_n import DistinctN
from reward_servers.graders.increasing_numbers import IncreasingNumbers
from reward_servers.graders.length import Length
from reward_servers.graders.rouge import Rouge


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
        assert list(values[f"lexical/rouge_{kind}"].rows) == Rouge(rouge_type=kind).score(samples)
    assert values["lexical/rouge_rouge1"].corpus == pytest.approx((4 / 7 + 1) / 2)
    assert Rouge(references="first").compute(samples)["lexical/rouge_rouge1"].rows[1] == 0.0


def test_an_option_of_the_reward_holds_for_the_metric() -> None:
    samples = [Sample("the cat sat", references=("the cat lay down",))]
    assert list(Rouge(rouge_type="rouge1").compute(samples)) == ["lexical/rouge_rouge1"]
    assert list(DistinctN(n=4).compute(samples)) == ["lexical/distinct-4"]
    # Three words of the six wanted: 1 - 3/6
    assert Length(target=6).compute(samples) == {"length/closeness_to_target": MetricValue(0.5, (0.5,))}


def test_a_reward_reads_both_variants_of_distinct_n() -> None:
    # "A a a": of lower-cased words 1 of 3 differs; with their case 2 of 3.
    assert DistinctN(n=1).score([Sample("A a a")]) == [pytest.approx(1 / 3)]
    assert DistinctN(n=1, variant="distinctness").score([Sample("A a a")]) == [pytest.approx(2 / 3)]
