"""Collect drawn tokens and their log-probabilities from vLLM's core as arrays, without its bookkeeping.

vLLM makes lists of Python numbers for each request and step: token, log-probability, rank, text. For a
request without stop strings, vLLM's output processor needs only the end. Until then a step is two views of
arrays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from contracts.errors import RunError


@dataclass(slots=True)
class Drawn:
    """Tokens of one request so far, and for each step views of the arrays that vLLM made for all."""

    tokens: list[int] = field(default_factory=list)
    scored: list[Any] = field(default_factory=list)  # (tokens,) of each step: the tokens of the logprobs
    logprobs: list[Any] = field(default_factory=list)  # (tokens,) of each step

    def take(self, output: Any) -> None:
        """Take one step's `EngineCoreOutput`; the sampled token is vLLM's first column."""
        if output.new_token_ids:
            self.tokens += output.new_token_ids
            self.scored.append(output.new_logprobs.logprob_token_ids[:, 0])
            self.logprobs.append(output.new_logprobs.logprobs[:, 0])

    def one_each(self) -> tuple[float, ...]:
        """Return the log-probability of each token.

        Raises:
            RunError: vLLM gave other log-probabilities than one for each token.
        """
        if not self.tokens:
            return ()
        _check(np.concatenate(self.scored).tolist(), self.tokens)
        return tuple(np.concatenate(self.logprobs).tolist())


def one_each(flat: Any, tokens: Sequence[int]) -> tuple[float, ...]:
    """Return the log-probabilities in vLLM's flat record, which has one for each token."""
    _check(flat.token_ids, tokens)
    return tuple(flat.logprobs)


def _check(scored: Sequence[int], tokens: Sequence[int]) -> None:
    if list(scored) != list(tokens):
        raise RunError(
            f"vLLM gave log-probabilities of the tokens {list(scored)} for the tokens {list(tokens)}; "
            "expected one of each, in order. Is this version of vLLM the one in requirements/?"
        )


def step(engine: Any, drawn: Mapping[str, Drawn]) -> list[Any]:
    """Make one step of vLLM's engine; return its outputs, for `drawn` requests only at their end.

    Follow `LLMEngine.step` of vLLM 0.32 without statistics, which are off, and without multi-modal inputs.

    Args:
        drawn: the requests collected here, by vLLM's key; vLLM handles other outputs.
    """
    outputs = engine.engine_core.get_output()
    passed = []
    for output in outputs.outputs:
        collected = drawn.get(output.request_id)
        if collected is not None:
            collected.take(output)
            if not output.finished:
                continue
            output.new_logprobs = None  # otherwise vLLM would look for more
        passed.append(output)
    processed = engine.output_processor.process_outputs(
        passed, engine_core_timestamp=outputs.timestamp, weight_version=outputs.weight_version
    )
    engine.output_processor.update_scheduler_stats(outputs.scheduler_stats)
    engine.engine_core.abort_requests(processed.reqs_to_abort)
    ended: list[Any] = processed.request_outputs
    return ended
