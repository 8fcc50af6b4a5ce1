"""Learner: scored rollouts in, new weights out.

    rollouts ─▶ select ─▶ collate ─▶ score (old log-probs, values, reference, mask) ─▶ credit ─▶ update
                                                                                          │
                publish ◀── version + 1, mask synced ◀── epochs of minibatches, or a trust region's step

This is a plain class. `learner/actors/process.py` runs it in a process; `learner/actors/group.py` runs one or
several as Ray actors. All ranks of a learner get the same calls with the same arguments.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from contracts.errors import LearnerError
from contracts.processes import timeline
from contracts.processes.disk import room_for
from contracts.roles import by_role
from contracts.rollout import Rollout, Sampling
from contracts.weights import WeightManifest
from learner import checkpoint, off_policy
from learner.algorithms.base import Algorithm
from learner.batches.batching import Batch, collate
from learner.distributed import ranks
from learner.distributed.device import enter, pick_device
from learner.distributed.rendezvous import Rendezvous
from learner.distributed.whole_models import spreads
from learner.functional.advantages import require_finite
from learner.functional.ratios import explained_variance
from learner.models import dropout
from learner.models.actor_critic import (
    ActorCritic,
    average_trained,
    copy_trained,
    frozen_copy,
    load_actor_critic,
    load_reference,
    read_stored,
    reference_of,
)
from learner.models.adapters import WithoutAdapter
from learner.models.critic import RunningNorm
from learner.models.named_adapters import Role
from learner.models.policy import Policy, check_head
from learner.models.rounding import round_models
from learner.off_policy import Correction, correction_of, rounds
from learner.optimization.entropy_control import EntropyBonus
from learner.optimization.optimizer import build_optimizer, set_learning_rate
from learner.optimization.precision import Precision
from learner.optimization.rate_schedule import schedule_factor
from learner.passes.batch_metrics import adapted_kl, num_trained, sampler_metrics
from learner.passes.bootstrap import bootstrap_values, cut_off
from learner.passes.compiling import compile_models
from learner.passes.credit_inputs import credit_inputs
from learner.passes.held_out import measure_preferences
from learner.passes.known_passes import loads_reference
from learner.passes.sampling_distribution import sampling_distribution
from learner.passes.scorer import Scorer
from learner.passes.scoring import Models, ScoredBatch
from learner.passes.token_numbers import TokenNumbers, token_numbers
from learner.passes.utilisation import utilisation
from learner.progress import Progress
from learner.publishing.changed_elements import Array, Sent
from learner.publishing.last_published import LastPublished
from learner.publishing.weight_publisher import arrays_of, publish
from learner.settings import LearnerSettings, ModelSettings
from learner.updates import check_model, update_for
from learner.updates.context import UpdateContext

ANY_LENGTH = Sampling(max_tokens=2**31)
Module = TypeVar("Module", ActorCritic, Policy)


class Learner:
    """Owner of the models, the optimiser and the KL coefficient; `version` counts its updates."""

    def __init__(
        self,
        model: ModelSettings,
        algorithm: Algorithm,
        settings: LearnerSettings,
        *,
        seed: int,
        iterations: int,
        sampling: Sampling = ANY_LENGTH,
        max_turns: int = 1,
        shares_gpu: bool = False,
        engine_rounds: bool = False,
        rendezvous: Rendezvous | None = None,
        role: Role | None = None,
    ) -> None:
        if settings.num_threads:
            torch.set_num_threads(settings.num_threads)
        torch.manual_seed(seed)
        self.model_settings, self.algorithm, self.settings = model, algorithm, settings
        self.seed, self.iterations = seed, iterations
        self.max_tokens = sampling.max_tokens * max_turns  # limit of a response over all its turns
        self.device = pick_device(settings, rendezvous)
        enter(self.device)
        self.precision = Precision(settings, self.device)
        self.ranks = (role and role.ranks) or ranks.join(rendezvous, self.device, settings)
        shards = self._is_sharded = self.ranks.shards and spreads(model, algorithm)
        loaded_on = torch.device("cpu") if shards else self.device
        self.pair = load_actor_critic(
            *(model, settings.logits_budget, loaded_on),
            normalize_values=algorithm.normalizes_values,
            drops_out=model.drops_out(algorithm),
            shards=shards,
            role=role,
        )
        self.sampling_distribution = sampling_distribution(algorithm, sampling, settings, self.pair.lm, model)
        self._rounds = rounds(settings, self.sampling_distribution, engine_rounds or self.precision.rounds)
        check_model(algorithm, self.pair.policy, loaded_on)
        self.reference: Policy | None = None
        if loads_reference(algorithm):
            self.reference = self._placed(self._reference(loaded_on, shards), shards)
        self.mask = self._placed(frozen_copy(self.pair.policy), shards) if algorithm.traits.masks else None
        self.average = self._placed(frozen_copy(self.pair.policy), shards) if algorithm.averages else None
        self.mask_version = self.version = 0
        self._placed(self.pair, shards)  # after the copies, because they copy whole models
        self.masters = round_models(self.pair, self.reference, self.precision, model, algorithm)
        scored = self._models = Models(self.pair, self.reference, self.mask, self.average)
        self.compiled = compile_models(scored, model, algorithm, settings, self.precision, self.device)
        self._scorer = Scorer(
            *(scored, algorithm, settings, self.sampling_distribution, model),
            autocast=self.precision.autocast,
            ranks=self.ranks,
            order=self._shuffled,
        )
        self.optimizer = build_optimizer(self.pair, algorithm)
        self.masters.step_with(self.optimizer)
        self.kl_coefficient = algorithm.kl.coefficient
        self.entropy_bonus = EntropyBonus(algorithm.entropy_rule)
        self.reward_norm = RunningNorm()
        self.elite: list[Rollout] = []  # rollouts that a selecting algorithm keeps between iterations
        self._shares_gpu = shares_gpu
        self._last_published = LastPublished() if settings.push == "changed" else None
        self._progress = Progress()
        self.token_numbers: list[TokenNumbers] = []  # from the last update, to show

    def _reference(self, device: torch.device, shards: bool) -> Policy:
        """Return the reference policy: the model before training, or the model that the settings name."""
        if self.model_settings.reference.path is None:
            return reference_of(self.pair)
        return load_reference(self.model_settings, self.pair.policy, device, shards=shards)

    def _placed(self, module: Module, shards: bool) -> Module:
        """Move a model to the device; if models are sharded over ranks, keep only this rank's rows."""
        if not shards or isinstance(module, WithoutAdapter):  # this reference is the policy itself
            return module
        self.ranks.shard(module, in_bfloat16=self.precision.rounds)
        read_stored(module)
        with self.ranks.at_hand():
            check_head(module.policy if isinstance(module, ActorCritic) else module)
        return module

    def progress(self) -> tuple[str, int, int]:
        """Return (phase, done, total); another thread may call this during an update."""
        return self._progress.now

    def update(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Train on the rollouts for the algorithm's epochs, then raise `version` by 1; return the metrics."""
        started = time.perf_counter()
        # Arrival depends on timing, so sort by leases.
        chosen = by_role(sorted(rollouts, key=lambda rollout: rollout.lease_id))
        chosen, self.elite = self.algorithm.select(chosen, self.elite)
        if not chosen:
            raise LearnerError(f"the algorithm chose none of {len(rollouts)} rollouts; expected at least one")
        self.algorithm.check(chosen)
        batch = collate(chosen, self.device, shares_prompts=self.pair.policy.shares_prompts)
        with timeline.span("scores"):
            scored = self._score_batch(batch, chosen)
            bootstrap_B = self._bootstrap(chosen)
        scored_at = time.perf_counter()
        with timeline.span("updates"):
            metrics = self._train(batch, scored, bootstrap_B, cut_off(chosen, self.device))
        self.kl_coefficient, moved = adapted_kl(self.algorithm, self.kl_coefficient, batch, scored)
        metrics |= moved | self._behavior_metrics(batch, scored)
        metrics |= self.entropy_bonus.after(metrics)
        self.version += 1
        self.ranks.release()
        self._sync_copies()
        if self._shares_gpu:
            self.optimizer.zero_grad(set_to_none=True)
        self.leave_room()
        self._progress.rest()
        ended = time.perf_counter()
        passes = self._scorer.passes(batch, metrics["update/epochs"])
        metrics |= utilisation(self.pair.lm, self.device, batch, passes, ended - started, self.ranks.size)
        return metrics | {
            "time/score_s": scored_at - started,
            "time/update_s": ended - scored_at,
            "tokens/trained": float(batch.num_tokens * metrics["update/epochs"]),
        }

    def _score_batch(self, batch: Batch, rollouts: Sequence[Rollout]) -> ScoredBatch:
        return self._scorer(batch, rollouts, self.version, self._progress.of("score", batch.num_sequences))

    def measure(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Return measures of held-out responses (`passes/held_out.py`); change nothing."""
        self.pair.eval()
        batch = collate(rollouts, self.device)
        with self._progress.during("measure", batch.num_sequences) as advance, self._leaving_room():
            if not self.algorithm.traits.prefers:
                return self._scorer.measure_tokens(batch, advance)
            scored = self._scorer(batch, rollouts, self.version, advance)
            with self.ranks.at_hand():
                return measure_preferences(self._context(batch, scored), advance)

    def logprobs(self, rollouts: Sequence[Rollout]) -> list[list[float]]:
        """Return the current log-probability of each token that the model wrote."""
        with self._progress.during("logprobs", len(rollouts)) as advance, self._leaving_room():
            return self._scorer.logprobs(collate(rollouts, self.device), advance)

    def score_early(self, rollouts: Sequence[Rollout], num_rollouts: int) -> None:
        """Score a part of the next batch of `num_rollouts`, while the rest is being written."""
        if self._scorer.scores_early(num_rollouts):
            batch = collate(by_role(rollouts), self.device, shares_prompts=self.pair.policy.shares_prompts)
            self._scorer.early(batch, self.version)

    def _bootstrap(self, rollouts: Sequence[Rollout]) -> torch.Tensor:
        """Return the values of the truncated contexts, (B,); zeros if the algorithm does not bootstrap."""
        if not self.algorithm.bootstraps:
            return torch.zeros(len(rollouts), device=self.device)
        self.pair.eval()
        with self.precision.autocast(), self.ranks.at_hand():
            return bootstrap_values(rollouts, self.pair, self.settings.token_budget, self.device, self.ranks)

    def _train(
        self, batch: Batch, scored: ScoredBatch, bootstrap_B: torch.Tensor, cut_B: torch.Tensor
    ) -> dict[str, float]:
        algorithm = self.algorithm
        require_finite(batch.rewards_BT, batch.mask_BT, "rewards")
        self.reward_norm.update(batch.rewards_BT.sum(-1).cpu())
        inputs = credit_inputs(
            *(batch, scored, algorithm, self.pair.value_norm),
            bootstrap_B=bootstrap_B,
            cut_B=cut_B,
            kl_coefficient=self.kl_coefficient,
            max_tokens=self.max_tokens,
            reward_deviation=self.reward_norm.deviation,
        )
        credit = algorithm.credit(inputs)
        require_finite(credit.advantages_BT, batch.mask_BT, "advantages")
        metrics = {"rollouts/trained": float(num_trained(batch, credit))}
        trained_BT = credit.trains_critic(batch.mask_BT)
        returns_N = credit.returns_BT[trained_BT]
        if algorithm.traits.critic:
            metrics["explained_variance"] = explained_variance(scored.values_BT[trained_BT], returns_N)
        if self.pair.value_norm is not None:
            self.pair.value_norm.update(returns_N)
        rate, planned = self.settings, (self.iterations, self.settings.warmup_iterations)
        factor = schedule_factor(rate.lr_schedule, self.version + 1, *planned, rate.lr_end)
        set_learning_rate(self.optimizer, factor)
        dropout.seed_update(self.seed, self.version, self.ranks.rank)
        self.pair.train()  # dropout acts if the model was loaded with it
        metrics |= update_for(self.algorithm, self._context(batch, scored)).run(credit)
        if scored.by_update and scored.entropies_BT is not None:
            self.ranks.sum(scored.old_logprobs_BT, scored.entropies_BT)  # each rank recorded its tokens
        self.token_numbers = token_numbers(batch, scored, credit, self._correction(batch))
        self.pair.eval()  # the probe of published weights is measured without dropout
        return metrics | {"learning_rate/factor": factor}

    def _context(self, batch: Batch, scored: ScoredBatch) -> UpdateContext:
        return UpdateContext(
            models=self._models,
            algorithm=self.algorithm,
            settings=self.settings,
            optimizer=self.optimizer,
            batch=batch,
            scored=scored,
            kl_coefficient=self.kl_coefficient,
            entropy_coefficient=self.entropy_bonus.now if self.entropy_bonus.rule.adds_bonus else None,
            max_tokens=self.max_tokens,
            precision=self.precision,
            advance=lambda done, total: self._progress.of("update", total)(done),
            order=self._shuffled,
            correction=self._correction(batch),
            ranks=self.ranks,
        )

    def _correction(self, batch: Batch) -> Correction | None:
        is_online, version = self.algorithm.traits.online, self.version
        return correction_of(self.settings, batch, version, rounds=self._rounds) if is_online else None

    def _shuffled(self, num_rollouts: int, epoch: int) -> torch.Tensor:
        """Return a permutation that depends only on seed, version and epoch, so a resumed run repeats it."""
        order = np.random.default_rng([self.seed, self.version, epoch]).permutation(num_rollouts)
        return torch.from_numpy(order)

    def _behavior_metrics(self, batch: Batch, scored: ScoredBatch) -> dict[str, float]:
        metrics = sampler_metrics(batch, scored, self.version, self._correction(batch))
        if metrics and self.mask is not None:
            metrics |= scored.mask.metrics() | {"mask/age": float(self.version - self.mask_version)}
        if self.algorithm.traits.mixes_data == "weighted":
            cap, by_token = self.settings.importance_cap, self.algorithm.traits.critic
            metrics |= off_policy.metrics(batch, scored, cap=cap, by_token=by_token)
        return metrics

    def _sync_copies(self) -> None:
        if self.mask is not None and self.algorithm.syncs_mask(self.version):
            with self.masters.exact():  # the mask's weights are float32
                copy_trained(self.pair.policy, self.mask)
            self.mask_version = self.version
        if self.average is not None and self.algorithm.own_teacher is not None:
            with self.masters.exact():  # the average's weights are float32, too
                average_trained(self.pair.policy, self.average, self.algorithm.own_teacher.rate)

    def publish(self, engine_dtype: str) -> tuple[WeightManifest, dict[str, Sent]]:
        """Publish the weights (`publishing/weight_publisher.py`). Only the first rank gets the arrays.

        With `learner.push=changed`, publish the changes since the last publication, if there was one.
        """
        mask_version = None if self.mask is None else self.mask_version
        served = self.pair.adapter if self.model_settings.adapter.serve == "adapter" else None
        last = None if served else self._last_published
        arguments = mask_version, served, self.ranks, last, self.probing(engine_dtype)
        with self.masters.exact():
            published = publish(self.pair.lm, self.version, engine_dtype, *arguments)
        self.leave_room()
        return published

    def leave_room(self) -> None:
        """Free the memory that PyTorch keeps on a shared GPU, because a worker wakes there next."""
        if self._shares_gpu:
            torch.cuda.empty_cache()

    @contextlib.contextmanager
    def _leaving_room(self) -> Iterator[None]:
        yield
        self.leave_room()

    def probing(self, engine_dtype: str) -> torch.autocast | None:
        """Return the context of a probe's pass; None: use the parameters' precision."""
        rounded = engine_dtype == "bfloat16" or self._is_sharded  # ranks gather blocks in bfloat16
        return self.precision.autocast() if rounded else None

    def published_whole(self) -> tuple[WeightManifest, dict[str, Array]]:
        """Return the whole last publication, even while an update changes the weights."""
        return (self._last_published or LastPublished()).whole()

    def publish_mask(self, engine_dtype: str) -> dict[str, Array] | None:
        """Return all weights of NLPO's mask model, not only changes: it changes rarely, but then much."""
        arrays = None if self.mask is None else arrays_of(self.mask.lm, engine_dtype, self.ranks)
        self.leave_room()
        return arrays

    def save(self, folder: str) -> None:
        """Save everything on which the next update depends.

        Raises:
            DiskFull: the disk has no room.
        """
        state = {
            "version": self.version,
            "kl_coefficient": self.kl_coefficient,
            "entropy_bonus": self.entropy_bonus.state(),
            "mask_version": self.mask_version,
            "loss_scale": self.precision.state(),
            "reward_norm": {name: float(value) for name, value in self.reward_norm.named_buffers()},
        }
        with room_for(folder), self.masters.exact():
            modules = self.pair, self._models.copies, self.optimizer
            checkpoint.save(Path(folder), *modules, state, self.elite, self.ranks)

    def load(self, folder: str) -> None:
        """Restore the state at the call of `save` exactly.

        Raises:
            LearnerError: the checkpoint can't be read, or belongs to another model or algorithm.
        """
        self._scorer.forget()
        with self.masters.exact():
            state, self.elite = checkpoint.load(Path(folder), self.pair, self._models.copies, self.optimizer)
        self.version, self.kl_coefficient = int(state["version"]), float(state["kl_coefficient"])
        self.mask_version = int(state["mask_version"])
        self.entropy_bonus.restore(state.get("entropy_bonus", {}))
        self.precision.restore(state.get("loss_scale", {}))
        for name, value in state.get("reward_norm", {}).items():
            self.reward_norm.get_buffer(name).fill_(value)

    def export(self, folder: str) -> None:
        """Write the language model and its tokenizer in Hugging Face format.

        Raises:
            DiskFull: the disk has no room.
        """
        with room_for(folder), self.masters.exact():
            checkpoint.export(Path(folder), self.pair, self.model_settings, self.ranks)

    def leave(self) -> None:
        """Close the connections to the other ranks; no call may follow."""
        self.ranks.leave()
