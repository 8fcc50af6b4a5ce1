"""Algorithms declare their needs in a record of traits, the only place where code reads them."""

import ast
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any, ClassVar

import pytest

from contracts.errors import InputError
from contracts.settings import Settings
from learner.algorithms import ALGORITHMS, base
from learner.algorithms.base import OPTIONS, Algorithm, Traits
from learner.algorithms.classes import algorithm_class
from learner.algorithms.dpo import DPO
from learner.algorithms.grpo import GRPO
from learner.algorithms.nll import NLL
from learner.algorithms.ppo import PPO
from learner.algorithms.pro import PRO
from learner.algorithms.rejection import RejectionSampling
from learner.algorithms.return_conditioned import ReturnConditioned
from learner.algorithms.rloo import RLOO
from learner.algorithms.supervised import Supervised
from learner.algorithms.wbc import WBC

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "learner/algorithms"
ASKING = ("contracts", "learner", "rollout_workers", "reward_servers", "services", "benchmarks")
LONGEST_FILE = 110  # lines of an algorithm's
every = pytest.mark.parametrize("name", ALGORITHMS)

# The form of the files


@every
def test_an_algorithm_is_at_most_two_bases_away_from_the_root(name: str) -> None:
    lineage = algorithm_class(name).__mro__
    bases = lineage[: lineage.index(Algorithm)]
    assert len(bases) <= 3
    assert all(len(base.__bases__) == 1 for base in bases)


@every
def test_an_algorithms_file_is_short_and_begins_its_class_with_traits(name: str) -> None:
    algorithm = algorithm_class(name)
    text = (ROOT / f"{algorithm.__module__.replace('.', '/')}.py").read_text()
    assert len(text.splitlines()) <= LONGEST_FILE
    (kind,) = (
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and node.name == algorithm.__name__
    )
    first = next(node for node in kind.body if not isinstance(node, ast.Expr))  # after a docstring
    assert isinstance(first, ast.AnnAssign) and ast.unparse(first.target) == "traits"


def test_the_options_are_those_that_the_type_checker_knows() -> None:
    (kind,) = (
        node
        for node in ast.parse(Path(base.__file__).read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "Algorithm"
    )
    (typed,) = (node for node in kind.body if isinstance(node, ast.If))
    assert tuple(option.name for option in typed.body if isinstance(option, ast.FunctionDef)) == OPTIONS


def asks(text: str) -> Iterator[str]:
    """Each `getattr`, `hasattr` and `isinstance` of an algorithm."""
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    for call in calls:
        if ast.unparse(call.func) in ("getattr", "hasattr", "isinstance"):
            subject = ast.unparse(call.args[0]).rpartition(".")[2].lstrip("_")
            if subject in ("algorithm", "traits"):
                yield ast.unparse(call)


def test_nobody_asks_an_algorithm_by_the_name_of_an_attribute_or_by_its_class() -> None:
    questions = {
        f"{path.relative_to(ROOT)}: {question}"
        for package in ASKING
        for path in (ROOT / package).rglob("*.py")
        if FOLDER not in path.parents and ROOT / "benchmarks/out" not in path.parents  # other programs
        for question in asks(path.read_text())
    }
    assert questions == set()


@pytest.mark.parametrize(
    "line",
    [
        'getattr(algorithm, "online", False)',
        'if x and hasattr(settings.algorithm, "select"): pass',
        "isinstance(self._algorithm, Masks)",
    ],
)
def test_such_a_question_would_be_found(line: str) -> None:
    assert list(asks(line))


# The record


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learns_form": "data"}, "learns_form"),
        ({"learns_from": "data", "whole_group": True}, "whole_group"),
        ({}, "learns_from"),
        ({"learns_from": "date"}, "learns_from='date'.*expected one of 'rollouts', 'references', 'data'"),
        ({"learns_from": "data", "mixes_data": True}, "mixes_data=True.*'weighted', 'plainly', None"),
        ({"learns_from": "rollouts", "update": "trust"}, "update='trust'.*'minibatches', 'trust_region'"),
    ],
)
def test_a_typo_in_a_trait_is_a_type_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Traits(**options)


def test_traits_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        PPO.traits.online = False  # type: ignore[misc]


def test_who_has_which_trait() -> None:
    def having(trait: str) -> set[str]:
        return {name for name in ALGORITHMS if getattr(algorithm_class(name).traits, trait)}

    critics, grouped = {"ppo", "nlpo", "a2c", "trpo"}, {"grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo"}
    grouped |= {"gdpo", "sapo", "max_rl", "pass_at_k", "dppo"}
    grouped |= {"self_distillation"}
    free = grouped | {"reinforce_pp"}
    assert having("critic") == critics
    pairs = {"dpo", "ipo", "simpo", "orpo"}
    assert having("online") == critics | free | {"rejection", "distillation"}
    mixing = critics | free | {"rejection", "supervised", "distillation"}
    assert having("mixes_data") == mixing - {"nlpo", "gdpo"}  # data come without the rewards' parts
    assert having("imitates") == {"rejection", "supervised", "return_conditioned", "distillation"}
    assert having("labels") == having("mismatched_kl") == {"kto"}
    assert having("teacher") == {"distillation"}
    assert having("masks") == {"nlpo"}
    assert having("target_return") == {"return_conditioned"}
    assert having("default_group_size") == grouped
    assert having("whole_groups") == pairs | {"pro"}
    assert having("whole_responses") == {"rloo", "gspo", "a_lol", "r_lol", "kto"}
    assert having("reference") == {"a_lol", "a_lol_seq", "a_lol_kl", "r_lol", "dpo", "ipo", "kto"}
    assert {name for name in ALGORITHMS if algorithm_class(name).traits.update == "trust_region"} == {"trpo"}


def test_what_options_change() -> None:
    assert [kind.needs_rewards for kind in (NLL(), WBC(), DPO(), PRO(), PPO())] == [
        False,
        True,
        False,
        True,
        False,
    ]
    assert [kind.needs_values for kind in (NLL(), NLL(sampling_strategy="good_random"))] == [False, True]
    assert [kind.needs_reference for kind in (DPO(), DPO(reference_free=True))] == [True, False]
    assert [kind.selects for kind in (GRPO(), GRPO(drop_constant_groups=True))] == [False, True]
    assert [kind.selects for kind in (PPO(), RLOO(), RejectionSampling(), PRO())] == [
        False,
        False,
        True,
        True,
    ]
    assert [kind.scores_first_token for kind in (PRO(), PRO(suffix_mask="shifted"))] == [True, False]
    for kind in (Supervised, ReturnConditioned):
        assert [kind(loss_on=over).loss_over for over in ("response", "text")] == ["response", "text"]
    assert (PPO().credits, PPO(value_level="action_mean").credits) == ("token", "action_mean")
    assert (PPO(turn_gamma=0.9).turn_discount, GRPO(turn_gamma=0.8).turn_discount) == (0.9, 0.8)
    assert NLL().turn_discount is None
    assert [kind.bootstraps for kind in (PPO(), PPO(bootstrap_truncated=False), GRPO())] == [
        True,
        False,
        False,
    ]
    assert [kind.normalizes_values for kind in (PPO(), PPO(normalize_values=False), GRPO())] == [
        True,
        False,
        False,
    ]


# Classes of a user's own

ROLLOUTS = Traits(learns_from="rollouts", online=True)


class OnItsOwn(Settings):
    """As algorithms were written before there were traits."""

    learning_rate: float = 1e-3

    def credit(self, inputs: Any) -> Any: ...

    def prepare_minibatch(self, advantages_N: Any) -> Any: ...

    def loss(self, inputs: Any) -> Any: ...


class Untold(Algorithm):
    def credit(self, inputs: Any) -> Any: ...

    def loss(self, inputs: Any) -> Any: ...


class InADictionary(Untold):
    traits: ClassVar[Any] = {"learns_from": "rollouts"}


class Beside(PPO):
    whole_responses: ClassVar[bool] = True


class BesideAsAProperty(PPO):
    @property
    def online(self) -> bool:
        return False


class Hides(PPO):
    needs_rewards: bool = True


class NoLoss(Algorithm):
    traits: ClassVar[Traits] = ROLLOUTS
    learning_rate: float = 1e-3

    def credit(self, inputs: Any) -> Any: ...


class NoRule(PPO):
    traits: ClassVar[Traits] = Traits(learns_from="rollouts", online=True, critic=True, masks=True)


class NoRegion(PPO):
    traits: ClassVar[Traits] = Traits(learns_from="rollouts", online=True, critic=True, update="trust_region")


class OfItsParent(GRPO):
    traits = Traits(learns_from="rollouts", online=True, default_group_size=4)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            OnItsOwn,
            "OnItsOwn does not extend Algorithm. Expected a class with traits: write `class "
            'OnItsOwn(Algorithm):` and in it `traits: ClassVar[Traits] = Traits(learns_from="rollouts")`',
        ),
        (
            Untold,
            "Untold declares no traits. Expected a record of Traits: write `traits: ClassVar[Traits] = "
            'Traits(learns_from="rollouts")` at the top of the class',
        ),
        (InADictionary, "InADictionary has traits={'learns_from': 'rollouts'}. Expected a record of Traits"),
        (
            Beside,
            "Beside.whole_responses is a class attribute, which nothing reads.",
        ),
        (BesideAsAProperty, "Put it into the traits: `Traits(…, online=…)`"),
        (Hides, "Hides.needs_rewards is a field, and Algorithm has a property of this name"),
        (NoLoss, "NoLoss is no algorithm: it lacks critic_learning_rate, num_epochs, minibatch_size, "),
        (NoLoss, "optimizer, kl, loss. Expected these fields and methods"),
        (NoRule, "NoRule has the trait masks=True and no method mask_rule()"),
        (NoRegion, "Expected `class NoRegion(TRPO):`"),
    ],
)
def test_a_class_that_can_be_no_algorithm_is_refused(kind: type, message: str) -> None:
    name = f"{__name__}:{kind.__name__}"
    with pytest.raises(InputError) as caught:
        algorithm_class(name)
    assert str(caught.value).startswith(f"algorithm={name}: ")
    assert message in str(caught.value)


def test_a_run_refuses_a_class_without_traits() -> None:
    from services.config.compose import run_settings

    with pytest.raises(InputError, match="Untold declares no traits"):
        run_settings(["model.path=m", "task=increasing_numbers", f"algorithm={__name__}:Untold"])


def test_a_subclass_has_its_parents_traits_or_its_own() -> None:
    assert algorithm_class(f"{__name__}:OfItsParent").traits.default_group_size == 4
    assert type("More", (RLOO,), {"__module__": __name__}).traits is RLOO.traits  # type: ignore[attr-defined]
