"""Settings of the model and of the learner's computation; algorithms have their own."""

from typing import Literal, Self

from pydantic import Field, model_validator

from contracts.conversations.chat_settings import ChatSettings
from contracts.errors import InputError
from contracts.settings import Settings
from learner.algorithms.base import Algorithm
from learner.mismatch_settings import MismatchSettings
from learner.models.adapter_settings import AdapterSettings


class ReferenceSettings(Settings):
    """Settings of the reference policy: the model before training, or another one, such as a teacher."""

    path: str | None = None  # None: the model before training; else a folder or hub name, same vocabulary
    revision: str | None = None  # branch, tag or commit on the hub; None: the main one

    @model_validator(mode="after")
    def _a_revision_is_of_a_path(self) -> Self:
        if self.revision is not None and self.path is None:
            raise ValueError(
                f"got revision={self.revision} without a path; expected path=NAME with it, or no revision"
            )
        return self


class ModelSettings(Settings):
    """Settings of the trained model and of its value function."""

    path: str  # a folder in Hugging Face format, a hub name, or an adapter's (peft) folder or hub name
    base: str | None = None  # base of the adapter `path`; None: the base that the adapter names
    merge: bool = False  # merge the adapter `path` before training; otherwise train it further
    revision: str | None = None  # branch, tag or commit on the hub; None: the main one
    tokenizer: str | None = None  # None: the tokenizer in `path`
    chat: ChatSettings = ChatSettings()  # how conversations are read
    policy: str = "auto"  # auto: by the model's family; or package.module:Class, a models.policy.Policy
    critic: str = "linear"  # linear, mlp, or package.module:Class, a models.critic.Critic
    value_trunk: Literal["shared", "separate"] = "shared"  # the critic's trunk: the policy's, or a copy
    # In updates, at the rates of the model's configuration. None, as published: on if the algorithm learns
    # from references or data, off if it learns from the policy's rollouts
    dropout: bool | None = None
    gradient_checkpointing: bool = False  # recompute activations: less memory, a third more compute
    # Number or share (0.33: the last third) of last layers that train, with the norm after them and an
    # untied head. The rest is frozen and shared with the reference. None: the whole model trains
    trainable_layers: int | float | None = Field(default=None, gt=0)
    reference: ReferenceSettings = ReferenceSettings()  # the model that the KL compares with
    adapter: AdapterSettings = AdapterSettings()  # LoRA or QLoRA: train small matrices beside a frozen model

    @model_validator(mode="after")
    def _trunk_is_one(self) -> Self:
        if isinstance(self.trainable_layers, float) and self.trainable_layers >= 1:
            raise ValueError(
                f"trainable_layers={self.trainable_layers}: expected a share below 1, such as 0.33, or a "
                "whole number of layers"
            )
        if self.trainable_layers is not None and self.adapter.trains:
            raise ValueError(
                f"trainable_layers={self.trainable_layers} trains the last layers, but adapter.kind="
                f"{self.adapter.kind} trains small matrices beside all layers; set only one of the two"
            )
        return self

    def drops_out(self, algorithm: Algorithm) -> bool:
        """Return whether this algorithm's updates use the model's dropout.

        Raises:
            InputError: dropout is on, but policy and reference policy read the same frozen layers.
        """
        if self.dropout is None:
            return algorithm.traits.learns_from != "rollouts"
        if self.dropout and self.trainable_layers is not None and algorithm.traits.online:
            raise InputError(
                f"model.dropout=true with model.trainable_layers={self.trainable_layers}: the reference "
                "reads the frozen layers' output, which must be without dropout; leave out one of the two"
            )
        return self.dropout

    def any_dropout(self, algorithm: Algorithm) -> bool:
        """Return whether this algorithm's updates use dropout, of the model or of its adapter."""
        return self.drops_out(algorithm) or self.adapter.drops_out

    def num_trained(self, num_layers: int) -> int:
        """Return how many of a model's layers train.

        >>> ModelSettings(path="gpt2", trainable_layers=0.33).num_trained(12)
        4

        Raises:
            InputError: no layer would be frozen.
        """
        wanted = self.trainable_layers
        if wanted is None:
            return num_layers
        count = max(1, round(wanted * num_layers)) if isinstance(wanted, float) else wanted
        if count >= num_layers:
            raise InputError(
                f"model.trainable_layers={wanted}: the model has {num_layers} layers, and at least one "
                "must stay frozen; expected fewer, or leave it out to train all"
            )
        return count


class LearnerSettings(Settings):
    """Settings of the learner's computation, processes and deadlines."""

    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: a GPU if there is one
    # auto: bfloat16 on a GPU, none on a CPU; float16: on a GPU without bfloat16, with a loss scale
    autocast: Literal["auto", "bfloat16", "float16", "none"] = "auto"
    # The policy's weights and hidden states in passes. bfloat16: as in engines, with float32 masters in the
    # optimiser, so that small steps are not lost; auto: on one GPU with autocast=bfloat16
    param_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    # Join the small kernels of each transformer block by torch.compile, which takes a while at the start. Not
    # yet tried on a GPU. If it fails, blocks run uncompiled, and the run says why
    compile: bool = False
    token_budget: int = Field(default=16384, ge=1)  # tokens of a micro-batch, padding included
    # numbers of logits held at once; larger batches are computed again in chunks
    logits_budget: int = Field(default=2**24, ge=1)
    # Probabilities in updates, if sampling warps them (temperature, top-k, top-p, minimum length).
    # exact: ratios, KL and entropies are those of the warped distribution;
    # importance: those of the whole softmax, with truncated importance weights (only for a temperature);
    # ignore: those of the whole softmax, without weights (biased)
    behavior: Literal["exact", "importance", "ignore"] = "exact"
    importance_cap: float = Field(default=2.0, gt=0)  # largest weight of a token; RLOO: of a response
    # Truncated importance weights for rollouts older than the last update: of tokens, of responses, or none
    # (biased)
    staleness_correction: Literal["token", "response", "none"] = "token"
    mismatch: MismatchSettings = MismatchSettings()  # corrects small deviations of the engine's probabilities
    # Score finished rollouts while others are written. None: if the learner has a GPU for itself
    score_early: bool | None = None
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"  # course of the rate after warm-up
    # Share of the learning rate at which linear and cosine end. LoL-RL's linear schedule ends at 0.5 with two
    # accumulated batches, because its length counts batches, but it moves once a step
    lr_end: float = Field(default=0.0, ge=0, le=1)
    warmup_iterations: int = Field(default=0, ge=0)  # during these the learning rate rises from 0
    # Numbers that a push sends to the workers: all, or those that changed since the last push
    push: Literal["whole", "changed"] = "whole"
    # Transport of a push: Ray's objects; or one broadcast over nccl or gloo, or by memory of one GPU (ipc).
    # auto: ipc if learner and workers share one GPU, else objects
    transport: Literal["auto", "objects", "nccl", "ipc", "gloo"] = "auto"
    num_processes: int = Field(default=1, ge=1)  # number of processes that share models, moments and work
    # When several processes sum gradients: after each micro-batch, so that each keeps only its rows; or once
    # a minibatch, which sends less and keeps whole gradients in each process
    sum_gradients: Literal["micro_batch", "minibatch"] = "micro_batch"
    # Keep weights, gradients and moments in the host's memory; a GPU holds a layer at a time
    offload: bool = False
    num_threads: int | None = Field(default=None, ge=1)  # CPU threads of each process; None: all cores
    start_timeout_s: float = Field(default=600.0, gt=0)  # seconds until a process answers; models load after
    stall_timeout_s: float = Field(default=120.0, gt=0)  # limit in seconds without an answer
    progress_timeout_s: float = Field(default=1800.0, gt=0)  # seconds with answers but without progress
    max_restarts: int = Field(default=3, ge=0)  # restarts after deaths or hangs within an hour

    @model_validator(mode="after")
    def _changes_are_objects(self) -> Self:
        if self.push == "changed" and self.transport not in ("auto", "objects"):
            raise ValueError(
                f"push=changed leaves out unchanged numbers, but transport={self.transport} sends all; "
                "expected transport=objects, or push=whole"
            )
        return self

    @model_validator(mode="after")
    def _only_what_falls_ends(self) -> Self:
        if self.lr_end and self.lr_schedule == "constant":
            raise ValueError(
                f"lr_end={self.lr_end:g} with lr_schedule=constant, which does not fall: expected "
                "lr_schedule=linear or cosine, or lr_end=0"
            )
        return self
