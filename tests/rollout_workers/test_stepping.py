"""The choice among vLLM's runners, of steps that run ahead, and the reason that is shown."""

from typing import Any

import pytest

from rollout_workers.engines.choice import stepping
from rollout_workers.engines.engine_arguments import RUNNER
from rollout_workers.settings import RolloutSettings

OLD, NEW, AHEAD = (False, False), (True, False), (True, True)
TABLE: list[tuple[dict[str, Any], dict[str, bool], str | None, tuple[bool, bool], str]] = [
    ({}, {}, None, AHEAD, "weights change only between batches"),
    ({"sleep": True}, {}, None, AHEAD, "weights change only between batches"),
    ({}, {"on_gpu": False}, None, OLD, "there is no GPU"),
    ({"max_staleness": 1}, {}, None, OLD, "weights change while texts are written"),
    ({}, {"has_mask": True}, None, OLD, "algorithm=nlpo masks"),
    ({}, {"serves_adapter": True}, None, OLD, "it serves an adapter"),
    ({"top_k": 5}, {}, None, OLD, "restrict the draw"),
    ({"top_p": 0.9}, {}, None, OLD, "restrict the draw"),
    ({"min_tokens": 2}, {}, None, OLD, "restrict the draw"),
    ({"repetition_penalty": 1.1}, {}, None, OLD, "restrict the draw"),
    # A user's own word, for either runner
    ({}, {}, "0", OLD, f"{RUNNER}=0"),
    ({}, {}, "1", AHEAD, f"{RUNNER}=1"),
    ({"max_staleness": 1}, {}, "1", NEW, f"{RUNNER}=1"),
    ({"top_k": 5}, {}, "1", NEW, f"{RUNNER}=1"),
    ({}, {"on_gpu": False}, "1", NEW, f"{RUNNER}=1"),
    ({}, {"has_mask": True}, "1", OLD, "algorithm=nlpo masks"),
]


@pytest.mark.parametrize(("given", "engine", "asked", "expected", "why"), TABLE)
def test_the_newer_runner_serves_plain_synchronous_runs_on_a_gpu(
    given: dict[str, Any],
    engine: dict[str, bool],
    asked: str | None,
    expected: tuple[bool, bool],
    why: str,
) -> None:
    traits = {"on_gpu": True, "has_mask": False, "serves_adapter": False, **engine}
    environment = {} if asked is None else {RUNNER: asked}
    found = stepping(RolloutSettings(**given), **traits, environment=environment)
    assert (found.is_newer, found.runs_ahead) == expected
    assert why in found.in_words
