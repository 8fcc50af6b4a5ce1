"""`whetstone train environment=program` with every part real: agents die and hang, and a worker is killed."""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.chat_templates import TEMPLATES, make_chat_model
from tests.fault_kit import KILLED, WORKER, Fault, befall, options
from tests.kept_rollouts import kept_in
from tests.lease_log import expected
from tests.rollout_workers.programs.test_programs import AGENT
from tests.runs import Run

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(900)]

ITERATIONS, PROMPTS = 6, 16


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Each prompt says what its agent does; it names this test's folder, so that its processes are found."""
    moods = [f"once {tmp_path / mood} {mood}" for mood in ("dies", "hangs")]
    rows = [{"prompt": mood} for mood in [*moods, *[f"good {tmp_path}"] * 38]]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    kept = tmp_path / "kept"
    made = Run(
        tmp_path,
        "agents",
        *options(make_chat_model(tmp_path / "model", TEMPLATES["default_system"])),
        *("task=prompts", f"task.data_files={tmp_path / 'prompts.jsonl'}", "rollout.engine=transformers"),
        *("environment=program", f"environment.command='{sys.executable} {AGENT} {{prompt}}'"),
        *("environment.num_parallel=8", "environment.step_timeout_s=8", "rollout.stall_timeout_s=90"),
        *("rollout.max_tokens=6", f"rollout.prompts_per_iteration={PROMPTS}", f"iterations={ITERATIONS}"),
        f"measures=[tests.lease_log:Leases, {{name: 'tests.kept_rollouts:Kept', file: '{kept}'}}]",
    )
    made.command = [word for word in made.command if not word.startswith("task.num_")]
    made.start()
    yield made
    made.end()


def test_each_prompt_is_trained_on_once_whatever_becomes_of_agents_and_workers(
    run: Run, tmp_path: Path
) -> None:
    run.wait_for_iteration(2)
    befall(run, Fault(WORKER, KILLED))
    assert run.finish() == 0, run.output
    rows = run.folder.rollout_info()
    assert [row["iteration"] for row in rows] == list(range(1, ITERATIONS + 1))
    for row in rows:
        leases = {key: row[key] for key in row if key.startswith("lease/")}
        assert leases == expected(row["iteration"], PROMPTS)
        assert row["reward/mean"] == row["reward/environment/mean"] == 0.5
        assert row["environment/calls/mean"] == row["turns/mean"] == 2
        assert row["environment/failed"] == 0
        assert row["mismatch/max_ratio"] < 1 + 1e-4  # the learner reads the tokens that the engine read
    assert sum(row["environment/restarts"] for row in rows) >= 2  # one died, one hung

    for talk in kept_in(tmp_path / "kept"):  # a talk is one sequence, which goes on from its own tokens
        first, second = talk["contexts"]
        assert second[: len(first) + len(talk["drawn"][0])] == [*first, *talk["drawn"][0]]
        assert talk["trained"] == [token for answer in talk["drawn"] for token in answer]

    assert not [process for process in psutil.process_iter(["cmdline"]) if is_ours(process, tmp_path)]
    left = Path(tempfile.gettempdir()).glob("whetstone-program-*/prompt.json")
    assert not [file for file in left if str(tmp_path) in file.read_text()]


@pytest.mark.vllm
def test_roles_of_one_policy_and_a_frozen_partner_play_with_vllm(tmp_path: Path) -> None:
    rows = [{"prompt": f"debates {number}"} for number in range(40)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model, kept = make_chat_model(tmp_path / "model", TEMPLATES["default_system"]), tmp_path / "kept"
    run = Run(
        tmp_path,
        "debates",
        *options(model),
        *("task=prompts", f"task.data_files={tmp_path / 'prompts.jsonl'}", "rollout.engine=vllm"),
        *("algorithm=rloo", "rollout.group_size=2", "environment=program", "environment.num_parallel=4"),
        f"environment.command='{sys.executable} {AGENT} {{prompt}}'",
        f"environment.partner_options={{model: {model}, max_tokens: 4}}",
        *("environment.step_timeout_s=120", "environment.start_timeout_s=120", "rollout.stall_timeout_s=300"),
        *("rollout.max_tokens=6", "rollout.prompts_per_iteration=4", "iterations=2"),
        f"measures=[{{name: 'tests.kept_rollouts:Kept', file: '{kept}'}}]",
    )
    run.command = [word for word in run.command if not word.startswith("task.num_")]
    try:
        assert run.start().finish() == 0, run.output
    finally:
        run.end()
    for row in run.folder.rollout_info():
        assert row["environment/calls/mean"] == 2 and row["reward/mean"] == 0
        assert row["environment/reward_pro/mean"] == -row["environment/reward_con/mean"]
        assert row["mismatch/max_ratio"] < 1 + 1e-4  # the learner reads the tokens that the engine read
        assert row["rollouts/trained"] == 2 * 4 * 2  # a rollout for each role
    for game in kept_in(kept):
        assert game["roles"] == ["pro", "con"] and game["rewards"] in ([1, -1], [-1, 1])


def is_ours(process: psutil.Process, folder: Path) -> bool:
    return any(f"good {folder}" == word or f"once {folder}" in word for word in process.info["cmdline"] or ())
