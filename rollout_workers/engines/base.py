"""Interface between a worker and the generation engine that it steps."""

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
    role: str = ""  # role of the policy, if each role has its adapter


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished request: the fields of a `contracts.rollout.Turn` that the model made.

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

    The engine has dropped them, and can continue.

    Args:
        failed: the requests' ids.
        finished: other requests that the same step finished.
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
    mask_version: int | None  # version of the mask model's weights; None: no mask model
    num_generated: int  # tokens since the start; in a hanging worker the count stands still
    tokenizer: Any
    window: int | None  # limit of a context's and its answer's tokens; None: no limit

    def add(self, request: Request) -> None: ...

    def step(self) -> list[Generation]:
        """Advance every admitted request by one token or more; return the finished ones.

        Raises:
            Undrawable: the sampling of some requests failed; the engine continues without them.
        """
        ...

    @property
    def num_unfinished(self) -> int: ...

    def abort(self, ids: Collection[int]) -> None:
        """Give up requests; some may be finished or unknown; beams may still be drawn to their end."""
        ...

    def abort_all(self) -> None: ...

    def load_weights(self, manifest: WeightManifest, arrays: Arrays) -> None:
        """Replace the weights. Tokens sampled from now on carry `manifest.version`."""
        ...

    def logprobs(self, texts: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        """Return the log-probabilities of each text's tokens after the first, by the current weights."""
        ...

    def sleep(self) -> None:
        """Leave the GPU's memory to others until the next call, and forget keys and values.

        The engine must be idle and have settings with `sleep`. On a CPU it keeps its memory.
        """
        ...


class MaskingEngine(Engine, Protocol):
    """Engine with NLPO's mask model, a second model in the engine."""

    def load_mask(self, manifest: WeightManifest, arrays: Arrays) -> None:
        """Replace the mask model's weights with those of version `manifest.mask_version`."""
        ...


class ReceivingEngine(Engine, Protocol):
    """Engine that receives a learner's weights without Ray. Both methods return why they failed, or None."""

    def join_group(self, group: WeightGroup, first_rank: int) -> str | None:
        """Join a group with all of the engine's processes, which get ranks from `first_rank` up."""
        ...

    def receive_weights(self, manifest: WeightManifest, handles: Mapping[str, Any]) -> str | None:
        """Replace the weights by those that the learner sends; keys and values may stay asleep.

        After a failure the weights are undefined, so all must be loaded before the next step.
        """
        ...
