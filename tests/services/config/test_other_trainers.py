"""Other trainers' names: each is answered with an option that Whetstone has."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.components import find
from contracts.errors import InputError
from learner.algorithms import ALGORITHMS
from reward_servers.graders.learned_reward import LearnedReward
from services.commands.listing import options_of
from services.config.compose import run_settings
from services.config.other_trainers import OURS, in_our_words, ours
from services.config.settings import RunSettings
from services.data.tasks import TASKS
from services.data.tasks.base import SIDE_KEY

DEMO = ["experiment=demo", "model.path=no-such-model"]
OF_REWARDS = {f"reward.{name}" for name in LearnedReward.model_fields} | {"reward.LABEL.weight"}


def options() -> set[str]:
    """Every key of a run, those of all algorithms included."""
    keys = set(RunSettings.model_fields) | {f"task.{SIDE_KEY}", "data.num_epochs", *OF_REWARDS}
    keys |= {f"task.{name}" for name in options_of(find("task", "prompts", TASKS))}
    settings = run_settings(DEMO)
    for name in RunSettings.model_fields:
        value = getattr(settings, name)
        if hasattr(type(value), "model_fields"):
            keys |= {f"{name}.{key}" for key in options_of(type(value), value)}
    for name in ALGORITHMS:
        keys |= {f"algorithm.{key}" for key in options_of(find("algorithm", name, ALGORITHMS))}
    return keys


def test_every_name_is_answered_with_an_option_that_there_is() -> None:
    known = options()
    for theirs, answer in OURS.items():
        named = re.findall(r"\b[a-z_]+(?:\.\w+)+", answer)
        assert all(key in known for key in named if not key.startswith("package.")), (theirs, named)
        assert named or re.split(r"[= ,]", answer)[0] in {*known, "nothing:"}, theirs


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.n=8", "rollout.n: there is no such option. Here it is rollout.group_size"),
        (
            "actor_rollout_ref.actor.optim.lr=1e-6",
            "actor_rollout_ref.actor.optim.lr: there is no such option. Here it is algorithm.learning_rate",
        ),
        ("num_generations=8", "num_generations: there is no such option. Here it is rollout.group_size"),
        ("temperature=0.7", "temperature: there is no such option. Here it is rollout.temperature"),
        (
            "algorithm.beta=0.1",
            "algorithm.beta: there is no such option. Here it is algorithm.kl.coefficient; "
            "of dpo, ipo, simpo, orpo and kto: algorithm.beta",
        ),
    ],
)
def test_another_trainers_option_is_answered_with_ours(override: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        run_settings([*DEMO, override])
    assert str(refused.value) == message


def test_a_misspelt_option_of_ours_is_answered_as_ever() -> None:
    with pytest.raises(InputError, match=r"^rollout\.temprature: .*did you mean 'temperature'"):
        run_settings([*DEMO, "rollout.temprature=1"])


def test_an_option_of_other_algorithms_is_answered_as_ever() -> None:
    """The answer does not send to the option that was refused."""
    with pytest.raises(InputError, match=r"^algorithm\.gamma: .*did you mean 'turn_gamma'"):
        run_settings([*DEMO, "algorithm=grpo", "algorithm.gamma=0.9"])


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("data.train_batch_size=8", r". Here it is rollout\.prompts_per_iteration$"),
        ("data.fodler=annotated", "; did you mean 'folder'"),
    ],
)
def test_verls_data_is_not_taken_for_ours(typed: str, answer: str) -> None:
    with pytest.raises(
        InputError, match=rf"^{typed.partition('=')[0]}: there is no such option{answer}"
    ) as refused:
        run_settings([*DEMO, typed])
    assert "\n" not in str(refused.value)


def test_what_is_ours_already_is_no_mistake() -> None:
    chosen = run_settings([*DEMO, "rollout.temperature=0.7", "algorithm.learning_rate=1e-6"])
    assert (chosen.rollout.temperature, ours("rollout.temperature")) == (0.7, "rollout.temperature")


@given(st.text(st.characters(codec="ascii"), max_size=60))
def test_other_messages_stay_as_they_are(message: str) -> None:
    assert in_our_words(message, ["seed", "rollout.n"]) == message
