"""The examples of docs/extending.md, run as they stand there."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from contracts.components import create, find
from contracts.errors import InputError
from learner.algorithms import ALGORITHMS
from learner.algorithms.base import Algorithm
from learner.algorithms.classes import algorithm_class
from learner.algorithms.ppo import PPO
from learner.batches.batching import collate
from learner.learner import Learner
from learner.models.actor_critic import ActorCritic
from learner.models.critic import CRITICS
from learner.settings import LearnerSettings, ModelSettings
from rollout_workers.engines.traits import traits_of
from tests.learner.inputs import credit_inputs, loss_inputs
from tests.learner.test_every_algorithm import logprobs_of, play
from tests.learner.tiny import make_pair, random_rollouts, snapshot, whole

PAGE = (Path(__file__).parents[2] / "docs/extending.md").read_text()
MODULES = {name: body for name, body in re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, re.DOTALL)}
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each Python block is a module in a folder that can be imported from."""
    for name, body in MODULES.items():
        (tmp_path / f"{name}.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def algorithm(name: str, **options: object) -> Algorithm:
    algorithm_class(name)
    return create("algorithm", name, options, ALGORITHMS, Algorithm)  # type: ignore[no-any-return]


def learner_of(path: Path, made: Algorithm, **model: str) -> Learner:
    settings = LearnerSettings(device="cpu")
    return Learner(ModelSettings(path=str(path), **model), made, settings, seed=0, iterations=100)


def test_the_page_has_what_is_run_here() -> None:
    assert set(MODULES) == {
        *("my_task", "my_metric", "my_measure"),
        *("my_reinforce", "my_policy", "my_critic", "my_engine"),
    }
    assert len(COMMANDS) == 7


def test_an_algorithm_of_ones_own_is_short_and_shows_its_traits() -> None:
    assert len(MODULES["my_reinforce"].splitlines()) < 40  # and the line that names the file
    assert "    traits: ClassVar[Traits] = Traits(" in MODULES["my_reinforce"]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_are_understood(command: str) -> None:
    """And what they name is there."""
    from services.config.compose import run_settings

    program, subcommand, *overrides = shlex.split(command)
    assert (program, subcommand) == ("whetstone", "train")
    settings = run_settings(overrides)
    traits_of(settings.rollout.engine)
    for kind, name in (("policy", settings.model.policy), ("critic", settings.model.critic)):
        assert name == "auto" or find(kind, name, CRITICS).__name__


def test_reinforce_by_hand() -> None:
    # β = .5: returns 1 - .5 · .4 = .8 and 2: mean 1.4
    reinforce = algorithm("my_reinforce:Reinforce")
    credit = reinforce.credit(credit_inputs([[0, 1], [2]], kl=[[0.4, 0], [0]], kl_coefficient=0.5))
    torch.testing.assert_close(credit.advantages_BT, torch.tensor([[-0.6, -0.6], [0.6, 0.0]]))
    inputs = loss_inputs(
        [0, 0], logprobs_N=[-1.0, -2.0], advantages_N=[1.0, -3.0], kl_N=[0.1, 0.3], kl_coefficient=0.5
    )
    assert float(reinforce.loss(inputs).loss) == pytest.approx(-(-1 + 6) / 2 + 0.5 * 0.2)


def test_the_algorithm_learns(models: dict[str, Path]) -> None:
    reinforce = "my_reinforce:Reinforce"
    learner = learner_of(models["llama"], algorithm(reinforce, learning_rate=1e-2, kl={"coefficient": 0.0}))
    token = int(logprobs_of(learner).topk(3).indices[-1])
    for _ in range(40):
        learner.update(play(learner, 32, token))
        if float(logprobs_of(learner)[token].exp()) > 0.7:
            break
    assert float(logprobs_of(learner)[token].exp()) > 0.7


def test_the_policy_trains_its_last_blocks_alone(models: dict[str, Path]) -> None:
    learner = learner_of(models["gpt2"], PPO(num_epochs=1), policy="my_policy:LastThird")
    assert type(learner.pair.policy).__name__ == type(learner.reference).__name__ == "LastThird"
    before = snapshot(learner.pair.lm)
    metrics = learner.update(random_rollouts(6))
    assert metrics["ratio/mean"] == pytest.approx(1, abs=1e-4)
    moved = {name for name, p in snapshot(learner.pair.lm).items() if not torch.equal(before[name], p)}
    assert moved == {name for name in before if "h.1." in name or "ln_f" in name}


def test_the_critic_learns_and_leaves_the_trunk_alone(models: dict[str, Path]) -> None:
    pair: ActorCritic = make_pair(models["gpt2"], critic="my_critic:DetachedCritic")
    values_N = pair(whole(collate(random_rollouts(3)))).values_N
    assert values_N is not None and not values_N.any()
    (values_N - 1).square().sum().backward()
    assert all(p.grad is None for p in pair.policy.parameters())
    assert all(p.grad is not None for p in pair.critic.parameters())
    learner = learner_of(models["gpt2"], PPO(critic_learning_rate=1e-2), critic="my_critic:DetachedCritic")
    start = learner.update(random_rollouts(6))["loss/value"]
    assert learner.update(random_rollouts(6))["loss/value"] < start


def test_the_critic_says_what_it_can_not_do(models: dict[str, Path]) -> None:
    with pytest.raises(InputError, match=r"value_trunk=separate.*expected shared"):
        make_pair(models["gpt2"], critic="my_critic:DetachedCritic", value_trunk="separate")
