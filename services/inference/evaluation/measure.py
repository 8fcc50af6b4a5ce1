"""Score a model on held-out prompts with rollout workers and reward servers, but no learner."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from contracts.errors import InputError
from contracts.rollout import Rollout
from learner.algorithms.base import Algorithm
from learner.settings import ModelSettings
from reward_servers.evaluated_metrics import served_metrics
from reward_servers.user_rewards.trial import Trial
from services.config.settings import RunSettings
from services.data.tasks.base import Split
from services.data.tokens.token_places import TokenPlaces
from services.models.files import read_model
from services.runs.folder import RunFolder
from services.runs.tracking.console import Console
from services.terminal.doing import doing
from services.terminal.starting import Starting
from services.training.loop.evaluations.evaluation import Evaluation
from services.training.loop.evaluations.responses import ReadsHeldOut
from services.training.preflight.deployment import deployment_of
from services.training.sources.reading import opened_thought


def evaluate_model(
    settings: RunSettings, split: Split, console: Console, trial: Trial
) -> tuple[Evaluation, int]:
    """Evaluate a model with the prompts and seeds of training's evaluations.

    Returns: the evaluation, and the number of texts that could not be scored.

    Raises:
        RunError: no text could be scored; an InputError if the environment says what to mend.
    """
    with doing("loading Ray and torch", console.note):
        from services.cluster.ray_cluster import cluster
        from services.training.loop.collecting import Collector, FailureBudget
        from services.training.loop.evaluations.baselines import baselines
        from services.training.loop.evaluations.held_out import evaluator_of
        from services.training.train import launch
        from services.training.train.ray_machine import ray_machine

    learner = settings.learner.model_copy(update={"num_processes": 1})

    def measure(rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Measure with a learner in this process if training does so."""
        from learner.learner import Learner

        model = with_reference(settings.model, settings.algorithm, RunFolder(settings.run_folder))
        return Learner(model, settings.algorithm, learner, seed=settings.seed, iterations=1).measure(rollouts)

    responses = ReadsHeldOut(settings, console.warn)((split,), measure)
    with contextlib.ExitStack() as ends:
        with doing("starting Ray", console.note):
            ends.enter_context(cluster(console.warn))
        model = launch.model_of(settings.model, settings.algorithm, settings.environment)
        deployed = deployment_of(settings, read_model(settings.model), ray_machine())
        graders = settings.reward, served_metrics(settings.metrics), settings.reward_servers
        with Starting(("the reward servers", "the rollout workers"), console.note) as starting:
            fleet = launch.start_fleet(model, deployed, console.warn, starting.hear, console.note)
            ends.callback(fleet.stop)
            served = launch.served_rewards(*graders, console.warn, trial, settings.by_part)
            rewards = ends.enter_context(served)
            starting.is_up("the reward servers")
            fleet.wait_until_ready()
            starting.is_up("the rollout workers")
        failures = FailureBudget(settings.reward_servers.max_failures, settings.environment.max_failures)
        patience_s = settings.reward_patience_s
        judging = replace(
            settings.judging,
            opened=opened_thought(settings.chat_form(read_model(settings.model)), settings.model),
            places=TokenPlaces(settings.model),
        )
        collector = Collector(fleet, rewards, failures, console, _go_on, patience_s, judging)
        evaluator = evaluator_of(settings, collector, (split,))
        leases = evaluator.leases[split]
        with console.doing(f"evaluating on {len(leases)} {split} prompts"):
            evaluation = evaluator(split)
        if settings.environment.has_baselines:
            evaluation.metrics.update(baselines(split, leases, collector))
    if responses is not None and responses.of_split[split]:
        try:
            with console.doing(f"measuring {split} responses"):
                evaluation = replace(evaluation, metrics=responses(split) | evaluation.metrics)
        except InputError as error:  # the texts are scored by now
            console.warn(f"{split} responses are not measured: {error}")
    if not evaluation.rows:
        raise collector.failures.nothing_left(f"none of {len(leases)} texts could be scored")
    return evaluation, collector.failures.num_unscored


def _go_on() -> None:
    """Do nothing, because a signal ends the command at once and nothing is saved."""


def with_reference(model: ModelSettings, algorithm: Algorithm, run: RunFolder) -> ModelSettings:
    """Return a run's model with its start model as reference, for algorithms that compare both."""
    if not algorithm.traits.mismatched_kl:
        return model
    began = run.config()["model"]
    reference = model.reference.model_copy(update={"path": began["path"], "revision": began.get("revision")})
    return model.model_copy(update={"reference": reference})
