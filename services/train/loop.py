"""Make a run's training loop of its settings and of the clients that are up.

settings ─┬─▶ tokenizer, prompts, annotated data ─▶ a batch source ─┐
          └─▶ held-out prompts ─▶ an evaluator ─────────────────────┴─▶ Controller
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from contracts.rollout import Rollout
from learner.settings import ModelSettings
from services.config.data_settings import DataSettings
from services.config.settings import RunSettings
from services.diagnosis.reading import history_of
from services.diagnosis.watch import Watch
from services.loop.batches import BatchSource, Demonstrated, Expert, FromData, Mixed, Online
from services.loop.collecting import Collector, FailureBudget
from services.loop.controller import Clients, Controller, LoopParts, LoopSettings
from services.loop.demonstrations import demonstrations_of
from services.loop.evaluations.evaluator import Evaluator
from services.loop.evaluations.held_out import evaluator_of
from services.loop.evaluations.responses import ReadsHeldOut
from services.loop.journal import Journal
from services.loop.live_episodes import LiveEpisodes
from services.loop.refilled import Refilled
from services.loop.requests import RunRequests
from services.loop.rollout_stream import RolloutStream
from services.loop.scaling import Scaling
from services.loop.statistics.iteration_info import IterationInfo
from services.loop.worker_weights import WorkerWeights
from services.models.files import read_model
from services.models.tokenizer import load_tokenizer
from services.runs.checkpoint_retention import Keeper
from services.runs.folder import RunFolder
from services.runs.uploads import Uploads
from services.sources.annotated_data import open_source, summary, warnings, with_iterations
from services.sources.data_needs import Needs, needs_of
from services.sources.leasing import LeaseSource
from services.sources.mixed import mixture
from services.sources.offline import OfflineSource
from services.sources.orders import order_of
from services.sources.prompts import prompts_of
from services.sources.reading import opened_thought, reading_of
from services.terminal.doing import doing
from services.terminal.interrupts import StopRequest
from services.tokens.token_places import TokenPlaces
from services.tracking.console import Console
from services.tracking.tracker import Tracker
from services.train.own_annotation import annotate_own_rows


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
    journal = Journal(folder, tracker, console, Watch.of(history_of(folder)))
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
    settings = with_iterations(settings)  # of data.num_epochs, by what an epoch now draws
    if settings.iterations != num_planned:  # a resumed run's learner has the schedule of its start
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
    """Import what `controller` needs, which takes seconds, while the clients start."""
    load_tokenizer(model)


@dataclass(frozen=True, slots=True)
class Assembly:
    """A run's settings and the parts that are up, of which its batch source and its loop are made."""

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
        prompts = LeaseSource(
            of_task,
            reading_of(settings, "train", tokenizer),
            settings.sampling(),
            group_size=settings.group_size,
            seed=settings.seed,
            order=order_of(settings.task, of_task, settings.seed, rollout.priority_scale, curricula),
        )
        own = self.prompted(prompts, mix.num_prompts if mix else count)
        return own if data is None or mix is None else Mixed(own, data, mix.num_examples)

    def prompted(self, prompts: LeaseSource, num_prompts: int) -> BatchSource:
        """Return the batch source for prompts: references, an expert, or the policy writes the texts."""
        settings, workers, rollout = self.settings, self.clients.workers, self.settings.rollout
        own = prompts, num_prompts, self.collector
        if settings.demonstrates:
            return Demonstrated(
                prompts, num_prompts, demonstrations_of(settings), self.collector.failures, settings.reward
            )
        if settings.plays_experts:
            return Expert(*own, settings.reward)
        if settings.algorithm.refills:
            return Refilled(*own, workers, settings.reward, settings.algorithm)
        if not rollout.max_staleness:
            learner = self.clients.learner if self.clients.scores_early else None
            collector = replace(self.collector, early_scorer=learner)
            return Online(prompts, num_prompts, collector, workers, settings.reward)
        last = settings.iterations
        return RolloutStream(
            *own, workers, settings.reward, max_staleness=rollout.max_staleness, iterations=last
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
        failures = evaluator.collector.failures  # of training and evaluations together
        parts = LoopParts(clients, source, weights, evaluator, info, journal, keeper, failures, requests)
        return Controller(loop, parts)

    def _tell_of(self, given: DataSettings, data: OfflineSource, needs: Needs) -> None:
        settings, console = self.settings, self.collector.console
        console.note(summary(data))
        form = settings.chat_form(read_model(settings.model))
        for warning in warnings(given, needs, settings.model, settings.task_name, form):
            console.warn(warning)
