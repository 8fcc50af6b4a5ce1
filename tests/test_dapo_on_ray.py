"""`whetstone train algorithm=dapo` with every part real: full batches, the same numbers after a kill -9."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kept_rollouts import kept_in, measure_into
from tests.models import make_tiny_model
from tests.runs import Run
from tests.services.training.loop.test_dapo_run import TIMES
from tests.test_training import leave_alone

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(900)]

ITERATIONS, PROMPTS, GROUP, SAVE_EVERY = 10, 8, 3, 2


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    """One that nobody disturbs, and one that is killed between two checkpoints and started again."""
    folder = tmp_path_factory.mktemp("dapo")
    model = make_tiny_model(folder / "model")

    def make(name: str) -> Run:
        return Run(
            folder,
            name,
            *(f"model.path={model}", "algorithm=dapo", "algorithm.max_refills=20", "rollout.engine=vllm"),
            *(
                "reward=tests.services.training.loop.test_dapo_run:Rare",
                "metrics=[]",
                "tracking.enabled=false",
            ),
            *(f"rollout.prompts_per_iteration={PROMPTS}", f"rollout.group_size={GROUP}"),
            *("rollout.max_tokens=6", "evaluate_every=0", f"save_every={SAVE_EVERY}"),
            *(f"iterations={ITERATIONS}", measure_into(folder / f"{name}.jsonl")),
        )

    made = {name: make(name) for name in ("straight", "killed")}
    try:
        leave_alone(made["straight"])
        killed = made["killed"].start()
        killed.wait_for("a checkpoint", killed.folder.checkpoints)
        killed.wait_for_iteration(max(killed.folder.checkpoints()) + 1)
        killed.signal(signal.SIGKILL)  # the driver alone
        assert killed.finish() == -signal.SIGKILL
        assert killed.left_over() == []
        assert max(killed.folder.checkpoints()) < ITERATIONS
        leave_alone(killed)
        yield made
    finally:
        for run in made.values():
            run.end()


def rows(run: Run) -> list[dict[str, Any]]:
    """Both lines of each iteration, without what the clock says."""
    return [
        {key: value for key, value in (info | training).items() if not key.startswith(TIMES)}
        for info, training in zip(run.folder.rollout_info(), run.folder.training_info(), strict=True)
    ]


def test_batches_are_full_and_every_prompt_is_leased_and_accounted_for(runs: dict[str, Run]) -> None:
    lines = rows(runs["straight"])
    assert [row["iteration"] for row in lines] == list(range(1, ITERATIONS + 1))
    for row in lines:
        assert row["refill/kept"] == PROMPTS and row["refill/full_share"] == 1
        assert row["rollouts/trained"] == PROMPTS * GROUP
        parts = [row[f"refill/{name}"] for name in ("kept", "constant", "surplus", "lost")]
        assert sum(parts) == row["refill/leased"]
    assert sum(row["refill/constant"] for row in lines) > 2 * ITERATIONS
    assert max(row["refill/rounds"] for row in lines) > 1
    kept = kept_in(runs["straight"].folder.path.parent / "straight.jsonl")
    leases = [row["lease"] for row in kept]
    assert len(leases) == len(set(leases)) == ITERATIONS * PROMPTS * GROUP
    assert max(leases) < GROUP * sum(row["refill/leased"] for row in lines)
    print("leased", [int(row["refill/leased"]) for row in lines], "for", PROMPTS, "each")


def test_killed_and_resumed_it_has_equal_metrics(runs: dict[str, Run]) -> None:
    straight, killed = runs["straight"], runs["killed"]
    assert "resumed from" in killed.output
    for number, (before, now) in enumerate(zip(rows(straight), rows(killed), strict=True), start=1):
        assert now.keys() == before.keys()
        differing = {key: (value, now[key]) for key, value in before.items() if now[key] != value}
        assert not differing, f"iteration {number}: {differing}"
