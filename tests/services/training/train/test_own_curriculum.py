"""A run with a curriculum of one's own, a real engine and a real learner: resumed to the bit, or refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from services.config.compose import run_settings
from services.config.settings import RunSettings
from services.training.plan.plan import make_plan
from tests.local_run import told_at_start, train_here
from tests.models import make_tiny_model

pytestmark = pytest.mark.slow

WALK = "curriculum=tests.own_curricula:Walk"
TIMES = ("time/", "throughput/")
MIXED = (
    "task=mixture",
    "task.parts.easy={task: increasing_numbers, num_prompts: 8, num_eval_prompts: 2, weight: 3}",
    "task.parts.hard={task: increasing_numbers, num_prompts: 6, num_eval_prompts: 2, reward: distinct_n}",
)
PLAIN = ("task=increasing_numbers", "task.num_prompts=8", "task.num_eval_prompts=2")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def words(model: Path, *more: str) -> list[str]:
    return [
        *(f"model.path={model}", "algorithm=grpo", "algorithm.learning_rate=1e-3", "seed=2"),
        *("rollout.prompts_per_iteration=4", "rollout.group_size=3", "rollout.max_tokens=4"),
        *("rollout.engine=transformers", "rollout.deterministic=true", "rollout.num_threads=1"),
        *("learner.device=cpu", "learner.num_threads=1", "evaluate_every=0", "save_every=2"),
        *("evaluation.num_prompts=2", "tracking.enabled=false", *more),
    ]


def settings(model: Path, *more: str) -> RunSettings:
    return run_settings(words(model, *more))


@pytest.mark.parametrize("task", [PLAIN, MIXED], ids=["plain", "mixture"])
def test_a_resumed_run_has_the_prompts_the_numbers_and_the_weights_of_the_whole_one(
    model: Path, tmp_path: Path, task: tuple[str, ...]
) -> None:
    def train(name: str, iterations: int) -> tuple[list[Any], bytes, Any]:
        options = (f"output_dir={tmp_path}", f"run_name={name}", f"iterations={iterations}")
        kept = f"measures={{name: 'tests.kept_rollouts:Kept', file: '{tmp_path / name}.jsonl'}}"
        folder = train_here(settings(model, *task, WALK, *options, kept))
        rows = [
            {key: value for key, value in (info | training).items() if not key.startswith(TIMES)}
            for info, training in zip(folder.rollout_info(), folder.training_info(), strict=True)
        ]
        weights = (folder.path / "model" / "model.safetensors").read_bytes()
        return rows, weights, json.loads((folder.checkpoint(iterations) / "loop.json").read_text())["source"]

    rows, weights, state = train("whole", 4)
    assert train("halves", 2)[0] == rows[:2]
    assert train("halves", 4) == (rows, weights, state)
    texts = {name: (tmp_path / f"{name}.jsonl").read_text() for name in ("whole", "halves")}
    assert texts["halves"] == texts["whole"] and texts["whole"].count("\n") == 4 * 4 * 3
    orders = state["order"].get("parts", {"": state["order"]}).values()
    assert sum(order["curriculum"]["observed"] for order in orders) == 4 * 4


def test_what_can_never_work_is_told_before_anything_starts(model: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Few:\n"
        "    def choose(self, prompts, count, rng): return [prompts[0].id]\n"
        "    def observe(self, prompt, scores): pass\n"
        "    def state(self): return None\n"
        "    def load_state(self, state): pass\n"
    )
    curriculum = f"curriculum={tmp_path}/mine.py:Few"
    message = told_at_start(settings(model, *PLAIN, curriculum))
    assert message.startswith(
        f"curriculum={tmp_path}/mine.py:Few: choose() returned 1 prompts; expected count=4"
    )
    message = told_at_start(settings(model, *MIXED, curriculum, "task.parts.easy.weight=1"))
    assert "choose() returned 1 prompts; expected count=4" in message
    with pytest.raises(InputError, match=r"rollout.priority_scale=1 would draw prompts by weight. Leave out"):
        settings(model, *PLAIN, curriculum, "rollout.priority_scale=1")
    with pytest.raises(InputError, match="follows the rewards of the model's answers"):
        settings(model, *PLAIN, curriculum, "algorithm=supervised")


def test_the_plan_names_the_class(model: Path) -> None:
    plan = make_plan(words(model, *PLAIN, WALK))
    assert plan.words["curriculum"] == "tests.own_curricula:Walk chooses the prompts"
