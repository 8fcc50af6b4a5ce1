"""Metrics that take the split's name or the model, numbers by hand."""

from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError, RewardError
from contracts.rollout import Sampling
from contracts.scores import MetricValue, Sample
from reward_servers.by_part import ONE_TASK, ByPart
from reward_servers.evaluated_metrics import evaluated_metrics, served_metrics
from reward_servers.settings import Part, parts
from reward_servers.user_rewards.own import check_grader, find_grader, wanted_of
from services.data.tokens.prompt_tokens import PromptTokens
from services.inference.grading.served import chosen
from services.inference.grading.values import find_grader as scored
from services.training.loop.evaluations.evaluated_metrics import EvaluatedMetrics
from services.training.loop.evaluations.evaluated_model import EvaluatedModel
from tests.fakes import FakeRewards, FakeWorkers, WordTokens

HERE = __name__
SAMPLES = [Sample("bc", "a"), Sample("d", "ab")]


class Confidence:
    """Mean log-probability of the tokens after the first."""

    def compute(self, samples: list[Sample], model: EvaluatedModel) -> dict[str, MetricValue]:
        scored = model.logprobs([sample.prompt + sample.text for sample in samples])
        rows = tuple(sum(row) / len(row) for row in scored)
        return {"mine/confidence": MetricValue(sum(rows) / len(rows), rows)}


class Both:
    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def compute(self, samples: list[Sample], split: str, *, model: EvaluatedModel) -> dict[str, MetricValue]:
        texts = model.generate([sample.prompt for sample in samples])
        value = self.scale * len({"validation": "four", "test": "xx"}[split]) + len(texts)
        return {"length/mean": MetricValue(value)}


class Plain:
    """Its arguments have defaults, so they are options of its own."""

    def compute(self, samples: list[Sample], model: str = "gpt2") -> dict[str, MetricValue]:
        return {f"mine/{model}": MetricValue(1.0)}


class Wrong:
    def compute(self, samples: list[Sample], policy: Any) -> dict[str, MetricValue]: ...


def of_split(samples: list[Sample], split: str, scale: float = 1.0) -> dict[str, MetricValue]:
    return {"mine/split": MetricValue(scale * len(split))}


class Letters(WordTokens):
    """Tokens are the numbers of the letters."""

    def __call__(self, text: str, add_special_tokens: bool = False) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) - ord("a") for letter in text]}


def model(workers: Any, window: int | None = 9, plays: bool = False) -> EvaluatedModel:
    return EvaluatedModel(
        Letters(), workers, PromptTokens(WordTokens()), Sampling(max_tokens=4), 0, window, plays
    )


def computed(*metrics: str | dict[str, Any], split: str = "test", by_part: ByPart = ONE_TASK) -> Any:
    client = EvaluatedMetrics(parts(list(metrics), "metric"), by_part, model)
    return client.beside(FakeRewards(), split, FakeWorkers([])).compute_metrics(SAMPLES)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("Confidence", ("model",)),
        ("Both", ("split", "model")),
        ("Plain", ()),
        ("of_split", ("split",)),
    ],
)
def test_arguments_without_a_default_are_wanted(name: str, wanted: tuple[str, ...]) -> None:
    part = Part(name=f"{HERE}:{name}")
    check_grader("metric", part.name, find_grader("metric", part.name))
    assert wanted_of(part.name) == wanted
    assert served_metrics([part]) == (() if wanted else (part,))
    assert evaluated_metrics([part]) == ((part,) if wanted else ())


def test_the_models_log_probabilities_are_a_metrics() -> None:
    """The fake policy gives token n the log-probability -n/4: abc has -1/4 and -2/4, abd -1/4 and -3/4."""
    values = computed(f"{HERE}:Confidence")
    assert values["mine/confidence"] == MetricValue(-0.4375, (-0.375, -0.5))
    assert values["corpus/only"] == MetricValue(0.5)  # those that are served stand beside


def test_a_metric_reads_the_split_and_makes_texts() -> None:
    both = {"name": f"{HERE}:Both", "scale": 3.0}
    assert computed(both)["length/mean/Both"].corpus == 3.0 * 2 + 2  # a served metric has that key
    assert computed(both, split="validation")["length/mean/Both"].corpus == 3.0 * 4 + 2


def test_a_function_has_its_options() -> None:
    assert computed({"name": f"{HERE}:of_split", "scale": 2.0})["mine/split"].corpus == 8.0


def test_a_metric_of_one_part_measures_that_part_alone() -> None:
    by_part = ByPart(metrics={"easy": ("of_split",), "hard": ()})
    assert "mine/split" not in computed(f"{HERE}:of_split", by_part=by_part)


@pytest.mark.parametrize(
    ("texts", "window", "message"),
    [
        (["a"], 9, r"'a' has 1 tokens; expected 2 to 9"),
        (["ab", "abc"], 2, r"'abc' has 3 tokens; expected 2 to 2"),
        (["ab"], None, r"an encoder-decoder can.t score a text alone"),
    ],
)
def test_texts_that_have_no_log_probabilities_are_named(texts: list[str], window: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        model(FakeWorkers([]), window).logprobs(texts)


def test_a_model_that_plays_generates_no_texts() -> None:
    with pytest.raises(InputError, match="this model plays an environment"):
        model(FakeWorkers([]), plays=True).generate(["a"])


def test_other_arguments_are_refused() -> None:
    with pytest.raises(InputError, match=r"got Wrong.compute\(self, samples, policy\); expected compute"):
        check_grader("metric", f"{HERE}:Wrong", Wrong)


def test_what_has_no_model_refuses_it(tmp_path: Path) -> None:
    expected = r"takes split and model, which only the evaluation of a model has; expected compute\(samples\)"
    with pytest.raises(InputError, match=expected):
        chosen([f"{HERE}:Both"])
    with pytest.raises(InputError, match=expected):
        scored(f"{HERE}:Both", {}, as_reward=False)


def test_what_a_metric_raises_is_its_error() -> None:
    with pytest.raises(RewardError, match=r"metric Both: KeyError: 'train'"):
        computed(f"{HERE}:Both", split="train")
