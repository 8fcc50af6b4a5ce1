"""docs/from-trl.md and docs/from-verl.md: their tables and examples agree with the settings and with TRL."""

import ast
import dataclasses
import importlib
import json
import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from contracts.errors import InputError
from contracts.processes.python_files import module_name
from contracts.scores import Sample
from learner.algorithms import ALGORITHMS
from reward_servers.server import RewardServer
from services.config.compose import run_settings
from services.config.other_trainers import ours
from services.config.settings import RunSettings

DOCS = Path(__file__).parents[3] / "docs"
TRL, VERL = ((DOCS / name).read_text() for name in ("from-trl.md", "from-verl.md"))
PLACES_OF_TRL = ("trl", "trl.experimental.gkd")
OPTION = re.compile(r"[a-z_]+(?:\.\w+)*")


class Row(NamedTuple):
    """A row of a table: the heading of its first column, and the names in code of the first two."""

    heading: tuple[str, ...]
    theirs: tuple[str, ...]
    ours: tuple[str, ...]


def in_code(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", cell))


def rows(page: str) -> list[Row]:
    """Return the rows of all tables whose second column is Whetstone's.

    >>> rows("`data.` | Whetstone |\\n--- | --- |\\n`n`, `m` | `seed`, `rollout.engine=vllm` | not `this`\\n")
    [Row(heading=('data.',), theirs=('n', 'm'), ours=('seed', 'rollout.engine=vllm'))]
    """
    table_rows = []
    for table in re.findall(r"^.* \| Whetstone \|.*\n(?:.*\|.*\n)+", page, re.MULTILINE):
        header, _, *lines = ([*line.split("|"), ""] for line in table.splitlines())
        table_rows += [Row(in_code(header[0]), in_code(line[0]), in_code(line[1])) for line in lines]
    return table_rows


def theirs(page: str) -> list[tuple[str, Row]]:
    """Return each name of theirs in full, with its row: a heading that ends in a dot is a prefix."""
    return [
        (f"{prefix}{name}", row)
        for row in rows(page)
        for prefix in [row.heading[0] if row.heading[0].endswith(".") else ""]
        for name in row.theirs
    ]


def options_in(answer: str) -> set[str]:
    """Return the options that an answer of the command line names; of `a=b` the key.

    >>> sorted(options_in("algorithm=NAME and algorithm.aggregation; of dpo: algorithm.loss_type"))
    ['algorithm', 'algorithm.aggregation', 'algorithm.loss_type']
    """
    if answer.startswith("nothing:"):
        return set()
    words = [word for word in OPTION.findall(re.sub(r"=[\w.:/]+", "", answer))]
    return {word for word in words if word.partition(".")[0] in RunSettings.model_fields}


NAMES = [pytest.param(page, name, id=name) for page in (TRL, VERL) for name in dict(theirs(page))]
TOLD = {option for page in (TRL, VERL) for row in rows(page) for option in row.ours}


def test_the_tables_are_read() -> None:
    assert len(rows(TRL)) > 25 and len(rows(VERL)) > 25


@pytest.mark.parametrize(("page", "name"), NAMES)
def test_page_and_command_line_say_the_same(page: str, name: str) -> None:
    """A name in two tables has two meanings, and the command line tells both."""
    answer = ours(name)
    assert answer is not None, "the command line does not know it"
    written = [
        {option.partition("=")[0] for option in row.ours} for typed, row in theirs(page) if typed == name
    ]
    assert options_in(answer) <= set().union(*written), answer
    assert all(bool(options) == bool(options & options_in(answer)) for options in written), answer


@pytest.mark.parametrize("page", [TRL, VERL], ids=["trl", "verl"])
def test_every_name_of_theirs_is_answered_if_it_is_typed(page: str) -> None:
    mine = set(flat(run_settings(["experiment=demo", "model.path=m"]).resolved()))
    typed = [name for name, _ in theirs(page) if name not in mine and f"algorithm.{name}" not in mine]
    for section in ("algorithm", "others"):  # an algorithm's options are read first
        names = [name for name in typed if name.startswith("algorithm.") == (section == "algorithm")]
        if not names:
            continue
        with pytest.raises(InputError) as refused:
            run_settings(["experiment=demo", "model.path=m", *(f"{name}=1" for name in names)])
        expected = {f"{name}: there is no such option. Here it is {ours(name)}" for name in names}
        assert set(str(refused.value).split("\n")) == expected


def flat(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")


def value_at(tree: Any, key: str) -> Any:
    for part in key.split("."):
        tree = tree[part]
    return tree


def test_every_option_of_ours_can_be_set() -> None:
    """Each is set to the value that it has; an option of an algorithm is set with one that has it."""
    left = {option for option in TOLD if "=" not in option} - {"algorithm"}
    left -= {"data.num_epochs", "reward.LABEL.weight", "reward.model"}  # set in the next test
    for algorithm in ("grpo", "sapo", "ppo", "dpo", "kto", "supervised"):
        base = [
            f"algorithm={algorithm}",
            "model.path=m",
            "task=prompts",
            "task.data_files=f",
            "reward=length",
        ]
        base += ["data=annotated"] if algorithm in ("dpo", "kto") else []
        tree = run_settings(base).resolved()
        known = [option for option in sorted(left) if option in set(flat(tree))]
        left -= set(known)
        overrides = [f"{key}={json.dumps(value_at(tree, key))}" for key in known]
        assert run_settings([*base, *overrides]).resolved() == tree
    assert left == set()


@pytest.mark.parametrize(
    "choice",
    [
        *sorted(option for option in TOLD if "=" in option),
        "data.num_epochs=2 algorithm=dpo data=annotated",
        "reward=[length,repetition] reward.length.weight=2",
        "reward=learned_reward reward.model=m",
    ],
)
def test_every_choice_of_ours_is_accepted(choice: str) -> None:
    base = ["model.path=m", "task=prompts", "task.data_files=f", "reward=length"]
    with_teacher = ["model.reference.path=t"] if "distillation" in choice else []
    run_settings([*base, *with_teacher, *choice.split()])


def test_every_algorithm_that_the_pages_name_is_there() -> None:
    named = {name for page in (TRL, VERL) for name in re.findall(r"algorithm=(\w+)", page)}
    assert named and named <= ALGORITHMS.keys()


# Names and defaults in TRL


def fields_of(name: str) -> dict[str, Any]:
    pytest.importorskip("trl")
    for place in PLACES_OF_TRL:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TRL's, about what it calls experimental
            config = getattr(importlib.import_module(place), name, None)
        if config is not None:
            return {field.name: field.default for field in dataclasses.fields(config)}
    raise AssertionError(f"trl has no {name}")


@pytest.mark.parametrize("heading", sorted({row.heading for row in rows(TRL)}), ids=", ".join)
def test_every_name_in_the_tables_is_trls(heading: tuple[str, ...]) -> None:
    known = set().union(*(fields_of(name) for name in heading))
    named = {name for row in rows(TRL) if row.heading == heading for name in row.theirs}
    assert named - known == set()


def test_the_defaults_that_the_page_tells_are_trls() -> None:
    grpo, dpo, gkd = (fields_of(name) for name in ("GRPOConfig", "DPOConfig", "GKDConfig"))
    assert (grpo["beta"], grpo["loss_type"], grpo["gradient_checkpointing"]) == (0.0, "dapo", True)
    assert grpo["multi_objective_aggregation"] == "sum_then_normalize"
    assert (grpo["use_bias_correction_kl"], grpo["lr_scheduler_type"]) == (True, "linear")
    assert (dpo["learning_rate"], dpo["disable_dropout"], gkd["beta"], gkd["lmbda"]) == (1e-6, True, 0.5, 0.5)


# The examples


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def command_of(page: str) -> RunSettings:
    (text,) = (block for block in blocks(page, "sh") if block.startswith("whetstone train "))
    return run_settings(shlex.split(text.replace("\\\n", " "))[2:])


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write the pages' Python files into the working folder."""
    for page in (TRL, VERL):
        for body in blocks(page, "python"):
            name = re.match(r"# (\w+\.py)\n", body)
            assert name is not None
            (tmp_path / name[1]).write_text(body)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith(module_name(tmp_path))]:
        del sys.modules[name]


def test_trls_script_and_our_command_ask_for_the_same(modules: Path) -> None:
    script = ast.parse((modules / "train_trl.py").read_text())
    (call,) = (
        node
        for node in ast.walk(script)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "GRPOConfig"
    )
    arguments = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    run = command_of(TRL)
    responses = arguments["per_device_train_batch_size"] * arguments["gradient_accumulation_steps"]
    assert run.rollout.prompts_per_iteration * run.group_size == responses
    assert run.algorithm.minibatch_size is None  # one step on all of them
    assert run.group_size == arguments["num_generations"]
    assert run.rollout.max_tokens == arguments["max_completion_length"]
    assert fields_of("GRPOConfig")["use_bias_correction_kl"] is True
    assert (run.algorithm.kl.coefficient, run.algorithm.kl.estimator) == (arguments["beta"], "k3_exact")
    assert (run.algorithm.learning_rate, run.iterations) == (
        arguments["learning_rate"],
        arguments["max_steps"],
    )
    default = fields_of("GRPOConfig")
    assert arguments.keys() <= default.keys()
    assert run.learner.lr_schedule == default["lr_scheduler_type"]
    assert (run.algorithm.clip_range, run.algorithm.max_grad_norm) == (
        default["epsilon"],
        default["max_grad_norm"],
    )
    assert run.algorithm.optimizer.weight_decay == default["weight_decay"]


def test_trls_reward_scores_unchanged(modules: Path) -> None:
    """The same function, called as TRL calls it and as a reward server does."""
    (modules / "sums.jsonl").write_text(
        "".join(f'{{"prompt": "{n} + 1 =", "answer": "{n + 1}"}}\n' for n in range(20))
    )
    run = command_of(TRL)
    prompts = run.task.prompts("train")[:3]
    texts = [" 1", "7", "3\n"]
    samples = [
        Sample(text, prompt.text, meta=prompt.meta) for text, prompt in zip(texts, prompts, strict=True)
    ]
    served = [score for score, _ in RewardServer(run.reward[0]).score(samples)]
    names: dict[str, Any] = {}
    exec((modules / "my_rewards.py").read_text(), names)
    rows = {"answer": [prompt.meta["answer"] for prompt in prompts], "trainer_state": None}
    called = names["right"](
        prompts=[prompt.text for prompt in prompts], completions=texts, completion_ids=[[1]] * 3, **rows
    )
    assert served == called == [1.0, 0.0, 1.0]


def test_verls_script_and_our_command_ask_for_the_same(modules: Path) -> None:
    (script,) = (block for block in blocks(VERL, "sh") if block.startswith("python3"))
    words = [word for word in shlex.split(script.replace("\\\n", " ")) if "=" in word]
    options = dict(word.split("=", 1) for word in words)
    actor, run = "actor_rollout_ref.actor.", command_of(VERL)
    assert run.rollout.prompts_per_iteration == int(options["data.train_batch_size"])
    assert run.group_size == int(options["actor_rollout_ref.rollout.n"])
    assert run.algorithm.minibatch_size == int(options[f"{actor}ppo_mini_batch_size"]) * run.group_size
    assert run.algorithm.kl.placement == "loss" and options[f"{actor}use_kl_loss"] == "True"
    assert run.algorithm.kl.coefficient == float(options[f"{actor}kl_loss_coef"])
    assert run.algorithm.kl.estimator == "k3"  # low_var_kl, verl's default
    limits = (options["data.max_prompt_length"], options["data.max_response_length"])
    assert (run.rollout.max_prompt_tokens, run.rollout.max_tokens) == tuple(map(int, limits))
    assert run.iterations == int(options["trainer.total_training_steps"])
    assert run.evaluate_every == int(options["trainer.test_freq"])
    assert all(ours(name) for name in options)


def test_verls_reward_scores_verls_files(modules: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name, rows in (("train", 3), ("test", 2)):
        lines = [
            {
                "data_source": "sums",
                "prompt": [{"role": "user", "content": f"{n} + 1 ?"}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": str(n + 1)},
                "extra_info": {"index": n},
            }
            for n in range(rows)
        ]
        pq.write_table(pa.Table.from_pylist(lines), modules / f"{name}.parquet")
    run = command_of(VERL)
    prompts = run.task.prompts("train")
    assert prompts[0].messages and len(run.task.prompts("validation")) == 2
    samples = [
        Sample(f"It is {n + 1 if n else 5}", prompt.text, meta=prompt.meta)
        for n, prompt in enumerate(prompts)
    ]
    assert [score for score, _ in RewardServer(run.reward[0]).score(samples)] == [0.0, 1.0, 1.0]
