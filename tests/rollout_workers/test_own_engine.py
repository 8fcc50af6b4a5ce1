"""The engine of docs/extending.md trains, and unsupported options are refused before a run starts."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from rollout_workers.engines.traits import BUILT_IN, traits_of
from services.training.preflight import preflight
from tests.local_run import small_run, train_here
from tests.models import make_tiny_model

PAGE = (Path(__file__).parents[2] / "docs/extending.md").read_text()
(SOURCE,) = re.findall(r"```python\n# my_engine\.py\n(.*?)```", PAGE, re.DOTALL)
PPO = {"name": "ppo", "learning_rate": 1e-2}


@pytest.fixture
def run(tmp_path: Path) -> Any:
    model = make_tiny_model(tmp_path / "model")
    (tmp_path / "my_engine.py").write_text(SOURCE)

    def settings(rollout: dict[str, Any], **parts: Any) -> Any:
        chosen = {"engine": f"{tmp_path / 'my_engine.py'}:Plain", **rollout}
        task = {"name": "increasing_numbers", "num_prompts": 12, "num_eval_prompts": 2}
        wanted = {"task": task, "reward": "increasing_numbers", "algorithm": PPO, "iterations": 3, **parts}
        wanted["model"] = {"path": str(model), **parts.get("model", {})}
        return small_run(model, tmp_path / "out", **{"rollout": chosen, **wanted})

    return settings


def test_it_is_short() -> None:
    assert len(SOURCE.splitlines()) <= 70


def test_it_trains_with_the_learners_probabilities(run: Any) -> None:
    rows = train_here(run({"prompts_per_iteration": 4, "group_size": 1})).rollout_info()
    assert [int(row["iteration"]) for row in rows] == [1, 2, 3]
    for row in rows:
        assert float(row["mismatch/max_ratio"]) == pytest.approx(1, abs=1e-4)
        assert float(row["weights/pushed_mb"]) > 0


@pytest.mark.parametrize(
    ("parts", "refusal"),
    [
        ({"algorithm": {"name": "nlpo"}}, "nlpo.*has no mask"),
        ({"evaluation": {"num_prompts": 2, "num_beams": 2, "temperature": 0.0}}, "plain has no beam search"),
        ({"model": {"adapter": {"kind": "lora", "serve": "adapter"}}}, "serves no adapters"),
    ],
)
def test_what_its_traits_exclude_is_refused(run: Any, parts: dict[str, Any], refusal: str) -> None:
    with pytest.raises(InputError, match=refusal):
        preflight.check(run({}, **parts))


def test_arguments_and_splits_are_refused(run: Any) -> None:
    for rollout, refusal in (
        ({"engine_args": {"kv_cache_dtype": "fp8"}}, "which takes none"),
        ({"tensor_parallel_size": 2}, "can't split models"),
    ):
        with pytest.raises(InputError, match=refusal):
            run(rollout)


def test_a_class_without_traits_and_a_wrong_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text("class Bare:\n    pass\n")
    with pytest.raises(InputError, match="has no traits; add a class attribute"):
        traits_of(f"{tmp_path / 'bare.py'}:Bare")
    with pytest.raises(InputError, match="did you mean 'vllm'"):
        small_run(tmp_path, tmp_path, rollout={"engine": "vlm"})


@pytest.mark.parametrize("engine", BUILT_IN)
def test_a_built_in_engines_traits_are_those_of_its_class(engine: str) -> None:
    """A trait that says of a method that it is there; vLLM's class is looked at where it is installed."""
    if BUILT_IN[engine].package and importlib.util.find_spec(str(BUILT_IN[engine].package)) is None:
        return
    from contracts.components import find
    from rollout_workers.engines import ENGINES

    kind = find("engine", engine, ENGINES)
    assert BUILT_IN[engine].masks == hasattr(kind, "load_mask")
    assert BUILT_IN[engine].receives_weights == hasattr(kind, "receive_weights")
