"""The predicted seconds of an iteration: by hand for a small shape, and beside what an H100 has shown."""

from dataclasses import replace

import pytest

from benchmarks.gpu_plans import MACHINES, run_of
from benchmarks.qwen_shapes import files_of
from learner.distributed.cards import Card, card_of
from learner.passes.operations import Passes
from services.models.shape import ModelShape, shape_of
from services.training.plan.seconds import Work, forward, in_words, predicted, seconds_of
from services.training.preflight.deployment import deployment_of

SMALL = ModelShape(
    width=4,
    num_layers=2,
    query_width=4,
    kv_width=2,
    inner_width=8,
    vocabulary=10,
    is_gated=False,
    is_tied=True,
)
WORK = Work(num_rollouts=6, prompt=3, response=2, workers=2, at_once=2, learners=1)


def test_a_forward_pass_by_hand() -> None:
    # a layer: 2·4·(4 + 2) + 2·4·8 = 112 weights; head 40; attention 2 layers × 4
    assert forward(SMALL, WORK) == 2 * (2 * 112 * 6 * 5 + 40 * 6 * 2 + 8 * 6 * 25)


def test_generation_by_hand() -> None:
    # 3 rollouts of a worker in 2 waves, each 2 steps of 2 sequences
    card = Card(flops=1e30, bytes_per_s=1000.0)
    # weights 2 bytes × (2·112 + 40); keys and values: 2 sequences × 4 tokens × (2·2 layers·2 numbers·2 bytes)
    read_s = (2 * 264 + 2 * 4 * 16) / 1000
    phases = seconds_of(SMALL, card, WORK, Passes(0, 0, 1), transport="objects", sleeps=False)
    assert phases["generation"] == pytest.approx(2 * 2 * (0.005 + 2 * 34e-6 + read_s))
    assert "sleep and wake" not in phases


def test_an_update_takes_what_an_h100_took() -> None:
    """Compare with docs/results/gpu.md: 2.10 s for 128 × (128 + 384) tokens, two steps and a reference."""
    shape, card = shape_of(files_of("0.5B")), card_of("NVIDIA H100 80GB HBM3")
    assert shape is not None and card is not None
    work = Work(num_rollouts=128, prompt=128, response=384, workers=1, at_once=512, learners=1)
    phases = seconds_of(shape, card, work, Passes(1, 1, 1), transport="ipc", sleeps=True)
    assert phases["passes"] == pytest.approx(2.10, rel=0.15)
    assert phases["new weights"] == pytest.approx(2.0, rel=0.05)
    two = Work(num_rollouts=128, prompt=128, response=384, workers=1, at_once=512, learners=2)
    halved = seconds_of(shape, card, two, Passes(1, 1, 1), transport="ipc", sleeps=True)
    assert halved["passes"] == phases["passes"] / 2


@pytest.mark.parametrize(
    ("name", "has_seconds"),
    [("NVIDIA H100 80GB HBM3", True), ("NVIDIA GeForce GTX 1080", False), (None, False)],
)
def test_the_plan_says_seconds_of_a_card_that_it_knows(name: str | None, has_seconds: bool) -> None:
    run, files = run_of("grpo"), files_of("0.5B")
    machine = replace(MACHINES["1×80 GB"], gpu_name=name)
    words = predicted(files, deployment_of(run, files, machine), WORK, Passes(0, 1, 1), "ipc")
    assert bool(words) is has_seconds
    if has_seconds:
        assert words["an iteration takes"].startswith("about ")


def test_what_overlaps_is_not_added() -> None:
    phases = {"generation": 6.0, "passes": 4.0, "new weights": 1.0}
    assert in_words(phases, overlaps=False).startswith("about 11 s, ")
    described = in_words(phases, overlaps=True)
    assert described.startswith("about 6 s, ") and described.endswith("; generation runs beside the rest")
