"""The experiments that learn from data: LoL-RL's tasks × algorithms, with the settings that it published."""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from services.commands import annotate
from services.config.compose import choices_of, run_settings
from services.studies.annotation.settings import settings_from
from services.studies.benchmarks.offline import OFFLINE
from tests.local_run import train_here
from tests.models import make_tiny_model
from tests.services.response_files import folder as rows_in
from tests.test_experiments import FROM_DATA, left_open
from tests.test_experiments import run_of as run_anew

OF_PAIRS = ("dpo", "dpo_ref_free", "pro")
SCORED = tuple(name for name in OFFLINE.algorithms if name not in OF_PAIRS)
KNOWLEDGE = ("wow", "faithdial", "faithdial_wow")
LABELS = {
    "helpful_harmless": ["learned_reward"],
    "atomic": ["critic"],
    "reddit_comments": ["fluency", "depth", "updown", "safe", "tfidf_diversity"],
    **{task: ["fluency", "faithdial", "depth", "tfidf_diversity"] for task in KNOWLEDGE},
}


run_of = functools.cache(run_anew)


def there() -> set[str]:
    return set(choices_of("experiment"))


def test_every_task_has_all_eight_and_pairs_have_the_rest() -> None:
    names = {f"{task}_{name}" for task in OFFLINE.tasks for name in SCORED}
    names |= {f"helpful_harmless_{name}" for name in OF_PAIRS}
    assert names == FROM_DATA & there()


# Their fields are held against LoL-RL's in test_published.py.


@pytest.mark.parametrize("task", OFFLINE.tasks)
def test_an_experiment_is_named_after_its_task_and_algorithm(task: str) -> None:
    for name in (*SCORED, *(OF_PAIRS if task == "helpful_harmless" else ())):
        run = run_of(f"{task}_{name}")
        assert (run.task_name, run.algorithm_name) == (task, name.replace("dpo_ref_free", "dpo"))
        assert run.run_name == f"{task}-{name}-seed901"
        assert [part.label for part in run.reward] == LABELS[task]


def test_what_is_open_is_asked_for_by_its_place() -> None:
    message = r"model\.path is req.*\nreward\.safe\.model is req.*=…\nreward\.tfidf_diversity\.corpus is req"
    with pytest.raises(InputError, match=message):
        run_settings(["experiment=reddit_comments_a_lol"])
    with pytest.raises(
        InputError, match=r"is a list; expected reward\.LABEL\.OPTION=.* fluency, depth, updown, safe, tfidf"
    ):
        run_settings(["experiment=reddit_comments_a_lol", "reward.unsafe.model=x"])


def test_annotation_takes_task_rewards_lengths_and_place_of_an_experiment() -> None:
    rewards = [option for option in left_open("wow_a_lol") if option.startswith("reward.")]
    annotating = settings_from(["experiment=wow_a_lol", *rewards, "task.data_files=somewhere"])
    assert [part.label for part in annotating.reward] == LABELS["wow"]
    assert (annotating.output, annotating.rollout.max_prompt_tokens, annotating.rollout.max_tokens) == (
        "annotated/wow",
        512,
        128,
    )
    assert annotating.held_out_task == {"name": "wow", "data_files": "somewhere"}
    assert (annotating.rollout.engine, annotating.value) == ("transformers", None)
    assert (annotating.rollout.dtype, annotating.learner.autocast) == ("float32", "none")
    valued = settings_from(["experiment=wow_a_lol", *rewards, "reference=m", "value=true", "value.seed=3"])
    assert valued.value is not None and run_of("wow_a_lol").data is not None
    assert valued.value.model_copy(update={"seed": 0}) == run_of("wow_a_lol").data.value  # type: ignore[union-attr]
    longer = settings_from(
        ["experiment=wow_a_lol", *rewards, "reference=m", "value.num_epochs=7", "value=true"]
    )
    assert longer.value is not None and (longer.value.num_epochs, longer.value.num_beams) == (7, 2)
    rows = settings_from(
        ["experiment=wow_a_lol", *rewards, "data.files=mine", "output=there", "reward=length"]
    )
    assert (rows.task, rows.output, [part.label for part in rows.reward]) == (None, "there", ["length"])
    with pytest.raises(
        InputError, match=r"^reward\.tfidf_diversity\.corpus is required. Type .*=FILE.jsonl, in JSON"
    ):
        settings_from(["experiment=wow_a_lol"])
    with pytest.raises(InputError, match="no such experiment; did you mean"):
        settings_from(["experiment=wow_a_lo"])


# Of pairs and of single responses, from rows to a trained model; the reward needs no download


def talk(number: int) -> dict[str, Any]:
    texts = [f"\n\nHuman: Is {number} far?\n\nAssistant: {end}" for end in (f"{number} miles 7", "no idea")]
    return {"chosen": texts[0], "rejected": texts[1]}


def knowledge(number: int) -> dict[str, Any]:
    return {"knowledge": f"Cats are {number}.", "history": ["Hi", "What?"], "response": f"They are {number}"}


TINY = (
    "iterations=1",
    "data.num_epochs=1",
    "save_every=0",
    "tracking.enabled=false",
    "learner.device=cpu",
    "learner.num_threads=1",
)
WHOLE = ("model.adapter.kind=none", "model.adapter.r=16", "model.adapter.lora_alpha=32")  # without an adapter
SHORT = ("rollout.max_tokens=4", "rollout.max_prompt_tokens=32")


@pytest.mark.parametrize(
    ("name", "row"),
    [("helpful_harmless_dpo", talk), ("faithdial_r_lol", knowledge)],
)
def test_from_rows_to_a_model(name: str, row: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.terminal.interrupts.signal.signal", lambda number, handler: None)
    model = make_tiny_model(tmp_path / "model")
    files = rows_in(tmp_path / "rows", [row(number) for number in range(6)], **others(row))
    reward = "reward=[{name: length, target: 4}]"
    overrides = [f"experiment={name}", reward, f"task.data_files={files}", f"reference={model}"]
    overrides += [f"output={tmp_path / 'annotated'}", "executor=here", "rollout.engine=transformers", *SHORT]
    assert annotate.run([*overrides, "learner.device=cpu"]) == 0

    chosen = [
        f"experiment={name}",
        reward,
        f"data={tmp_path / 'annotated'}",
        f"model.path={model}",
        *TINY,
        *SHORT,
    ]
    run = run_settings(
        [*chosen, "rollout.engine=transformers", f"output_dir={tmp_path}", "algorithm.learning_rate=1e-3"]
    )
    assert run.resolved()["task"]["data_files"] == files  # the same task: what is unsaid is the annotation's
    folder = train_here(run)
    (trained,) = folder.rollout_info()
    assert trained["rollouts/trained"] >= 1
    assert [evaluation["epoch"] for evaluation in folder.evaluations("test")] == [0, 1]
    json.dumps(folder.evaluations("test"), allow_nan=False)


def others(row: Any) -> Mapping[str, Any]:
    """Other rows for validation and test, which are to have other prompts."""
    return {
        "validation": [row(number) for number in (10, 11, 12)],
        "test": [row(number) for number in (20, 21)],
    }
