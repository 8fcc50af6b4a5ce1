"""Several processes in bfloat16: every online algorithm trains, publishes a probe and resumes."""

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.multiprocessing import start_processes

from learner.publishing.weight_publisher import PROBE_TOLERANCE
from tests.learner.ranked_bfloat16 import ONLINE, make, published, rollouts_for, work
from tests.learner.tiny import make_model, snapshot, without_times

# A busy machine takes long to start processes.
pytestmark = [pytest.mark.timeout(1200), pytest.mark.long]

DIGITS = 2**-7  # of bfloat16, and the last one may differ
multiprocessing.set_forkserver_preload(
    ["tests.learner.ranked_bfloat16", "transformers.models.llama.modeling_llama"]
)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that two processes have written."""
    folder = tmp_path_factory.mktemp("ranks")
    make_model(folder / "model", "llama_tied")
    make_model(folder / "teacher", "llama_tied", initializer_range=0.5)
    start_processes(work, (str(folder), ONLINE), nprocs=2, start_method="forkserver")
    return folder


def told(outputs: Path, name: str) -> Any:
    return json.loads((outputs / f"{name}.json").read_text())


@pytest.mark.parametrize("name", ONLINE)
def test_they_publish_what_one_process_publishes(outputs: Path, name: str) -> None:
    alone = make(outputs, name)
    before = snapshot(alone.pair.lm)
    [metrics, *_], logprobs, tolerance, exact, _ = told(outputs, name)
    expected = without_times(alone.update(rollouts_for(0)))
    assert metrics.keys() == expected.keys()
    arrays, expected_logprobs, expected_tolerance = published(alone)
    got = load_file(outputs / f"{name}.safetensors")
    assert got.keys() == arrays.keys()
    moved = max(float((arrays[key] - before[key].bfloat16()).abs().max()) for key in arrays)
    assert moved > 0.01
    for key, array in arrays.items():
        torch.testing.assert_close(got[key].float(), array.float(), atol=0.1 * moved, rtol=DIGITS)
    # both in bfloat16, of weights that differ by their rounding
    assert logprobs == pytest.approx(expected_logprobs, abs=PROBE_TOLERANCE["bfloat16"])
    if name == "trpo":  # each rank has all of its models, as one process does
        assert PROBE_TOLERANCE["bfloat16"] <= min(tolerance, expected_tolerance)
        assert max(tolerance, expected_tolerance) < 1.0 and exact == PROBE_TOLERANCE["float32"]
    else:  # blocks are gathered in bfloat16, even for an exact engine; one process can measure its rounding
        assert tolerance == exact == PROBE_TOLERANCE["bfloat16"] <= expected_tolerance


@pytest.mark.parametrize("name", ONLINE)
def test_they_go_on_from_a_checkpoint_as_if_nothing_had_happened(outputs: Path, name: str) -> None:
    (_, second, resumed), *_, same = told(outputs, name)
    assert resumed == second and same


def test_gradients_kept_until_the_last_micro_batch_are_sent_once_and_the_same(outputs: Path) -> None:
    # two steps, each of two blocks and the rest
    assert told(outputs, "minibatch") == 2 * 3
    assert told(outputs, "micro_batch") >= 2 * told(outputs, "minibatch")
    often, once = (load_file(outputs / f"{name}.safetensors") for name in ("micro_batch", "minibatch"))
    torch.testing.assert_close(once, often, atol=1e-3, rtol=DIGITS)


def test_blocks_run_inside_the_root_so_that_the_next_is_gathered_meanwhile(outputs: Path) -> None:
    seen = told(outputs, "roots")
    assert len(seen) > 10 and all(seen)


def test_one_process_is_exact_for_an_engine_that_is(outputs: Path) -> None:
    alone = make(outputs, "ppo")
    assert published(alone, "float32")[2] == PROBE_TOLERANCE["float32"]
    with torch.autocast("cpu", enabled=False):
        plain = published(make(outputs, "ppo", autocast="none"), "float32")[1]
    assert published(alone, "float32")[1] == plain
