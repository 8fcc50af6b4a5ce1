"""Engines take long to start: each is made once, and put back to its model's own weights for every test."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.components import find
from contracts.rollout import MaskRule
from rollout_workers.engines import ENGINES
from rollout_workers.engines.base import Engine
from tests.rollout_workers.generation import NAMES, SEQ2SEQ, SETTINGS, Name, load, load_lm, make_model

versions = count(1)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine two wait for each other
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make_model(tmp_path_factory.mktemp(name), name) for name in (*NAMES, *SEQ2SEQ)}


@pytest.fixture(scope="session")
def get_engine(models: dict[str, Path]) -> Callable[..., Engine]:
    """The engine of a kind on a model, from the second call on the same one, idle."""
    made: dict[tuple[str, Name, MaskRule | None], Engine] = {}

    def get(kind: str, model: Name, mask_rule: MaskRule | None = None) -> Engine:
        key = (kind, model, mask_rule)
        if key not in made:
            folder = str(models[model])
            made[key] = find("engine", kind, ENGINES)(folder, folder, None, SETTINGS, mask_rule)
        made[key].abort_all()
        return made[key]

    return get


@pytest.fixture(params=["transformers", pytest.param("vllm", marks=pytest.mark.vllm)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def lm(models: dict[str, Path]) -> Any:
    """The Hugging Face model whose weights `engine` has."""
    return load_lm(models["llama"])


@pytest.fixture
def engine(kind: str, lm: Any, get_engine: Callable[..., Engine]) -> Engine:
    """An engine of each kind on the untied Llama, idle and with its first weights."""
    engine = get_engine(kind, "llama")
    load(engine, lm, next(versions))
    return engine
