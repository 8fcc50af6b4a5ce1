"""Engines without a model, for behaviour of workers and fleets with any engine."""

import os
import signal
import time
from collections.abc import Collection, Sequence
from typing import Any

from contracts.rollout import FinishReason
from contracts.weights import WeightManifest
from rollout_workers.engines.base import Generation, Request

STEP_S = 0.01


class CountingEngine:
    """Writes 0, 1, 2, … for each request, a token a step, all requests at once."""

    def __init__(self, *_: Any) -> None:
        self._rows: dict[int, tuple[Request, list[int]]] = {}  # request id -> versions so far
        self.weight_version = self.num_generated = 0
        self.mask_version: int | None = None
        self.is_asleep = False

    def add(self, request: Request) -> None:
        self.is_asleep = False
        self._rows[request.id] = (request, [])

    def step(self) -> list[Generation]:
        assert not self.is_asleep
        time.sleep(STEP_S)
        self.num_generated += len(self._rows)
        for _, versions in self._rows.values():
            versions.append(self.weight_version)
        done = [
            id
            for id, (request, versions) in self._rows.items()
            if len(versions) == request.sampling.max_tokens
        ]
        return [self._generation(*self._rows.pop(id)) for id in done]

    @property
    def num_unfinished(self) -> int:
        return len(self._rows)

    def abort(self, ids: Collection[int]) -> None:
        for number in ids:
            self._rows.pop(number, None)

    def abort_all(self) -> None:
        self._rows.clear()

    def load_weights(self, manifest: WeightManifest, arrays: Any) -> None:
        self.is_asleep = False
        self.weight_version = manifest.version

    def load_mask(self, manifest: WeightManifest, arrays: Any) -> None:
        self.mask_version = manifest.mask_version

    def logprobs(self, texts: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        self.is_asleep = False
        return [tuple(-token / 4 for token in text[1:]) for text in texts]

    def sleep(self) -> None:
        self.is_asleep = True

    def _generation(self, request: Request, versions: list[int]) -> Generation:
        return Generation(
            request.id,
            tuple(range(len(versions))),
            "counted",
            (0.0,) * len(versions),
            tuple(versions),
            FinishReason.LENGTH,
        )


class FailsToStart(CountingEngine):
    def __init__(self, *_: Any) -> None:
        raise RuntimeError("no such kernel")


class NeverUp(CountingEngine):
    def __init__(self, *_: Any) -> None:
        time.sleep(3600)


class FailsOnStep(CountingEngine):
    def step(self) -> list[Generation]:
        raise RuntimeError("out of memory, say")


class SlowToLoad(CountingEngine):
    def load_weights(self, manifest: WeightManifest, arrays: Any) -> None:
        time.sleep(0.5)
        super().load_weights(manifest, arrays)


class HangsOnLoad(CountingEngine):
    def load_weights(self, manifest: WeightManifest, arrays: Any) -> None:
        time.sleep(3600)


class SlowToSleep(CountingEngine):
    def sleep(self) -> None:
        time.sleep(2.0)
        super().sleep()


class HangsOnSleep(CountingEngine):
    def sleep(self) -> None:
        time.sleep(3600)


class AlwaysWrong(CountingEngine):
    """Answers every probe with other log-probabilities."""

    def logprobs(self, texts: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        return [tuple(logprob - 1.0 for logprob in scores) for scores in super().logprobs(texts)]


class DiesAtStart(CountingEngine):
    def __init__(self, *_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class DiesOnLoad(CountingEngine):
    def load_weights(self, manifest: WeightManifest, arrays: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
