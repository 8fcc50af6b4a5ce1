"""Any Python object reaches the run's processes: by its address, or as bytes; what can't travel is named."""

import asyncio
import functools
import json
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

from contracts.objects import held, own_name
from contracts.scores import MetricValue, Sample
from reward_servers.server import MetricServer, RewardServer
from reward_servers.settings import Sandbox, parts
from reward_servers.user_rewards.own import find_grader
from reward_servers.user_rewards.sandbox import SandboxedServer
from tests.reward_servers import graders
from whetstone import objects as addresses
from whetstone.errors import InputError
from whetstone.objects import Objects, configured

GRADERS = "tests.reward_servers.graders"
SAMPLES = [Sample("a b", prompt="p", meta={"answer": "a"}), Sample("c", prompt="p", meta={"answer": "a"})]
LIMIT = 3


def of_main(source: str, name: str) -> Any:
    """Return an object of a module that no other process can import, as a script's or notebook's is."""
    module = ModuleType("only_here")
    sys.modules["only_here"] = module
    exec(source, vars(module))
    return vars(module)[name]


NOTEBOOK = """
import asyncio, functools, math
SCALE = 2.0
def words(text): return len(text.split())
def with_globals(samples): return [SCALE * words(s.text) for s in samples]
def closure(k): return lambda samples: [k + words(s.text) for s in samples]
with_closure = closure(10)
def of_columns(completions, answer): return [float(a in c) for c, a in zip(completions, answer)]
def with_option(samples, limit=1): return [min(limit, words(s.text)) for s in samples]
partial = functools.partial(with_option, limit=2)
async def waits(completions): await asyncio.sleep(0); return [words(c) for c in completions]
@functools.lru_cache(maxsize=4)
def cached(text): return words(text)
def with_cache(samples): return [cached(s.text) for s in samples]
class Counter:
    def __init__(self, factor): self.factor = factor
    def method(self, samples): return [self.factor * words(s.text) for s in samples]
    def __call__(self, samples): return [-self.factor * words(s.text) for s in samples]
    async def slow(self, samples): return self.method(samples)
class Scores:
    factor = 1
    def score(self, samples): return [self.factor * math.sqrt(words(s.text) ** 2) for s in samples]
class Deep(Scores):
    def score(self, samples): return [1 + each for each in super().score(samples)]
counter, scores, deep = Counter(5), Scores(), Deep()
method, slow, twice = counter.method, counter.slow, functools.partial(counter.slow)
"""


SCORES = {
    "with_globals": [4.0, 2.0],
    "with_closure": [12.0, 11.0],
    "of_columns": [1.0, 0.0],
    "with_option": [1.0, 1.0],
    "partial": [2.0, 1.0],
    "waits": [2.0, 1.0],
    "with_cache": [2.0, 1.0],
    "counter": [-10.0, -5.0],
    "method": [10.0, 5.0],
    "slow": [10.0, 5.0],
    "twice": [10.0, 5.0],
    "Scores": [2.0, 1.0],
    "scores": [2.0, 1.0],
    "Deep": [3.0, 2.0],
}
ELSEWHERE = """
import json, pickle, sys
from contracts.objects import hold
from contracts.scores import Sample
from reward_servers.server import RewardServer
from reward_servers.settings import parts
packed, rewards, samples = pickle.load(sys.stdin.buffer)
hold(packed, {})
print(json.dumps([RewardServer(parts(reward)[0]).score(samples) for reward in rewards]))
"""


def test_what_python_can_call_scores_in_a_process_that_lacks_its_module() -> None:
    functions, kept = [of_main(NOTEBOOK, name) for name in SCORES], Objects()
    del sys.modules["only_here"]
    rewards = [configured({"reward": function}, kept)["reward"] for function in functions]
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE],
        input=pickle.dumps((kept.packed, rewards, SAMPLES)),
        capture_output=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr.decode()
    answers = json.loads(done.stdout)
    assert {
        name: [score for score, _ in function_answers]
        for name, function_answers in zip(SCORES, answers, strict=True)
    } == SCORES
    assert all(reason is None for function_answers in answers for _, reason in function_answers)


def test_what_a_module_has_goes_by_its_address() -> None:
    kept = Objects()
    assert configured({"reward": [graders.brevity, graders.Words]}, kept) == {
        "reward": [f"{GRADERS}:brevity", f"{GRADERS}:Words"]
    }
    assert not kept.packed


def test_named_and_plain_values_are_left_as_they_are() -> None:
    for reward in (None, "rouge", {"name": "length", "target": 3}, {"weight": 2.0}, []):
        assert configured({"reward": reward}, Objects()) == {"reward": reward}


def test_weights_options_and_labels_stay_with_their_object() -> None:
    kept = Objects()
    mixed = configured({"reward": ["length", {"name": shortness(3), "weight": 0.5, "scale": 3}]}, kept)
    (name,) = kept.packed
    assert mixed == {"reward": ["length", {"name": f"object:{name}", "weight": 0.5, "scale": 3}]}
    assert parts(mixed["reward"])[1].label == "shortness" == own_name(f"object:{name}")

    by_weight = configured({"reward": {shortness(3): 0.5, "length": 1.0}}, Objects())
    assert [part["weight"] for part in by_weight["reward"]] == [0.5, 1.0]


def shortness(k: int) -> Callable[..., list[float]]:
    def shortness(samples: Sequence[Sample], scale: float = 2.0) -> list[float]:
        return [scale / (k + len(sample.text)) for sample in samples]

    return shortness


def test_two_lambdas_have_two_labels() -> None:
    both = [lambda samples: [1.0 for _ in samples], lambda samples: [2.0 for _ in samples]]
    rewards = configured({"reward": both}, Objects())["reward"]
    assert [part.label for part in parts(rewards)] == ["lambda", "lambda2"]


def test_settings_become_a_name_and_the_options_that_were_given() -> None:
    from learner.algorithms.grpo import GRPO
    from reward_servers.graders.length import Length

    settings = configured({"algorithm": GRPO(learning_rate=1e-3), "reward": Length(target=3)}, Objects())
    assert settings == {
        "algorithm": {"name": "grpo", "learning_rate": 1e-3},
        "reward": {"name": "length", "target": 3},
    }


def test_metrics_may_be_functions_classes_and_objects() -> None:
    class Longest:
        def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
            return {"longest": MetricValue(float(max(len(sample.text) for sample in samples)))}

    def longest(samples: Sequence[Sample]) -> dict[str, MetricValue]:
        return Longest().compute(samples)

    for metric in (Longest, Longest(), longest):
        kept = Objects()
        (part,) = parts(configured({"metrics": [metric]}, kept)["metrics"], "metrics")
        with held(kept.packed):
            assert MetricServer(part).compute(SAMPLES)["longest"].corpus == 3.0


def test_functions_anywhere_in_the_configuration_have_an_address() -> None:
    kept = Objects()
    options = configured({"environment__tools": [shortness(1), "calculator"]}, kept)
    (name,) = kept.packed
    assert options == {"environment__tools": [f"object:{name}", "calculator"]}


def around(held_by_it: Any) -> Any:
    return lambda samples: held_by_it


def open_file() -> Any:
    return open(__file__)


def rows() -> Iterator[int]:
    yield 1


INSIDE = r"`held_by_it` of the function around it"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: around(open_file()), rf"{INSIDE} \(an open file '.*'\), .*open it inside"),
        (lambda: around(threading.Lock()), rf"{INSIDE} \(a lock\)"),
        (lambda: around({"a": [threading.Lock()]}), rf"{INSIDE}, in it its entry 'a', in it its entry 0 \(a"),
        (lambda: around(rows()), rf"{INSIDE} \(a generator\), .*make a list of it"),
        (lambda: around(socket.socket()), rf"{INSIDE} \(a socket\)"),
        (lambda: functools.partial(around(1), limit=threading.Lock()), r"its argument `limit` \(a lock\)"),
        (lambda: around(around(threading.Lock())), rf"{INSIDE}, in it {INSIDE} \(a lock\)"),
    ],
)
def test_what_can_not_travel_is_named_with_its_place(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^reward `.*` uses {message}"):
        configured({"reward": make()}, Objects())


@pytest.mark.parametrize("reward", [3, object(), 0.5])
def test_what_can_not_be_called_is_refused(reward: Any) -> None:
    with pytest.raises(InputError, match=r"reward: got .*; expected a name, or what Python can call"):
        configured({"reward": reward}, Objects())


def test_an_object_of_another_process_is_told_with_what_to_do() -> None:
    with pytest.raises(
        InputError, match=r"brevity was a function or class .* no command can find again.*FILE"
    ):
        find_grader("reward", "object:brevity@0123456789ab")


def test_a_sandbox_gets_the_object_and_ends_one_that_hangs() -> None:
    kept = Objects()

    def hangs(samples: Sequence[Sample]) -> list[float]:
        import time

        while "c" in samples[0].text:
            time.sleep(1)
        return [float(LIMIT) for _ in samples]

    (part,) = parts(configured({"reward": hangs}, kept)["reward"])
    with held(kept.packed):
        server = SandboxedServer(part, Sandbox(seconds=1.0))
        try:
            answers = server.score(SAMPLES[::-1])
        finally:
            server.close()
    assert answers[1] == (3.0, None)
    assert "no answer within" in str(answers[0][1])


def test_a_coroutine_keeps_its_deadline() -> None:
    from reward_servers.settings import ServerSettings

    async def waits(samples: Sequence[Sample]) -> list[float]:
        await asyncio.sleep(60 if "c" in samples[0].text else 0)
        return [1.0]

    kept = Objects()
    (part,) = parts(configured({"reward": waits}, kept)["reward"])
    with held(kept.packed):
        answers = RewardServer(part, ServerSettings(timeout_s=0.5, retries=0)).score(SAMPLES)
    assert answers[0] == (1.0, None) and "no answer within 0.5 s" in str(answers[1][1])


def test_the_tables_of_built_in_components_are_there() -> None:
    import importlib

    for place in addresses.TABLES.values():
        module, _, name = place.partition(":")
        assert getattr(importlib.import_module(module), name)


def test_objects_of_earlier_calls_are_found_again_by_a_runs_configuration() -> None:
    configured({"reward": [shortness(7), shortness(8)]}, first := Objects())
    name, other = first.packed
    again = Objects()
    again.add_earlier(f"reward:\n- name: object:{name}\n")
    assert list(again.packed) == [name] and other not in again.values

    for number in range(addresses.MOST_EARLIER):  # a notebook of many edits
        configured({"reward": shortness(number + 9)}, Objects())
    later = Objects()
    later.add_earlier(f"reward:\n- name: object:{name}\n")
    assert not later.packed


def test_values_too_deep_in_one_another_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(2000):
        deep = [deep]
    with pytest.raises(InputError, match=r"^reward: `.*` holds objects in one another, hundreds deep"):
        configured({"reward": around(deep)}, Objects())


def test_two_names_of_a_module_are_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    of_main("def f(samples): return []", "f")
    module = sys.modules.pop("only_here")
    monkeypatch.setitem(sys.modules, "only_here", module)
    for alias in ("second_name", "third_name"):
        monkeypatch.setitem(sys.modules, alias, module)
    elsewhere = ModuleType("name_of_no_module")
    monkeypatch.setitem(sys.modules, "fourth_name", elsewhere)
    for is_registered in (False, True):
        if is_registered:
            cloudpickle.register_pickle_by_value(module)
        configured({"reward": around(is_registered)}, Objects())
        assert ("only_here" in cloudpickle.list_registry_pickle_by_value()) == is_registered
    cloudpickle.unregister_pickle_by_value(module)


def test_a_cached_property_travels_without_its_lock() -> None:
    class Grader:
        @functools.cached_property
        def value(self) -> float:
            return 7.0

        def score(self, samples: Sequence[Sample]) -> list[float]:
            return [self.value for _ in samples]

    (part,) = parts(configured({"reward": Grader()}, kept := Objects())["reward"])
    with held(kept.packed):
        assert [value for value, _ in RewardServer(part).score(SAMPLES)] == [7.0, 7.0]


def test_an_environment_may_be_what_makes_it() -> None:
    import gymnasium

    from contracts.environments import Observation, Step
    from contracts.rollout import Prompt
    from rollout_workers.environments.factory import Factory
    from rollout_workers.environments.host import EnvironmentHost

    class Game:
        def reset(self, prompt: Prompt, seed: int) -> Observation:
            return Observation(f"{prompt.text}?")

        def step(self, text: str) -> Step:
            return Step(Observation(text), reward=1.0, done=True)

        def close(self) -> None: ...

    for made_by in (Game, lambda: Game(), Game()):
        environment = configured({"environment": made_by}, kept := Objects())["environment"]
        name = environment.pop("name")
        assert name == f"{Factory.__module__}:{Factory.__name__}"
        with held(kept.packed):
            assert EnvironmentHost(Factory(**environment)).reset(Prompt("p", "who"), 0).text == "who?"

    class Maze(gymnasium.Env):  # type: ignore[type-arg]
        pass

    environment = configured({"environment": Maze}, kept := Objects())["environment"]
    assert environment == {"name": "gymnasium_text", "class_path": f"object:{next(iter(kept.packed))}"}


def test_an_algorithm_is_no_object_of_a_class_without_settings() -> None:
    with pytest.raises(InputError, match=r"a class \(algorithm=Mine, not algorithm=Mine\(\)\), or an object"):
        configured({"algorithm": object()}, Objects())
