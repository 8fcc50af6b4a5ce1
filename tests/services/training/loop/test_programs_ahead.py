"""Programs while the learner trains: weights change between calls, within the bound of staleness."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chat_templates import TEMPLATES, make_chat_model
from tests.kept_rollouts import kept_in
from tests.local_run import small_run, train_here
from tests.rollout_workers.programs.test_programs import AGENT

ITERATIONS, PROMPTS = 5, 4


@pytest.mark.long
@pytest.mark.parametrize("max_staleness", [0, 2])
def test_no_call_is_staler_than_asked(max_staleness: int, tmp_path: Path) -> None:
    """Each agent waits between its calls for the next line of the file, so for new weights.

    Agents for which the next update waits give up.
    """
    patience_s = 10.0 if max_staleness else 0.2
    kept = tmp_path / "kept"
    kept.touch()
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        "".join(json.dumps({"prompt": f"waits {kept} {patience_s} {n}"}) + "\n" for n in range(20))
    )
    program: dict[str, Any] = {"command": f"{sys.executable} {AGENT} {{prompt}}", "num_parallel": 16}
    folder = train_here(
        small_run(
            make_chat_model(tmp_path / "model", TEMPLATES["default_system"]),
            tmp_path,
            algorithm="ppo",
            metrics=[],
            task={"name": "prompts", "data_files": str(prompts)},
            environment={"name": "program", **program},
            rollout={"max_staleness": max_staleness, "prompts_per_iteration": PROMPTS},
            iterations=ITERATIONS,
            measures=[{"name": "tests.kept_rollouts:Kept", "file": str(kept)}],
        )
    )
    rows, episodes = folder.rollout_info(), kept_in(kept)
    assert len(rows) == ITERATIONS and len(episodes) == ITERATIONS * PROMPTS
    changed = 0
    for row, start in zip(rows, range(0, len(episodes), PROMPTS), strict=True):
        newest = row["iteration"] - 1
        for episode in episodes[start : start + PROMPTS]:
            first, second = (set(versions) for versions in episode["versions"])
            assert {*first, *second} <= set(range(newest - max_staleness, newest + 1))
            assert max(first) <= min(second)
            changed += first != second
    assert sorted(episode["lease"] for episode in episodes) == list(range(ITERATIONS * PROMPTS))
    assert (changed > 0) == (max_staleness > 0)
