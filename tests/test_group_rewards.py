"""A run whose reward compares whole groups: vLLM writes, Ray Serve scores, and a replica is killed."""

import json
import os
import signal
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.kept_rollouts import kept_in, measure_into
from tests.models import make_tiny_model
from tests.runs import Run

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(900)]

GROUPS, SIZE, REPLICAS, ITERATIONS = 64, 8, 3, 2
BEFORE_THE_KILL = 12  # groups
AT_ONCE = 16  # calls that a replica takes on at a time


def test_a_killed_replica_splits_no_group_and_each_is_scored_once(tmp_path: Path) -> None:
    calls_file, kept_file = tmp_path / "calls.jsonl", tmp_path / "kept.jsonl"
    # Few words, so that an end is likely at each token, and lengths differ.
    model = make_tiny_model(tmp_path / "model", vocab=[str(number) for number in range(10)])
    family = f"{{name: 'tests.reward_servers.graders:Family', label: family, file: '{calls_file}'}}"
    run = Run(
        tmp_path,
        "groups",
        *(f"model.path={model}", "algorithm=grpo", f"rollout.group_size={SIZE}", "rollout.engine=vllm"),
        *(
            f"rollout.prompts_per_iteration={GROUPS}",
            "rollout.deterministic=false",
            f"iterations={ITERATIONS}",
        ),
        *(f"reward={family}", f"reward_servers.family.replicas={REPLICAS}", "metrics=[]"),
        *("evaluation.num_prompts=1", "evaluate_every=0", "save_every=0", "tracking.enabled=false"),
        measure_into(kept_file),
    )

    def calls() -> list[dict[str, Any]]:
        lines = calls_file.read_text().splitlines() if calls_file.exists() else []
        logged = [json.loads(line) for line in lines if line.endswith("}")]
        return [call for call in logged if any(group.startswith("train/") for group in call["groups"])]

    try:
        run.start().wait_for("groups to be scored", lambda: len(calls()) >= BEFORE_THE_KILL)
        victim = calls()[-1]["pid"]
        os.kill(victim, signal.SIGKILL)
        assert run.finish() == 0, run.output
    finally:
        run.end()

    whole: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(kept_in(kept_file), key=lambda row: row["lease"]):
        whole[f"train/{row['group']}"].append(row)
    assert len(whole) == GROUPS * ITERATIONS
    assert {len(rows) for rows in whole.values()} == {SIZE}
    assert sum(len({len(row["text"]) for row in rows}) > 1 for rows in whole.values()) > GROUPS

    for call in calls():  # one group each, whole, in the order of its leases
        (group,) = call["groups"]
        assert call["texts"] == [row["text"] for row in whole[group]]
    times = Counter(call["groups"][0] for call in calls())
    assert times.keys() == whole.keys()
    again = [group for group, number in times.items() if number > 1]
    for group in again:  # done in the killed replica, whose answer did not get out any more
        pids = [call["pid"] for call in calls() if call["groups"] == [group]]
        assert len(pids) == 2 and pids[0] == victim != pids[1]
    assert len(again) <= AT_ONCE
    assert len({call["pid"] for call in calls()}) >= REPLICAS
    for rows in whole.values():
        lengths = sorted(len(row["text"]) for row in rows)
        assert [row["reward"] for row in rows] == [lengths.index(len(row["text"])) for row in rows]
    assert [row["rollouts/trained"] for row in run.folder.rollout_info()] == [GROUPS * SIZE] * ITERATIONS
    print(f"{len(calls())} calls of {len(whole)} groups, {len(again)} of them done again")
