"""Settings for generating rollouts."""

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from contracts.errors import did_you_mean
from contracts.settings import Settings, Strings
from rollout_workers.engines import ENGINES
from rollout_workers.engines.engine_arguments import refuse_decided
from rollout_workers.engines.traits import traits_of


class RolloutSettings(Settings):
    """Settings of engines, sampling and workers. The defaults sample from the model's distribution."""

    # auto, vllm, transformers, or a user's engine; auto: vLLM, unless another engine is faster
    engine: str = "auto"
    num_workers: int = Field(default=1, ge=1)  # processes that generate, each with a model
    tensor_parallel_size: int = Field(default=1, ge=1)  # GPUs that share a worker's model (vLLM)
    prompts_per_iteration: int = Field(default=64, ge=1)  # each has group_size rollouts
    group_size: int | None = Field(default=None, ge=1)  # rollouts of each prompt; None: 1, grpo and rloo: 8
    priority_scale: float = Field(default=0.0, ge=0)  # 0: each prompt once an epoch
    max_tokens: int = Field(default=48, ge=1)  # most generated tokens
    min_tokens: int = Field(default=0, ge=0)  # generated tokens before a response may end
    max_staleness: int = Field(default=0, ge=0)  # versions a token may be older than what it trains; 0: sync
    # Prompts that an iteration trains on. leased: the next ones; finished: those whose groups finish first
    order: Literal["leased", "finished"] = "leased"
    sleep: bool = False  # workers leave their GPU's memory to the learner during updates
    temperature: float = Field(default=1.0, gt=0)  # divides the logits before sampling
    top_k: int = Field(default=0, ge=0)  # 0: no limit
    top_p: float = Field(default=1.0, gt=0, le=1)  # probability mass to sample from; 1: no limit
    # Above 1: tokens of the prompt and of the answer so far become less likely, as in Hugging Face's generate
    repetition_penalty: float = Field(default=1.0, gt=0)
    stop: Strings = ()  # strings that end a response
    # Continue after the end-of-sequence token, up to max_tokens (RL4LMs' terminate_on_eos: False)
    ignore_eos: bool = False
    max_prompt_tokens: int | None = Field(default=None, ge=1)  # longer prompts are cut: task.truncation_side
    max_concurrent: int = Field(default=256, ge=1)  # rollouts in progress in one worker
    kv_cache_gib: float = Field(default=1.0, gt=0)  # a worker's memory for keys and values, on a CPU
    gpu_memory_utilization: float = Field(default=0.85, gt=0, le=1)  # share of a GPU that vLLM takes
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on a GPU, float32 on a CPU
    num_threads: int | None = Field(default=None, ge=1)  # CPU threads of a worker; None: all cores
    start_timeout_s: float = Field(default=600.0, gt=0)  # seconds until a worker's engine runs
    stall_timeout_s: float = Field(default=120.0, gt=0)  # limit in seconds without a new token
    max_restarts: int = Field(default=10, ge=0)  # replaced workers within an hour
    # More arguments for vLLM's engine, such as {kv_cache_dtype: fp8}
    engine_args: dict[str, Any] = Field(default_factory=dict)
    deterministic: bool = False  # admit each batch at once and in order, so that a run repeats bit by bit

    @property
    def needs_vllm(self) -> bool:
        """Return whether a setting needs vLLM."""
        return bool(self.engine_args) or self.tensor_parallel_size > 1

    @field_validator("engine_args")
    @classmethod
    def _are_the_users(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        refuse_decided(arguments)
        return arguments

    @field_validator("engine")
    @classmethod
    def _is_an_engine(cls, engine: str) -> str:
        if engine != "auto" and ":" not in engine and engine not in ENGINES:
            raise ValueError(
                f"no such engine{did_you_mean(engine, ('auto', *ENGINES))}; an engine of your own is "
                "package.module:Class or FILE.py:Class"
            )
        return engine

    @model_validator(mode="after")
    def _engine_takes_arguments(self) -> "RolloutSettings":
        if self.engine_args and not traits_of(self.engine).takes_arguments:
            raise ValueError(
                f"got engine_args={self.engine_args} with engine={self.engine}, which takes none: expected "
                "engine=vllm or auto, or no engine_args"
            )
        return self

    @model_validator(mode="after")
    def _min_within_max(self) -> "RolloutSettings":
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens={self.min_tokens} exceeds max_tokens={self.max_tokens}")
        if self.order == "finished" and not self.max_staleness:
            raise ValueError(
                "order=finished with max_staleness=0: nothing is written ahead, so the learner has no groups "
                "to choose from; expected max_staleness=2 or more, or order=leased"
            )
        if self.deterministic and self.max_staleness:
            raise ValueError(
                f"deterministic=true with max_staleness={self.max_staleness}: writing ahead lets timing "
                "decide which weights draw a token; expected max_staleness=0, or deterministic=false"
            )
        if self.sleep and self.max_staleness:
            raise ValueError(
                f"sleep=true with max_staleness={self.max_staleness}: workers that write ahead can't sleep "
                "during an update; expected sleep=false, or max_staleness=0"
            )
        return self
