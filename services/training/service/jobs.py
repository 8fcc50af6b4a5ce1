"""Jobs and results of a sampler. Without torch."""

from dataclasses import dataclass

from contracts.rollout import Sampling


@dataclass(frozen=True, slots=True)
class Job:
    """Texts to sample for one prompt.

    Args:
        sampling: without stop tokens; `max_tokens` of 0 allows as many tokens as fit in the window.
        stop_tokens: a text ends after the first of these.
        prompt_logprobs: how many of the prompt's last tokens to score; 0: none.
    """

    id: str
    tokens: tuple[int, ...]
    sampling: Sampling
    num_samples: int
    seed: int
    stop_tokens: tuple[int, ...] = ()
    prompt_logprobs: int = 0


@dataclass(frozen=True, slots=True)
class Drawn:
    """A sampled text. `stopped`: it ended by itself, not by its length."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    stopped: bool


@dataclass(frozen=True, slots=True)
class Sampled:
    """The texts of a job, and the log-probabilities of the prompt's tokens after the first, or None."""

    drawn: tuple[Drawn, ...]
    prompt_logprobs: tuple[float, ...] | None
