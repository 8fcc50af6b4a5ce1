"""A run's settings: defaults, what follows from what, and that they survive being written down."""

import json
import pickle
from typing import Any, ClassVar

import pytest
import yaml

from contracts.errors import InputError
from contracts.rollout import Prompt, Sampling
from contracts.settings import build
from learner.algorithms import ALGORITHMS, SYNONYMS
from learner.algorithms.ppo import PPO
from services.config.compose import compose
from services.config.reward_view import Judging
from services.config.settings import RunSettings
from services.data.tasks.base import Split
from tests.services.countdown import COUNTDOWN, Countdown


class Echo:
    """A task of a user's own that is no settings class."""

    default_reward: ClassVar[str | None] = None
    default_metrics: ClassVar[tuple[str, ...]] = ()

    def __init__(self, text: str) -> None:
        self.text = text

    def prompts(self, split: Split) -> list[Prompt]:
        return [Prompt(f"echo/{split}/0", self.text)]


ECHO = {"name": f"{__name__}:Echo", "text": "hello"}


def settings(**sections: Any) -> RunSettings:
    whole = {"algorithm": "ppo", "task": "increasing_numbers", "model": {"path": "m"}, **sections}
    return build(RunSettings, whole, where="")


def test_components_are_made_and_named() -> None:
    run = settings(algorithm={"name": "ppo", "clip_range": 0.1}, seed=3)
    assert run.algorithm == PPO(clip_range=0.1)
    assert (run.algorithm_name, run.task_name) == ("ppo", "increasing_numbers")
    assert run.run_name == "increasing_numbers-ppo-seed3"
    assert settings(run_name="mine").run_name == "mine"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            (
                {"evaluate_every": value},
                f"^evaluate_every: got {shown}; expected a number of iterations, 0, or never$",
            )
            for value, shown in (
                *((-1, "-1"), ("no", "'no'"), (False, "'no'"), (True, "'yes'"), (None, "None")),
                *((0.5, "0.5"), ("Never", "'Never'"), ([], r"\[\]")),
            )
        ),
        (
            {"evaluate_every": "never", "keep_best": "val/loss"},
            "got evaluate_every=never and keep_best=val/loss",
        ),
        (
            {"evaluate_every": "never", "data": {"folder": "d", "num_epochs": 1, "evaluations_per_epoch": 2}},
            "got evaluate_every=never and data.evaluations_per_epoch=2",
        ),
    ],
)
def test_evaluations_are_counted_in_iterations_or_never_made(options: dict[str, Any], message: str) -> None:
    assert settings().evaluated_splits == ("validation", "test")
    assert settings(evaluate_every=0).evaluated_splits == ("validation", "test")
    assert settings(evaluate_every="never").evaluated_splits == ()
    with pytest.raises(InputError, match=message):
        settings(**options)


def test_reward_and_metrics_are_the_tasks_own_unless_given() -> None:
    assert [part.name for part in settings().reward] == ["increasing_numbers"]
    assert [part.name for part in settings().metrics] == ["increasing_numbers", "length"]
    assert [part.name for part in settings(reward="length", metrics="rouge").metrics] == ["rouge"]
    assert settings(metrics=[]).metrics == ()


def test_a_task_without_a_reward_of_its_own_asks_for_one() -> None:
    with pytest.raises(InputError, match="reward: this task has no default reward"):
        settings(task=ECHO)
    assert settings(task=ECHO, reward="length").reward[0].name == "length"


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"algorithm": {"name": "ppo", "kl": {"target": 0.5}}, "rollout": {"stop": ["\n"]}},
        {"reward": [{"name": "rouge", "weight": 0.5, "rouge_type": "rouge1"}, "length"], "metrics": []},
        {"reward_servers": {"default": {"timeout_s": 5.0}, "length": {"replicas": 2}}},
        {"task": ECHO, "reward": "length"},
        {"environment": {"name": COUNTDOWN, "start": 5, "memory": 2}, "reward": []},
        {"environment": COUNTDOWN, "reward": "length"},
    ],
)
def test_written_down_and_read_back_they_are_the_same(sections: dict[str, Any]) -> None:
    run = settings(**sections)
    plain = json.loads(json.dumps(run.resolved()))
    again = build(RunSettings, yaml.safe_load(yaml.safe_dump(plain)), where="")
    assert json.loads(json.dumps(again.resolved())) == plain
    assert again.rollout == run.rollout and again.reward == run.reward
    assert again.reward_servers.for_label("length") == run.reward_servers.for_label("length")


def test_the_resolved_configuration_holds_every_default() -> None:
    resolved = settings().resolved()
    assert resolved["algorithm"]["gae_lambda"] == 0.95
    assert resolved["task"]["below"] == 50
    assert resolved["rollout"]["temperature"] == 1.0
    assert resolved["run_name"] == "increasing_numbers-ppo-seed0"


def test_they_travel_to_another_process() -> None:
    run = settings(seed=3)
    assert pickle.loads(pickle.dumps(run)).resolved() == run.resolved()


def test_evaluation_samples_as_training_does_but_for_what_it_says() -> None:
    run = settings(rollout={"max_tokens": 9, "temperature": 0.7}, evaluation={"temperature": 0.0})
    assert run.sampling() == Sampling(max_tokens=9, temperature=0.7)
    assert run.sampling(evaluating=True) == Sampling(max_tokens=9, temperature=0.0)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"rollout": {"min_tokens": 8}, "evaluation": {"max_tokens": 4}},
            "min_tokens=8 exceeds max_tokens=4",
        ),
        (
            {"algorithm": "gspo", "learner": {"mismatch": {"mask_above": 5.0}}},
            "algorithm=gspo has one ratio for a whole response",
        ),
        (
            {"algorithm": {"name": "ppo", "kl": {"controller": "ziegler", "target": 6.0, "horizon": 12}}},
            "horizon=12 with 64 rollouts an iteration",
        ),
        ({"reward": ["length", "length"]}, "both labelled 'length'"),
        ({"reward_servers": {"rouge": {"replicas": 2}}}, "no reward or metric has this label"),
        ({"algorithm": 3}, "algorithm: got 3; expected a name"),
        ({"model": {}}, "model.path: is required"),
        ({"seed": -1}, "seed: got -1"),
        ({"resume": "always"}, "resume: got 'always'"),
    ],
)
def test_what_does_not_fit_together_is_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        settings(**sections)
    assert message in str(caught.value)


def test_an_incomplete_configuration_names_what_is_missing() -> None:
    with pytest.raises(InputError) as caught:
        build(RunSettings, {"model": {"path": "m"}}, where="")
    assert "algorithm: is required" in str(caught.value) and "task: is required" in str(caught.value)


def test_texts_go_on_behind_their_end_in_training_alone_and_where_nothing_waits_for_it() -> None:
    run = settings(rollout={"ignore_eos": True})
    assert run.sampling().ignore_eos and not run.sampling(evaluating=True).ignore_eos
    with pytest.raises(InputError, match=r"answers at the end .* expected false"):
        settings(task=ECHO, environment=COUNTDOWN, rollout={"ignore_eos": True})
    with pytest.raises(InputError, match=r"algorithm\.filter_truncated=true leaves out texts"):
        settings(algorithm={"name": "grpo", "filter_truncated": True}, rollout={"ignore_eos": True})


def test_settings_stay_as_they_are() -> None:
    with pytest.raises(ValueError, match="frozen"):
        settings().seed = 5  # type: ignore[misc]


def test_algorithms_that_compare_responses_take_eight_of_each_prompt() -> None:
    assert settings().group_size == 1
    assert settings(algorithm="grpo").group_size == 8
    assert settings(algorithm="rloo", rollout={"group_size": 3}).group_size == 3


@pytest.mark.parametrize(("theirs", "ours"), SYNONYMS.items())
def test_other_trainers_names_are_understood(theirs: str, ours: str) -> None:
    reference = {"path": "some/teacher"} if ours == "distillation" else {}
    run = settings(algorithm=theirs, model={"path": "m", "reference": reference})
    assert run.algorithm_name == ours and run.run_name == f"increasing_numbers-{ours}-seed0"
    assert run.resolved()["algorithm"]["name"] == ours
    overrides = ["task=increasing_numbers", "model.path=m", "model.reference.path=t"][: 3 if reference else 2]
    assert compose([f"algorithm={theirs}", *overrides])["algorithm"] == {"name": ours}


def test_no_name_of_ours_is_taken() -> None:
    assert not SYNONYMS.keys() & ALGORITHMS.keys() and set(SYNONYMS.values()) <= ALGORITHMS.keys()


def test_only_nlpo_samples_within_a_mask_and_only_in_training() -> None:
    assert not settings().sampling().masked
    nlpo = settings(algorithm="nlpo")
    assert (nlpo.sampling().masked, nlpo.sampling(evaluating=True).masked) == (True, False)
    run = settings(algorithm="nlpo", evaluation={"masked": True})
    assert run.sampling(evaluating=True).masked


def test_evaluations_penalise_repetition_as_rollouts_do_or_by_their_own_number() -> None:
    run = settings(evaluation={"repetition_penalty": 2.5})
    assert run.sampling().repetition_penalty == 1.0
    assert run.sampling(evaluating=True).repetition_penalty == 2.5
    run = settings(rollout={"repetition_penalty": 1.3})
    assert run.sampling().repetition_penalty == run.sampling(evaluating=True).repetition_penalty == 1.3
    with pytest.raises(InputError, match=r"evaluation\.repetition_penalty: got 0"):
        settings(evaluation={"repetition_penalty": 0.0})


def test_a_reference_in_frozen_layers_allows_no_dropout() -> None:
    """Layers that only imitation reads may drop out; the refusal names both options."""
    model = {"path": "some/model", "trainable_layers": 2, "dropout": True}
    assert settings(algorithm="supervised", model=model).model.dropout
    with pytest.raises(InputError, match=r"model\.dropout=true with model\.trainable_layers=2"):
        settings(algorithm="ppo", model=model)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"algorithm": "grpo", "rollout": {"group_size": 1}},
            "algorithm=grpo measures a response against the others of its prompt: got rollout.group_size=1",
        ),
        (
            {"algorithm": "dapo", "rollout": {"max_staleness": 1}},
            "got rollout.max_staleness=1, expected 0, or rollout.order=finished, or algorithm.max_refills=0",
        ),
        ({"algorithm": "distillation"}, "algorithm=distillation learns from a teacher: expected model.ref"),
        (
            {"algorithm": "supervised", "model": {"path": "m", "reference": {"path": "n"}}},
            "algorithm=supervised uses no reference model in training: got model.reference.path=n",
        ),
        ({"model": {"path": "m", "reference": {"revision": "v1"}}}, "got revision=v1 without a path"),
        ({"evaluation": {"masked": True}}, "algorithm=ppo has none"),
        ({"evaluation": {"num_beams": 4}}, "expected evaluation.temperature=0 with it"),
        ({"algorithm": {"name": "nlpo", "top_p": 1.5}}, "algorithm.top_p: got 1.5"),
        ({"algorithm": {"name": "nlpo", "top_k": 5}}, "the mask needs exactly one of them"),
        (
            {"algorithm": {"name": "ppo", "kl": {"estimator": "forward"}}},
            "expected placement=loss with it",
        ),
    ],
)
def test_combinations_that_make_no_sense_are_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        settings(**sections)
    assert message in str(caught.value)


# Environments


def test_an_environment_is_a_component_and_one_turn_is_the_default() -> None:
    plain = settings()
    assert (plain.environment_name, plain.plays, plain.judging) == ("single_turn", False, Judging())
    assert plain.resolved()["environment"]["name"] == "single_turn"
    run = settings(environment={"name": COUNTDOWN, "max_turns": 30, "memory": 2})
    assert run.environment == Countdown(max_turns=30, memory=2, template="plain")  # the task is raw text
    assert (run.environment_name, run.plays) == (COUNTDOWN, True)
    assert run.run_name == "increasing_numbers-ppo-seed0"


def test_an_environment_that_rewards_by_itself_needs_no_other_reward() -> None:
    assert settings(task=ECHO, environment=COUNTDOWN).reward == ()
    assert settings(environment=COUNTDOWN, reward=[]).reward == ()
    alone = settings(task=ECHO, environment=COUNTDOWN).judging
    assert alone == Judging(at="never", environment=COUNTDOWN, rewards_itself=True)
    both = settings(reward="length", environment={"name": COUNTDOWN, "reward_at": "turn"})
    assert both.judging == Judging(at="turn", environment=COUNTDOWN, rewards_itself=True)
    with pytest.raises(InputError, match="reward: this task has no default reward"):
        settings(task=ECHO, reward=[])
    with pytest.raises(InputError, match=r"reward: got \[\]; .* take the task's, increasing_numbers"):
        settings(reward=[])


def test_examples_by_chance_are_for_training_and_only_the_model_plays() -> None:
    run = settings(environment={"name": COUNTDOWN, "example_rate": 0.25})
    assert (run.sampling().example_rate, run.sampling(evaluating=True).example_rate) == (0.25, 0.0)
    for trained in (run, settings(algorithm="supervised", environment=COUNTDOWN)):
        assert {trained.sampling().player, trained.sampling(evaluating=True).player} == {"model"}


def test_imitation_in_an_environment_learns_from_experts() -> None:
    assert settings(algorithm="supervised", environment=COUNTDOWN).plays_experts
    assert not settings(algorithm="supervised").plays_experts
    assert not settings(environment=COUNTDOWN).plays_experts


class Dumb(Countdown):
    """An environment that knows neither valid actions nor an expert."""

    has_baselines: ClassVar[bool] = False


DUMB = f"{__name__}:Dumb"


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"environment": "textwordl"}, "no such environment; did you mean 'textworld'?"),
        ({"environment": {"name": COUNTDOWN, "memry": 2}}, "environment.memry: there is no such option"),
        ({"environment": {"name": "json:JSONDecoder"}}, "JSONDecoder is no environment: it lacks make()"),
        ({"environment": {"name": COUNTDOWN, "memory": -1}}, "environment.memory: got -1"),
        (
            {"environment": COUNTDOWN, "evaluation": {"num_beams": 4, "temperature": 0.0}},
            "got evaluation.num_beams=4; expected 1",
        ),
        ({"environment": {"name": DUMB, "example_rate": 0.5}}, "does not say which answers are valid"),
        ({"environment": DUMB, "algorithm": "supervised"}, "this environment has no expert"),
        (
            {"environment": COUNTDOWN, "algorithm": {"name": "supervised", "loss_on": "text"}},
            "expected algorithm.loss_on=response",
        ),
        (
            {"environment": {"name": COUNTDOWN, "target_return": 3.0}},
            "expected algorithm=return_conditioned with it, got algorithm=ppo",
        ),
        ({"algorithm": "return_conditioned"}, "expected environment.target_return=NUMBER"),
        (
            {"environment": COUNTDOWN, "algorithm": "return_conditioned"},
            "expected environment.target_return=NUMBER",
        ),
        (
            {"environment": COUNTDOWN, "reward": {"name": "length", "label": "environment"}},
            "the environment's own reward has label 'environment'",
        ),
    ],
)
def test_an_environment_that_does_not_fit_is_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        settings(**sections)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"run_name": 2026},
            r"""run_name: got 2026; expected a text, on the command line in two kinds of quotes: '"2026"'""",
        ),
        ({"run_name": 1.10}, r"""run_name: got 1\.1; .* in two kinds of quotes: '"…"'"""),
        (
            {"task": {"name": "prompts", "meta_columns": "answer"}},
            r"got 'answer'; expected a list: \[answer\]$",
        ),
        ({"notify": "http://host"}, r"got 'http://host'; expected notify\.OPTION=VALUE; there are: .*url"),
        ({"reward": "mine.py"}, r"reward: got mine\.py; expected a function or class in it: mine\.py:NAME"),
        (
            {"reward": [{"name": "length", "wieght": 2}]},
            r"wieght: there is no such option; did you mean 'weight'",
        ),
    ],
)
def test_a_value_of_another_form_is_answered_with_the_form_to_write(sections: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        settings(**sections)
