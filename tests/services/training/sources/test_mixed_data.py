"""A share of annotated data in the batches of an algorithm that generates: how much, in which order, what is
told apart, what is refused.
"""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from contracts.errors import InputError
from contracts.rollout import Rollout
from services.commands import annotate
from services.config.compose import run_settings
from services.config.settings import RunSettings
from services.runs.folder import RunFolder
from services.terminal.interrupts import Interrupted, StopRequest
from services.training.sources.mixed import Mixture, mixture
from tests.local_run import LocalLearner, small_run, told_at_start, train_here
from tests.models import make_tiny_model
from tests.runs import results
from tests.services.training.sources.test_offline_source import annotated

HERE = "tests.services.annotated_rows"
SMALL = {"learning_rate": 1e-3, "num_epochs": 2, "minibatch_size": 4}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), sharpness=3.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """Ten prompts, two responses each, of one reward: a word's worth each; scored by the model itself."""
    folder = tmp_path_factory.mktemp("data")
    arguments = [f"task={{name: '{HERE}:Pairs'}}", f"reward=[{{name: '{HERE}:Last'}}]", f"reference={model}"]
    arguments += [f"output={folder / 'out'}", "executor=here", "rollout.max_tokens=4", "learner.device=cpu"]
    assert annotate.run(arguments) == 0
    return folder / "out"


def settings(model: Path, output: Path, data: Any, **options: Any) -> RunSettings:
    """Six rollouts an iteration; of them three are the data's."""
    whole = {
        "algorithm": {"name": "ppo", **SMALL},
        "task": {"name": f"{HERE}:Pairs"},
        "reward": [{"name": f"{HERE}:Last"}],
        "data": {"folder": str(data), "share": 0.5} if isinstance(data, Path) else data,
        "iterations": 4,
        "rollout": {"prompts_per_iteration": 6},
        "evaluation": {"num_prompts": 1},
        **options,
    }
    return small_run(model, output, **whole)


def refusal(model: Path, data: Any, **options: Any) -> str:
    return told_at_start(settings(model, Path("runs"), data, **options))


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[list[Rollout]]:
    """Batches that each update was given."""
    recorded: list[list[Rollout]] = []
    update = LocalLearner.update

    def recording(self: LocalLearner, rollouts: list[Rollout], *rest: Any) -> dict[str, float]:
        recorded.append(list(rollouts))
        return update(self, rollouts, *rest)

    monkeypatch.setattr(LocalLearner, "update", recording)
    return recorded


# How much


def test_a_share_of_a_half_is_exactly_half_and_told_apart(
    model: Path, data: Path, tmp_path: Path, batches: list[list[Rollout]]
) -> None:
    folder = train_here(settings(model, tmp_path, data))
    assert [[rollout.from_data for rollout in batch] for batch in batches] == [[False] * 3 + [True] * 3] * 4
    rollout, training = folder.rollout_info(), folder.training_info()
    assert [row["rollouts/trained"] for row in rollout] == [6.0] * 4
    assert [row["rollouts/scored"] for row in rollout] == [3.0] * 4
    assert {row["data/share"] for row in rollout} == {0.5}
    for batch, row in zip(batches, rollout, strict=True):
        from_policy, others = (
            [rollout.total_reward for rollout in batch if rollout.from_data is which]
            for which in (False, True)
        )
        assert row["reward/mean"] == pytest.approx(sum(from_policy) / 3)
        assert row["data/reward/mean"] == pytest.approx(sum(others) / 3)
        assert (
            row["mismatch/max_ratio"] < 1 + 1e-4 and row["staleness/mean"] == 0
        )  # of the policy's own alone
    # the reference is the model: at first its log-probabilities are the policy's, and no weight is cut
    assert training[0]["data/weight/mean"] == pytest.approx(1, abs=1e-4)
    assert training[0]["data/weight/truncated"] == 0 and abs(training[0]["data/kl"]) < 1e-6
    assert training[-1]["data/kl"] > 1e-3


def test_rejected_responses_are_mixed_in_too_and_every_one_comes_once_an_epoch(
    model: Path, data: Path, tmp_path: Path, batches: list[list[Rollout]]
) -> None:
    train_here(settings(model, tmp_path, data, iterations=7))
    drawn = [(rollout.prompt.id, rollout.text) for batch in batches for rollout in batch if rollout.from_data]
    assert len(drawn) == 21 and len(set(drawn[:20])) == 20  # and the 21st is of the next epoch


@pytest.mark.parametrize("name", ["a2c", "trpo", "reinforce_pp", "rejection"])
def test_every_kind_of_algorithm_takes_some(model: Path, data: Path, tmp_path: Path, name: str) -> None:
    folder = train_here(settings(model, tmp_path, data, algorithm=name, iterations=2))
    assert {row["data/share"] for row in folder.rollout_info()} == {0.5}
    assert all(("data/weight/mean" in row) == (name != "rejection") for row in folder.training_info())


@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_groups_are_made_up_of_ranked_responses(
    model: Path, data: Path, tmp_path: Path, name: str, batches: list[list[Rollout]]
) -> None:
    """Six prompts of four rollouts: three of them, and six pairs of the data."""
    rollout = {"prompts_per_iteration": 6, "group_size": 4}
    algorithm = {"name": name, "learning_rate": 1e-3}
    train_here(settings(model, tmp_path, data, algorithm=algorithm, rollout=rollout, iterations=1))
    (batch,) = batches
    from_policy = [rollout.group for rollout in batch if not rollout.from_data]
    others = [rollout.group for rollout in batch if rollout.from_data]
    assert len(from_policy) == len(others) == 12
    assert len(set(from_policy)) == 3 and len(set(others)) == 6 and not set(from_policy) & set(others)


def test_supervised_training_imitates_both_and_leaves_rejected_responses_out(
    model: Path, data: Path, tmp_path: Path, batches: list[list[Rollout]]
) -> None:
    run = settings(
        model,
        tmp_path,
        data,
        algorithm="supervised",
        task={"name": f"{HERE}:Answered"},
        iterations=2,
    )
    train_here(run)
    texts = [rollout.text for batch in batches for rollout in batch if rollout.from_data]
    assert len(texts) == 6 and all(text.endswith(" 77") for text in texts)
    assert [rollout.text for rollout in batches[0] if not rollout.from_data] == ["9 9"] * 3


def test_shares_are_rounded_to_whole_prompts() -> None:
    assert mixture(0.25, 64, 8, 2) == Mixture(num_prompts=48, num_examples=64)
    assert mixture(0.3, 10, 1, 1) == Mixture(7, 3) and mixture(0.26, 10, 1, 1) == Mixture(7, 3)
    with pytest.raises(InputError, match=r"data.share=0.01 of rollout.prompts_per_iteration=10 is 0 prompts"):
        mixture(0.01, 10, 1, 1)
    with pytest.raises(InputError, match=r"replaces 15 rollouts, .* a divisor, such as 3"):
        mixture(0.5, 10, 3, 2)


# The same rollouts, whether or not it was stopped


def test_a_run_that_goes_on_is_one_that_never_stopped(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: list[list[Rollout]]
) -> None:
    def train(folder: str) -> RunFolder:
        return train_here(settings(model, tmp_path / folder, data, iterations=8))

    def check(self: StopRequest) -> None:
        if len(batches) == 5:
            raise Interrupted

    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(StopRequest, "check", check)
        train("stopped")
    stopped = train("stopped")
    first, batches[:] = list(batches), []
    whole = train("whole")
    assert first == batches
    assert results(stopped.training_info()) == results(whole.training_info())
    assert results(stopped.rollout_info()) == results(whole.rollout_info())
    left, right = (load_file(folder.model / "model.safetensors") for folder in (stopped, whole))
    assert all(left[key].equal(right[key]) for key in right)


# What is refused


def test_what_cannot_be_mixed_is_told(model: Path, data: Path) -> None:
    share = {"folder": str(data), "share": 0.5}
    alone = refusal(model, {"folder": str(data)})
    assert "algorithm=ppo learns from rollouts: leave data out, or give data.share=0.25" in alone
    masked = refusal(model, share, algorithm="nlpo")
    assert "algorithm=nlpo can't weigh" in masked and "ppo" in masked and "supervised" in masked
    assert "leave data.share=0.5 out" in refusal(model, share, algorithm="a_lol")
    cut = {"prompts_per_iteration": 6, "top_k": 5, "min_tokens": 2}
    message = refusal(model, share, rollout=cut)
    assert "with rollout.top_k, rollout.min_tokens the policy never draws some tokens" in message
    levels = {"name": "ppo", "value_level": "action_first"}
    assert "expected algorithm.value_level=token" in refusal(model, share, algorithm=levels)
    with pytest.raises(InputError, match=r"iterations= sets the length of a run"):
        run_settings(["model.path=m", "data=d", "data.share=0.5", "data.num_epochs=2", "reward=length"])


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ({"name": "distillation", "teacher": {"url": "http://127.0.0.1:9/v1"}}, "model.reference.path=MODEL"),
        ({"name": "self_distillation"}, "algorithm.weight=0.5"),
    ],
)
def test_a_teacher_of_own_texts_alone_takes_no_data(
    model: Path, data: Path, algorithm: dict[str, Any], expected: str
) -> None:
    refused = refusal(model, {"folder": str(data), "share": 0.5}, algorithm=algorithm)
    assert "a data set's texts would teach nothing" in refused and expected in refused


def test_rewards_of_the_data_are_those_of_the_run(model: Path, data: Path, tmp_path: Path) -> None:
    assert "no column of 'length'" in refusal(model, data, reward="length")
    other = [{"name": "length", "label": "Last"}]
    assert "reward 'Last' was annotated as {'name': " in refusal(model, data, reward=other)
    annotated(tmp_path / "bare", [1.0, 2.0], has_reference=False)
    message = refusal(model, tmp_path / "bare", reward="length")
    assert "has no log-probabilities of a reference" in message
