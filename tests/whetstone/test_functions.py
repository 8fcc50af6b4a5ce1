"""A function reaches its server by name or as its source, and what it would lack there is told."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from contracts.scores import Sample
from reward_servers.server import RewardServer
from reward_servers.user_rewards.own import find_grader
from tests.reward_servers import graders
from whetstone.errors import InputError
from whetstone.functions import configured, source

GRADERS = "tests.reward_servers.graders"
LIMIT = 3


@pytest.fixture
def place(tmp_path: Path) -> Callable[[str, str], Path]:
    def write(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def shortness() -> Any:
    def shortness(samples: Sequence[Sample], scale: float = 2.0) -> list[float]:
        """Use what a function of a notebook may: imports, functions and classes of its own."""
        import math as mathematics

        class Half:
            whole = scale
            value = whole / 2

        def words(text: str) -> int:
            return len(text.split()) if text else words(" ")

        return [Half.value / mathematics.exp(words(sample.text)) for sample in samples]

    return shortness


def test_a_function_of_a_module_is_named(place: Any) -> None:
    assert configured(graders.brevity, place) == {
        "name": "function",
        "label": "brevity",
        "function": f"{GRADERS}:brevity",
    }
    assert configured(graders.Words, place) == {"name": f"{GRADERS}:Words"}


def test_a_local_functions_source_becomes_a_file_that_scores(place: Any) -> None:
    part = configured(shortness(), place)
    assert part["label"] == "shortness"
    found = find_grader("reward", part["function"])()
    assert found.score([Sample("a b")]) == [math.exp(-2)]


def test_the_files_name_changes_with_the_source(place: Any) -> None:
    def one(samples: Any) -> Any:
        return [1.0 for _ in samples]

    first = configured(one, place)["function"]

    def one(samples: Any) -> Any:  # type: ignore[no-redef]
        return [2.0 for _ in samples]

    second = configured(one, place)["function"]
    assert first != second and first.endswith(":one") and second.endswith(":one")


def test_functions_may_be_parts_of_a_sum(place: Any) -> None:
    made = configured(["length", {"name": graders.brevity, "weight": 0.5, "label": "brief"}], place)
    named = {"name": "function", "label": "brief", "function": f"{GRADERS}:brevity", "weight": 0.5}
    assert made == ["length", named]


def test_what_is_named_is_left_as_it_is(place: Any) -> None:
    for reward in (None, "rouge", {"name": "length", "target": 3}, {"weight": 2.0}, []):
        assert configured(reward, place) == reward


def test_a_function_whose_package_has_one_of_our_names_goes_as_its_source(
    place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graders.brevity, "__module__", "services.rewards")
    assert Path(configured(graders.brevity, place)["function"].rpartition(":")[0]).is_file()


def uses_a_constant(samples: Any) -> Any:
    return [LIMIT for _ in samples]


def uses_an_import(samples: Any) -> Any:
    return [math.sqrt(sum(LIMIT for _ in sample.text)) for sample in samples]


def has_a_default_from_outside(samples: Any, limit: int = LIMIT) -> Any:
    return [limit for _ in samples]


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (uses_a_constant, "LIMIT"),
        (uses_an_import, "LIMIT, math"),
        (has_a_default_from_outside, "LIMIT"),
    ],
)
def test_what_the_server_would_lack_is_named(function: Any, names: str) -> None:
    with pytest.raises(InputError, match=f"uses {names} of test_functions.py, .*import or define it inside"):
        source(function)


def test_a_closure_is_refused() -> None:
    limit = 3

    def closure(samples: Any) -> Any:
        return [limit for _ in samples]

    with pytest.raises(InputError, match="closure uses limit of"):
        source(closure)  # type: ignore[arg-type]


def test_annotations_need_nothing() -> None:
    def annotated(samples: "Sequence[Unknown]", known: "Unheard" = 1) -> "Unheard":  # type: ignore # noqa: F821
        own: Unheard = [1.0 for _ in samples]  # noqa: F821
        return own

    assert "def annotated" in source(annotated)  # type: ignore[arg-type]


@pytest.mark.parametrize("reward", [3, object(), lambda samples: [1.0], print, graders.Words().score])
def test_what_is_no_function_is_refused(reward: Any, place: Any) -> None:
    with pytest.raises(InputError, match=r"expected a name, or a function: def my_reward\(samples\)"):
        configured(reward, place)


def test_a_class_of_a_script_is_refused(place: Any) -> None:
    class Local:
        def score(self, samples: Any) -> Any: ...

    with pytest.raises(InputError, match="expected a class from a module"):
        configured(Local, place)


def test_attributes_of_a_function_go_with_its_source(place: Any) -> None:
    from reward_servers.settings import parts
    from reward_servers.user_rewards.own import wants_groups

    async def ranked(completions: Any, groups: Any) -> Any:
        return [float(sorted(completions).index(text)) for text in completions]

    ranked.scores = "groups"  # type: ignore[attr-defined]
    (part,) = parts(configured(ranked, place))
    assert wants_groups([part])
    answers = RewardServer(part).score([Sample("b", group="p"), Sample("a", group="p")])
    assert answers == [(1.0, None), (0.0, None)]

    ranked.model = object()  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"reward=ranked: its attribute model is <object"):
        configured(ranked, place)
