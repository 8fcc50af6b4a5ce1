"""Models that load at the same time in one process are as models that load one after the other."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from learner.models.language_models import load_language_model
from learner.settings import ModelSettings
from rollout_workers.engines.transformers_engine import _load
from tests.models import make_tiny_model


@pytest.fixture
def switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_heads_stay_tied_where_a_learner_and_a_worker_load_at_once(
    tmp_path: Path, switching_often: None
) -> None:
    import torch
    from transformers import PreTrainedModel

    path = str(make_tiny_model(tmp_path / "model", architecture="gpt2"))
    ties = PreTrainedModel.tie_weights
    with ThreadPoolExecutor(4) as threads:
        loads = [
            threads.submit(load_language_model, ModelSettings(path=path))
            if number % 2
            else threads.submit(_load, path, None, torch.float32, "cpu")
            for number in range(12)
        ]
        models = [load.result() for load in loads]
    assert PreTrainedModel.tie_weights is ties
    assert all(model.lm_head.weight is model.transformer.wte.weight for model in models)
