"""The choice among vLLM's runners, of steps that run ahead, and the reason that is shown."""

from typing import Any

import pytest

from rollout_workers.engines.choice import stepping, users_runner
from rollout_workers.engines.engine_arguments import RUNNER, prepare_environment
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


@pytest.mark.parametrize(("options", "engine", "runner", "expected", "why"), TABLE)
def test_the_newer_runner_serves_plain_synchronous_runs_on_a_gpu(
    options: dict[str, Any],
    engine: dict[str, bool],
    runner: str | None,
    expected: tuple[bool, bool],
    why: str,
) -> None:
    traits = {"on_gpu": True, "has_mask": False, "serves_adapter": False, **engine}
    steps = stepping(RolloutSettings(**options), **traits, runner=runner)
    assert (steps.is_newer, steps.runs_ahead) == expected
    assert why in steps.in_words


def test_what_an_engine_writes_is_not_the_users_word(monkeypatch: pytest.MonkeyPatch) -> None:
    environment: dict[str, str] = {}
    monkeypatch.setattr("os.environ", environment)
    users_runner.cache_clear()
    try:
        assert users_runner() is None
        prepare_environment()
        assert environment[RUNNER] == "0"
        assert users_runner() is None
        users_runner.cache_clear()
        assert users_runner() == "0"  # as a user's own value
    finally:
        users_runner.cache_clear()
