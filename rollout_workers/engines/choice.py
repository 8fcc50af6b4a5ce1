"""Rules by which `auto` chooses an engine and a number format, and by which vLLM steps."""

import functools
import importlib.util
import os
from dataclasses import dataclass

from rollout_workers.engines.engine_arguments import RUNNER
from rollout_workers.settings import RolloutSettings

SMALL = 10_000_000  # parameters; up to this size transformers writes faster on a CPU (docs/results/speed.md)


def choose_engine(
    engine: str, *, is_encoder_decoder: bool, prefers_transformers: bool = False, has_vllm: bool | None = None
) -> str:
    """Return the engine for `engine`: `auto` is vLLM if it is installed, knows the model, and is fast.

    vLLM has no encoder-decoders for text.

    Args:
        prefers_transformers: both engines can do what the run needs, and transformers is faster.
        has_vllm: whether vLLM is installed; None: look.
    """
    if engine != "auto":
        return engine
    if is_encoder_decoder or prefers_transformers:
        return "transformers"
    if has_vllm is None:
        has_vllm = importlib.util.find_spec("vllm") is not None
    return "vllm" if has_vllm else "transformers"


def choose_dtype(dtype: str, *, on_gpu: bool) -> str:
    """Return the number format for `dtype`: `auto` is bfloat16 on a GPU, and float32 on a CPU.

    On a CPU float32 makes engine and learner agree. bfloat16 is faster on processors that multiply it.
    """
    if dtype != "auto":
        return dtype
    return "bfloat16" if on_gpu else "float32"


@dataclass(frozen=True, slots=True)
class Stepping:
    """Choice of vLLM's model runner, and whether a step runs ahead of its results, with the reason.

    The newer runner draws all tokens of a step in one kernel, the older one each seeded row in a separate
    kernel. A step that runs ahead hides Python's work behind the GPU's. Its tokens are in flight when others
    arrive, so weights must not change meanwhile.

    Example: `Stepping(is_newer=False, runs_ahead=False, why="the newer runner needs a GPU")`
    """

    is_newer: bool
    runs_ahead: bool
    why: str

    @property
    def in_words(self) -> str:
        """Return the choice and its reason.

        >>> Stepping(True, False, "weights change between steps").in_words
        "vLLM's newer runner, step by step: weights change between steps"
        """
        steps = "a step ahead" if self.runs_ahead else "step by step"
        return f"vLLM's {'newer' if self.is_newer else 'older'} runner, {steps}: {self.why}"


def stepping(
    settings: RolloutSettings,
    *,
    on_gpu: bool,
    has_mask: bool,
    serves_adapter: bool,
    runner: str | None,
) -> Stepping:
    """Return how an engine steps. The newer runner serves a plain synchronous run on a GPU.

    Args:
        has_mask: whether the model is a twin, whose mask is written for the older runner.
        serves_adapter: whether the engine has an adapter beside the model.
        runner: the user's VLLM_USE_V2_MODEL_RUNNER, which wins except over a mask; None: not set.
    """
    if has_mask:
        return Stepping(False, False, "algorithm=nlpo masks by the older one's interface")
    if not on_gpu:
        return Stepping(runner == "1", False, f"{RUNNER}=1" if runner == "1" else "there is no GPU")
    if settings.max_staleness:
        why = "weights change while texts are written"
    elif serves_adapter:
        why = "it serves an adapter"
    elif restricts(settings):
        why = "top_k, top_p, min_tokens or repetition_penalty restrict the draw"
    else:
        why = ""
    if runner is not None:
        return Stepping(runner == "1", runner == "1" and not why, f"{RUNNER}={runner}")
    return Stepping(not why, not why, why or "weights change only between batches")


@functools.cache
def users_runner() -> str | None:
    """Return the user's VLLM_USE_V2_MODEL_RUNNER; None: not set.

    The first call reads it, before an engine starts, because engines also write the variable.
    """
    return os.environ.get(RUNNER)


def restricts(settings: RolloutSettings) -> bool:
    """Return whether a run's settings remove tokens from the model's distribution."""
    return bool(
        settings.top_k or settings.top_p < 1 or settings.min_tokens or settings.repetition_penalty != 1
    )
