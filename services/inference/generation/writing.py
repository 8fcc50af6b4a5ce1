"""Write texts for leases with one rollout worker in this process."""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from contracts.errors import DeadlineExceeded
from contracts.rollout import Lease, Rollout
from rollout_workers.engines.choice import choose_engine
from services.inference.generation.run_model import RunModel
from services.terminal.doing import doing

if TYPE_CHECKING:
    from rollout_workers.worker import RolloutWorker

FEW = 64  # for this many texts or fewer, transformers on a CPU finishes before vLLM has started
POLL_S = 1.0


def write(model: RunModel, engine: str, leases: Sequence[Lease]) -> Iterator[list[Rollout]]:
    """Yield the rollouts of all leases, each as soon as it is finished.

    Raises:
        WorkerError: the engine can't start, or failed.
        DeadlineExceeded: the engine generated no token for `rollout.stall_timeout_s`.
    """
    yield from written(start_worker(model, engine), model, leases)


def start_worker(model: RunModel, engine: str) -> "RolloutWorker":
    """Start a worker in this process, and wait until its engine is up.

    Raises:
        WorkerError: the engine can't start.
    """
    with doing(f"starting {engine}"):
        from rollout_workers.worker import RolloutWorker

        worker = RolloutWorker(model.path, model.path, model.files.window, engine, model.rollout)
        worker.ready()
    return worker


def written(worker: "RolloutWorker", model: RunModel, leases: Sequence[Lease]) -> Iterator[list[Rollout]]:
    """Yield the rollouts of all leases, like `write`, by an idle worker."""
    worker.submit(leases)
    missing, generated, progress_at = len(leases), 0, time.monotonic()
    while missing:
        report = worker.poll(POLL_S)
        if report.num_generated != generated:
            generated, progress_at = report.num_generated, time.monotonic()
        elif time.monotonic() - progress_at > model.rollout.stall_timeout_s:
            raise DeadlineExceeded(
                f"waited {model.rollout.stall_timeout_s:.0f} s for a token of the engine; "
                f"{missing} of {len(leases)} texts are missing"
            )
        missing -= len(report.rollouts)
        yield list(report.rollouts)


def in_order(leases: Sequence[Lease], finished: Iterator[list[Rollout]]) -> Iterator[Rollout]:
    """Yield the rollouts in the order of their leases, each as soon as all earlier ones are finished."""
    early: dict[int, Rollout] = {}
    following = iter(leases)
    awaited = next(following, None)
    for rollouts in finished:
        early |= {rollout.lease_id: rollout for rollout in rollouts}
        while awaited is not None and awaited.id in early:
            yield early.pop(awaited.id)
            awaited = next(following, None)


def engine_for(engine: str, num_texts: int, model: RunModel) -> str:
    """Return the named engine, or for `auto` the faster one.

    transformers starts in seconds; vLLM is faster once it runs, except for small models on a CPU. So an
    installed vLLM writes all texts on a GPU, and many texts with larger models on a CPU.
    """
    if engine != "auto":
        return engine
    import torch

    is_quick = (num_texts <= FEW or model.files.is_small) and not model.rollout.needs_vllm
    return choose_engine(
        "auto",
        is_encoder_decoder=model.files.is_encoder_decoder,
        prefers_transformers=is_quick and not torch.cuda.is_available(),
    )
