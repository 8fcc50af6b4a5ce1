"""`whetstone plan [OVERRIDES]`: show what `whetstone train` would do, need and read. Starts nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from contracts.secrets.redaction import without_secrets
from contracts.settings import with_options
from learner.algorithms.base import Algorithm
from reward_servers.evaluated_metrics import served_metrics
from reward_servers.settings import Part
from reward_servers.user_rewards.apart import try_apart
from reward_servers.user_rewards.trial import is_own
from rollout_workers.settings import RolloutSettings
from services.config.compose import run_settings
from services.config.other_versions import comparable
from services.config.settings import RunSettings
from services.data.tasks.base import SPLITS, ColumnRead, Split
from services.data.tokens.cut_prompts import said_of_limits
from services.data.tokens.prompt_limit import PromptLimit
from services.models.files import ModelFiles
from services.runs.claim import plain
from services.runs.folder import RunFolder
from services.runs.mirror import open_mirror
from services.training.plan import read_files
from services.training.plan.arithmetic import Batch, arithmetic, batch, dropout
from services.training.plan.data import data_of
from services.training.plan.first_prompt import PromptAsRead, first_prompts
from services.training.plan.memory import Amount, amounts, total_bytes
from services.training.plan.mixture import curriculum_of, parts_of
from services.training.plan.on_gpus import formats, on_gpus
from services.training.plan.processes import Processes, environments, processes, servers
from services.training.plan.seconds import Work, predicted
from services.training.preflight import preflight
from services.training.preflight.capacity.cpu_budget import Budget
from services.training.preflight.capacity.gpu_defaults import fitted
from services.training.preflight.capacity.memory import available_bytes
from services.training.preflight.capacity.memory_model import GIB, MemoryNeeds, num_parameters, share_and_base
from services.training.preflight.checks.environment_checks import environment_warnings
from services.training.preflight.checks.reference_checks import num_parameters_of_reference
from services.training.preflight.deployment import Deployment, deployment_of, this_machine
from services.training.preflight.machine import multiplies_bfloat16
from services.training.preflight.start_model import opened
from services.training.preflight.transport import choose_transport
from services.training.sources.annotated_data import with_iterations


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a run that could start.

    Example: `make_plan(["experiment=demo", "model.path=runs/demo-start-model"]).words["run"]` is
    "80 iterations = 10,240 rollouts and …".
    """

    settings: RunSettings
    folder: RunFolder
    done: int  # iterations of the newest checkpoint in the run's folder or mirror
    deployment: Deployment
    num_parameters: int | None
    is_estimated: bool  # True: num_parameters is an estimate, because the weights are still on the hub
    processes: list[Processes]
    memory: list[Amount]
    words: Mapping[str, str]
    sources: Mapping[str, str]
    warnings: list[str]
    # First training prompt of each part of a mixture ("": the only task); {}: an environment writes prompts
    prompts_as_read: Mapping[str, PromptAsRead]
    # How the columns of the data are read, by part of a mixture; the only task has the part ""
    columns: Mapping[str, Sequence[ColumnRead]]

    @property
    def total_bytes(self) -> float:
        return total_bytes(self.memory, self.settings.rollout.num_workers)


def make_plan(overrides: list[str]) -> Plan:
    """Check all that `whetstone train` checks, and plan the run.

    Raises:
        InputError: `whetstone train` would reject this run, with the same message.
    """
    settings = opened(run_settings(overrides))
    checked = preflight.check(settings)
    settings = with_options(with_iterations(settings), checked.chosen)
    config = settings.resolved()
    plain_config = without_secrets(plain(config))
    now = partial(comparable, config=plain_config, model=settings.model, environment=settings.environment)
    where = settings.output_dir, settings.run_name
    folder = RunFolder.open(*where, config, settings.resume, only_look=True, completed=now)
    done = list(folder.checkpoints())
    mirror = open_mirror(settings.mirror, folder.path, plain_config, settings.resume, completed=now)
    if mirror is not None:
        done += mirror.complete()
    graders = settings.reward, served_metrics(settings.metrics), settings.reward_servers
    trial_warnings = try_apart(*graders, checked.trial)
    model = checked.model
    settings, on_gpu = fitted(settings, model, this_machine())
    deployed = deployment_of(settings, model, this_machine())
    count, is_estimated = num_parameters(model)
    turns = settings.environment.max_turns if settings.plays else None
    of_iteration = batch(settings.algorithm, settings.rollout, settings.group_size, settings.data, turns)
    memory = []
    if count is not None:
        parts = settings.model, settings.algorithm, settings.learner, settings.rollout
        shares = share_and_base(settings.model, model, count)
        needs = MemoryNeeds(*parts, count, *shares, num_parameters_of_reference(settings.model))
        memory = amounts(needs, model, deployed, None if settings.plays else of_iteration.num_rollouts)
    tasks = {part: (run.task_name, run.task) for part, run in settings.by_task.items()}
    rows = processes(settings.learner, settings.algorithm_name, deployed)
    if settings.plays:
        workers = settings.rollout.num_workers
        rows.append(environments(settings.environment, settings.environment_name, workers))
    rows += servers(*graders)
    prompts = first_prompts(settings, checked.first_prompts)
    transport = choose_transport(settings.learner, settings.model, deployed)
    work = _work(settings.rollout, of_iteration, prompts, settings.learner.num_processes)
    writes = settings.algorithm.traits.online and not settings.plays  # else lengths are unknown
    return Plan(
        settings=settings,
        folder=folder,
        done=max(done, default=0),
        deployment=deployed,
        num_parameters=count,
        is_estimated=is_estimated,
        processes=rows,
        memory=memory,
        words={
            **_limits({part: run.prompt_limit for part, run in settings.by_task.items()}),
            **parts_of(settings.task, checked.prompts.num_of_parts),
            **curriculum_of(settings.curriculum),
            **data_of(settings),
            **arithmetic(settings, of_iteration, checked.prompts.num_prompts),
            "dropout": dropout(settings.model, settings.algorithm, settings.algorithm_name, model.config),
            **_of_token_rewards(settings.algorithm, settings.algorithm_name, settings.reward),
            **on_gpus(deployed, on_gpu),
            **formats(settings.learner, settings.model, settings.algorithm, deployed),
            **_on_cpu(checked.budget),
            **(predicted(model, deployed, work, settings.passes, transport) if writes else {}),
            "new weights": f"by {transport}",
            **faster(settings.learner.autocast, model, deployed),
        },
        sources={
            **read_files.of_model(overrides, settings.model.path, model),
            **read_files.of_data(tasks, settings.data, (*settings.reward, *settings.metrics)),
            **read_files.of_run(folder),
        },
        warnings=checked.warnings
        + environment_warnings(settings.environment, settings.algorithm)
        + _tight(deployed, checked.budget, total_bytes(memory, settings.rollout.num_workers))
        + trial_warnings,
        prompts_as_read=prompts,
        columns=checked.columns,
    )


def _work(
    rollout: RolloutSettings, of_iteration: Batch, prompts: Mapping[str, PromptAsRead], num_learners: int
) -> Work:
    """Return an iteration's work. Assume that each prompt has as many tokens as the longest first prompt."""
    longest = max((len(prompt.tokens) for prompt in prompts.values()), default=0)
    workers, at_once = rollout.num_workers, rollout.max_concurrent
    return Work(of_iteration.num_rollouts, longest, rollout.max_tokens, workers, at_once, num_learners)


def _of_token_rewards(algorithm: Algorithm, name: str, rewards: Sequence[Part]) -> dict[str, str]:
    """Say that the algorithm sums the scores of tokens, if it ignores them and a reward may give any."""
    if algorithm.uses_token_rewards or not algorithm.traits.earns or not any(map(is_own, rewards)):
        return {}
    return {"scores of tokens": f"{name} trains on their sum, if a reward returns any"}


def _on_cpu(budget: Budget | None) -> dict[str, str]:
    """Return the tokens of a micro-batch on a CPU, and the reason; {} without a CPU budget."""
    if budget is None:
        return {}
    return {"memory": f"{'chosen: ' if budget.is_chosen else ''}{budget.words}"}


def faster(autocast: str, model: ModelFiles, deployed: Deployment) -> dict[str, str]:
    """Return the settings that would make this run faster on this machine's CPU; {} if none is known.

    Args:
        autocast: the user's `learner.autocast`.
    """
    dtypes = autocast, deployed.rollout.dtype
    here = deployed.machine.cluster is None
    on_cpu = deployed.learner_on_gpu is False and deployed.workers_on_gpu is False
    if model.is_small or not (here and on_cpu) or dtypes != ("auto", "auto") or not multiplies_bfloat16():
        return {}
    options = "learner.autocast=bfloat16 rollout.dtype=bfloat16"
    return {
        "faster": f"{options}, as this CPU multiplies bfloat16 (AMX). Engine and learner then agree "
        "to about 0.001 instead of 0.000001"
    }


def _limits(limits: Mapping[str, Callable[[Split], PromptLimit]]) -> dict[str, str]:
    """Return the limit on the length of prompts, for each part of a mixture."""
    return {
        f"prompts of {part}" if part else "prompts": said_of_limits({split: limit(split) for split in SPLITS})
        for part, limit in limits.items()
    }


def _tight(deployed: Deployment, budget: Budget | None, needed: float) -> list[str]:
    """Warn if the estimate with activations exceeds the available memory. Preflight checks the least amount.

    Args:
        budget: memory on a CPU, with its own warnings; then nothing more is warned of.
    """
    if budget is not None and budget.warnings:
        return []
    there = available_bytes()
    if deployed.machine.cluster or deployed.machine.num_gpus or needed <= there:
        return []
    return [
        f"with activations this may take {needed / GIB:.1f} GiB, and {there / GIB:.1f} GiB are available: "
        "lower learner.token_budget or learner.logits_budget, or set model.gradient_checkpointing=true"
    ]
