"""Places of graders: what stays beside the driver, and what Ray Serve gets."""

import pytest

from reward_servers.places import place_of
from reward_servers.settings import Part, ServerSettings

OWN = "tests.reward_servers.graders:brevity"
GREEDY = "tests.reward_servers.greedy_reward:Greedy"


@pytest.mark.parametrize(
    ("kind", "name", "settings", "expected"),
    [
        ("reward", "length", {}, "shared: a plain function"),
        ("metric", "rouge", {}, "shared: a plain function"),
        ("reward", OWN, {}, "alone: your code"),
        ("reward", "code_tests", {}, "alone: it runs programs"),
        ("metric", "spice", {}, "alone: it starts Java"),
        ("reward", "bleurt", {}, "served: it loads a model or files"),
        ("reward", "length", {"replicas": 1}, "served: replicas is set"),
        ("reward", "length", {"max_replicas": 3}, "served: max_replicas is set"),
        ("reward", OWN, {"num_cpus": 1}, "served: num_cpus is set"),
        ("reward", OWN, {"num_gpus": 0.5}, "served: num_gpus is set"),
        ("reward", OWN, {"sandbox": {}}, "served: sandbox is set"),
        ("reward", OWN, {"timeout_s": 5}, "alone: your code"),
    ],
)
def test_serve_gets_what_gains_from_it(
    kind: str, name: str, settings: dict[str, object], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    place = place_of(kind, Part(name=name), ServerSettings(**settings))
    where = "served" if place.is_served else "shared" if place.is_shared else "alone"
    assert f"{where}: {place.why}" == expected


def test_the_address_of_a_function_decides_and_not_the_reward_that_calls_it() -> None:
    part = Part(name="function", label="mine", options={"function": OWN})
    assert place_of("reward", part, ServerSettings()).why == "your code"


def test_a_cluster_gets_every_grader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    for name in ("length", OWN):
        assert place_of("reward", Part(name=name), ServerSettings()).is_served
