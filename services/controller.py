"""The training loop.

    ┌─▶ lease prompts ─▶ collect (workers write, reward servers score) ─▶ learner.update ─┐
    │                                                                                     │
    └── evaluate, save ◀── workers.load_weights ◀── learner.publish ◀─────────────────────┘

Synchronous unless told otherwise: every rollout is written by the weights that it then trains. With
rollout.max_staleness the workers write on while the learner trains (`services.rollout_stream`). Where a data
set's are trained on, nothing is collected, and weights are pushed for evaluations alone. The loop knows
neither Ray nor torch; it speaks to `contracts.clients`.
"""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from contracts.clients import FleetClient, LearnerClient, RewardClient
from contracts.errors import LearnerLost, RunError
from contracts.rollout import Lease
from reward_servers.settings import Part
from reward_servers.shaping import shares
from services import checkpoints
from services.baselines import baselines, played_by, summary
from services.collecting import Collected, Collector, FailureBudget
from services.console import Console
from services.demonstrations import Demonstrate
from services.evaluation import AsRead, Evaluation, evaluate, play_statistics
from services.interrupts import Interrupted, StopRequest
from services.iteration_info import rollout_info, training_info, workers_info
from services.keeping import Keeper
from services.leasing import LeaseSource
from services.losses import Losses
from services.mixed_source import MixedSource
from services.offline_source import OfflineSource
from services.policy_perplexity import PolicyPerplexity
from services.post_processing import find_post_processor
from services.rollout_stream import RolloutStream
from services.run_folder import RunFolder
from services.scaling import Scaling
from services.settings import RunSettings
from services.tracking import Tracker
from services.uploads import Uploads

SHOWN_SAMPLES = 20  # rows of an evaluation that go to the tracker's table


@dataclass(frozen=True, slots=True)
class Clients:
    workers: FleetClient
    rewards: RewardClient
    learner: LearnerClient


class Controller:
    """Runs iterations, and is the only one who writes to the run's folder."""

    def __init__(
        self,
        settings: RunSettings,
        clients: Clients,
        source: LeaseSource | OfflineSource | MixedSource,
        evaluation_leases: Mapping[str, Sequence[Lease]],
        *,
        folder: RunFolder,
        tracker: Tracker,
        console: Console,
        stop: StopRequest,
        demonstrate: Demonstrate | None = None,
        perplexity: PolicyPerplexity | None = None,
        as_read: AsRead | None = None,
        uploads: Uploads | None = None,
    ) -> None:
        self._settings, self._clients, self._source = settings, clients, source
        self._demonstrate = demonstrate  # for algorithms that learn from references, not from rollouts
        self._evaluation_leases, self._perplexity, self._as_read = evaluation_leases, perplexity, as_read
        self._folder, self._tracker, self._console, self._stop = folder, tracker, console, stop
        self._failures = FailureBudget(
            settings.reward_servers.max_failures, settings.environment.max_failures
        )
        self._keeper = Keeper(
            folder,
            keep=settings.keep_checkpoints,
            keep_best=settings.keep_best,
            uploads=uploads,
            note=self._warn,
        )
        self._scaling = Scaling(folder.path, clients.workers, console.note)
        self._stream = self._open_stream()
        self._iteration = 0
        self._boundary: dict[str, Any] = {}  # the loop's state at the last iteration's end
        self._saved_at = -1
        self._lost: LearnerLost | None = None  # and not replaced yet
        self._losses = Losses(settings.learner.max_restarts)
        self._start = source.state()

    def run(self) -> None:
        """All iterations that are left.

        Raises:
            Interrupted: a stop was asked for; everything up to the last whole iteration is saved.
        """
        try:
            self._resume()
        except LearnerLost as error:
            self._lost = error
        self._console.start(self._settings.run_name, self._settings.iterations, self._iteration + 1)
        try:
            while not self._finish():
                pass
        except Interrupted:
            self._console.note("stopping: saving the last whole iteration", "warning")
            try:
                self._save()
            except LearnerLost as error:
                raise RunError(
                    f"{error}. It was to save the run's end, so iterations after checkpoint {self._saved_at} "
                    "are lost; the same command goes on from there"
                ) from None
            raise

    def _finish(self) -> bool:
        """Do what is left. False: the learner was lost on the way, and is back where it was last saved."""
        try:
            if self._lost is not None:
                self._recover(self._lost)
            if not self._learns_from_data:
                self._push_weights()
            self._do_what_is_due()
            while self._iteration < self._settings.iterations:
                self.iterate()
                self._do_what_is_due()
            self._save()
            self._keeper.export(self._clients.learner, self._iteration)
        except LearnerLost as error:
            self._lost = error
            return False
        return True

    def _recover(self, lost: LearnerLost) -> None:
        """Another learner in the place of a lost one, and everything back to the newest checkpoint.

        Raises:
            RunError: too many were lost, or another would be as well.
            LearnerLost: this one, too.
            Interrupted: a stop was asked for meanwhile.
        """
        said = self._losses.count(lost, self._iteration + 1)
        self._console.note(f"{lost}; {said} starts", "warning")
        self._saved_at = self._iteration  # whoever stops now finds nothing to save
        self._clients.workers.cancel_all()
        self._clients.learner.restart(lambda *_: self._look())
        self._resume()
        self._lost = None

    def _open_stream(self) -> RolloutStream | None:
        """What writes ahead, where that was asked for and anything is written."""
        settings, source = self._settings, self._source
        if not settings.rollout.max_staleness or isinstance(source, OfflineSource) or not self._generates:
            return None
        return RolloutStream(
            self._clients.workers,
            source,
            lambda: self._collector,
            prompts_per_iteration=settings.rollout.prompts_per_iteration,
            max_staleness=settings.rollout.max_staleness,
            iterations=settings.iterations,
        )

    def iterate(self) -> None:
        """One iteration: collect, update, push."""
        started, workers = time.perf_counter(), self._clients.workers
        idle_s, num_quarantined = workers.idle_s, workers.num_quarantined
        found = self._collect()
        batch = [*found.rollouts, *found.from_data]
        if self._settings.rollout.sleep:
            workers.sleep()
        trained = self._clients.learner.update(batch, self._meanwhile)
        pushed = {"time/weights_s": 0.0} if self._learns_from_data else self._push_weights()
        self._iteration += 1
        if self._stream is not None:
            self._stream.fill(self._iteration)
        self._remember()
        iteration_s = time.perf_counter() - started
        info = rollout_info(found, trained, pushed, iteration_s)
        if self._generates:
            info |= workers_info(workers, workers.idle_s - idle_s, num_quarantined, iteration_s)
        if self._stream is not None:
            generated = sum(rollout.num_generated for rollout in found.rollouts)
            info["throughput/generated_tokens_per_s"] = generated / iteration_s
        if self._settings.plays:
            info |= play_statistics(found)
        if not self._generates:
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
            InputError: there are none, for a reason that the user can mend.
        """
        self._look()  # where nothing is generated, nobody else does
        count = self._settings.rollout.prompts_per_iteration
        if isinstance(self._source, OfflineSource):
            started = time.perf_counter()
            return Collected(self._source.next(count), rollout_s=time.perf_counter() - started)
        if self._stream is not None:
            return self._required(self._stream.next(self._iteration))
        found = self._required(self._collect_for(self._source.lease(count)))
        if isinstance(self._source, MixedSource):
            found.from_data = self._source.rollouts(count)
        return found

    def _required(self, found: Collected) -> Collected:
        if found.rollouts:
            return found
        what = "played to an end" if found.num_environment_failed else "scored"
        num_lost = found.num_failed + found.num_environment_failed
        raise self._failures.nothing_left(
            f"iteration {self._iteration + 1}: none of {num_lost} rollouts could be {what}"
        )

    def _collect_for(self, leases: Sequence[Lease]) -> Collected:
        if self._demonstrate is not None:
            return self._demonstrate(leases)
        if self._settings.plays_experts:
            judging = replace(self._settings.judging, at="never")
            return replace(self._collector, judging=judging)(played_by("expert", leases))
        return self._collector(leases)

    def _look(self) -> None:
        """At what a person may have asked for meanwhile; raises Interrupted."""
        self._stop.check()
        self._scaling.look()

    @property
    def _generates(self) -> bool:
        """Whether the policy writes what it is trained on."""
        return not (self._learns_from_data or self._settings.plays_experts or self._demonstrate)

    @property
    def _meanwhile(self) -> "_UpdateBar":
        return _UpdateBar(self._console, self._stream, self._scaling)

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
            self._look,
            patience_s,
            settings.judging,
        )

    def _push_weights(self) -> dict[str, float]:
        started = time.perf_counter()
        published = self._clients.learner.publish()
        self._clients.workers.load_weights(published)
        seconds = time.perf_counter() - started
        return {"time/weights_s": seconds, "weights/pushed_mb": published.manifest.num_bytes / 1e6}

    def _do_what_is_due(self) -> None:
        """Between two iterations, and after a resume: what a stop left undone is done then."""
        due = [split for split in self._due_splits() if not self._evaluated(split)]
        if due and self._learns_from_data:
            self._push_weights()
        for split in due:
            self._evaluate(split)
        every, iteration = self._settings.save_every, self._iteration
        if iteration and ((every and iteration % every == 0) or self._keeper.is_best(iteration)):
            self._save()

    def _due_splits(self) -> tuple[str, ...]:
        every, iteration = self._settings.evaluate_every, self._iteration
        if iteration in (0, self._settings.iterations):
            return ("validation", "test")
        return ("validation",) if every and iteration % every == 0 else ()

    def _evaluate(self, split: str) -> None:
        post_process = find_post_processor(self._settings.evaluation.post_processor)
        leases = self._evaluation_leases[split]
        begins = self._iteration == 0  # later ones are among the iterations' lines
        untrained = self._console.doing(f"evaluating the untrained model on {len(leases)} {split} prompts")
        with untrained if begins else contextlib.nullcontext():
            found = evaluate(split, leases, self._collector, post_process, self._perplexity, self._as_read)
        if split == "validation":
            self._keeper.check(found.metrics)
        if self._iteration == 0 and self._settings.environment.has_baselines:
            found.metrics.update(baselines(split, leases, self._collector))
            self._console.note(f"{split} played by others: {summary(found.metrics)}")
        short = {"validation": "val"}.get(split, split)
        self._folder.append_evaluation(self._iteration, split, found.metrics)
        self._folder.write_predictions(self._iteration, split, found.rows)
        self._console.evaluation_done(split, self._iteration, found.metrics, found.rows)
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
            "source": (self._stream or self._source).state(),
            "reward_failures": self._failures.num_unscored,
            "environment_failures": self._failures.num_unplayed,
        }

    def _save(self) -> None:
        if self._saved_at == self._iteration:
            return
        state = self._boundary | {"tracking_run_id": self._tracker.run_id}
        self._keeper.save(self._clients.learner, self._iteration, state)
        self._saved_at = self._iteration

    def _resume(self) -> None:
        found = checkpoints.newest_whole(self._folder, self._warn)
        if found is None:
            self._begin()
            return
        self._iteration, path = found
        state = checkpoints.read_state(path)
        self._clients.learner.load(str(path))
        self._source.restore(state["source"])
        self._failures.num_unscored = state["reward_failures"]
        self._failures.num_unplayed = state.get("environment_failures", 0)  # older ones counted both as one
        self._folder.truncate_after(self._iteration)
        self._saved_at = self._iteration
        if self._stream is not None:
            self._stream.restart(self._iteration)
        self._remember()
        self._console.note(f"resumed from {path}")

    def _warn(self, text: str) -> None:
        self._console.note(text, "warning")

    def _begin(self) -> None:
        self._iteration, self._saved_at = 0, -1
        self._failures.num_unscored = self._failures.num_unplayed = 0
        self._source.restore(self._start)
        if self._stream is not None:
            self._stream.restart(0)
        self._folder.truncate_after(-1)
        self._remember()


class _UpdateBar:
    """The learner's (phase, done, total) as a bar of the console; what is written ahead is looked after."""

    def __init__(self, console: Console, stream: RolloutStream | None, scaling: Scaling) -> None:
        self._console, self._stream, self._scaling = console, stream, scaling
        self._scored = self._shown = 0
        console.phase("update")

    def __call__(self, phase: str, done: int, total: int) -> None:
        self._scaling.look()
        if self._stream is not None:
            self._stream.pump()
        if phase != "update":
            self._console.advance(phase, max(0, done - self._scored))
            self._scored = done
            return
        if not self._shown:
            self._console.phase("update", total)
        self._console.advance("update", done - self._shown)
        self._shown = done
