"""The training loop.

    ┌─▶ lease prompts ─▶ collect (workers write, reward servers score) ─▶ learner.update ─┐
    │                                                                                     │
    └── evaluate, save ◀── workers.load_weights ◀── learner.publish ◀─────────────────────┘

Strictly synchronous: every rollout is written by the weights that it then trains. Where a data set's are
trained on, nothing is collected, and weights are pushed for evaluations alone. The loop knows neither Ray
nor torch; it speaks to `contracts.clients`.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from contracts.clients import LearnerClient, RewardClient, RolloutClient
from contracts.errors import RunError
from contracts.rollout import Lease
from reward_servers.settings import Part
from reward_servers.shaping import shares
from services import checkpoints
from services.baselines import baselines, played_by, summary
from services.collecting import Collected, Collector, FailureBudget
from services.console import Console
from services.demonstrations import Demonstrate
from services.evaluation import Evaluation, evaluate, play_statistics, reward_statistics
from services.interrupts import Interrupted, StopRequest
from services.leasing import LeaseSource
from services.offline_source import OfflineSource
from services.policy_perplexity import PolicyPerplexity
from services.post_processing import find_post_processor
from services.run_folder import RunFolder
from services.settings import RunSettings
from services.tracking import Tracker

SHOWN_SAMPLES = 20  # rows of an evaluation that go to the tracker's table


@dataclass(frozen=True, slots=True)
class Clients:
    workers: RolloutClient
    rewards: RewardClient
    learner: LearnerClient


class Controller:
    """Runs iterations, and is the only one who writes to the run's folder."""

    def __init__(
        self,
        settings: RunSettings,
        clients: Clients,
        source: LeaseSource | OfflineSource,
        evaluation_leases: Mapping[str, Sequence[Lease]],
        *,
        folder: RunFolder,
        tracker: Tracker,
        console: Console,
        stop: StopRequest,
        demonstrate: Demonstrate | None = None,
        perplexity: PolicyPerplexity | None = None,
    ) -> None:
        self._settings, self._clients, self._source = settings, clients, source
        self._demonstrate = demonstrate  # for algorithms that learn from references, not from rollouts
        self._evaluation_leases, self._perplexity = evaluation_leases, perplexity
        self._folder, self._tracker, self._console, self._stop = folder, tracker, console, stop
        self._failures = FailureBudget(settings.reward_servers.max_failures)
        self._iteration = 0
        self._boundary: dict[str, Any] = {}  # the loop's state at the last iteration's end
        self._saved_at = -1

    def run(self) -> None:
        """All iterations that are left.

        Raises:
            Interrupted: a stop was asked for; everything up to the last whole iteration is saved.
        """
        self._resume()
        settings, console = self._settings, self._console
        console.start(settings.run_name, settings.iterations, self._iteration + 1)
        try:
            if not self._learns_from_data:
                self._push_weights()
            self._do_what_is_due()
            while self._iteration < settings.iterations:
                self.iterate()
                self._do_what_is_due()
        except Interrupted:
            console.note("stopping: saving the last whole iteration", "warning")
            self._save()
            raise
        self._save()
        with checkpoints.appearing_whole(self._folder.model) as unfinished:
            self._clients.learner.export(str(unfinished))

    def iterate(self) -> None:
        """One iteration: collect, update, push."""
        started = time.perf_counter()
        found = self._collect()
        trained = self._clients.learner.update(found.rollouts, _UpdateBar(self._console))
        weights_s = 0.0 if self._learns_from_data else self._push_weights()
        self._iteration += 1
        self._remember()
        info = rollout_info(found, trained, weights_s, time.perf_counter() - started)
        if self._settings.plays:
            info |= play_statistics(found.rollouts, found.num_environment_failed)
            info["environment/restarts"] = float(found.num_environment_restarts)
        if self._settings.plays_experts or self._learns_from_data:
            info["throughput/generated_tokens_per_s"] = 0.0  # nothing was
        info |= shares(self._rewards, [rollout.reward_parts for rollout in found.rollouts])
        cached = self._clients.rewards.cached()
        info |= {f"throughput/cached/{label}": share for label, share in cached.items()}
        training = training_info(trained)
        info |= self._settings.measures(found.rollouts, taken={**info, **training})
        self._log(info, training)

    def _collect(self) -> Collected:
        """The rollouts of an iteration.

        Raises:
            RunError: there are none.
        """
        self._stop.check()  # where nothing is generated, nobody else does
        count = self._settings.rollout.prompts_per_iteration
        if isinstance(self._source, OfflineSource):
            started = time.perf_counter()
            return Collected(self._source.next(count), rollout_s=time.perf_counter() - started)
        leases = self._source.lease(count)
        found = self._collect_for(leases)
        if not found.rollouts:
            what = "played to an end" if found.num_environment_failed else "scored"
            why = f". The last one: {found.last_failure}" if found.last_failure else ""
            where = f"iteration {self._iteration + 1}"
            raise RunError(f"{where}: none of {len(leases)} rollouts could be {what}{why}")
        return found

    def _collect_for(self, leases: Sequence[Lease]) -> Collected:
        if self._demonstrate is not None:
            return self._demonstrate(leases)
        if self._settings.plays_experts:
            judging = replace(self._settings.judging, at="never")
            return replace(self._collector, judging=judging)(played_by("expert", leases))
        return self._collector(leases)

    @property
    def _learns_from_data(self) -> bool:
        return isinstance(self._source, OfflineSource)

    @property
    def _rewards(self) -> tuple[Part, ...]:
        """Whose sum a training rollout's reward is."""
        return self._source.rewards if isinstance(self._source, OfflineSource) else self._settings.reward

    @property
    def _collector(self) -> Collector:
        settings, clients = self._settings, self._clients
        patience_s = settings.reward_servers.patience_s(part.label for part in settings.reward)
        return Collector(
            clients.workers,
            clients.rewards,
            self._failures,
            self._console,
            self._stop.check,
            patience_s,
            settings.judging,
        )

    def _push_weights(self) -> float:
        started = time.perf_counter()
        self._clients.workers.load_weights(self._clients.learner.publish())
        return time.perf_counter() - started

    def _do_what_is_due(self) -> None:
        """Between two iterations, and after a resume: what a stop left undone is done then."""
        due = [split for split in self._due_splits() if not self._evaluated(split)]
        if due and self._learns_from_data:
            self._push_weights()
        for split in due:
            self._evaluate(split)
        every = self._settings.save_every
        if every and self._iteration and self._iteration % every == 0:
            self._save()

    def _due_splits(self) -> tuple[str, ...]:
        every, iteration = self._settings.evaluate_every, self._iteration
        if iteration in (0, self._settings.iterations):
            return ("validation", "test")
        return ("validation",) if every and iteration % every == 0 else ()

    def _evaluate(self, split: str) -> None:
        post_process = find_post_processor(self._settings.evaluation.post_processor)
        leases = self._evaluation_leases[split]
        found = evaluate(split, leases, self._collector, post_process, self._perplexity)
        if self._iteration == 0 and self._settings.environment.has_baselines:
            found.metrics.update(baselines(split, leases, self._collector))
            self._console.note(f"{split} played by others: {summary(found.metrics)}")
        short = {"validation": "val"}.get(split, split)
        self._folder.append_evaluation(self._iteration, split, found.metrics)
        self._folder.write_predictions(self._iteration, split, found.rows)
        self._console.evaluation_done(split, self._iteration, found.metrics)
        self._track_evaluation(short, found)

    def _track_evaluation(self, split: str, found: Evaluation) -> None:
        self._tracker.log_metrics(
            {f"{split}/{key}": value for key, value in found.metrics.items()}, self._iteration
        )
        self._tracker.log_samples(found.rows[:SHOWN_SAMPLES], self._iteration, split)

    def _evaluated(self, split: str) -> bool:
        return any(row["epoch"] == self._iteration for row in self._folder.evaluations(split))

    def _log(self, info: Mapping[str, float], training: Mapping[str, float]) -> None:
        self._folder.append_rollout_info(self._iteration, info)
        self._folder.append_training_info(self._iteration, training)
        self._tracker.log_metrics({**info, **training}, self._iteration)
        self._console.iteration_done(self._iteration, {**info, **training})

    # ---- resuming ----

    def _remember(self) -> None:
        self._boundary = {
            "iteration": self._iteration,
            "source": self._source.state(),
            "reward_failures": self._failures.count,
        }

    def _save(self) -> None:
        if self._saved_at == self._iteration:
            return
        state = self._boundary | {"tracking_run_id": self._tracker.run_id}
        checkpoints.save(
            self._folder, self._iteration, self._clients.learner.save, state, self._settings.keep_checkpoints
        )
        self._saved_at = self._iteration

    def _resume(self) -> None:
        found = checkpoints.latest(self._folder)
        if found is None:
            self._folder.truncate_after(-1)
            self._remember()
            return
        self._iteration, path = found
        state = checkpoints.read_state(path)
        self._clients.learner.load(str(path))
        self._source.restore(state["source"])
        self._failures.count = state["reward_failures"]
        self._folder.truncate_after(self._iteration)
        self._saved_at = self._iteration
        self._remember()
        self._console.note(f"resumed from {path}")


class _UpdateBar:
    """The learner's (phase, done, total) as a bar of the console."""

    def __init__(self, console: Console) -> None:
        self._console, self._shown = console, 0
        console.phase("update")

    def __call__(self, phase: str, done: int, total: int) -> None:
        if phase != "update":
            return
        if not self._shown:
            self._console.phase("update", total)
        self._console.advance("update", done - self._shown)
        self._shown = done


def rollout_info(
    found: Collected, trained: Mapping[str, float], weights_s: float, iteration_s: float
) -> dict[str, float]:
    """One line of rollout_info.jsonl: rewards, KL, lengths, and where the time went."""
    generated = sum(rollout.num_generated for rollout in found.rollouts)
    stopped = sum(rollout.finish_reason == "stop" for rollout in found.rollouts)
    scored = found.rollouts[0].turns[-1].reward is not None
    info = reward_statistics(found.rollouts) if scored else {}
    info |= {
        key: value for key, value in trained.items() if key.startswith(("kl/", "staleness/", "mismatch"))
    }
    info |= {
        "rollouts/scored": float(len(found.rollouts)),
        "rollouts/trained": trained["rollouts/trained"],
        "reward/failures": float(found.num_failed),
        "finish/stop": stopped / len(found.rollouts),
        "time/rollout_s": found.rollout_s,
        "time/reward_s": found.reward_s,
        "time/score_s": trained["time/score_s"],
        "time/update_s": trained["time/update_s"],
        "time/weights_s": weights_s,
        "time/iteration_s": iteration_s,
        "throughput/generated_tokens_per_s": generated / max(found.rollout_s, 1e-9) if scored else 0.0,
        "throughput/trained_tokens_per_s": trained["tokens/trained"] / max(trained["time/update_s"], 1e-9),
        "throughput/sequences_per_s": len(found.rollouts) / iteration_s,
    }
    return info


def training_info(trained: Mapping[str, float]) -> dict[str, float]:
    """One line of training_info.jsonl: what the update says of itself."""
    elsewhere = ("kl/", "staleness/", "mismatch", "time/", "tokens/", "rollouts/")
    return {key: value for key, value in trained.items() if not key.startswith(elsewhere)}
