"""A mixture of tasks: its settings and refusals, and the reading and grading of each part."""

import json
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.by_part import trial_of_parts
from reward_servers.local import LocalRewardClient
from services.config.compose import run_settings
from services.config.settings import RunSettings
from services.data.tasks.mixture import TaskMixture
from services.studies.annotation.settings import AnnotateSettings
from services.training.loop.evaluations.held_out import held_out_leases
from services.training.plan.as_json import as_json
from services.training.plan.plan import make_plan
from services.training.preflight import preflight
from services.training.sources.prompts import prompts_of
from services.training.sources.reading import reading_of
from tests.chat_templates import DEFAULT_SYSTEM, make_chat_model
from tests.local_run import train_here

EASY = "task.parts.easy={task: increasing_numbers, weight: 3}"
HARD = "task.parts.hard={task: dates, reward: length, metrics: [exact_match]}"


def mixture(*overrides: str, model: str = "none") -> RunSettings:
    return run_settings([f"model.path={model}", "algorithm=grpo", "task=mixture", *overrides])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("model"), DEFAULT_SYSTEM)


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    rows = [{"prompt": f"What is {number} ?", "answer": str(number)} for number in range(20)]
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def labels(parts: Any) -> list[str]:
    return [part.label for part in parts]


def test_a_part_takes_what_it_does_not_say_from_the_run_and_then_from_its_task() -> None:
    of_tasks = mixture(EASY, HARD)
    assert {name: labels(run.reward) for name, run in of_tasks.parts.items()} == {
        "easy": ["increasing_numbers"],
        "hard": ["length"],
    }
    assert labels(of_tasks.reward) == ["increasing_numbers", "length"]
    of_run = mixture(EASY, HARD, "reward=distinct_n", "metrics=[]")
    assert labels(of_run.parts["easy"].reward) == ["distinct_n"]
    assert labels(of_run.parts["hard"].reward) == ["length"]
    assert [labels(run.metrics) for run in of_run.parts.values()] == [[], ["exact_match"]]


def test_what_config_yaml_holds_gives_the_same_run_again() -> None:
    run = mixture(EASY, HARD, "reward=distinct_n", "task.truncation_side=right", "curriculum.solved_at=3")
    plain = json.loads(json.dumps(run.resolved()))
    again = RunSettings.model_validate(plain)
    assert again.resolved() == run.resolved()
    assert plain["task"]["parts"]["easy"]["num_prompts"] == 512  # defaults are told
    assert again.parts["hard"].prompt_limit("train").side == "right"


def test_options_of_parts_are_set_one_by_one_as_others() -> None:
    run = mixture("task.parts.a=dates", "task.parts.a.weight=2.5", "task.parts.a.num_prompts=7")
    assert isinstance(run.task, TaskMixture)
    assert (run.task.parts["a"].options.weight, len(run.task.prompts("train"))) == (2.5, 7)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], r"task\.parts: is required"),
        (["task.parts={}"], r"task\.parts: got \{\}; expected a name and options for each part"),
        (["task.parts.a=7"], r"task\.parts\.a: got 7; expected options such as \{task: gsm8k, weight: 3\}"),
        (["task.parts={a b: dates}"], r"task\.parts\.a b: expected a name of letters"),
        (["task.parts.a={weight: 2}"], r"task\.parts\.a\.task: is required"),
        (["task.parts.a={task: datse}"], r"task\.parts\.a: task=datse: no such task; did you mean 'dates'"),
        (["task.parts.a={task: dates, weight: 0}"], r"task\.parts\.a\.weight: got 0; .* greater than 0"),
        (["task.parts.a={task: dates, wieght: 1}"], r"task\.parts\.a\.wieght: .* did you mean 'weight'"),
        (["task.parts.a=mixture"], r"a mixture can.t contain a mixture"),
        (["task.parts.a={task: prompts, data_files: x}"], r"task\.parts\.a: .* no default reward"),
        (["task.parts.a={task: dates, chat: {sistem: x}}"], r"task\.parts\.a\.chat\.sistem: .* 'system'"),
        (["task.parts.a={task: textworld, reward: length}"], r"needs environment=textworld"),
        (["task.parts.a=dates", "environment=dialogue"], r"leave environment out"),
        (["task.parts.a=dates", "algorithm=dpo"], r"algorithm=dpo learns from an annotated data set"),
        (["task.parts.a=dates", "data=x", "data.share=0.5"], r"data=x learns from an annotated data set"),
        (["task.parts.a={task: dates, reward: dates}", "reward=length"], r"reward=length: every part"),
        (
            [
                "task.parts.a={task: dates, reward: {name: length, target: 3}}",
                "task.parts.b={task: dates, reward: {name: length, target: 4}}",
            ],
            r"the reward 'length' has other options in a than in b; .*label: length2",
        ),
        (
            ["task.parts.a=dates", "curriculum=loss"],
            r"curriculum=loss: no such curriculum; there are: pass_rate",
        ),
        (["task.parts.a=dates", "algorithm=supervised", "curriculum=pass_rate"], r"leave curriculum out"),
        (["task.parts.a=dates", "curriculum.least_share=0"], r"curriculum\.least_share: got 0"),
    ],
)
def test_wrong_use_is_told_before_the_start(overrides: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        mixture(*overrides)


def test_commands_with_one_task_refuse_a_mixture() -> None:
    with pytest.raises(InputError, match="task=mixture is for train, plan and evaluate"):
        AnnotateSettings.model_validate({"task": {"name": "mixture", "parts": {"a": "dates"}}})


def test_each_part_is_read_by_its_own_chat_settings(model: Path, questions: Path) -> None:
    run = mixture(
        "model.chat.system=You help.",
        f"task.parts.chat={{task: prompts, data_files: {questions}, reward: length}}",
        "task.parts.chat.chat.system=Be brief.",
        f"task.parts.as_run={{task: prompts, data_files: {questions}, reward: length}}",
        "task.parts.plain={task: increasing_numbers, chat: {system: null}}",
        model=str(model),
    )
    preflight.check(run)
    prompts = prompts_of(run.task, run.task_name, "train")
    to_tokens = reading_of(run, "train")
    texts = {prompt.part: to_tokens.text(to_tokens(prompt)) for prompt in prompts[:3]}
    assert "system\nBe brief.<|stop|>" in texts["chat"]
    assert "system\nYou help.<|stop|>" in texts["as_run"]
    assert "<|start|>" not in texts["plain"]  # its task is for models that continue texts


def test_held_out_prompts_come_from_all_parts_in_turns(model: Path) -> None:
    run = mixture(EASY, HARD, "evaluation.num_prompts=7", model=str(model))
    leases = held_out_leases(run, "validation")
    assert [lease.prompt.part for lease in leases] == ["easy", "hard"] * 3 + ["easy"]


def test_a_part_without_prompts_and_a_column_that_is_taken_are_refused(model: Path, tmp_path: Path) -> None:
    few, taken = tmp_path / "few.jsonl", tmp_path / "taken.jsonl"
    few.write_text('{"prompt": "What ?"}\n')  # none is left for validation
    taken.write_text('{"prompt": "What ?", "part": "b"}\n' * 20)
    options = ("task.parts.a.task=prompts", "task.parts.a.reward=length")
    with pytest.raises(InputError, match=r"validation"):
        preflight.check(mixture(*options, f"task.parts.a.data_files={few}", model=str(model)))
    overrides = (*options, f"task.parts.a.data_files={taken}", "task.parts.a.meta_columns=[part]")
    with pytest.raises(InputError, match=r"task\.parts\.a: .* has meta data 'part'"):
        preflight.check(mixture(*overrides, model=str(model)))


def test_a_plan_shows_parts_weights_sizes_and_first_prompts(
    model: Path, questions: Path, tmp_path: Path
) -> None:
    words = [f"model.path={model}", "algorithm=grpo", "task=mixture", EASY, f"output_dir={tmp_path}"]
    words += [f"task.parts.chat={{task: prompts, data_files: {questions}, reward: length}}"]
    plan = make_plan([*words, "curriculum=pass_rate"])
    assert plan.words["part easy"] == (
        "increasing_numbers, weight 3 = 75% of the prompts; 512 train, 64 validation, 64 test; "
        "reward increasing_numbers; metrics increasing_numbers, length"
    )
    assert "16 train, 2 validation, 2 test; reward length" in plan.words["part chat"]
    assert plan.words["curriculum"].startswith("by pass rate, a reward of 1 solves a prompt")
    assert "What is 0 ?" in plan.prompts_as_read["chat"].text
    assert plan.sources["prompts of chat"] == f"task prompts: {questions}"
    assert list(json.loads(as_json(plan))["prompts_as_read"]) == ["easy", "chat"]


def test_a_sample_is_scored_by_its_parts_rewards_alone() -> None:
    run = mixture(
        "task.parts.a={task: dates, reward: [{name: length, weight: 0.5}, dates]}",
        "task.parts.b={task: dates, reward: {name: length, label: words, weight: 2.0}}",
    )
    samples = [Sample("one two 2024-01-31", meta={"part": part}) for part in "aba"]
    first, second, third = LocalRewardClient(run.reward, by_part=run.by_part).submit(samples).result()
    assert first == third
    assert (first.total, first.parts) == (0.5 * 3 + 1, {"length": 3.0, "dates": 1.0})
    assert (second.total, second.parts) == (6.0, {"words": 3.0})


def test_graders_are_tried_on_prompts_of_a_part_that_they_grade() -> None:
    run = mixture(EASY, HARD)
    prompts = run.task.prompts("train")
    assert not isinstance(prompts, list)
    first = {part: prompts.of_part(part)[:2] for part in run.parts}  # type: ignore[attr-defined]
    trial = trial_of_parts(first, run.by_part)
    assert {sample.meta["part"] for sample in trial.for_grader("reward", "length").samples} == {"hard"}
    assert {sample.meta["part"] for sample in trial.for_grader("metric", "length").samples} == {"easy"}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["grpo", "supervised"])
def test_a_mixture_trains_a_real_model(model: Path, questions: Path, tmp_path: Path, algorithm: str) -> None:
    run = mixture(
        f"algorithm={algorithm}",
        f"task.parts.plain={{task: prompts, data_files: {questions}, reward: length, weight: 3}}",
        "task.parts.plain.chat.template=none",
        f"task.parts.chat={{task: prompts, data_files: {questions}, reward: distinct_n}}",
        "task.parts.chat.metrics=[exact_match]",
        *("rollout.prompts_per_iteration=4", "rollout.max_tokens=4", "rollout.engine=transformers"),
        *("evaluation.num_prompts=4", "evaluation.samples_per_prompt=2", "iterations=2", "evaluate_every=0"),
        *("tracking.enabled=false", f"output_dir={tmp_path / 'runs'}", "learner.device=cpu"),
        model=str(model),
    )
    folder = train_here(run)
    metrics = folder.evaluations("val")[-1]["metrics"]
    assert {f"parts/{part}/reward/mean" for part in run.parts} <= metrics.keys()
    assert {"parts/chat/lexical/exact_match", "parts/chat/mean@2", "mean@2"} <= metrics.keys()
    assert "lexical/exact_match" not in metrics  # not a metric of every part
    assert [row["parts/plain/drawn"] for row in folder.rollout_info()] == [3.0, 6.0]


@pytest.mark.slow
def test_a_resumed_run_of_a_real_model_draws_and_learns_the_same(
    model: Path, questions: Path, tmp_path: Path
) -> None:
    def lines(name: str, iterations: int) -> list[dict[str, Any]]:
        run = mixture(
            "task.parts.easy={task: increasing_numbers, num_prompts: 6, weight: 3, reward: length}",
            f"task.parts.chat={{task: prompts, data_files: {questions}, reward: distinct_n}}",
            *("rollout.prompts_per_iteration=4", "rollout.group_size=2", "rollout.max_tokens=3"),
            *("rollout.engine=transformers", "rollout.deterministic=true", "rollout.num_threads=1"),
            *("learner.device=cpu", "learner.num_threads=1", "curriculum.solved_at=3"),
            *("evaluation.num_prompts=2", "evaluate_every=0", "save_every=3", f"iterations={iterations}"),
            *("tracking.enabled=false", f"output_dir={tmp_path}", f"run_name={name}"),
            model=str(model),
        )
        kept = ("reward/", "parts/", "kl/", "response_length/")
        return [
            {key: value for key, value in row.items() if key.startswith(kept)}
            for row in train_here(run).rollout_info()
        ]

    whole = lines("whole", 6)
    assert lines("halves", 3) == whole[:3]
    assert lines("halves", 6) == whole
    assert whole[-1]["parts/easy/curriculum/prompts"] == 6  # all of the part
