"""A plain function is a reward: named by its module or by its file, checked and tried like a class."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.part_checks import check_parts
from reward_servers.server import RewardServer
from reward_servers.settings import Part, parts
from reward_servers.user_rewards.own import find_grader
from reward_servers.user_rewards.trial import MADE_UP

GRADERS = "tests.reward_servers.graders"
SAMPLES = [Sample("a b"), Sample("a b c")]
FILE = """
import statistics

def mean_length(samples):
    return [statistics.fmean(map(len, sample.text.split())) for sample in samples]

def no_numbers(samples):
    return "ab"

def takes_nothing():
    return []
"""


def part(function: str) -> Part:
    (made,) = parts({"name": "function", "label": "own", "function": function})
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "rewards.py"
    file.write_text(FILE)
    return file


def scores(server: RewardServer, samples: Sequence[Sample]) -> list[float | None]:
    return [score for score, _ in server.score(samples)]


def test_a_function_of_a_module_scores() -> None:
    assert scores(RewardServer(part(f"{GRADERS}:brevity")), SAMPLES) == [1.0, 0.0]


def test_a_function_of_a_file_scores_wherever_the_file_lies(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    for place in (str(file), "rewards.py"):
        assert scores(RewardServer(part(f"{place}:mean_length")), [Sample("ab c")]) == [1.5]  # (2 + 1) / 2


def test_a_file_is_imported_once(file: Path) -> None:
    made = [find_grader("reward", f"{file}:mean_length") for _ in range(2)]
    assert made[0].function is made[1].function  # type: ignore[attr-defined]


def test_a_function_is_tried_like_a_class_of_the_users_own(file: Path) -> None:
    refusal = RewardServer(part(f"{file}:no_numbers")).try_out(MADE_UP).refusal
    assert refusal.startswith("reward own: ") and "ab" in refusal


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("brevity", "reward.function: got 'brevity'"),
        ("no_such_module:brevity", "importing no_such_module failed: ModuleNotFoundError"),
        (f"{GRADERS}:brevty", "has no class brevty; did you mean"),
        ("{file}:mean_lenght", "rewards.py has no mean_lenght; did you mean 'mean_length'"),
        ("nowhere.py:brevity", "there is no file .*nowhere.py"),
        ("{file}:takes_nothing", r"got takes_nothing\(\); expected takes_nothing\(samples\)"),
    ],
)
def test_what_is_no_such_function_is_refused(file: Path, function: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_parts("reward", [part(function.format(file=file))])


def test_a_file_that_raises_is_refused_and_can_be_mended(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("import no_such_package")
    with pytest.raises(InputError, match=f"importing {file} failed: ModuleNotFoundError"):
        find_grader("reward", f"{file}:own")

    file.write_text("def own(samples): return [1.0 for _ in samples]")
    assert find_grader("reward", f"{file}:own")().score(SAMPLES) == [1.0, 1.0]
