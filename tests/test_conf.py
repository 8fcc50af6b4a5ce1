"""Every choice is a valid run, and the command line is laid over conf/ as told."""

import sys
from pathlib import Path
from typing import Any

import pytest

from contracts.components import find
from contracts.errors import InputError
from learner.algorithms import ALGORITHMS
from rollout_workers.environments import ENVIRONMENTS
from services.commands.keys import keys_of_a_run
from services.config.compose import COMPONENTS, choices_of, compose, run_settings
from services.config.settings import RunSettings
from services.data.tasks import TASKS

MODEL = "model.path=some/model"
# What some components ask for besides their name.
NEEDED = {
    "prompts": ["task.data_files=x", "reward=length"],
    "episodes": ["reward=length"],
    "mixture": ["task.parts.a=dates"],
    "textworld": ["environment=textworld"],
    "gymnasium_text": ["environment.id=FrozenLake-v1"],
    "openenv": ["environment.url=http://127.0.0.1:8000"],
    "open_reward": ["environment.url=http://127.0.0.1:8080"],
    "program": ["environment.command=python"],
    "verifiers": ["environment.python=python", "environment.id=words"],
    "textarena": ["environment.id=GuessTheNumber-v0"],
    "tools": ["environment.tools=[calculator]"],
    "distillation": ["model.reference.path=another/model"],
    "return_conditioned": ["environment=textworld", "environment.target_return=1.0", "reward=[]"],
}


def refusal(*overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        run_settings(list(overrides))
    return str(caught.value)


# Choices


@pytest.mark.parametrize(("group", "table"), [("algorithm", ALGORITHMS), ("task", TASKS)])
def test_each_component_is_a_choice_and_a_valid_run(group: str, table: dict[str, str]) -> None:
    assert set(choices_of(group)) == set(table)
    for name in choices_of(group):
        has_reward = getattr(find(group, name, table), "default_reward", "") is not None
        extra = NEEDED.get(name, [] if has_reward else ["reward=length"])
        assert compose([f"{group}={name}", MODEL])[group]["name"] == name
        assert isinstance(run_settings([f"{group}={name}", MODEL, *extra]), RunSettings)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_each_environment_is_a_choice_and_its_options_are_set_beside_it(name: str) -> None:
    assert set(choices_of("environment")) == set(ENVIRONMENTS)
    chosen = [f"environment={name}", *NEEDED.get(name, [])]
    if name == "single_turn":
        assert run_settings([MODEL, *chosen]).environment_name == name
        return
    run = run_settings([MODEL, *chosen, "environment.max_turns=30", "environment.num_parallel=2"])
    chosen_settings = run.environment_name, run.environment.max_turns, run.environment.num_parallel
    assert chosen_settings == (name, 30, 2)


@pytest.mark.parametrize("name", choices_of("cluster"))
def test_every_cluster_is_a_valid_run(name: str) -> None:
    assert isinstance(run_settings([f"cluster={name}", MODEL]), RunSettings)


def test_an_experiment_of_ones_own_chooses_components_by_name(tmp_path: Path) -> None:
    experiment = tmp_path / "own.yaml"
    experiment.write_text(
        "# @package _global_\ndefaults:\n  - override /task: dates\n"
        "  - override /environment: dialogue\n  - override /algorithm: nlpo\n"
    )
    tree = compose([f"experiment={experiment}", MODEL])
    assert [tree[group]["name"] for group in COMPONENTS] == ["nlpo", "dates", "dialogue"]
    experiment.write_text("# @package _global_\ndefaults:\n  - override /task: datse\n")
    assert "Could not find 'task/datse'" in refusal(f"experiment={experiment}", MODEL)


def test_gpt2_on_imdb_is_as_published() -> None:
    run = run_settings(["experiment=imdb_gpt2"])
    assert (run.model.path, run.task_name, run.algorithm_name) == ("lvwerra/gpt2-imdb", "imdb", "ppo")
    assert (run.iterations, run.evaluate_every, run.save_every) == (50, 10, 10)
    sampling = run.sampling()
    assert (sampling.max_tokens, sampling.min_tokens, sampling.top_k) == (48, 48, 50)
    options = run.resolved()["algorithm"]
    published = {"learning_rate": 1e-6, "num_epochs": 5, "gamma": 0.99, "gae_lambda": 0.95, "clip_range": 0.2}
    assert {key: options[key] for key in published} == published
    assert (options["kl"]["coefficient"], options["kl"]["target"]) == (0.1, 0.1)


# The command line


def test_what_is_asked_for_in_iterations_wins_over_an_experiments_epochs() -> None:
    def data(*options: str) -> tuple[Any, Any]:
        section = compose(["experiment=faithdial_nll", "reward=length", *options])["data"]
        return section.get("num_epochs"), section.get("evaluations_per_epoch")

    assert data() == (6, 2)
    assert data("evaluate_every=5") == (6, None)
    assert data("iterations=5") == (None, None)
    assert data("iterations=5", "data.num_epochs=3") == (3, None)
    assert data("data.evaluations_per_epoch=4") == (6, 4)


def test_any_option_is_set_without_a_plus() -> None:
    tree = compose(
        [MODEL, "rollout.max_tokens=7", "algorithm.kl.target=0.5", "seed=3", "+tracking.enabled=false"]
    )
    assert tree["rollout"] == {"max_tokens": 7}
    assert tree["algorithm"] == {"name": "ppo", "kl": {"target": 0.5}}
    assert tree["seed"] == 3
    assert tree["tracking"] == {"enabled": False}


def test_a_reward_replaces_the_old_one_and_its_options() -> None:
    first = "reward={name: rouge, rouge_type: rouge1}"
    assert compose([MODEL, first])["reward"] == {"name": "rouge", "rouge_type": "rouge1"}
    assert compose([MODEL, first, "reward=length"])["reward"] == "length"
    assert compose([MODEL, first, "reward={name: length}"])["reward"] == {"name": "length"}
    assert compose([MODEL, first, "reward=[length, {name: dates, weight: 2}]"])["reward"] == [
        "length",
        {"name": "dates", "weight": 2},
    ]


def test_options_of_the_single_reward_are_addressed_by_its_group() -> None:
    run = run_settings([MODEL, "reward=rouge", "reward.rouge_type=rouge1", "reward.weight=0.5"])
    (part,) = run.reward
    assert (part.name, part.weight, part.options) == ("rouge", 0.5, {"rouge_type": "rouge1"})


def test_options_of_one_of_several_rewards_are_addressed_by_its_label() -> None:
    several = "reward=[length, {name: rouge, label: near, weight: 2}, {name: rouge}]"
    options = ["reward.near.rouge_type=rouge1", "reward.length.target=9", "reward.rouge.weight=3"]
    length, near, rouge = run_settings([MODEL, several, *options]).reward
    assert (length.options, length.weight) == ({"target": 9}, 1)
    assert (near.options, near.weight) == ({"rouge_type": "rouge1"}, 2)
    assert (rouge.options, rouge.weight) == ({}, 3)
    assert "the labels are length, near, rouge" in refusal(MODEL, several, "reward.far.weight=2")


def test_options_of_the_tasks_own_reward_need_no_name() -> None:
    (part,) = run_settings([MODEL, "reward.min_tokens=8"]).reward
    assert (part.name, part.options) == ("increasing_numbers", {"min_tokens": 8})


def test_another_task_drops_what_an_experiment_says_about_the_old_one() -> None:
    same = compose(["experiment=demo", MODEL, "algorithm=ppo"])["algorithm"]
    assert same == compose(["experiment=demo", MODEL])["algorithm"] and len(same) > 1
    assert compose(["experiment=demo", MODEL, "algorithm=supervised"])["algorithm"] == {"name": "supervised"}


def test_a_class_of_ones_own_takes_the_place_of_a_built_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "capitals_task.py").write_text(
        "from typing import ClassVar\n"
        "from contracts.rollout import Prompt\n"
        "from contracts.settings import Settings\n"
        "class Capitals(Settings):\n"
        "    default_reward: ClassVar[str] = 'length'\n"
        "    count: int = 1\n"
        "    def prompts(self, split):\n"
        "        return [Prompt(f'capitals/{split}/{i}', 'Paris') for i in range(self.count)]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    run = run_settings([MODEL, "task=capitals_task:Capitals", "task.count=2"])
    assert len(run.task.prompts("train")) == 2
    assert run.run_name == "Capitals-ppo-seed0"
    assert ([part.name for part in run.reward], run.metrics) == (["length"], ())


def test_interpolation_and_quotes_are_hydras() -> None:
    tree = compose([MODEL, "task.seed=${seed}", "seed=4", "output_dir='a=b, c'"])
    assert tree["task"]["seed"] == 4
    assert tree["output_dir"] == "a=b, c"


# Refusals


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "model.path is required"),
        ([MODEL, "algorithm=pppo"], "algorithm=pppo: no such algorithm; did you mean 'ppo'?"),
        ([MODEL, "environment=textword"], "no such environment; did you mean 'textworld'?"),
        ([MODEL, "environment.max_turn=3"], "environment.max_turn: there is no such option; did you mean"),
        ([MODEL, "task=imdbb"], "no such task; did you mean 'imdb'?"),
        ([MODEL, "experiment=dem"], "no such experiment; did you mean 'demo'?"),
        ([MODEL, "reward=rogue"], "no such reward; did you mean 'rouge'?"),
        ([MODEL, "metrics=[lenght]"], "no such metric; did you mean 'length'?"),
        ([MODEL, "model=gpt2"], "model.path=gpt2"),
        ([MODEL, "iteration=5"], "iteration: there is no such option; did you mean 'iterations'?"),
        ([MODEL, "rolout.max_tokens=5"], "rolout: there is no such option; did you mean 'rollout'?"),
        ([MODEL, "rollout.max_token=5"], "rollout.max_token: there is no such option; did you mean 'max_to"),
        ([MODEL, "algorithm.clip=1"], "algorithm.clip: there is no such option"),
        ([MODEL, "reward.min_token=1"], "reward.min_token: there is no such option; did you mean 'min_to"),
        ([MODEL, "iterations=0"], "iterations: got 0; Input should be greater than or equal to 1"),
        ([MODEL, "iterations=many"], "iterations: got 'many'; Input should be a valid integer"),
        ([MODEL, "seed=1,2"], "several values make a sweep: whetstone train -m seed=1,2"),
        ([MODEL, "reward=[length]", "reward.weight=2"], "reward is a list; expected reward.LABEL.OPTION="),
        ([MODEL, "reward=length", "reward.options=[a]"], "options: got ['a']; expected a mapping"),
        ([MODEL, "model.adapter.target_modules=[1]"], "target_modules: got [1]; Input should be"),
        ([MODEL, "cluster.worker_gpus=1"], "give both, or neither"),
        ([MODEL, "output_dir=a=b"], "expected KEY=VALUE"),
        ([MODEL, "iterations"], "expected KEY=VALUE"),
        ([MODEL, "~seed"], "a key can't be deleted"),
        ([MODEL, "seed=${sede}"], "Interpolation key 'sede' not found"),
        ([MODEL, "task=nowhere.at_all:Task"], "importing nowhere.at_all failed: ModuleNotFoundError"),
        ([MODEL, "task=json:JSONDecoder"], "JSONDecoder is no task: it lacks prompts(split)"),
        ([MODEL, "reward_servers.rogue.replicas=2"], "reward_servers.rogue"),
    ],
)
def test_what_is_wrong_is_named(overrides: list[str], message: str) -> None:
    assert message in refusal(*overrides)


# The documentation


def test_every_key_has_a_description() -> None:
    keys = keys_of_a_run()
    assert len(keys) > 150
    assert [key.name for key in keys if not key.description] == []


def test_every_section_has_its_row_in_the_documentation() -> None:
    documented = (Path(__file__).parents[1] / "docs" / "configuration.md").read_text()
    chosen_by_name = {"task", "reward", "metrics", "algorithm"}
    sections = {key.section or key.name for key in keys_of_a_run()} - chosen_by_name
    assert [name for name in sorted(sections) if f"`{name}" not in documented] == []


def test_another_model_leaves_the_experiments_tokenizer_behind() -> None:
    on_supervised = "experiment=daily_dialog_ppo_on_supervised"
    assert run_settings([on_supervised]).model.tokenizer == "gpt2"
    assert run_settings([on_supervised, "model.path=runs/mine/model"]).model.tokenizer is None
    run = run_settings([on_supervised, "model.path=runs/mine/model", "model.tokenizer=gpt2"])
    assert run.model.tokenizer == "gpt2"


def test_a_length_penalty_needs_beams() -> None:
    message = refusal(MODEL, "evaluation.length_penalty=0.6")
    assert "evaluation.length_penalty=0.6 weights beams, but there is only one" in message
    beams = ["evaluation.num_beams=4", "evaluation.temperature=0", "evaluation.length_penalty=0.6"]
    assert run_settings([MODEL, *beams]).sampling(evaluating=True).length_penalty == 0.6
