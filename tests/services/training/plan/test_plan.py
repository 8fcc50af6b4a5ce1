"""`whetstone plan`: the arithmetic of a run, its memory and places, by hand; and what train would refuse."""

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from contracts.settings import build
from learner.settings import ModelSettings
from services import cli
from services.config.settings import RunSettings
from services.models.files import ModelFiles, read_model
from services.models.shape import ModelShape, shape_of
from services.runs.folder import RunFolder
from services.training.plan.arithmetic import (
    Batch,
    arithmetic,
    batch,
    checkpoints,
    dropout,
    evaluations,
    optimizer_steps,
)
from services.training.plan.memory import Amount, amounts, total_bytes
from services.training.plan.plan import make_plan
from services.training.plan.processes import Processes, environments, processes, servers
from services.training.preflight.capacity.memory_model import (
    GIB,
    LEARNER_PROCESS,
    MemoryNeeds,
    share_and_base,
)
from services.training.preflight.deployment import Deployment, Machine, deployment_of
from tests.learner.tiny import make_learner, make_model, random_rollouts, rollout
from tests.models import make_tiny_model

HERE = Machine(num_cores=2.0, num_gpus=0, cluster=None)


def deployed(run: RunSettings, machine: Machine = HERE) -> tuple[ModelFiles, Deployment]:
    model = read_model(run.model)
    return model, deployment_of(run, model, machine)


def estimated(run: RunSettings, model: ModelFiles, deployed: Deployment) -> list[Amount]:
    assert model.num_parameters is not None
    share, base = share_and_base(run.model, model, model.num_parameters)
    needs = replace(needs_of(run, model.num_parameters), trained_share=share, base_bytes=base)
    return amounts(needs, model, deployed, batch_of(run).num_rollouts)


def rows_of(run: RunSettings, deployed: Deployment) -> list[Processes]:
    rows = processes(run.learner, run.algorithm_name, deployed)
    if run.plays:
        rows.append(environments(run.environment, run.environment_name, run.rollout.num_workers))
    return rows + servers(run.reward, run.metrics, run.reward_servers)


def needs_of(run: RunSettings, num_parameters: int) -> MemoryNeeds:
    return MemoryNeeds(run.model, run.algorithm, run.learner, run.rollout, num_parameters)


PARAMETERS = 95_424  # of the model below: 103 × 64 twice, two layers of 41,088, and a norm of 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def settings(**changes: Any) -> RunSettings:
    whole = {"algorithm": "ppo", "task": "increasing_numbers", "model": {"path": "some/model"}, **changes}
    return build(RunSettings, whole, where="")


def batch_of(run: RunSettings) -> Batch:
    turns = run.environment.max_turns if run.plays else None
    return batch(run.algorithm, run.rollout, run.group_size, run.data, turns)


def words(**changes: Any) -> dict[str, str]:
    run = settings(**changes)
    return arithmetic(run, batch_of(run), {"train": 100, "validation": 8, "test": 6})


# Arithmetic


def test_ppo_in_words() -> None:
    described = words(
        algorithm={"name": "ppo", "num_epochs": 4, "minibatch_size": 32},
        rollout={"prompts_per_iteration": 50, "group_size": 2},
        iterations=10,
    )
    assert described["iteration"] == "50 prompts × 2 responses = 100 rollouts of at most 48 tokens"
    assert described["update"] == (
        "100 rollouts in minibatches of 32 = 4 minibatches × 4 epochs = 16 optimiser steps, in micro-batches "
        "of at most 16,384 tokens"
    )
    assert described["run"] == (
        "10 iterations = 1,000 rollouts and 160 optimiser steps; each of 100 training prompts comes 5 times"
    )


def test_grpo_brings_its_group_and_target_kl_may_end_an_update_early() -> None:
    assert batch_of(settings(algorithm="grpo")).words.startswith("64 prompts × 8 responses = 512 rollouts of")
    stopped = words(algorithm={"name": "ppo", "target_kl": 0.1})
    assert "= at most 10 optimiser steps" in stopped["update"]
    assert "and at most 1,000 optimiser steps" in stopped["run"]


def test_trpo_takes_one_step() -> None:
    described = words(algorithm={"name": "trpo", "num_epochs": 2, "minibatch_size": 16}, iterations=3)
    assert described["update"].startswith("one step within the trust region, and 8 steps of the critic")
    assert described["run"].startswith(
        "3 iterations = 192 rollouts, 3 steps within the trust region and 24 of the critic; "
    )


def test_rejection_trains_on_some_and_supervised_on_references() -> None:
    chosen = words(algorithm="rejection")
    assert chosen["update"].startswith("what it selects of 64 rollouts")
    assert "6,400 rollouts and at most 200 optimiser steps" in chosen["run"]
    imitated = words(algorithm="supervised")
    assert imitated["iteration"] == (
        "64 prompts with a reference of at most 48 tokens each, more where one has several"
    )
    assert "at least 2 optimiser steps" in imitated["update"]
    assert "at least 6,400 rollouts and at least 200 optimiser steps" in imitated["run"]


def test_what_an_expert_plays_is_as_long_as_other_episodes() -> None:
    game = {"task": "textworld", "environment": {"name": "textworld", "max_turns": 3}}
    described = words(algorithm="supervised", **game)
    assert described["iteration"] == "64 episodes of at most 3 turns of 48 tokens, played by an expert"
    assert "11 × 8 episodes for 8 validation prompts" in described["evaluation"]


@pytest.mark.parametrize(
    ("changes", "ending"),
    [
        ({}, "; each of 100 training prompts comes 64 times"),
        ({"iterations": 2}, "; each of 100 training prompts comes 1 or 2 times"),
        ({"iterations": 1}, "; 64 of 100 training prompts are used"),
        (
            {"iterations": 1, "rollout": {"prompts_per_iteration": 100}},
            "; each of 100 training prompts comes once",
        ),
        ({"rollout": {"priority_scale": 0.5}}, "; 6,400 draws of 100 training prompts, by their weight"),
        ({"data": {"folder": "d", "share": 0.25}}, "; each of 100 training prompts comes 48 times"),
    ],
)
def test_how_often_a_prompt_comes(changes: dict[str, Any], ending: str) -> None:
    assert words(**changes)["run"].endswith(ending)


def test_of_a_mixed_batch_the_policys_share_alone_has_the_rollouts_length() -> None:
    assert words(data={"folder": "d", "share": 0.25})["iteration"] == (
        "48 prompts × 1 response = 48 rollouts of at most 48 tokens, and 16 of the data set"
    )


@pytest.mark.parametrize(
    ("evaluation", "ending"),
    [
        ({}, ", drawn at temperature 1"),
        ({"temperature": 0}, ", written greedily"),
        ({"temperature": 0, "num_beams": 5}, ", searched with 5 beams"),
        ({"temperature": 0.7, "top_k": 50, "top_p": 0.9}, ", drawn at temperature 0.7, top-k 50, top-p 0.9"),
    ],
)
def test_how_evaluations_are_written(evaluation: dict[str, Any], ending: str) -> None:
    assert words(evaluation=evaluation)["evaluation"].endswith(f"6 test prompts{ending}")


def test_turns_are_counted() -> None:
    described = words(environment={"name": "dialogue", "max_turns": 3}, rollout={"max_tokens": 8})
    assert described["iteration"] == "64 prompts × 1 try = 64 episodes of at most 3 turns of 8 tokens"


@pytest.mark.parametrize("every", [0, 1, 3, 10, 11])
@pytest.mark.parametrize("iterations", [1, 10, 12])
def test_evaluations_and_checkpoints_are_those_of_the_loop(every: int, iterations: int) -> None:
    due = [n for n in range(iterations + 1) if n in (0, iterations) or (every and n % every == 0)]
    assert evaluations(iterations, every) == (len(due), 2)
    saved = [n for n in range(1, iterations + 1) if n == iterations or (every and n % every == 0)]
    assert checkpoints(iterations, every) == len(saved)


def test_the_best_checkpoint_is_kept_beside_the_newest() -> None:
    options: dict[str, Any] = {"iterations": 10, "save_every": 1, "keep_checkpoints": 2}
    assert words(**options)["checkpoints"] == "10 written, the newest 2 kept; at the end model/"
    assert words(**options, keep_best="val/reward/mean")["checkpoints"] == (
        "at least 10 written, the newest 2 and the best kept; at the end model/ and best_model/"
    )
    assert words(iterations=1)["checkpoints"] == "1 written, all kept; at the end model/"


def test_a_run_without_evaluations_says_so() -> None:
    assert evaluations(12, "never") == (0, 0)
    assert words(evaluate_every="never")["evaluation"] == "none: evaluate_every=never"


def test_held_out_texts() -> None:
    described = words(
        iterations=20, evaluate_every=10, evaluation={"num_prompts": 7, "samples_per_prompt": 2}
    )
    assert described["evaluation"] == (
        "3 × 14 texts for 7 validation prompts and 2 × 12 texts for 6 test prompts, drawn at temperature 1"
    )


GPT2_RATES = {"attn_pdrop": 0.1, "resid_pdrop": 0.2, "embd_pdrop": 0.0, "summary_first_dropout": 0.1}
LORA = {"kind": "lora", "lora_dropout": 0.05}


@pytest.mark.parametrize(
    ("algorithm", "model", "expected"),
    [
        ("supervised", {}, "on, as supervised was published: attn_pdrop 0.1, resid_pdrop 0.2"),
        ("ppo", {}, "off, as ppo was published"),
        ("ppo", {"dropout": True}, "on, as asked for: attn_pdrop 0.1, resid_pdrop 0.2"),
        ("supervised", {"dropout": False}, "off, as asked for"),
        ("ppo", {"adapter": LORA}, "off, as ppo was published; in the adapter 0.05"),
    ],
)
def test_whether_updates_drop_out(algorithm: str, model: dict[str, Any], expected: str) -> None:
    run = settings(algorithm=algorithm, model={"path": "some/model", **model})
    assert dropout(run.model, run.algorithm, run.algorithm_name, GPT2_RATES) == expected


def test_a_model_without_dropout_is_told_of() -> None:
    run = settings(algorithm="supervised")
    assert dropout(run.model, run.algorithm, "supervised", {"model_type": "llama"}) == (
        "none, because config.json names no rate above 0 (otherwise on, as supervised was published)"
    )


@pytest.mark.parametrize("algorithm", ["ppo", "trpo"])
def test_the_learner_makes_at_most_as_many_steps_of_tokens(tmp_path: Path, algorithm: str) -> None:
    """Five answers of 4 tokens are three minibatches of 7 tokens; shorter ones are fewer."""
    options = {"name": algorithm, "minibatch_tokens": 7, "num_epochs": 2}
    run = settings(algorithm=options, rollout={"prompts_per_iteration": 5, "max_tokens": 4})
    planned = optimizer_steps(run.algorithm, batch_of(run))[1]
    assert planned == 6
    learner = make_learner(make_model(tmp_path / "model", "llama"), run.algorithm)
    steps = [
        learner.update([rollout(i, (3, 4), (5,) * length, float(i)) for i in range(5)])["update/steps"]
        for length in (4, 2)
    ]
    assert steps == [planned, 4]


@pytest.mark.parametrize(("minibatch_size", "num_epochs"), [(3, 2), (None, 3), (100, 1)])
def test_the_learner_makes_as_many_steps(tmp_path: Path, minibatch_size: int | None, num_epochs: int) -> None:
    options = {"name": "ppo", "minibatch_size": minibatch_size, "num_epochs": num_epochs}
    run = settings(algorithm=options, rollout={"prompts_per_iteration": 8})
    learner = make_learner(make_model(tmp_path / "model", "llama"), run.algorithm)
    assert (
        learner.update(random_rollouts(8))["update/steps"] == optimizer_steps(run.algorithm, batch_of(run))[1]
    )


# Memory


def test_the_shape_of_a_model(model: Path) -> None:
    shape = shape_of(read_model(ModelSettings(path=str(model))))
    widths = {"width": 64, "query_width": 64, "kv_width": 64, "inner_width": 128}
    assert shape == ModelShape(num_layers=2, vocabulary=103, is_gated=True, is_tied=False, **widths)
    assert shape.num_parameters() == PARAMETERS - 5 * 64  # without the norms
    # keys and values, two layers, 64 wide, four bytes each
    assert shape.cache_bytes(4) == 2 * 2 * 64 * 4


def test_memory_by_hand(model: Path) -> None:
    learner = {"token_budget": 1000, "logits_budget": 2000}
    run = settings(model={"path": str(model)}, learner=learner, rollout={"engine": "vllm"})
    needs = {(need.where, need.what): need for need in estimated(run, *deployed(run))}
    size = {key: need.num_bytes for key, need in needs.items()}
    assert size["learner", "weights"] == size["learner", "gradients"] == 4 * PARAMETERS
    assert size["learner", "optimiser's moments"] == 8 * PARAMETERS
    assert size["learner", "reference model"] == 4 * PARAMETERS
    # numbers that a layer keeps of a token: two norms' inputs, as they are and normalised; their outputs;
    # queries, keys, values and what comes out of them; four of the width within
    layer = 4 * (4 * 64 + 2 * 64 + 4 * 64 + 4 * 128)
    # six states before and after the layers
    assert size["learner", "activations"] == 1000 * (2 * layer + 4 * 6 * 64)
    # three widths within and three states, which are more than the head's logits and gradient before them
    assert size["learner", "a layer's gradients"] == 1000 * 4 * (3 * 128 + 3 * 64)
    assert ("learner", "logits") not in size
    assert size["each worker", "KV cache"] == GIB
    assert needs["each worker", "KV cache"].note == f"{2**30 // 1024:,} tokens"


@pytest.mark.parametrize(("algorithm", "copies"), [("ppo", 1), ("trpo", 3)])
def test_processes_that_are_not_sharded_hold_a_copy_each(algorithm: str, copies: int) -> None:
    run = settings(algorithm=algorithm, learner={"num_processes": 3})
    alone = settings(algorithm=algorithm)
    one, several = needs_of(alone, 10**6).least(), needs_of(run, 10**6).least()
    trained, reference = list(several.values())[:2]
    assert reference == copies * 4e6 == copies * list(one.values())[1]
    assert trained - 3 * LEARNER_PROCESS == pytest.approx(
        copies * (next(iter(one.values())) - LEARNER_PROCESS)
    )


@pytest.mark.parametrize(("sums", "num_bytes"), [("micro_batch", 4e6), ("minibatch", 4e6 + 3 * 4e6)])
def test_gradients_that_wait_for_their_sum_are_whole_in_each_process(sums: str, num_bytes: float) -> None:
    run = settings(learner={"num_processes": 3, "sum_gradients": sums})
    assert needs_of(run, 10**6).of_learner()["gradients"] == num_bytes


def test_the_head_counts_where_it_takes_more_than_a_layer(model: Path) -> None:
    learner = {"token_budget": 10, "logits_budget": 2000}
    run = settings(model={"path": str(model)}, learner=learner, rollout={"max_tokens": 4})
    num_bytes = {need.what: need.num_bytes for need in estimated(run, *deployed(run))}
    assert num_bytes["logits"] == (3 + 1) * 4 * 10 * 103  # one of them waits for the backward pass
    assert num_bytes["the head's own gradient"] == 4 * 103 * 64
    assert "a layer's gradients" not in num_bytes


def test_checkpointing_keeps_inputs_and_one_layer(model: Path) -> None:
    lean = {"path": str(model), "gradient_checkpointing": True}
    run = settings(model=lean, learner={"token_budget": 1000})
    num_bytes = {need.what: need.num_bytes for need in estimated(run, *deployed(run))}
    # two layers' inputs and what surrounds them; then one layer, which is computed again
    assert num_bytes["activations"] == 1000 * (2 * 4 * 64 + 1536)
    assert num_bytes["a layer's gradients"] == 1000 * (4608 + 2304)


def test_dropout_on_a_cpu_keeps_attentions_probabilities(model: Path) -> None:
    """Shape of a model of 1,000 tokens, two heads and two layers, each to 32 + 48 tokens, three times."""
    options = {"rollout": {"max_prompt_tokens": 32}, "learner": {"token_budget": 1000}}
    files = read_model(ModelSettings(path=str(model)))
    noisy = replace(files, config={**files.config, "attention_dropout": 0.1})
    wanted = {"path": str(model)}

    def kept(algorithm: str, where: Machine = HERE, files: ModelFiles = noisy, **model: Any) -> float | None:
        run = settings(algorithm=algorithm, model={**wanted, **model}, **options)
        held = estimated(run, files, deployment_of(run, files, where))
        return {need.what: need.num_bytes for need in held}.get("attention")

    assert kept("supervised") == 3 * 4 * 1000 * 2 * 2 * (32 + 48)
    assert kept("supervised", gradient_checkpointing=True) == 3 * 4 * 1000 * 2 * (32 + 48)
    assert kept("ppo") is None and kept("supervised", dropout=False) is None
    assert kept("supervised", files=files) is None
    assert kept("supervised", Machine(8.0, 1, None)) is None


# Places


def test_what_goes_where(model: Path) -> None:
    run = settings(
        model={"path": str(model)},
        cluster={"learner_gpus": 1, "worker_gpus": 1, "worker_cpus": 2, "strategy": "spread"},
        rollout={"num_workers": 3, "engine": "vllm"},
        reward=["length", {"name": "rouge", "weight": 0.5}],
        reward_servers={"rouge": {"min_replicas": 1, "max_replicas": 4, "num_cpus": 1}},
        environment={"name": "dialogue", "num_parallel": 5},
    )
    rows = {row.part: row for row in rows_of(run, deployed(run, Machine(8.0, 4, None))[1])}
    assert (rows["learner"].num_gpus, rows["rollout worker"].num_gpus) == (1, 1)
    assert (rows["rollout worker"].count, rows["rollout worker"].num_cpus) == ("3", 2)
    assert "vLLM, bfloat16" in rows["rollout worker"].what and "spread" in rows["rollout worker"].what
    assert rows["environment"].count == "0–15"
    assert (rows["reward replica"].count, rows["reward replica"].num_cpus) == ("1–4", 1)
    assert "rouge, weight 0.5" in rows["reward replica"].what


def test_threads_are_those_that_the_learners_processes_get(model: Path) -> None:
    threads_of = {}
    for count, threads in ((1, None), (2, None), (2, 3)):
        run = settings(model={"path": str(model)}, learner={"num_processes": count, "num_threads": threads})
        (row,) = [r for r in rows_of(run, deployed(run)[1]) if r.part == "learner"]
        threads_of[count, threads] = row.what.rpartition(", ")[2]
    assert threads_of == {
        (1, None): "2 threads",
        (2, None): "1 thread",
        (2, 3): "3 threads",
    }


def test_a_worker_that_sleeps_takes_turns_with_the_update(model: Path) -> None:
    gib = 10**9
    one_gpu = Machine(8.0, 1, None)
    shared = {"learner_gpus": 0.5, "worker_gpus": 0.5}
    run = settings(model={"path": str(model)}, rollout={"sleep": True, "engine": "vllm"}, cluster=shared)
    rows = {row.part: row for row in rows_of(run, deployed(run, one_gpu)[1])}
    assert "asleep while the learner updates" in rows["rollout worker"].what

    needs = estimated(run, *deployed(run, one_gpu))
    by_phase: dict[str | None, dict[str, float]] = {None: {}, "rollouts": {}, "update": {}}
    for need in needs:
        by_phase[need.phase][f"{need.where}: {need.what}"] = need.num_bytes or 0.0
    assert by_phase["rollouts"] == {"each worker: weights": 2 * PARAMETERS, "each worker: KV cache": 0.0}
    assert by_phase["update"].keys() == {
        *("learner: gradients", "learner: activations", "learner: a layer's gradients"),
        "each worker: weights, asleep",
    }
    assert by_phase["update"]["each worker: weights, asleep"] == 2 * PARAMETERS  # bfloat16, on the host
    stays = sum(by_phase[None].values())
    assert total_bytes(needs, 1) == stays + sum(by_phase["update"].values())

    larger = [*needs, Amount("each worker", "more", gib, phase="rollouts")]
    assert total_bytes(larger, 3) == pytest.approx(
        stays + 2 * by_phase[None]["each worker: Python, torch, vLLM"] + 3 * (gib + 2 * PARAMETERS)
    )


def test_a_worker_with_nothing_to_leave_counts_all_the_time(model: Path) -> None:
    """Without a GPU, or awake: the sum of all that was said."""
    for machine, sleep in ((HERE, True), (HERE, False), (Machine(8.0, 1, None), False)):
        run = settings(model={"path": str(model)}, rollout={"sleep": sleep, "engine": "vllm"})
        needs = estimated(run, *deployed(run, machine))
        assert total_bytes(needs, 1) == sum(need.num_bytes or 0.0 for need in needs)
        (row,) = [r for r in rows_of(run, deployed(run, machine)[1]) if r.part == "rollout worker"]
        assert ("uses no GPU" in row.what) is sleep


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_a_cluster_that_was_not_asked_decides_the_engine(model: Path) -> None:
    away = Machine(num_cores=2.0, num_gpus=0, cluster="127.0.0.1:6379")
    run = settings(model={"path": str(model)})
    (row,) = [row for row in rows_of(run, deployed(run, away)[1]) if row.part == "rollout worker"]
    assert "vLLM (transformers with a small model on CPUs), bfloat16 on a GPU" in row.what
    (row,) = [row for row in rows_of(run, deployed(run)[1]) if row.part == "rollout worker"]
    assert row.what.startswith("transformers, float32")


# The command


def command(model: Path, output_dir: Path, *more: str) -> list[str]:
    short = ["rollout.max_tokens=8", "rollout.kv_cache_gib=0.1"]
    return [
        "rollout.engine=vllm",
        f"model.path={model}",
        f"output_dir={output_dir}",
        "run_name=numbers",
        *short,
        *more,
    ]


def test_a_plan_says_all_of_it_and_writes_nothing(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", *command(model, tmp_path / "runs", "cluster=laptop")]) == 0
    output = " ".join(capsys.readouterr().out.split())
    for expected in (
        "What goes where", "rollout worker 1", "Memory, about", "KV cache 102 MiB", "a new run",
        "64 prompts × 1 response = 64 rollouts", "conf/cluster/laptop.yaml", "conf/train.yaml",
        str(model / "model.safetensors"), "made by the task itself", "Nothing was started",
    ):  # fmt: skip
        assert expected in output, expected
    assert not (tmp_path / "runs").exists()


def test_what_train_refuses_is_refused_with_the_same_words(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong in ("rollout.max_tokens=500", "iterations=0", "model.path=nowhere/at/all", "seed=1,2"):
        messages = []
        for word in ("plan", "train"):
            assert cli.main([word, *command(model, tmp_path, wrong)]) == 2
            messages.append(capsys.readouterr().err.removeprefix(f"whetstone {word}: "))
        assert messages[0] == messages[1] != ""


GRADERS = "tests.reward_servers.graders"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (f"reward={GRADERS}:Mapped", "reward Mapped: score() returned a dict {0.0: 'The answer is 42.'"),
        (f"reward={GRADERS}:Mean", "reward Mean: score() returned 1 scores for 2 samples"),
        (f"reward={GRADERS}:Misspelt", "reward Misspelt: none of 2 texts could be scored: AttributeError"),
        (
            f"metrics={GRADERS}:Formless",
            "metric Formless: compute() returned a float 1.0 for 'mine/formless'",
        ),
        (
            "metrics=tests.test_signatures:Later",
            "Later.compute() is asynchronous (async def); expected a plain def",
        ),
        (
            "reward=tests.test_signatures:NoSamples",
            "got NoSamples.score(self); expected score(self, samples)",
        ),
    ],
)
def test_rewards_and_metrics_of_ones_own_are_tried(
    model: Path, tmp_path: Path, wrong: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", *command(model, tmp_path, wrong)]) == 2
    assert message in capsys.readouterr().err


def test_what_should_be_known_of_them_is_told(model: Path, tmp_path: Path) -> None:
    parts = (f"reward={GRADERS}:Ranked", f"metrics={GRADERS}:Vowels")
    (warning,) = make_plan(command(model, tmp_path, *parts)).warnings
    assert warning.startswith(
        "reward Ranked: it reads sample.group, and the samples of a call are parts of group"
    )


@pytest.fixture
def begun(model: Path, tmp_path: Path) -> Iterator[Path]:
    """A folder in which a run has done 20 iterations."""
    config = make_plan(command(model, tmp_path)).settings.resolved()
    folder = RunFolder.open(tmp_path, "numbers", config=config, resume="auto")
    folder.checkpoint(20).mkdir(parents=True)
    yield tmp_path


def test_a_plan_looks_at_the_folder(model: Path, begun: Path) -> None:
    plan = make_plan(command(model, begun, "iterations=200"))
    assert plan.done == 20
    assert plan.sources["checkpoint"].endswith("checkpoints/20")
    with pytest.raises(InputError, match="holds a run with another configuration"):
        make_plan(command(model, begun, "seed=3"))
    with pytest.raises(InputError, match="resume=never is set"):
        make_plan(command(model, begun, "resume=never"))


def test_a_place_that_is_no_folder(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is not a folder to write in"):
        make_plan(command(model, tmp_path / "file"))


def test_the_files_are_those_that_the_experiment_chooses() -> None:
    from services.training.plan.read_files import configuration_files

    assert {"conf/cluster/laptop.yaml", "conf/experiment/demo.yaml"} <= {
        *configuration_files(["experiment=demo"])
    }
    assert "conf/cluster/nodes.yaml" in configuration_files(["experiment=demo", "cluster=nodes"])
