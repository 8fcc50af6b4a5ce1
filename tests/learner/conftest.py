"""One thread, so that sums have one order on a busy machine; each tiny model is made once."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.learner import seq2seq as encoder_decoders
from tests.learner.tiny import CONFIGS, make_model
from tests.rollout_workers import generation


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of each architecture of `CONFIGS`."""
    return {name: make_model(tmp_path_factory.mktemp(name), name) for name in CONFIGS}


@pytest.fixture(scope="session")
def seq2seq(tmp_path_factory: pytest.TempPathFactory) -> dict[encoder_decoders.Name, Path]:
    """The folder of each encoder-decoder."""
    make = encoder_decoders.make_model
    return {name: make(tmp_path_factory.mktemp(name), name) for name in encoder_decoders.NAMES}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[generation.Name], Path]:
    """The folder of a model that engines know, made at its first use."""
    return cache(lambda model: generation.make_model(tmp_path_factory.mktemp(model), model))
