"""What can be set about the model and about how the learner computes (not what it optimises)."""

from typing import Literal, Self

from pydantic import Field, model_validator

from contracts.errors import InputError
from contracts.settings import Settings
from learner.adapter_settings import AdapterSettings
from learner.algorithms.base import Algorithm, learns_from


class ModelSettings(Settings):
    """Which model is trained, and where its value function sits."""

    path: str  # a folder in Hugging Face format, or a hub name
    revision: str | None = None
    tokenizer: str | None = None  # None: the one in `path`
    policy: str = "auto"  # auto: as the model's family asks; or package.module:Class, a learner.policy.Policy
    critic: str = "linear"  # linear, mlp, or package.module:Class, a learner.critic.Critic
    value_trunk: Literal["shared", "separate"] = "shared"  # the critic's: the policy's own, or a copy
    # In updates, at the rates of the model's configuration. None: as the algorithm was published, which is on
    # where it learns from references or from data, and off where it learns from the policy's own rollouts
    dropout: bool | None = None
    gradient_checkpointing: bool = False  # recompute activations: less memory, a third more compute
    # The last layers alone, as a number or a share (0.33: the last third), with the norm behind them and an
    # untied head; the rest is frozen and shared with the reference. None: all of the model trains
    trainable_layers: int | float | None = Field(default=None, gt=0)
    adapter: AdapterSettings = AdapterSettings()  # LoRA or QLoRA: small matrices train, the model is frozen

    @model_validator(mode="after")
    def _trunk_is_one(self) -> Self:
        if isinstance(self.trainable_layers, float) and self.trainable_layers >= 1:
            raise ValueError(
                f"trainable_layers={self.trainable_layers}: expected a share below 1, such as 0.33, or a "
                "whole number of layers"
            )
        if self.trainable_layers is not None and self.adapter.trains:
            raise ValueError(
                f"trainable_layers={self.trainable_layers} trains the last layers themselves, and "
                f"adapter.kind={self.adapter.kind} matrices beside all of them; leave out one of the two"
            )
        return self

    def drops_out(self, algorithm: Algorithm) -> bool:
        """Whether this algorithm's updates run with the model's own dropout.

        Raises:
            InputError: dropout is asked for, and a reference reads the same frozen layers.
        """
        if self.dropout is None:
            return learns_from(algorithm) != "rollouts"
        if self.dropout and self.trainable_layers is not None and algorithm.online:
            raise InputError(
                f"model.dropout=true with model.trainable_layers={self.trainable_layers}: the reference "
                "reads the frozen layers' output, which must have no dropout in it; leave out one of the two"
            )
        return self.dropout

    def num_trained(self, num_layers: int) -> int:
        """How many of a model's layers train.

        >>> ModelSettings(path="gpt2", trainable_layers=0.33).num_trained(12)
        4

        Raises:
            InputError: none would be frozen.
        """
        wanted = self.trainable_layers
        if wanted is None:
            return num_layers
        count = max(1, round(wanted * num_layers)) if isinstance(wanted, float) else wanted
        if count >= num_layers:
            raise InputError(
                f"model.trainable_layers={wanted}: the model has {num_layers} layers, and at least one of "
                "them is to be frozen; expected fewer, or leave it out to train all"
            )
        return count


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
    # Where weights have changed since a rollout was written: truncated importance weights of each token, of
    # each response, or none (biased)
    staleness_correction: Literal["token", "response", "none"] = "token"
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    # Share of the learning rate that linear and cosine come down to. LoL-RL's linear one ends at 0.5 with two
    # accumulated batches: its length counts batches, and it moves once a step
    lr_end: float = Field(default=0.0, ge=0, le=1)
    warmup_iterations: int = Field(default=0, ge=0)
    # What new weights bring to workers: every number, or those alone that are not as at the last push
    push: Literal["whole", "changed"] = "whole"
    num_processes: int = Field(default=1, ge=1)  # that share out models, moments and work
    num_threads: int | None = Field(default=None, ge=1)  # of each process; None: all cores
    start_timeout_s: float = Field(default=600.0, gt=0)  # until its process answers; models load after that
    stall_timeout_s: float = Field(default=120.0, gt=0)  # without any sign of life
    progress_timeout_s: float = Field(default=1800.0, gt=0)  # that it answers and gets nowhere
    max_restarts: int = Field(default=3, ge=0)  # of a learner that died or hung, within an hour

    @model_validator(mode="after")
    def _only_what_falls_ends(self) -> Self:
        if self.lr_end and self.lr_schedule == "constant":
            raise ValueError(
                f"lr_end={self.lr_end:g} with lr_schedule=constant, which does not fall: expected "
                "lr_schedule=linear or cosine, or lr_end=0"
            )
        return self
