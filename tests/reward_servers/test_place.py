"""Places of graders: what stays beside the driver, and what Ray Serve gets."""

import pytest

from reward_servers.place import why_served
from reward_servers.settings import Part, ServerSettings

OWN = "tests.reward_servers.graders:brevity"
LOADS = "tests.reward_servers.graders:Loads"


@pytest.mark.parametrize(
    ("kind", "name", "settings", "expected"),
    [
        ("reward", "length", {}, None),
        ("metric", "rouge", {}, None),
        ("reward", OWN, {}, None),
        ("reward", "code_tests", {}, None),
        ("metric", "spice", {}, None),
        ("reward", "bleurt", {}, "it loads a model or files"),
        ("reward", "length", {"replicas": 1}, "replicas is set"),
        ("reward", "length", {"max_replicas": 3}, "max_replicas is set"),
        ("reward", OWN, {"num_cpus": 1}, "num_cpus is set"),
        ("reward", OWN, {"num_gpus": 0.5}, "num_gpus is set"),
        ("reward", OWN, {"sandbox": {}}, "sandbox is set"),
        ("reward", OWN, {"timeout_s": 5}, None),
        ("reward", LOADS, {}, None),  # a user's `load` is not called
    ],
)
def test_serve_gets_what_gains_from_it(
    kind: str, name: str, settings: dict[str, object], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert why_served(kind, Part(name=name), ServerSettings(**settings)) == expected


def test_a_cluster_gets_every_grader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    for name in ("length", OWN):
        assert why_served("reward", Part(name=name), ServerSettings()) is not None
