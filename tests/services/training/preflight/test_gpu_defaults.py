"""Choices for GPUs of made-up machines: a run fits, or is refused with options that fit."""

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.gpu_plans import MACHINES, PAGE, PLANS, page, plans, run_of
from benchmarks.qwen_shapes import CONFIGS, files_of
from contracts.errors import InputError
from contracts.settings import with_options
from services.config.compose import run_settings
from services.config.settings import RunSettings
from services.training.preflight.capacity.fitting import Fit, Misfit
from services.training.preflight.capacity.gpu_defaults import alternative, choice, fitted
from services.training.preflight.capacity.gpu_memory import CONTEXT, USABLE
from services.training.preflight.deployment import Machine, deployment_of
from services.training.preflight.picture import pictured
from services.training.preflight.placement import Placement, Reservation

ONE = MACHINES["1×80 GB"]
GB = 1e9


def test_the_page_and_the_golden_plans_are_up_to_date() -> None:
    """Otherwise run `python -m benchmarks.gpu_plans`, and look at what changed."""
    stored = json.loads(PLANS.read_text())
    assert stored == {algorithm: plans(algorithm) for algorithm in ("ppo", "grpo")}
    assert PAGE.read_text() == page(stored["ppo"])


@pytest.mark.parametrize("algorithm", ["ppo", "grpo", "trpo", "nlpo"])
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("model", CONFIGS)
def test_what_is_chosen_fits_by_the_sum_and_what_is_refused_does_not(
    algorithm: str, machine: str, model: str
) -> None:
    where, files = MACHINES[machine], files_of(model)
    chosen = choice(run := run_of(algorithm), files, where)
    if isinstance(chosen, Misfit):
        together = chosen.learner.rest + chosen.worker_least
        assert max(chosen.learner.peak, together) > USABLE * chosen.gpu_bytes - 2 * CONTEXT
        instead = alternative(run, files, where)
        if instead is None:
            return
        chosen = instead[1]
    assert isinstance(chosen, Fit) and where.gpu_bytes
    awake = chosen.learner.rest if chosen.sleeps else chosen.learner.peak
    beside = chosen.workers_beside * (chosen.worker_bytes + CONTEXT)
    assert awake + beside <= USABLE * where.gpu_bytes
    asleep = chosen.workers_beside * CONTEXT if chosen.sleeps else 0
    assert chosen.learner.peak + asleep <= USABLE * where.gpu_bytes
    assert chosen.worker_bytes <= where.gpu_bytes


def test_a_shared_gpu_implies_that_workers_sleep_and_take_what_is_left() -> None:
    """By the defaults vLLM took 85 % beside the learner, awake, and the first update ran out of memory."""
    settings, fit = fitted(run_of(), files_of("0.5B"), ONE)
    assert fit is not None and fit.workers_beside == 1
    assert settings.rollout.sleep and settings.rollout.gpu_memory_utilization < 0.85
    total = fit.learner.rest + settings.rollout.gpu_memory_utilization * 80 * GB
    assert total < 80 * GB


def test_seven_billion_do_not_keep_130_gigabytes_of_activations() -> None:
    """16,384 tokens of 28 layers at some 270 kB, with no checkpointing, do not fit onto any GPU."""
    run = run_of(
        learner={"num_processes": 4, "token_budget": 16384},
        model={"path": "m", "gradient_checkpointing": False},
    )
    misfit = choice(run, files_of("7B"), MACHINES["8×80 GB"])
    assert isinstance(misfit, Misfit)
    assert 120 * GB < misfit.learner.update["activations"] < 140 * GB
    chosen = choice(run_of(learner={"num_processes": 4}), files_of("7B"), MACHINES["8×80 GB"])
    assert isinstance(chosen, Fit) and chosen.learner.peak < 76 * GB


def test_offloaded_models_leave_a_gpu_to_activations_and_layers_at_hand() -> None:
    where, files = MACHINES["1×24 GB"], files_of("7B")
    assert isinstance(choice(run_of(), files, where), Misfit)
    fit = choice(run_of(learner={"offload": True}), files, where)
    assert isinstance(fit, Fit) and fit.sleeps
    assert fit.learner.rest == CONTEXT and "weights" not in fit.learner.always
    layer = (3584 * (3584 * 2 + 2 * 512) + 3 * 3584 * 18944) * 10  # bytes: two in bfloat16, gradients
    tables = 3 * 152_064 * 3584 * 4  # embedding and head, and the head's gradient
    assert fit.learner.update["weights at hand"] == pytest.approx(layer + tables, rel=0.01)


def test_a_model_that_is_too_large_for_a_gpu_is_offloaded_where_the_host_has_room() -> None:
    """1.5B take 25 GB with gradients and Adam, 6 for the reference, 9 as three copies in bfloat16."""
    files, where = files_of("1.5B"), MACHINES["1×24 GB"]
    with pytest.raises(InputError, match=r"expected learner\.offload=true, with which it fits$"):
        fitted(run_of(), files, where)
    settings, fit = fitted(run_of(learner={"offload": True}), files, where)
    assert fit is not None and settings.learner.offload and settings.rollout.sleep
    for host_bytes, offloads in ((45 * GB, True), (35 * GB, False), (None, False)):
        instead = alternative(run_of(), files, replace(where, host_bytes=host_bytes))
        assert instead is not None and ("learner.offload" in instead[0]) == offloads


def test_offload_is_not_proposed_where_it_would_be_refused() -> None:
    """A trust region's step, a broadcast and 4-bit weights need whole weights on a GPU."""
    files, where = files_of("7B"), replace(MACHINES["1×24 GB"], host_bytes=960 * GB)
    refused = (
        run_of("trpo"),
        run_of(learner={"transport": "ipc"}),
        run_of(model={"path": "m", "adapter": {"kind": "qlora"}}),
    )
    for run, expected in ((run_of(), True), *((unfit, False) for unfit in refused)):
        instead = alternative(run, files, where)
        assert ("learner.offload" in (instead[0] if instead else {})) == expected


def test_what_is_given_stays_and_is_refused_with_what_fits() -> None:
    run = run_of(rollout={"engine": "vllm", "gpu_memory_utilization": 0.95, "sleep": False})
    with pytest.raises(
        InputError, match=r"^too little memory on the GPUs: a GPU has 80.0 GB; the learner takes at least"
    ):
        fitted(run, files_of("0.5B"), ONE)
    with pytest.raises(
        InputError, match=r"expected learner.num_processes=4 rollout.num_workers=4, with which"
    ):
        fitted(run_of(), files_of("7B"), MACHINES["8×80 GB"])
    with pytest.raises(InputError, match="no layout that was tried fits this machine"):
        fitted(run_of(), files_of("32B"), ONE)
    small_budget = run_of(learner={"token_budget": 512})
    assert fitted(small_budget, files_of("0.5B"), ONE)[0].learner.token_budget == 512


def test_the_override_of_a_refusal_fits_when_it_is_given() -> None:
    run, files, machine = run_of(), files_of("32B"), MACHINES["2×8×80 GB"]
    instead = alternative(run, files, machine)
    assert instead is not None
    settings, fit = fitted(with_options(run, instead[0]), files, machine)
    assert fit == instead[1] and settings.learner.num_processes == 12


@pytest.mark.parametrize("machine", [Machine(2.0, 0), Machine(2.0, 0, "127.0.0.1:6379")])
def test_without_gpus_nothing_changes(machine: Machine) -> None:
    run = run_of()
    assert fitted(run, files_of("7B"), machine) == (run, None)
    assert fitted(run, files_of("7B"), machine)[0] is run


def test_a_shared_gpu_of_unknown_size_is_shared_carefully() -> None:
    unknown = replace(ONE, gpu_bytes=None)
    shared, _ = fitted(run_of(), files_of("0.5B"), unknown)
    assert (shared.rollout.sleep, shared.rollout.gpu_memory_utilization) == (True, 0.45)
    both, _ = fitted(run_of(rollout={"num_workers": 2}), files_of("0.5B"), unknown)
    assert both.rollout.gpu_memory_utilization == 0.22  # of each
    ahead, _ = fitted(run_of(rollout={"max_staleness": 1}), files_of("0.5B"), unknown)
    assert not ahead.rollout.sleep


def test_workers_that_write_ahead_share_with_an_update_that_runs() -> None:
    settings, fit = fitted(run_of(rollout={"max_staleness": 1, "engine": "vllm"}), files_of("0.5B"), ONE)
    assert fit is not None and not fit.sleeps and not settings.rollout.sleep
    assert fit.learner.peak + fit.worker_bytes < 80 * GB


def test_the_preset_for_one_gpu_is_what_a_shared_gpu_gets() -> None:
    overrides = ["model.path=some/model", "rollout.engine=vllm"]
    preset, plain = (run_settings([*overrides, f"cluster={name}"]) for name in ("one_gpu", "default"))
    fits = [choice(run, files_of("1.5B"), ONE) for run in (preset, plain)]
    assert fits[0] == fits[1] and isinstance(fits[0], Fit) and fits[0].sleeps


# Pictures


def picture(run: RunSettings, machine: Machine, strategy: str = "none") -> list[str]:
    return pictured(deployment_of(run, files_of("0.5B"), machine).placement, machine, strategy)


def test_the_picture_of_two_nodes() -> None:
    run = run_of(learner={"num_processes": 8}, rollout={"num_workers": 4, "tensor_parallel_size": 2})
    assert picture(run, MACHINES["2×8×80 GB"]) == [
        "node 1  [L0][L1][L2][L3][L4][L5][L6][L7]",
        "node 2  [W0][W0][W1][W1][W2][W2][W3][W3]",
        "L: learner, W: rollout worker",
    ]


def test_the_picture_of_a_shared_gpu_and_of_a_reward() -> None:
    servers: dict[str, Any] = {"rouge": {"num_gpus": 0.25}}
    assert picture(run_of(metrics=["rouge"], reward_servers=servers), ONE) == [
        "node 1  [L0+W0+R0]",
        "L: learner, W: rollout worker, R: reward or metric",
    ]


def test_spread_workers_lie_on_the_emptiest_nodes_and_what_has_no_room_is_named() -> None:
    placed = Placement(Reservation(num_gpus=1), Reservation(num_gpus=1), num_workers=3)
    two = Machine(8.0, 4, nodes=(2, 2))
    assert pictured(placed, two, "spread")[:2] == ["node 1  [L0][W1]", "node 2  [W0][W2]"]
    assert pictured(placed, Machine(8.0, 2), "none")[-1] == "no room: W1, W2"
