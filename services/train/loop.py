"""Make a run's training loop of its settings and of the clients that are up.

settings ─┬─▶ tokenizer, prompts, annotated data ─▶ a batch source ─┐
          └─▶ held-out prompts ─▶ an evaluator ─────────────────────┴─▶ Controller
"""

from collections.abc import Callable
from typing import Any

from contracts.clients import FleetClient, RewardClient, RolloutClient
from services.config.settings import RunSettings
from services.diagnosis.reading import history_of
from services.diagnosis.watch import Watch
from services.loop.batches import BatchSource, Demonstrated, Expert, FromData, Mixed, Online
from services.loop.collecting import Collector, FailureBudget
from services.loop.controller import Clients, Controller, LoopParts, LoopSettings
from services.loop.demonstrations import Demonstrate, Demonstrations, each_by_part
from services.loop.evaluator import Evaluator
from services.loop.held_out import evaluator_of
from services.loop.iteration_info import IterationInfo
from services.loop.journal import Journal
from services.loop.refilled import Refilled
from services.loop.requests import RunRequests
from services.loop.rollout_stream import RolloutStream
from services.loop.scaling import Scaling
from services.loop.worker_weights import WorkerWeights
from services.models.files import read_model, shared_window
from services.models.tokenizer import load_tokenizer
from services.runs.checkpoint_retention import Keeper
from services.runs.folder import RunFolder
from services.runs.uploads import Uploads
from services.sources.annotated_data import open_source, summary, warnings
from services.sources.data_needs import needs_of
from services.sources.leasing import LeaseSource
from services.sources.mixed import mixture
from services.sources.orders import order_of
from services.sources.prompts import prompts_of
from services.sources.reading import chat_of, tokens_of
from services.terminal.interrupts import StopRequest
from services.tracking.console import Console
from services.tracking.tracker import Tracker


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
    collector = collector_of(settings, clients.workers, clients.rewards, requests.look, console)
    evaluator = evaluator_of(settings, collector, ("validation", "test"))
    source = _batches(settings, collector, clients.workers)
    return assembled(settings, clients, source, evaluator, journal, requests, uploads)


def collector_of(
    settings: RunSettings,
    workers: RolloutClient,
    rewards: RewardClient,
    look: Callable[[], None],
    console: Console,
) -> Collector:
    """Return the collector of scored rollouts, in training and in evaluations."""
    servers = settings.reward_servers
    return Collector(
        workers,
        rewards,
        FailureBudget(servers.max_failures, settings.environment.max_failures),
        console,
        look,
        servers.patience_s(part.label for part in settings.reward),
        settings.judging,
    )


def assembled(
    settings: RunSettings,
    clients: Clients,
    source: BatchSource,
    evaluator: Evaluator,
    journal: Journal,
    requests: RunRequests,
    uploads: Uploads | None = None,
) -> Controller:
    """Return the loop over a batch source."""
    weights = WorkerWeights(
        clients.learner,
        clients.workers,
        each_update=settings.data is None or settings.data.share is not None,  # not from data alone
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
    info = IterationInfo(
        source.rewards, settings.plays, clients.rewards, settings.measures, longest, of_parts
    )
    loop = LoopSettings(
        settings.run_name,
        settings.iterations,
        settings.evaluate_every,
        settings.save_every,
        settings.learner.max_restarts,
    )
    failures = evaluator.collector.failures  # of training and evaluations together
    parts = LoopParts(clients, source, weights, evaluator, info, journal, keeper, failures, requests)
    return Controller(loop, parts)


def _batches(settings: RunSettings, collector: Collector, workers: FleetClient) -> BatchSource:
    """Return the source of batches: annotated responses, rollouts of prompts, or both."""
    count, tokenizer = settings.rollout.prompts_per_iteration, load_tokenizer(settings.model)
    mix = data = None
    if settings.data is not None:
        data = open_source(settings, tokenizer)
        needs = needs_of(settings.algorithm, settings.reward, settings.data)
        collector.console.note(summary(data))
        form = settings.chat_form(read_model(settings.model))
        for warning in warnings(settings.data, needs, settings.model, settings.task_name, form):
            collector.console.warn(warning)
        if settings.data.share is None:
            return FromData(data, count)
        mix = mixture(settings.data.share, count, settings.group_size, needs.num_responses)
    of_task = prompts_of(settings.task, settings.task_name, "train")
    prompts = LeaseSource(
        of_task,
        tokens_of(settings, "train", tokenizer),
        settings.sampling(),
        group_size=settings.group_size,
        seed=settings.seed,
        order=order_of(settings, of_task),
    )
    demonstrate: Demonstrate | None = None
    if not (settings.algorithm.traits.online or settings.plays):
        makers = {part: _demonstrations(run, tokenizer) for part, run in settings.parts.items()}
        demonstrate = each_by_part(makers) if makers else _demonstrations(settings, tokenizer)
    own = prompted(settings, prompts, mix.num_prompts if mix else count, collector, workers, demonstrate)
    return own if data is None or mix is None else Mixed(own, data, mix.num_examples)


def _demonstrations(settings: RunSettings, tokenizer: Any) -> Demonstrations:
    window, side = shared_window(read_model(settings.model)), settings.prompt_limit("train").side
    loss_on, longest = settings.algorithm.loss_over, settings.rollout.max_tokens
    return Demonstrations(tokenizer, longest, loss_on, window, side, chat_of(settings, tokenizer))


def prompted(
    settings: RunSettings,
    prompts: LeaseSource,
    num_prompts: int,
    collector: Collector,
    workers: FleetClient,
    demonstrate: Demonstrate | None = None,
) -> BatchSource:
    """Return the batch source for prompts: references, an expert, or the policy writes the texts."""
    if demonstrate is not None:
        return Demonstrated(prompts, num_prompts, demonstrate, collector.failures, settings.reward)
    if settings.plays_experts:
        return Expert(prompts, num_prompts, collector, settings.reward)
    if settings.algorithm.refills:
        return Refilled(prompts, num_prompts, collector, workers, settings.reward, settings.algorithm)
    if not settings.rollout.max_staleness:
        return Online(prompts, num_prompts, collector, workers, settings.reward)
    return RolloutStream(
        prompts,
        num_prompts,
        collector,
        workers,
        settings.reward,
        max_staleness=settings.rollout.max_staleness,
        iterations=settings.iterations,
    )
