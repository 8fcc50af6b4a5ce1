"""Classes of a user's own: called as their Protocols are, or refused before anything starts."""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from torch import nn

from contracts.components import check_component, create, find
from contracts.environments import Environment, Observation, Step
from contracts.errors import InputError
from contracts.rollout import Prompt
from contracts.scores import Metric, Reward
from contracts.settings import Settings, build
from contracts.signatures import check_function, check_methods, methods_of
from learner.algorithms.base import Algorithm
from learner.algorithms.ppo import PPO
from learner.models import actor_critic
from learner.models.policy import CausalPolicy
from learner.settings import ModelSettings
from reward_servers.part_checks import check_parts
from reward_servers.settings import parts
from rollout_workers.environments.base import EnvironmentSettings, MakesEnvironments
from rollout_workers.environments.host import EnvironmentHost
from rollout_workers.environments.partners import Partner, check_partner
from services.config.measures import Measure, Measures
from services.config.post_processing import find_post_processor
from services.config.settings import RunSettings
from services.data.tasks.base import CountsLeftOut, HasResponses, ReadsAhead, Task

HERE = "tests.test_signatures"


def made_with(method: str, function: Any) -> type:
    return type("Mine", (), {method: function})


def refused(kind: Any, protocol: type, noun: str = "reward", *, optional: bool = False) -> str:
    with pytest.raises(InputError) as caught:
        check_methods("reward=mine:Mine", noun, kind, protocol, optional=optional)
    return str(caught.value)


# One check for all of them


@pytest.mark.parametrize(
    ("protocol", "methods"),
    [
        (Reward, ("score",)),
        (Metric, ("compute",)),
        (Measure, ("measure",)),
        (Task, ("prompts",)),
        (ReadsAhead, ("first_prompts",)),
        (HasResponses, ("responses",)),
        (CountsLeftOut, ("left_out",)),
        (
            Algorithm,
            (
                *("credit", "prepare_minibatch", "loss", "select", "teaching", "check"),
                *("select_epoch",),
                *("mask_rule", "syncs_mask", "renormalizes", "least_minibatch"),
            ),
        ),
        (Partner, ("reply",)),
        (MakesEnvironments, ("make",)),
        (Environment, ("reset", "step", "close")),
    ],
)
def test_what_each_protocol_asks_of_a_class(protocol: type, methods: tuple[str, ...]) -> None:
    assert methods_of(protocol) == methods
    others = {name: lambda self: None for name in methods}
    if protocol not in (MakesEnvironments, Environment):  # these have one that takes nothing
        message = refused(type("Mine", (), {methods[0]: others[methods[0]]}), protocol, optional=True)
        assert f"got Mine.{methods[0]}(self); expected {methods[0]}(self, " in message
    assert "Mine is no reward: it lacks" in refused(type("Mine", (), {}), protocol)
    check_methods("", "", type("Mine", (), {}), protocol, optional=True)


@pytest.mark.parametrize(
    "function",
    [
        lambda self, samples: [],
        lambda self, texts, scale=1.0: [],  # any name, and more that need not be given
        lambda self, *samples: [],
        lambda *all: [],
        staticmethod(lambda samples: []),
        classmethod(lambda cls, samples: []),
        functools.partialmethod(lambda self, scale, samples: [], 2.0),
        functools.lru_cache(lambda self, samples: []),
    ],
)
def test_what_can_be_called_is_taken(function: Any) -> None:
    check_methods("", "", made_with("score", function), Reward)
    check_methods("", "", made_with("score", function)(), Reward)


async def asynchronous(self: object, samples: object) -> list[float]:
    return []


async def streaming(self: object, samples: object) -> Any:
    yield 1.0


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda self: [],
            "got Mine.score(self); expected score(self, samples): too many positional arguments",
        ),
        (
            lambda self, samples, model: [],
            "got Mine.score(self, samples, model); expected score(self, samples)",
        ),
        (lambda self, *, samples: [], "got Mine.score(self, *, samples); expected score(self, samples)"),
        (staticmethod(lambda self, samples: []), "missing a required argument: 'samples'"),
        (streaming, "Mine.score() yields (async def); expected one that returns its result"),
        (3.0, "Mine is no reward: it lacks score(samples)"),
    ],
)
def test_what_can_not_be_called_is_refused_with_what_was_got(function: Any, message: str) -> None:
    assert message in refused(made_with("score", function), Reward)
    refused(made_with("score", function)(), Reward)  # an object as its class


def test_a_coroutine_may_stand_where_its_protocol_says_so_and_nowhere_else() -> None:
    check_methods("", "", made_with("score", asynchronous), Reward)
    message = refused(made_with("compute", asynchronous), Metric)
    assert "Mine.compute() is asynchronous (async def); expected a plain def" in message


def a_generator(self: object, samples: object) -> Iterator[float]:
    yield 1.0


def test_a_generator_may_stand_for_a_sequence_and_for_nothing_else() -> None:
    check_methods("", "", made_with("score", a_generator), Reward)
    check_methods("", "", made_with("prompts", a_generator), Task)
    for protocol in (Metric, Measure):
        (method,) = methods_of(protocol)
        message = refused(made_with(method, a_generator), protocol)
        assert f"Mine.{method}() yields; expected a method that returns its result" in message


def test_keywords_are_given_by_name() -> None:
    def select_epoch(self: object, rewards: object, values: object, *, seed: int, epoch: int) -> None: ...

    message = refused(made_with("select_epoch", select_epoch), Algorithm, optional=True)
    assert "expected select_epoch(self, rewards_M, values_M, seed, epoch, good_M)" in message


def test_what_has_a_default_may_be_missing() -> None:
    class Greets(Protocol):
        def greet(self, name: str, loudly: bool = False) -> str: ...

    check_methods("", "", made_with("greet", lambda self, name: name), Greets)
    assert "expected greet(self, name)" in refused(made_with("greet", lambda self: ""), Greets)


def test_functions() -> None:
    check_function("", str.upper, ("text",))
    check_function("", print, ("text",))
    with pytest.raises(InputError, match=re.escape("got mine(); expected mine(text)")):
        check_function("x", _named("mine", lambda: ""), ("text",))
    with pytest.raises(InputError, match="is asynchronous"):
        check_function("x", asynchronous, ("self", "samples"))


def _named(name: str, function: Callable[..., object]) -> Callable[..., object]:
    function.__name__ = name
    return function


def test_something_else_than_a_class_is_named_for_what_it_is() -> None:
    with pytest.raises(InputError, match=r"reward=.*: got a function \(function\); expected a class"):
        find("reward", f"{HERE}:a_generator", {})
    with pytest.raises(InputError, match=r"got an object \(str\); expected a class"):
        find("reward", f"{HERE}:HERE", {})


# Each kind, by the way it is asked for


class NoSamples:
    def score(self) -> list[float]:
        return [1.0]

    def compute(self) -> dict[str, float]:
        return {}

    def measure(self) -> dict[str, float]:
        return {}

    def reply(self, history: list[str]) -> str:
        return ""


class Streams:
    score = streaming


class Later:
    async def score(self, samples: Sequence[object]) -> list[float]:
        return [1.0] * len(samples)

    async def compute(self, samples: Sequence[object]) -> dict[str, float]:
        return {}

    async def measure(self, rollouts: Sequence[object]) -> dict[str, float]:
        return {}

    async def reply(self, history: list[str], seed: int) -> str:
        return ""


class ChecksFar(Settings):
    """A settings class whose own check wants more than anybody gives."""

    def score(self, samples: Sequence[object]) -> list[float]:
        return [1.0] * len(samples)

    def check(self, folder: str) -> None: ...


def settings(**options: Any) -> RunSettings:
    whole = {"algorithm": "ppo", "task": "increasing_numbers", "model": {"path": "some/model"}, **options}
    return build(RunSettings, whole, where="")


class NoSplit(Settings):
    def prompts(self) -> list[Prompt]:
        return [Prompt("0", "a")]


class NoMinibatch(PPO):
    def prepare_minibatch(self) -> Any:  # type: ignore[override]
        return None


class SelectsWrong(PPO):
    def select(self, rollouts: Any) -> Any:
        return rollouts


class ResponsesWrong(Settings):
    def prompts(self, split: str) -> list[Prompt]:
        return [Prompt("0", "a")]

    def responses(self) -> list[Any]:
        return []


class MakesLater(EnvironmentSettings):
    async def make(self) -> Any:  # type: ignore[override]
        return None


class ChecksPrompts(EnvironmentSettings):
    def check_prompt(self) -> None: ...  # type: ignore[override]


def no_text() -> str:
    return ""


async def later(text: str) -> str:
    return text


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (
            lambda: check_parts("reward", parts(f"{HERE}:NoSamples")),
            "got NoSamples.score(self); expected score(",
        ),
        (lambda: check_parts("reward", parts(f"{HERE}:Streams")), "Streams.score() yields (async def)"),
        (
            lambda: check_parts("reward", parts(f"{HERE}:ChecksFar")),
            "got ChecksFar.check(self, folder); expected",
        ),
        (lambda: check_parts("metric", parts(f"{HERE}:NoSamples")), "got NoSamples.compute(self); expected"),
        (lambda: check_parts("metric", parts(f"{HERE}:Later")), "Later.compute() is asynchronous"),
        (
            lambda: settings(reward=f"{HERE}:Streams"),
            "reward=tests.test_signatures:Streams: Streams.score() yields",
        ),
        (lambda: settings(metrics=f"{HERE}:NoSamples"), "got NoSamples.compute(self)"),
        (
            lambda: settings(measures=f"{HERE}:NoSamples"),
            "got NoSamples.measure(self); expected measure(self, ro",
        ),
        (lambda: Measures(f"{HERE}:Later"), "Later.measure() is asynchronous"),
        (
            lambda: settings(task=f"{HERE}:NoSplit"),
            "got NoSplit.prompts(self); expected prompts(self, split)",
        ),
        (lambda: settings(task=f"{HERE}:ResponsesWrong"), "expected responses(self, split)"),
        (lambda: settings(algorithm=f"{HERE}:NoMinibatch"), "expected prepare_minibatch(self, advantages_N)"),
        (lambda: settings(algorithm=f"{HERE}:SelectsWrong"), "expected select(self, rollouts, elite)"),
        (lambda: settings(environment=f"{HERE}:MakesLater", reward=[]), "MakesLater.make() is asynchronous"),
        (lambda: settings(environment=f"{HERE}:ChecksPrompts"), "expected check_prompt(self, prompt)"),
        (
            lambda: check_partner(f"{HERE}:NoSamples", {}),
            "got NoSamples.reply(self, history); expected reply(self, h",
        ),
        (lambda: check_partner(f"{HERE}:Later", {}), "Later.reply() is asynchronous"),
        (lambda: find_post_processor(f"{HERE}:no_text"), "got no_text() -> str; expected no_text(text)"),
        (lambda: find_post_processor(f"{HERE}:later"), "later() is asynchronous"),
    ],
)
def test_each_is_refused_before_anything_starts(start: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        start()
    assert message in str(caught.value)


class OnlySteps:
    def reset(self, prompt: Prompt) -> Observation:
        return Observation("a")

    def step(self, text: str) -> Step:
        return Step(Observation("b"))

    def close(self) -> None: ...


class MakesWrong(EnvironmentSettings):
    def make(self) -> Any:
        return OnlySteps()


class MakesClass(EnvironmentSettings):
    def make(self) -> Any:
        return OnlySteps


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (MakesWrong, "MakesWrong.make(): got OnlySteps.reset(prompt); expected reset(self, prompt, seed)"),
        (MakesClass, r"MakesClass.make() returned the class OnlySteps; expected OnlySteps(…)"),
    ],
)
def test_an_environment_is_looked_at_when_it_is_made(kind: type[EnvironmentSettings], message: str) -> None:
    with pytest.raises(InputError) as caught:
        EnvironmentHost(kind()).reset(Prompt("0", "a"), seed=0)
    assert message in str(caught.value)


class NoBudget(CausalPolicy):
    def __init__(self, lm: nn.Module) -> None:
        super().__init__(lm, 10)


class NoStates(CausalPolicy):
    def states(self) -> torch.Tensor:  # type: ignore[override]
        raise AssertionError


class NoHidden(nn.Module):
    def __init__(self, policy: Any, separate_trunk: bool) -> None:
        super().__init__()

    def forward(self, policy: Any) -> Any: ...


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"policy": f"{HERE}:NoBudget"}, "expected NoBudget(lm, logits_budget)"),
        ({"policy": f"{HERE}:NoStates"}, "got NoStates.states(self); expected states(self, micro)"),
        ({"policy": f"{HERE}:NoSamples"}, "NoSamples is not a policy"),
        ({"critic": f"{HERE}:NoHidden"}, "NoHidden is not a critic (too many positional arguments)"),
    ],
)
def test_policies_and_critics(model: Mapping[str, str], message: str, tmp_path: Path) -> None:
    from services.training.preflight.checks.model_checks import check_model_classes

    with pytest.raises(InputError) as caught:
        check_model_classes(settings(model={"path": "some/model", **model}).model)
    assert message in str(caught.value)
    actor_critic.critic_class(ModelSettings(path="some/model"))


def test_a_class_need_not_be_made_to_be_looked_at() -> None:
    class Unmakeable:
        def __init__(self) -> None:
            raise AssertionError

        def score(self, samples: Sequence[object]) -> list[float]:
            return []

    check_component("reward", "mine:Unmakeable", Unmakeable, Reward)
    with pytest.raises(InputError, match="it lacks compute"):
        create("metric", f"{HERE}:ChecksFar", {}, {}, Metric)
