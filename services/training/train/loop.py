"""Make a run's training loop from its settings and running clients.

settings ─┬─▶ tokenizer, prompts, annotated data ─▶ a batch source ─┐
          └─▶ held-out prompts ─▶ an evaluator ─────────────────────┴─▶ Controller
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from contracts.rollout import Rollout
from learner.settings import ModelSettings
from services.config.data_settings import DataSettings
from services.config.settings import RunSettings
from services.data.tokens.token_pieces import TokenPieces
from services.data.tokens.token_places import TokenPlaces
from services.models.files import read_model
from services.models.tokenizer import load_tokenizer
from services.runs.checkpoint_retention import Keeper
from services.runs.folder import RunFolder
from services.runs.stopping.stopping import Stopping
from services.runs.tracking.console import Console
from services.runs.tracking.tracker import Tracker
from services.runs.uploads import Uploads
from services.terminal.doing import doing
from services.terminal.interrupts import StopRequest
from services.training.loop.batches import BatchSource, FromData, Mixed, Online, Prompted, expert
from services.training.loop.collecting import Collector, FailureBudget
from services.training.loop.controller import Clients, Controller, LoopParts, LoopSettings
from services.training.loop.demonstrations import demonstrations_of
from services.training.loop.evaluations.evaluator import Evaluator
from services.training.loop.evaluations.held_out import evaluator_of
from services.training.loop.evaluations.responses import ReadsHeldOut
from services.training.loop.finished_groups import FinishedGroups
from services.training.loop.journal import Journal
from services.training.loop.live_episodes import LiveEpisodes
from services.training.loop.refilled import Refilled
from services.training.loop.requests import RunRequests
from services.training.loop.rollout_stream import RolloutStream
from services.training.loop.scaling import Scaling
from services.training.loop.seen_tokens import SeenTokens
from services.training.loop.statistics.iteration_info import IterationInfo
from services.training.loop.worker_weights import WorkerWeights
from services.training.sources.annotated_data import open_source, summary, warnings, with_iterations
from services.training.sources.data_needs import Needs, needs_of
from services.training.sources.leasing import LeaseSource
from services.training.sources.mixed import mixture
from services.training.sources.offline import OfflineSource
from services.training.sources.orders import order_of
from services.training.sources.prompts import prompts_of
from services.training.sources.reading import opened_thought, reading_of
from services.training.teachers.taught import taught
from services.training.train.own_annotation import annotate_own_rows


def controller(
    settings: RunSettings,
    clients: Clients,
    folder: RunFolder,
    tracker: Tracker,
    console: Console,
    stop: StopRequest,
    uploads: Uploads | None = None,
) -> Controller:
    """Return the loop over these clients, with the task's prompts or annotated data."""
    seen_tokens = SeenTokens(folder.tokens, TokenPieces(settings.model)) if settings.generates else None
    journal = Journal(
        folder, tracker, console, stopping=Stopping(settings.stop_when), seen_tokens=seen_tokens
    )
    requests = RunRequests(stop, Scaling(folder.path, clients.workers, console.note))
    failures = FailureBudget(settings.reward_servers.max_failures, settings.environment.max_failures)
    collector = Collector(
        clients.workers,
        clients.rewards,
        failures,
        console,
        requests.look,
        settings.reward_patience_s,
        replace(
            settings.judging,
            opened=opened_thought(settings.chat_form(read_model(settings.model)), settings.model),
            places=TokenPlaces(settings.model),
        ),
        on_episodes=LiveEpisodes(folder.episodes).add if settings.plays else None,
    )
    annotate_own_rows(settings, clients, console, requests.look)
    num_planned = settings.iterations
    settings = with_iterations(settings)  # count data.num_epochs again, for the annotated rows
    if settings.iterations != num_planned:  # update the learner's schedule
        clients.learner.plan(settings.iterations)
    assembly = Assembly(settings, clients, collector)
    splits = settings.evaluated_splits

    def measure(rollouts: Sequence[Rollout]) -> dict[str, float]:
        if settings.rollout.sleep:  # the workers share the learner's GPU; the next leases wake them
            clients.workers.sleep()
        return clients.learner.measure(rollouts, lambda *_: requests.look())

    with doing("reading prompts", console.note):
        held_out = ReadsHeldOut(settings, console.warn)(splits, measure)
        evaluator = evaluator_of(settings, collector, splits, held_out)
        batches = assembly.batches()
    return assembly.controller(batches, evaluator, journal, requests, uploads)


def prepare(model: ModelSettings) -> None:
    """Import the modules of `controller`, which takes seconds, while the clients start."""
    load_tokenizer(model)


@dataclass(frozen=True, slots=True)
class Assembly:
    """A run's settings and running parts, from which its batch source and its loop are made."""

    settings: RunSettings
    clients: Clients
    collector: Collector

    def batches(self) -> BatchSource:
        """Return the source of batches: annotated responses, rollouts of prompts, or both."""
        settings = self.settings
        rollout, tokenizer = settings.rollout, load_tokenizer(settings.model)
        count = rollout.prompts_per_iteration
        mix = data = None
        if settings.data is not None:
            data = open_source(settings, tokenizer)
            needs = needs_of(settings.algorithm, settings.reward, settings.data)
            self._tell_of(settings.data, data, needs)
            if settings.data.share is None:
                return FromData(data, count)
            mix = mixture(settings.data.share, count, settings.group_size, needs.num_responses)
        curricula = {part: run.curriculum for part, run in settings.by_task.items()}
        of_task = prompts_of(settings.task, settings.task_name, "train")
        reading = reading_of(settings, "train", tokenizer)
        prompts = LeaseSource(
            of_task,
            reading,
            settings.sampling(),
            group_size=settings.group_size,
            seed=settings.seed,
            order=order_of(settings.task, of_task, settings.seed, rollout.priority_scale, curricula),
        )
        source = self.prompted(prompts, mix.num_prompts if mix else count)
        source = taught(
            source, settings.algorithm, settings.model, reading, tokenizer, self.collector.check_stop
        )
        return source if data is None or mix is None else Mixed(source, data, mix.num_examples)

    def prompted(self, prompts: LeaseSource, num_prompts: int) -> BatchSource:
        """Return the batch source for prompts: references, an expert, or the policy writes the texts."""
        settings, workers, rollout = self.settings, self.clients.workers, self.settings.rollout
        shared = prompts, num_prompts, self.collector
        if settings.demonstrates:
            return Prompted(
                prompts, num_prompts, demonstrations_of(settings), self.collector.failures, settings.reward
            )
        if settings.plays_experts:
            return expert(*shared, settings.reward)
        if rollout.order == "finished":
            return FinishedGroups(
                *shared,
                workers,
                settings.reward,
                settings.algorithm,
                max_staleness=rollout.max_staleness,
                iterations=settings.iterations,
                max_concurrent=rollout.max_concurrent,
            )
        if settings.algorithm.refills:
            return Refilled(*shared, workers, settings.reward, settings.algorithm)
        if not rollout.max_staleness:
            learner = self.clients.learner if self.clients.scores_early else None
            collector = replace(self.collector, early_scorer=learner)
            return Online(prompts, num_prompts, collector, workers, settings.reward)
        last = settings.iterations
        return RolloutStream(
            *shared, workers, settings.reward, max_staleness=rollout.max_staleness, iterations=last
        )

    def controller(
        self,
        source: BatchSource,
        evaluator: Evaluator,
        journal: Journal,
        requests: RunRequests,
        uploads: Uploads | None = None,
    ) -> Controller:
        """Return the loop over a batch source."""
        settings, clients = self.settings, self.clients
        weights = WorkerWeights(
            clients.learner,
            clients.workers,
            each_update=settings.generates,
            sleep=bool(settings.rollout.sleep),
        )
        keeper = Keeper(
            journal.folder,
            keep=settings.keep_checkpoints,
            keep_best=settings.keep_best,
            uploads=uploads,
            note=journal.console.warn,
        )
        prompted = settings.data is None and not settings.plays  # other batches have other limits
        longest = settings.prompt_limit("train").max_tokens if prompted else None
        of_parts = {name: run.reward for name, run in settings.parts.items()}
        discount = settings.algorithm.turn_discount
        info = IterationInfo(
            source.rewards,
            settings.plays,
            clients.rewards,
            settings.measures,
            longest,
            of_parts,
            by_token=settings.algorithm.uses_token_rewards,
            discount=1.0 if discount is None else discount,
        )
        loop = LoopSettings(
            settings.run_name,
            settings.iterations,
            settings.evaluate_every,
            settings.save_every,
            settings.learner,
        )
        failures = evaluator.collector.failures  # failures of training and evaluations together
        parts = LoopParts(clients, source, weights, evaluator, info, journal, keeper, failures, requests)
        return Controller(loop, parts)

    def _tell_of(self, chosen: DataSettings, data: OfflineSource, needs: Needs) -> None:
        settings, console = self.settings, self.collector.console
        console.note(summary(data))
        form = settings.chat_form(read_model(settings.model))
        for warning in warnings(chosen, needs, settings.model, settings.task_name, form):
            console.warn(warning)
