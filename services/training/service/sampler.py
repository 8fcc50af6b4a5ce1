"""Sample texts with the weights of a checkpoint or of the base, with one engine."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contracts.components import find
from contracts.errors import InputError
from contracts.rollout import FinishReason, Sampling
from contracts.weights import Probe, WeightManifest
from learner.models.language_models import load_language_model
from learner.settings import ModelSettings
from rollout_workers.engines import ENGINES
from rollout_workers.engines.base import Engine, Request, Undrawable
from rollout_workers.settings import RolloutSettings
from services.training.service.jobs import Drawn, Job, Sampled
from services.training.service.overlay import overlay_of, same_blocks

NOTHING_TO_PROVE = Probe((), (), 0.0)
HALF = ("", 0, 0)


class Sampler:
    """Engine with the base's weights and those of one checkpoint at a time.

    Args:
        engine: vllm or transformers.
    """

    def __init__(self, path: str, engine: str, window: int | None) -> None:
        self._engine = _engine(path, engine, window)
        lm: Any = load_language_model(ModelSettings(path=path))
        self._base: Mapping[str, Tensor] = {name: p.detach() for name, p in lm.named_parameters()}
        self._taken: tuple[str, int, int] | None = None  # stamp of the engine's weights; None: the base
        self._changed: frozenset[str] = frozenset()
        self._version = 0

    def window(self) -> int | None:
        return self._engine.window

    def draw(self, folder: str | None, jobs: Sequence[Job]) -> dict[str, Sampled | str]:
        """Sample the texts of some jobs with the weights in `folder`; None: the base's.

        Returns:
            by the job's id, its result or the reason why it failed.
        """
        self._take(folder)
        try:
            return self._draw(jobs)
        except BaseException:
            self._engine.abort_all()  # otherwise the next jobs would get these texts
            raise

    def _draw(self, jobs: Sequence[Job]) -> dict[str, Sampled | str]:
        results: dict[str, Sampled | str] = {}
        waiting: dict[int, tuple[Job, int]] = {}
        for job in jobs:
            try:
                for place in range(job.num_samples):
                    number = len(waiting)
                    self._engine.add(self._request(job, place, number))
                    waiting[number] = (job, place)
            except InputError as error:
                self._engine.abort([number for number, (other, _) in waiting.items() if other.id == job.id])
                results[job.id] = str(error)
        drawn, failed = self._drawn({n: job for n, (job, _) in waiting.items() if job.id not in results})
        results |= failed
        for job in jobs:
            if job.id not in results:
                numbers = [number for number, (other, _) in waiting.items() if other.id == job.id]
                results[job.id] = Sampled(tuple(drawn[number] for number in numbers), self._scored(job))
        return results

    def _request(self, job: Job, place: int, number: int) -> Request:
        sampling, room = job.sampling, job.sampling.max_tokens
        if self._engine.window is not None:
            left = self._engine.window - len(job.tokens)
            if left < 1:
                raise InputError(
                    f"the prompt has {len(job.tokens)} tokens, but the model's window {self._engine.window}; "
                    "expected room for one more"
                )
            room = min(room or left, left)
        fields = {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "stop")}
        drawn = Sampling(max_tokens=room or 256, ignore_eos=sampling.ignore_eos, **fields)
        seed = random.Random(f"{job.seed} {place}").getrandbits(31)
        return Request(number, job.tokens, drawn, seed)

    def _drawn(self, jobs: Mapping[int, Job]) -> tuple[dict[int, Drawn], dict[str, str]]:
        """Return the texts by their numbers, and the reasons of failures by the jobs' ids."""
        drawn: dict[int, Drawn] = {}
        failed: dict[str, str] = {}
        left = set(jobs)
        while left:
            try:
                finished = self._engine.step()
            except Undrawable as error:
                finished = list(error.finished)
                failed |= {jobs[number].id: str(error) for number in error.failed if number in jobs}
                given_up = {number for number in left if jobs[number].id in failed}
                self._engine.abort(given_up)
                left -= given_up
            for made in finished:
                if made.request_id in jobs:
                    stopped = made.finish_reason == FinishReason.STOP
                    whole = Drawn(made.tokens, made.behavior_logprobs, stopped)
                    drawn[made.request_id] = _cut(whole, jobs[made.request_id].stop_tokens)
                    left.discard(made.request_id)
        return drawn, failed

    def _scored(self, job: Job) -> tuple[float, ...] | None:
        if not job.prompt_logprobs:
            return None
        if len(job.tokens) < 2:
            return ()
        scored = self._engine.logprobs([job.tokens])[0]
        skipped = max(0, len(scored) - job.prompt_logprobs)
        return (float("nan"),) * skipped + scored[skipped:]

    def _take(self, folder: str | None) -> None:
        """Give the engine the weights of a checkpoint, or the base's."""
        taken = None if folder is None else _stamp(folder)
        if taken == self._taken:
            return
        overlay = {} if folder is None else overlay_of(Path(folder), self._base)
        changed = frozenset(same_blocks(overlay, self._base))
        tensors = {name: overlay.get(name, self._base[name]) for name in sorted(changed | self._changed)}
        self._version += 1
        manifest = WeightManifest(
            self._version,
            dict.fromkeys(tensors, "float32"),
            sum(tensor.nbytes for tensor in tensors.values()),
            NOTHING_TO_PROVE,
        )
        arrays = {name: tensor.float().contiguous().numpy() for name, tensor in tensors.items()}
        self._changed |= changed
        self._taken = HALF  # if loading fails, the weights are unknown
        self._engine.load_weights(manifest, arrays)
        self._taken, self._changed = taken, changed


def _stamp(folder: str) -> tuple[str, int, int]:
    """Return a stamp that changes if a new folder gets this name.

    Raises:
        InputError: the folder was deleted.
    """
    try:
        status = Path(folder).stat()
    except FileNotFoundError:
        raise InputError(
            "the weights to sample with were deleted; expected weights that are still saved"
        ) from None
    return folder, status.st_ino, status.st_mtime_ns


def _cut(drawn: Drawn, stop_tokens: Sequence[int]) -> Drawn:
    """End a text after its first stop token. Earlier tokens do not depend on later ones.

    >>> _cut(Drawn((5, 6, 7), (-1.0, -2.0, -3.0), False), [6])
    Drawn(tokens=(5, 6), logprobs=(-1.0, -2.0), stopped=True)
    """
    for place, token in enumerate(drawn.tokens, start=1):
        if token in stop_tokens:
            return Drawn(drawn.tokens[:place], drawn.logprobs[:place], stopped=True)
    return drawn


def _engine(path: str, engine: str, window: int | None) -> Engine:
    settings = RolloutSettings(dtype="float32" if not torch.cuda.is_available() else "auto")
    started: Engine = find("engine", engine, ENGINES)(path, path, window, settings)
    return started
