"""Rewards as people write them: functions and classes, with samples or with lists by name, or coroutines."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from contracts.rollout import Prompt
from contracts.scores import Sample
from reward_servers.local import LocalRewardClient
from reward_servers.part_checks import check_parts, is_deterministic, needs_meta, needs_references
from reward_servers.server import RewardServer
from reward_servers.settings import Part, RewardServersSettings, Sandbox, parts
from reward_servers.user_rewards.apart import try_apart
from reward_servers.user_rewards.own import settled, wants_groups
from reward_servers.user_rewards.sandbox import SandboxedServer
from reward_servers.user_rewards.trial import MADE_UP, trial_of

FILE = """
import asyncio
import functools

def plain(samples, limit=2):
    return [1.0 if len(sample.text.split()) <= limit else 0.0 for sample in samples]

def named(prompts, completions, answer, **columns):
    assert set(columns) <= {"references", "level"}
    return [float(text == right) for text, right in zip(completions, answer)]

def alone(completions):
    return [float(len(text)) for text in completions]

def without_rest(completions, references, level=None, bonus=0.5):
    levels = level or [0] * len(completions)
    return [each + bonus + (text in right) for text, right, each in zip(completions, references, levels)]

async def waits(samples):
    await asyncio.sleep(0.01)
    return [float(len(sample.text)) for sample in samples]

async def waits_named(completions, **columns):
    await asyncio.sleep(0.01)
    return [float(len(text)) for text in completions]

class Sync:
    def score(self, completions, answer):
        return [float(text == right) for text, right in zip(completions, answer)]

class Waits:
    deterministic = False
    def __init__(self, factor=1.0):
        self.factor = factor
    async def score(self, samples):
        return [self.factor * len(sample.text) for sample in samples]

def rank(samples):
    texts = sorted(sample.text for sample in samples)
    return [float(texts.index(sample.text)) for sample in samples]
rank.scores = "groups"

def logged(function):
    @functools.wraps(function)
    def called(*given, **by_name):
        return function(*given, **by_name)
    return called

@logged
async def behind(samples):
    await asyncio.sleep(0.01)
    return [float(len(sample.text)) for sample in samples]

passed_on = lambda completions: waits_named(completions)

class Called:
    def __call__(self, samples):
        return self.compute([sample.text for sample in samples])
    def compute(self, texts):
        return [float(len(text)) for text in texts]

called = Called()
in_c = functools.partial(map, lambda sample: float(len(sample.text)))
greatest = max

class Unfitted:
    needs_references = True
    @property
    def weights(self):
        raise RuntimeError("not fitted")
    def score(self, completions, answer):
        return [float(text == right) for text, right in zip(completions, answer)]

unfitted = Unfitted()

async def abstains(completions):
    return [None if text == "b" else 1.0 for text in completions]

def by_position(completions, /):
    return []

def two(first, second):
    return []

async def streams(completions):
    yield 1.0

def wrong(completions):
    return {"score": 1.0}

async def wrong_later(samples):
    return [1.0, 2.0, 3.0]

a_number = 3.0
"""
SAMPLES = [
    Sample("4", "2 + 2?", ("4",), {"answer": "4", "level": 2}, "train/0"),
    Sample("56", "7 · 8?", ("5",), {"answer": "57", "level": 1}, "train/1"),
]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "my_rewards.py"
    path.write_text(FILE)
    return path


def part(file: Path, name: str, **options: Any) -> Part:
    (made,) = parts({"name": f"{file}:{name}", **options})
    return made


def scores(part: Part, samples: Sequence[Sample] = SAMPLES) -> list[float | None]:
    check_parts("reward", [part])
    return [score for score, _ in RewardServer(part).score(samples)]


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("plain", {}, [1.0, 1.0]),
        ("plain", {"limit": 0}, [0.0, 0.0]),
        ("named", {}, [1.0, 0.0]),
        ("alone", {}, [1.0, 2.0]),
        ("without_rest", {}, [3.5, 1.5]),  # level + 0.5 + 1 for a reference; "56" is none of ("5",)
        ("without_rest", {"bonus": 0.0}, [3.0, 1.0]),
        ("waits", {}, [1.0, 2.0]),
        ("waits_named", {}, [1.0, 2.0]),
        ("Sync", {}, [1.0, 0.0]),
        ("Waits", {"factor": 2.0}, [2.0, 4.0]),
        ("behind", {}, [1.0, 2.0]),
        ("passed_on", {}, [1.0, 2.0]),
        ("called", {}, [1.0, 2.0]),
        ("in_c", {}, [1.0, 2.0]),
        ("unfitted", {}, [1.0, 0.0]),
    ],
)
def test_each_way_of_writing_a_reward_scores(
    file: Path, name: str, options: dict[str, Any], expected: list[float]
) -> None:
    made = part(file, name, **options)
    assert made.label == name
    assert scores(made) == expected
    sandboxed = SandboxedServer(made, Sandbox(seconds=10))
    assert [score for score, _ in sandboxed.score(SAMPLES)] == expected
    sandboxed.close()
    as_option = Part(name="function", label="own", options={"function": made.name, **options})
    if name[0].islower() and name != "unfitted":  # the reward `function` gives functions, by an option
        assert scores(as_option) == expected and settled(as_option).name == made.name


def test_a_coroutine_answers_other_calls_while_it_waits(file: Path) -> None:
    server = RewardServer(part(file, "waits"))

    async def both() -> list[Any]:
        return await asyncio.gather(server.scored(SAMPLES), server.scored(SAMPLES[:1]))

    assert asyncio.run(both()) == [[(1.0, None), (2.0, None)], [(1.0, None)]]


def test_the_names_of_arguments_say_what_the_data_must_have(file: Path) -> None:
    assert needs_meta("reward", part(file, "named")) == ("answer",)
    assert needs_meta("reward", part(file, "Sync")) == ("answer",)
    assert needs_meta("reward", part(file, "without_rest")) == ()  # one with a default need not be there
    assert needs_references("reward", part(file, "without_rest"))
    assert not needs_references("reward", part(file, "named"))
    ((score, error),) = RewardServer(part(file, "named")).score([Sample("4")])
    assert score is None and "needs meta data answer, and this sample has: none" in (error or "")


def test_attributes_of_an_object_are_read_when_they_are_used(file: Path) -> None:
    assert needs_references("reward", part(file, "unfitted"))
    assert needs_meta("reward", part(file, "unfitted")) == ("answer",)


def test_attributes_of_a_function_and_a_class_hold(file: Path) -> None:
    assert wants_groups([part(file, "rank")]) and not wants_groups([part(file, "plain")])
    assert is_deterministic(part(file, "rank")) and not is_deterministic(part(file, "Waits"))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "two",
            {},
            r"got two\(first, second\); expected two\(samples\): missing .* lists: two\(completions, …\)",
        ),
        (
            "by_position",
            {},
            r"got by_position\(completions, /\); expected arguments that can be given",
        ),
        ("streams", {}, r"a function that yields \(async def\)"),
        ("plain", {"limits": 1}, "plain does not take these options: got an unexpected keyword .*'limits'"),
        ("alone", {"answer": 1}, "alone does not take these options"),
        ("nothing", {}, "has no nothing; "),
        ("a_number", {}, r"got an object \(float\); expected a class or a function"),
    ],
)
def test_what_can_not_be_called_is_refused_with_got_and_expected(
    file: Path, name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        check_parts("reward", [part(file, name, **options)])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong", "returned a dict {'score': 1.0}; expected a list of 2 numbers"),
        ("wrong_later", "returned more scores for 1 samples"),
        ("greatest", "reward greatest: "),
    ],
)
def test_each_is_called_once_before_the_start(file: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        try_apart([part(file, name)], [], RewardServersSettings(), MADE_UP)


def test_a_call_with_the_runs_own_columns_passes(file: Path) -> None:
    prompts = [
        Prompt("p/0", "2 + 2?", ("4",), {"answer": "4"}),
        Prompt("p/1", "1 + 1?", ("2",), {"answer": "2"}),
    ]
    rewards = [part(file, name) for name in ("named", "waits", "Sync", "rank", "without_rest")]
    assert try_apart(rewards, [], RewardServersSettings(), trial_of(prompts)) == []


def test_none_is_left_out_of_the_sum_and_fails_where_no_other_scores(file: Path) -> None:
    samples = [Sample("a"), Sample("b")]
    both = [part(file, "abstains", weight=2.0), part(file, "alone")]
    first, second = LocalRewardClient(both).submit(samples).result()
    assert (first.total, first.parts) == (3.0, {"abstains": 1.0, "alone": 1.0})
    assert (second.total, second.parts, second.error) == (1.0, {"alone": 1.0}, None)
    _, silent = LocalRewardClient(both[:1]).submit(samples).result()
    assert (
        silent.total is None
        and silent.error == "reward abstains: returned None, and no other reward scored it"
    )


# Whole groups


def grouped(*names: str) -> list[Sample]:
    return [Sample(name, group=name[0]) for name in names]


def test_a_reward_of_groups_is_called_with_one_whole_group_at_a_time(file: Path) -> None:
    assert scores(part(file, "rank"), grouped("b2", "a1", "b1", "a0", "b3")) == [1.0, 1.0, 0.0, 0.0, 2.0]
    ((score, error),) = RewardServer(part(file, "rank")).score([Sample("a")])
    assert score is None and 'it scores whole groups, and this sample has no group; give it "group"' in (
        error or ""
    )


def test_a_group_that_lost_a_sample_says_so_for_each_of_the_others(tmp_path: Path) -> None:
    script = tmp_path / "needs.py"
    script.write_text(
        "def own(samples):\n    return [1.0] * len(samples)\n"
        "own.scores, own.needs_references = 'groups', True\n"
    )
    samples = [
        Sample(text, references=("r",) * (text != "b"), group=group)
        for text, group in zip("abcd", "pppq", strict=True)
    ]
    *others, (score, error) = RewardServer(part(script, "own")).score(samples)
    assert (score, error) == (1.0, None)
    lost = "1 of the 3 samples in this one's group can't be scored; the first: reward own: "
    assert [score for score, _ in others] == [None] * 3
    assert [lost in str(error) for _, error in others] == [True, False, True]
    assert all("the sample: 'b'" in str(error) for _, error in others)


def test_a_group_fails_as_a_whole_and_alone(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(
        "def own(samples):\n"
        "    if any(sample.text == 'bad' for sample in samples):\n"
        "        raise ValueError('no')\n"
        "    return [float(len(samples))] * len(samples)\n"
        "own.scores = 'groups'\n"
    )
    samples = [
        Sample("x", group="p"),
        Sample("bad", group="q"),
        Sample("y", group="q"),
        Sample("z", group="p"),
    ]
    values = scores(part(script, "own"), samples)
    assert values == [2.0, None, None, 2.0]  # and no text of q is scored without the other
    sandboxed = SandboxedServer(part(script, "own"), Sandbox(seconds=10))
    assert [score for score, _ in sandboxed.score(samples)] == values
    sandboxed.close()
