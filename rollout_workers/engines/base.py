"""Interface between a worker and its generation engine, which the worker steps."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from contracts.errors import WorkerError
from contracts.rollout import FinishReason, Sampling
from contracts.weights import WeightGroup, WeightManifest

Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.generic]]
Arrays = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Request:
    """One turn to generate. Two requests with the same seed, tokens and weights draw the same tokens.

    Example: `Request(id=9, tokens=(12, 14), sampling=Sampling(max_tokens=20), seed=771)`
    """

    id: int
    tokens: tuple[int, ...]
    sampling: Sampling
    seed: int


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished request; the fields of a `contracts.rollout.Turn` that the model made.

    Example: `Generation(request_id=9, tokens=(15, 2), text="6", behavior_logprobs=(-0.7, -0.1),
    versions=(4, 4), finish_reason=FinishReason.STOP)`
    """

    request_id: int
    tokens: tuple[int, ...]
    text: str
    behavior_logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish_reason: FinishReason


class Undrawable(WorkerError):
    """Requests whose sampling leaves no distribution, although the model's logits are finite.

    The engine has dropped them, and can go on.

    Args:
        failed: the requests' ids.
        finished: what the same step finished besides.
    """

    def __init__(self, failed: Collection[int], finished: Sequence[Generation]) -> None:
        super().__init__(
            "the sampling leaves no token to draw: the logits overflow, or every token is excluded; "
            "expected a temperature, a repetition penalty or a mask that changes them less"
        )
        self.failed, self.finished = failed, finished


class Engine(Protocol):
    """Generation engine: requests go in and finish one by one; weights change between two steps."""

    weight_version: int
    mask_version: int | None  # of the mask model's weights; None: there is no mask model
    num_generated: int  # tokens since the start: a worker that hangs stops counting
    tokenizer: Any
    window: int | None  # most tokens of a context and its answer; None: no limit

    def add(self, request: Request) -> None: ...

    def step(self) -> list[Generation]:
        """Advance every admitted request by one token or more; return those that finished.

        Raises:
            Undrawable: some requests failed by their own sampling; the engine goes on without them.
        """
        ...

    @property
    def num_unfinished(self) -> int: ...

    def abort(self, ids: Collection[int]) -> None:
        """Give up requests, of which some may be finished or unknown; beams may be drawn to their end."""
        ...

    def abort_all(self) -> None: ...

    def load_weights(self, manifest: WeightManifest, arrays: Arrays) -> None:
        """Replace the weights. Tokens sampled from now on carry `manifest.version`."""
        ...

    def load_mask(self, manifest: WeightManifest, arrays: Arrays) -> None:
        """Replace the mask model's weights with those of version `manifest.mask_version` (NLPO)."""
        ...

    def logprobs(self, texts: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        """Return the log-probabilities of each text's tokens after the first, by the current weights."""
        ...

    def sleep(self) -> None:
        """Leave the GPU's memory to others until the next call, and forget keys and values.

        The engine must have nothing unfinished and settings with `sleep`. On a CPU it keeps its memory.
        """
        ...


class ReceivingEngine(Engine, Protocol):
    """Engine that a learner can send weights to without Ray. Both methods return why that failed, or None."""

    def join_group(self, group: WeightGroup, first_rank: int) -> str | None:
        """Join a group with all processes of the engine, of ranks `first_rank` and up."""
        ...

    def receive_weights(self, manifest: WeightManifest, handles: Mapping[str, Any]) -> str | None:
        """Replace the weights by those that the learner sends; keys and values may go on sleeping.

        After a failure the weights may be any: all must be loaded before the next step.
        """
        ...
