"""`whetstone train … data=FOLDER`: what is trained on, what goes on after an end, what is refused."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from contracts.clients import PublishedWeights
from contracts.rollout import Lease
from contracts.settings import build
from services.commands import annotate
from services.config.compose import compose, run_settings
from services.config.settings import RunSettings
from services.runs.folder import RunFolder
from services.terminal.interrupts import Interrupted, StopRequest
from services.training.preflight import preflight
from tests.local_run import LocalLearner, LocalWorkers, small_run, told_at_start, train_here
from tests.models import make_tiny_model
from tests.runs import results
from tests.services.training.sources.test_offline_source import annotated

PAIRS = "tests.services.annotated_rows:Pairs"
GOOD = 10  # responses; as many others are worse


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), sharpness=3.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """Ten prompts, a response of reward 0.77 each and a worse one; the reference is the model itself."""
    folder = tmp_path_factory.mktemp("data")
    reward = f"{{name: 'tests.services.annotated_rows:Ledger', file: '{folder / 'ledger'}'}}"
    arguments = [f"task={{name: '{PAIRS}', num: {GOOD}}}", f"reward=[{reward}]", f"reference={model}"]
    arguments += [f"output={folder / 'out'}", "value=true", "value.num_epochs=1", "executor=here"]
    arguments += ["rollout.max_tokens=4", "rollout.engine=transformers", "learner.device=cpu"]
    assert annotate.run(arguments) == 0
    return folder / "out"


def settings(model: Path, output: Path, data: Any, **changes: Any) -> RunSettings:
    """Batches of four examples: an epoch of ten has three."""
    whole = {
        "algorithm": {"name": "a_lol", "learning_rate": 1e-3},
        "task": {"name": PAIRS},
        "reward": "length",
        "data": {"folder": str(data)} if isinstance(data, Path) else data,
        "iterations": 6,
        "rollout": {"prompts_per_iteration": 4},
        **changes,
    }
    return small_run(model, output, **whole)


def refusal(model: Path, data: Any, **changes: Any) -> str:
    return told_at_start(settings(model, Path("runs"), data, **changes))


# Training


def test_good_responses_become_likelier_than_the_reference_made_them(
    model: Path, data: Path, tmp_path: Path
) -> None:
    folder = train_here(settings(model, tmp_path, data))
    rollout, training = folder.rollout_info(), folder.training_info()
    assert training[0]["ratio/mean"] == pytest.approx(1.0, abs=1e-5)
    assert training[-1]["ratio/mean"] > 2 and training[0]["share_positive"] == pytest.approx(1.0)
    # only the good ones are drawn: all of reward 0.77; a batch ends with its epoch
    assert [row["reward/mean"] for row in rollout] == pytest.approx([0.77] * 6)
    assert [row["rollouts/trained"] for row in rollout] == [4, 4, 2, 4, 4, 2]
    assert {row["throughput/generated_tokens_per_s"] for row in rollout} == {0.0}


def test_kto_learns_from_labels_and_leaves_nobody_out(model: Path, data: Path, tmp_path: Path) -> None:
    """Good ones are 1 and others 0, whatever they earned; the reference point begins at 0."""
    algorithm = {"name": "kto", "learning_rate": 5e-3, "beta": 0.5}
    folder = train_here(settings(model, tmp_path, data, algorithm=algorithm, iterations=20))
    rollout, training = folder.rollout_info(), folder.training_info()
    assert sum(row["rollouts/trained"] for row in rollout[:5]) == 2 * GOOD  # an epoch
    labels = [row["reward/mean"] * row["rollouts/trained"] for row in rollout[:5]]
    assert sum(labels) == pytest.approx(GOOD)
    first, last = training[0], training[-5:]
    assert first["loss/policy"] == pytest.approx(0.5, abs=0.02)  # dropout tells policy and reference apart
    assert first["rewards/reference_point"] == pytest.approx(0.0, abs=1e-4)
    assert sum(row["loss/policy"] for row in last) / 5 < 0.45


@pytest.mark.parametrize("name", ["wbc", "dpo", "simpo", "orpo", "pro"])
def test_losses_fall(model: Path, data: Path, tmp_path: Path, name: str) -> None:
    algorithm = {"name": name, "learning_rate": 1e-3}
    folder = train_here(settings(model, tmp_path, data, algorithm=algorithm, iterations=9))
    losses = [row["loss/policy"] for row in folder.training_info()]
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])


def test_workers_write_for_evaluations_alone_and_get_weights_for_these(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two evaluations they can sleep all the time."""
    calls: list[str] = []
    generate, load, sleep = LocalWorkers.generate, LocalWorkers.load_weights, LocalWorkers.sleep

    def generating(self: LocalWorkers, leases: list[Lease]) -> Any:
        calls.append("generate")
        return generate(self, leases)

    def loading(self: LocalWorkers, weights: PublishedWeights) -> None:
        calls.append(f"weights {weights.manifest.version}")
        load(self, weights)

    def sleeping(self: LocalWorkers) -> None:
        calls.append("sleep")
        sleep(self)

    monkeypatch.setattr(LocalWorkers, "generate", generating)
    monkeypatch.setattr(LocalWorkers, "load_weights", loading)
    monkeypatch.setattr(LocalWorkers, "sleep", sleeping)
    rollout = {"prompts_per_iteration": 4, "sleep": True}
    train_here(settings(model, tmp_path, data, iterations=3, evaluate_every=2, rollout=rollout))
    assert calls == [
        *("weights 0", "generate", "generate", "sleep", "sleep"),
        *("weights 2", "generate", "sleep"),
        *("weights 3", "generate", "generate"),
    ]


def test_epochs_are_counted_as_iterations(model: Path, data: Path, tmp_path: Path) -> None:
    whole = {"folder": str(data), "num_epochs": 2}
    folder = train_here(settings(model, tmp_path, whole, iterations=100))
    assert [row["rollouts/trained"] for row in folder.rollout_info()] == [4, 4, 2, 4, 4, 2]
    assert folder.config()["iterations"] == 6


@pytest.mark.parametrize("name", ["a_lol", "dpo"])
def test_a_run_that_goes_on_is_one_that_never_stopped(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Ctrl-C within its second epoch; it saves, and the same command goes on."""

    def train(folder: str) -> RunFolder:
        algorithm = {"name": name, "learning_rate": 1e-3}
        return train_here(settings(model, tmp_path / folder, data, algorithm=algorithm, iterations=7))

    updates: list[int] = []
    update = LocalLearner.update

    def counting(self: LocalLearner, *arguments: Any) -> dict[str, float]:
        updates.append(1)
        return update(self, *arguments)

    def check(self: StopRequest) -> None:
        if len(updates) == 4:
            raise Interrupted

    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(LocalLearner, "update", counting)
        patched.setattr(StopRequest, "check", check)
        train("stopped")
    assert len(updates) == 4
    stopped, whole = train("stopped"), train("whole")
    assert [row["iteration"] for row in stopped.training_info()] == list(range(1, 8))
    assert results(stopped.training_info()) == results(whole.training_info())
    assert results(stopped.rollout_info()) == results(whole.rollout_info())
    left, right = (load_file(folder.model / "model.safetensors") for folder in (stopped, whole))
    assert all(left[key].equal(right[key]) for key in right)


def test_data_without_a_reference_is_tokenized_here(model: Path, tmp_path: Path) -> None:
    annotated(tmp_path / "data", [1.0, 2.0], texts=["3 4", "5 6 7 8 9"], has_reference=False)
    run = settings(model, tmp_path, tmp_path / "data", algorithm="wbc", iterations=1)
    assert train_here(run).rollout_info()[0]["response_length/mean"] == 3.5  # an end; cut to 4


# The command line


def test_a_folder_alone_will_do_and_options_follow(tmp_path: Path) -> None:
    model, algorithm = "model.path=some/model", "algorithm=dpo"
    assert compose([model, "data=hh"])["data"] == {"folder": "hh"}
    for order in (["data=hh", "data.num_responses=3"], ["data.num_responses=3", "data=hh"]):
        data = run_settings([model, algorithm, *order]).data
        assert data is not None and (data.folder, data.num_responses) == ("hh", 3)
    (tmp_path / "mine.yaml").write_text("# @package _global_\ndata: hh\n")
    mine = compose([model, f"experiment={tmp_path / 'mine.yaml'}", "data.num_epochs=2"])
    assert mine["data"] == {"folder": "hh", "num_epochs": 2}
    weighed = run_settings(
        [model, algorithm, "data=hh", "data.reward=[{name: length, weight: 2, target: 10}]"]
    )
    again = build(RunSettings, weighed.resolved(), where="")
    assert again.data == weighed.data and again.resolved() == weighed.resolved()


def test_rewards_are_weighed_anew(model: Path, tmp_path: Path) -> None:
    annotated(tmp_path / "data", [1.0, 2.0], has_reference=False)
    weighed = {"folder": str(tmp_path / "data"), "reward": [{"name": "length", "weight": 3.0}]}
    folder = train_here(settings(model, tmp_path, weighed, algorithm="wbc", iterations=1))
    assert folder.rollout_info()[0]["reward/mean"] == 4.5
    assert folder.rollout_info()[0]["reward/length/mean"] == 1.5


# What is refused before anything starts


def test_data_and_algorithms_that_learn_from_it_need_each_other(model: Path, data: Path) -> None:
    assert "expected data=FOLDER" in refusal(model, None)
    message = refusal(model, data, algorithm="ppo")
    assert "(a_lol, a_lol_kl," in message and "algorithm=ppo learns from rollouts" in message
    game = {"name": "gymnasium_text", "id": "FrozenLake-v1"}
    assert "environment=gymnasium_text has several turns" in refusal(model, data, environment=game)


def test_an_annotation_that_lacks_what_the_algorithm_needs(model: Path, tmp_path: Path) -> None:
    assert "there is no annotation" in refusal(model, tmp_path / "nothing")
    annotated(tmp_path / "bare", [1.0, 2.0], has_reference=False)
    assert "has no log-probabilities of a reference" in refusal(model, tmp_path / "bare")
    annotated(tmp_path / "scored", [1.0, 2.0])
    assert "has no values of its prompts" in refusal(model, tmp_path / "scored")
    unasked = {"folder": str(tmp_path / "scored"), "reward": []}
    assert "has no rewards, which algorithm=wbc needs" in refusal(model, unasked, algorithm="wbc")
    assert "no column of 'rouge'" in refusal(model, {**unasked, "reward": "rouge"}, algorithm="wbc")


def test_no_positive_advantage_is_told_with_counts(model: Path, tmp_path: Path) -> None:
    annotated(tmp_path, [1.0, 2.0], values=[9.0, 9.0])
    assert "0 of 2 advantages are above 0, the highest is -6.5" in refusal(model, tmp_path)


def test_the_model_has_the_vocabulary_of_the_tokens(data: Path, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path, vocab=[str(number) for number in range(50)])
    assert "whose vocabulary differs from the model's" in refusal(other, data)


def test_responses_fit_in_the_window(model: Path, tmp_path: Path) -> None:
    annotated(tmp_path, [1.0, 2.0], values=[0.0, 0.0], tokens=[[9, 1], [9] * 127])
    assert "the longest example has 129 tokens, and the model's window is 128" in refusal(model, tmp_path)


def test_what_cannot_be_ranked_is_told_with_counts(model: Path, tmp_path: Path) -> None:
    annotated(tmp_path, [1.0, 1.0, 2.0], groups=[0, 0, 1])
    message = refusal(model, tmp_path, algorithm="dpo")
    assert "none of 2 prompts has 2 responses to be ranked: 1 prompts with fewer than 2 different" in message
    annotated(tmp_path / "three", [1.0, 2.0, 3.0], groups=[0, 0, 0])
    three = {"folder": str(tmp_path / "three"), "num_responses": 3}
    assert "expected pairs. Longer lists are for algorithm=pro" in refusal(model, three, algorithm="dpo")


def test_an_evaluation_needs_no_data(model: Path, tmp_path: Path) -> None:
    preflight.check(settings(model, tmp_path, tmp_path / "gone"), training=False)
