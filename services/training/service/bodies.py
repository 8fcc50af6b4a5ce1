"""Bodies of the service's calls, as the SDK sends them. Unknown fields are rejected.

So a call for a missing feature fails at once, instead of being half done.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from learner.training_service.spec import AdamParams

MOST_RANK = 1024  # an adapter of a higher rank is larger than most layers


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=(), allow_inf_nan=False)

    type: str = ""


class SessionBody(Body):
    tags: list[str] = []
    user_metadata: dict[str, Any] | None = None
    sdk_version: str = ""
    project_id: str | None = None
    display_name: str | None = None


class OptimizerBody(Body):
    type: Literal["adamw"] = "adamw"


class LoraBody(Body):
    rank: int = Field(ge=1, le=MOST_RANK)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)  # range that torch takes
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class CreateBody(Body):
    session_id: str
    model_seq_id: int = Field(ge=0)
    base_model: str
    user_metadata: dict[str, Any] | None = None
    lora_config: LoraBody | None = None
    optimizer_config: OptimizerBody = OptimizerBody()


class LoadBody(Body):
    model_id: str | None = None
    seq_id: int | None = None
    session_id: str | None = None
    model_seq_id: int | None = None
    base_model: str | None = None
    user_metadata: dict[str, Any] | None = None
    path: str
    optimizer: bool
    optimizer_config: OptimizerBody | None = None
    weights_access_token: str | None = None


class AdamBody(Body):
    learning_rate: float = Field(default=1e-4, ge=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-12, gt=0)  # above 0, because 0 / (0 + 0) is not a number
    weight_decay: float = Field(default=0.0, ge=0)
    grad_clip_norm: float = 0.0

    def params(self) -> AdamParams:
        return AdamParams(**self.model_dump(exclude={"type"}))


class StepBody(Body):
    model_id: str
    seq_id: int = Field(ge=1)
    adam_params: AdamBody


class SaveBody(Body):
    model_id: str
    seq_id: int = Field(ge=1)
    path: str | None = None
    ttl_seconds: int | None = None
    overwrite: bool = False
    user_metadata: dict[str, str] | None = None


class SaveForSamplerBody(Body):
    model_id: str
    seq_id: int = Field(ge=1)
    path: str | None = None
    sampling_session_seq_id: int | None = None
    kind: Literal["snapshot", "inflight"] = "snapshot"
    ttl_seconds: int | None = None
    user_metadata: dict[str, str] | None = None


class SamplingSessionBody(Body):
    session_id: str
    sampling_session_seq_id: int
    base_model: str | None = None
    model_path: str | None = None


class JoinBody(Body):
    sampling_session_id: str


class HeartbeatBody(Body):
    session_id: str


class ChunkBody(Body):
    type: Literal["encoded_text"] = "encoded_text"
    tokens: list[int]


class PromptBody(Body):
    chunks: list[ChunkBody]

    def tokens(self) -> tuple[int, ...]:
        return tuple(token for chunk in self.chunks for token in chunk.tokens)


class DrawBody(Body):
    max_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = None
    stop: str | list[str] | list[int] | None = None
    temperature: float = Field(default=1.0, ge=0)
    top_k: int = -1
    top_p: float = Field(default=1.0, gt=0, le=1)


class SampleBody(Body):
    num_samples: int = Field(default=1, ge=1)
    prompt: PromptBody
    sampling_params: DrawBody
    base_model: str | None = None
    model_path: str | None = None
    sampling_session_id: str | None = None
    seq_id: int | None = None
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: Literal[0] = 0
    topk_sample_logprobs: Literal[0] = 0
    target_prompt_logprobs: None = None
    prompt_alt_tokens_k: Literal[0] = 0
    prompt_logprobs_last_n: int | None = Field(default=None, ge=1)
    record_stability_info: Literal[False] | None = None


class FutureBody(Body):
    request_id: str
    allow_metadata_only: bool = False


class InfoBody(Body):
    model_id: str


class PathBody(Body):
    tinker_path: str


class OrderedBody(BaseModel):
    """Fields that all calls of a model share."""

    model_id: str
    seq_id: int = Field(ge=1, lt=2**63)


class SomeOrderedBody(BaseModel):
    """Model of a call that may not have one yet."""

    model_id: str | None = None


ORDERED: dict[str, type[Body] | None] = {
    "optim_step": StepBody,
    "save_weights": SaveBody,
    "save_weights_for_sampler": SaveForSamplerBody,
    "save_weights_external": None,  # rejected
    "load_weights": LoadBody,
}
