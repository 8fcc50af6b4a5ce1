"""What can be set about the model and about how the learner computes (not what it optimises)."""

from typing import Literal

from pydantic import Field

from contracts.settings import Settings


class ModelSettings(Settings):
    """Which model is trained, and where its value function sits."""

    path: str  # a folder in Hugging Face format, or a hub name
    revision: str | None = None
    tokenizer: str | None = None  # None: the one in `path`
    policy: str = "auto"  # auto: as the model's family asks; or package.module:Class, a learner.policy.Policy
    critic: str = "linear"  # linear, mlp, or package.module:Class, a learner.critic.Critic
    value_trunk: Literal["shared", "separate"] = "shared"  # the critic's: the policy's own, or a copy
    dropout: bool = False  # True: in updates, as the model's own configuration says
    gradient_checkpointing: bool = False  # recompute activations: less memory, a third more compute


class LearnerSettings(Settings):
    """How the learner computes."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    autocast: Literal["auto", "bfloat16", "none"] = "auto"  # auto: bfloat16 on a GPU, none on a CPU
    token_budget: int = Field(default=16384, ge=1)  # tokens of a micro-batch, padding included
    logits_budget: int = Field(default=2**24, ge=1)  # logits held at once (numbers); more are recomputed
    # Where rollouts are drawn from a warped distribution (temperature, top-k, top-p, minimum length):
    # exact: ratios, KL and entropies are that distribution's own; importance: they are the whole
    # softmax's, and truncated importance weights correct (a temperature only); ignore: neither (biased)
    behavior: Literal["exact", "importance", "ignore"] = "exact"
    importance_cap: float = Field(default=2.0, gt=0)  # the largest weight of a token; RLOO: a response
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_iterations: int = Field(default=0, ge=0)
    num_threads: int | None = Field(default=None, ge=1)  # None: all cores
    update_timeout_s: float = Field(default=3600.0, gt=0)  # one scoring or update call
