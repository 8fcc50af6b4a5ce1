"""The learner: scored rollouts in, new weights out.

    rollouts ─▶ collate ─▶ score (old log-probs, values, reference) ─▶ credit ─▶ epochs of minibatches
                                                                                      │
                     publish ◀── version + 1 ◀── clip, step ◀── loss, micro-batch by micro-batch

A plain class: `learner/group.py` puts it into a Ray actor.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contracts.rollout import Rollout
from contracts.weights import WeightManifest
from learner import checkpoint
from learner.algorithms.base import Algorithm, CreditInputs, LossInputs
from learner.batching import Batch, collate, micro_batches
from learner.functional.kl import k1, k3
from learner.functional.ratios import explained_variance
from learner.kl_control import next_coefficient
from learner.optimizer import build_optimizer, clip_gradients, schedule_factor, set_learning_rate
from learner.policy import ActorCritic, load_actor_critic, load_reference
from learner.scoring import ScoredBatch, score
from learner.settings import LearnerSettings, ModelSettings
from learner.weight_publisher import publish


class Learner:
    """Owns the model, the optimiser and the KL coefficient; `version` counts its updates."""

    def __init__(
        self,
        model: ModelSettings,
        algorithm: Algorithm,
        settings: LearnerSettings,
        *,
        seed: int,
        iterations: int,
    ) -> None:
        if settings.num_threads:
            torch.set_num_threads(settings.num_threads)
        torch.manual_seed(seed)
        self.model_settings, self.algorithm, self.settings = model, algorithm, settings
        self.seed, self.iterations = seed, iterations
        self.device = pick_device(settings)
        self.policy: ActorCritic = load_actor_critic(model, settings.logits_budget, self.device)
        self.reference = (
            load_reference(model, settings.logits_budget, self.device) if algorithm.online else None
        )
        self.optimizer = build_optimizer(self.policy, algorithm)
        self.kl_coefficient = algorithm.kl.coefficient
        self.version = 0
        self._progress = ("idle", 0, 1)

    def progress(self) -> tuple[str, int, int]:
        """(phase, done, total), readable from another thread while an update runs."""
        return self._progress

    def update(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """One iteration: every rollout is trained on for the algorithm's epochs; then `version` grows by 1.

        Returns:
            Metrics by their public names, `time/score_s` and `time/update_s` among them.
        """
        started = time.perf_counter()
        # Arrival order depends on timing; the lease order does not.
        batch = collate(sorted(rollouts, key=lambda rollout: rollout.lease_id), self.device)
        scored = self._score(batch)
        scored_at = time.perf_counter()
        metrics = self._train(batch, scored)
        metrics |= self._adapt_kl(batch, scored) | _behavior_metrics(batch, scored, self.version)
        self.version += 1
        self._progress = ("idle", 0, 1)
        finished = time.perf_counter()
        return metrics | {
            "time/score_s": scored_at - started,
            "time/update_s": finished - scored_at,
            "tokens/trained": float(batch.num_tokens * metrics["update/epochs"]),
        }

    def _score(self, batch: Batch) -> ScoredBatch:
        if self.reference is None:
            return ScoredBatch.unscored(batch)

        def advance(done: int) -> None:
            self._progress = ("score", done, batch.num_rollouts)

        with self._autocast():
            return score(batch, self.policy, self.reference, self.settings.token_budget, advance)

    def _train(self, batch: Batch, scored: ScoredBatch) -> dict[str, float]:
        algorithm = self.algorithm
        credit = algorithm.credit(
            CreditInputs(
                rewards_BT=batch.rewards_BT,
                kl_BT=k1(scored.logprobs_BT, scored.ref_logprobs_BT),
                values_BT=scored.values_BT,
                mask_BT=batch.mask_BT,
                kl_coefficient=self.kl_coefficient,
            )
        )
        values_N, returns_N = scored.values_BT[batch.mask_BT], credit.returns_BT[batch.mask_BT]
        explained = {}
        if algorithm.online:
            explained["explained_variance"] = explained_variance(values_N, returns_N)
        factor = schedule_factor(
            self.settings.lr_schedule, self.version + 1, self.iterations, self.settings.warmup_iterations
        )
        set_learning_rate(self.optimizer, factor)
        size = algorithm.minibatch_size or batch.num_rollouts
        sums: dict[str, float] = defaultdict(float)
        steps, epochs = 0, 0.0
        self._progress = ("update", 0, algorithm.num_epochs * batch.num_rollouts)
        for epoch in range(algorithm.num_epochs):
            for rows_B in self._shuffled(batch.num_rollouts, epoch).split(size):
                shares = self._minibatch(batch, scored, credit.advantages_BT, credit.returns_BT, rows_B)
                if algorithm.target_kl and shares["approx_kl"] > 1.5 * algorithm.target_kl:
                    self.optimizer.zero_grad(set_to_none=True)
                    return explained | _update_metrics(sums, steps, epochs, factor, stopped=True)
                norms = clip_gradients(self.policy, algorithm.max_grad_norm)
                self.optimizer.step()
                steps += 1
                epochs += len(rows_B) / batch.num_rollouts
                shares |= {"gradient_norm/policy": norms.policy, "gradient_norm/critic": norms.critic}
                for name, share in shares.items():
                    sums[name] += share
        return explained | _update_metrics(sums, steps, epochs, factor, stopped=False)

    def _minibatch(
        self, batch: Batch, scored: ScoredBatch, advantages_BT: Tensor, returns_BT: Tensor, rows_B: Tensor
    ) -> dict[str, float]:
        """Gradients of one minibatch, accumulated over its micro-batches; returns its metrics."""
        on_device = rows_B.to(self.device)
        mask_BT = batch.mask_BT[on_device]
        num_tokens = int(mask_BT.sum())
        prepared_BT = torch.zeros_like(advantages_BT)
        prepared_BT[on_device] = prepared_BT[on_device].masked_scatter(
            mask_BT, self.algorithm.prepare_minibatch(advantages_BT[on_device][mask_BT])
        )
        self.optimizer.zero_grad(set_to_none=True)
        sums: dict[str, Tensor] = {}
        for micro in micro_batches(batch, rows_B, self.settings.token_budget):
            mask = batch.mask_BT[micro.rows_B]
            old_values_N = scored.values_BT[micro.rows_B][mask]
            with self._autocast():
                out = self.policy(micro, self.algorithm.needs_entropy, with_values=self.algorithm.online)
            output = self.algorithm.loss(
                LossInputs(
                    logprobs_N=out.logprobs_N,
                    old_logprobs_N=scored.logprobs_BT[micro.rows_B][mask],
                    advantages_N=prepared_BT[micro.rows_B][mask],
                    returns_N=returns_BT[micro.rows_B][mask],
                    values_N=old_values_N if out.values_N is None else out.values_N,
                    old_values_N=old_values_N,
                    entropies_N=out.entropies_N,
                    num_tokens=num_tokens,
                )
            )
            output.loss.backward()
            for name, share in output.metrics.items():
                sums[name] = sums[name] + share if name in sums else share
            phase, done, total = self._progress
            self._progress = (phase, done + len(micro.rows_B), total)
        return {name: float(total) for name, total in sums.items()}

    def _shuffled(self, num_rollouts: int, epoch: int) -> Tensor:
        """A permutation that depends on seed, version and epoch alone: nothing to save, exact on resume."""
        order = np.random.default_rng([self.seed, self.version, epoch]).permutation(num_rollouts)
        return torch.from_numpy(order)

    def _adapt_kl(self, batch: Batch, scored: ScoredBatch) -> dict[str, float]:
        if self.reference is None:
            return {}
        kl_BT = k1(scored.logprobs_BT, scored.ref_logprobs_BT) * batch.mask_BT
        per_token = float(kl_BT.sum() / batch.mask_BT.sum())
        per_sequence = float(kl_BT.sum(-1).mean())
        metrics = {"kl/mean": per_token, "kl/sequence": per_sequence, "kl/coefficient": self.kl_coefficient}
        self.kl_coefficient = next_coefficient(
            self.algorithm.kl, self.kl_coefficient, per_token, per_sequence, batch.num_rollouts
        )
        return metrics

    def _autocast(self) -> torch.autocast:
        wanted = self.settings.autocast
        enabled = wanted == "bfloat16" or (wanted == "auto" and self.device.type == "cuda")
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled)

    def publish(self, engine_dtype: str) -> tuple[WeightManifest, dict[str, np.ndarray[Any, Any]]]:
        """The current weights; see `learner.weight_publisher`."""
        return publish(self.policy.lm, self.version, engine_dtype)

    def save(self, folder: str) -> None:
        """Everything that the next update depends on."""
        state = {"version": self.version, "kl_coefficient": self.kl_coefficient}
        checkpoint.save(Path(folder), self.policy, self.optimizer, state)

    def load(self, folder: str) -> None:
        """Continue exactly where `save` was called."""
        state = checkpoint.load(Path(folder), self.policy, self.optimizer)
        self.version, self.kl_coefficient = int(state["version"]), float(state["kl_coefficient"])

    def export(self, folder: str) -> None:
        """The language model with its tokenizer, in Hugging Face format."""
        checkpoint.export(Path(folder), self.policy.lm, self.model_settings)


def pick_device(settings: LearnerSettings) -> torch.device:
    if settings.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(settings.device)


def _update_metrics(
    sums: dict[str, float], steps: int, epochs: float, factor: float, *, stopped: bool
) -> dict[str, float]:
    means = {name: total / steps for name, total in sums.items()} if steps else {}
    return means | {
        "update/steps": float(steps),
        "update/epochs": epochs,
        "update/stopped_early": float(stopped),
        "learning_rate/factor": factor,
    }


def _behavior_metrics(batch: Batch, scored: ScoredBatch, version: int) -> dict[str, float]:
    """How far the sampler's distribution is from the learner's, and how old its weights were."""
    if scored.entropies_BT is None:
        return {}
    mask_BT = batch.mask_BT
    behavior_N, old_N = batch.behavior_logprobs_BT[mask_BT], scored.logprobs_BT[mask_BT]
    return {
        "entropy": float(scored.entropies_BT[mask_BT].mean()),
        "mismatch_kl": float(k3(behavior_N, old_N).mean()),
        "mismatch/max": float((behavior_N - old_N).abs().max()),
        "staleness/mean": float((version - batch.versions_BT[mask_BT]).float().mean()),
    }
