"""Run all checks before a run starts anything, cheap checks first."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import InputError
from contracts.rollout import Prompt
from learner.algorithms.base import Algorithm
from learner.optimization.number_formats import keeps_masters
from learner.settings import LearnerSettings, ModelSettings
from reward_servers.by_part import trial_of_parts
from reward_servers.part_checks import check_at_hand
from reward_servers.user_rewards.trial import Trial
from rollout_workers.environments.program import ProgramSettings
from rollout_workers.settings import RolloutSettings
from services.config.cluster_settings import ClusterSettings
from services.config.data_settings import DataSettings
from services.config.evaluation_settings import EvaluationSettings
from services.config.settings import RunSettings
from services.data.tasks.base import HELD_OUT, SPLITS, ColumnRead, Split, TellsColumns
from services.data.tasks.columns import not_read
from services.data.tokens import cut_prompts
from services.data.tokens.response_tokens import ResponseTokens
from services.models.files import ModelFiles, read_model
from services.models.shape import shape_of
from services.models.token_counter import token_counter
from services.models.tokenizer import load_tokenizer
from services.runs.best import Criterion
from services.runs.tracking.checks import check_tracking
from services.training.preflight.capacity.cpu_budget import Budget, token_budget
from services.training.preflight.capacity.gpu_defaults import fitted, memory_needs
from services.training.preflight.capacity.memory import check_memory
from services.training.preflight.capacity.memory_model import MemoryNeeds, share_and_base
from services.training.preflight.checks.adapter_checks import check_adapter
from services.training.preflight.checks.checked_prompts import CheckedPrompts, Reading, check_prompts
from services.training.preflight.checks.environment_checks import check_environment
from services.training.preflight.checks.model_checks import (
    check_decoding,
    check_encoder_decoder,
    check_model_classes,
    check_parallel,
    room_for_prompts,
)
from services.training.preflight.checks.process_checks import check_float16, check_processes
from services.training.preflight.checks.rate_checks import rate_warnings
from services.training.preflight.checks.reference_checks import (
    check_reference,
    least_room,
    num_parameters_of_reference,
)
from services.training.preflight.checks.sampling_checks import (
    check_behavior,
    check_end,
    check_one_correction,
    check_staleness,
)
from services.training.preflight.deployment import deployment_of, this_machine
from services.training.preflight.machine import find_gpus, num_cores
from services.training.preflight.placement import Graders, check_room
from services.training.preflight.start_model import opened
from services.training.preflight.transport import choose_transport


@dataclass(frozen=True, slots=True)
class Checked:
    """Model files and prompts with which the run can work."""

    model: ModelFiles
    prompts: CheckedPrompts
    trial: Trial  # tries the user's rewards and metrics
    # First training prompt of each part ("": the only task); {}: training reads only a data set
    first_prompts: Mapping[str, Prompt]
    # How the data's columns are read, by part, for parts with columns
    columns: Mapping[str, Sequence[ColumnRead]]
    other_warnings: Sequence[str]  # about data and learning rate
    budget: Budget | None = None  # token budget, if the learner computes on a CPU

    @property
    def chosen(self) -> Mapping[str, int]:
        """Return options that the settings leave open and that the checks chose."""
        return self.budget.options if self.budget else {}

    @property
    def notes(self) -> list[str]:
        """Name unread columns of the data, and the chosen options."""
        return [*not_read(self.columns), *(self.budget.notes if self.budget else ())]

    @property
    def warnings(self) -> list[str]:
        """Name splits with cut prompts, and problems of chat templates, data, learning rate and memory."""
        checked = self.prompts
        tight = self.budget.warnings if self.budget else ()
        cut = cut_prompts.warnings(checked.cut, checked.examples)
        return [*cut, *checked.of_chat, *self.other_warnings, *tight]


def check(settings: RunSettings, *, training: bool = True) -> Checked:
    """Reject a run that can't work. Start nothing and write nothing.

    Args:
        training: False for an evaluation, which needs no learner and no training prompts.

    Raises:
        InputError: model, tokenizer, data, memory or a combination of settings is wrong.
    """
    settings = opened(settings, training=training)
    algorithm, learner, rollout = settings.algorithm, settings.learner, settings.rollout
    drawn, held_out = settings.sampling(), settings.sampling(evaluating=True)
    if training:
        check_tracking(settings.tracking)
        from services.training.sources.data_needs import check_data_fits  # imports pyarrow

        check_data_fits(settings)
    check_behavior(learner.behavior, drawn)
    check_one_correction(learner, rollout.max_staleness)
    serve = settings.model.adapter.serve
    check_staleness(rollout.max_staleness, drawn, algorithm, settings.algorithm_name, serve)
    check_at_hand("reward", settings.reward)
    check_at_hand("metric", settings.metrics)
    model = read_model(settings.model)
    hottest = max(drawn.temperature, held_out.temperature)
    _check_generation(settings.model, algorithm, rollout, settings.evaluation, hottest, model)
    if drawn.ignore_eos:
        templates = [run.chat_form(model) is not None for run in settings.by_task.values()]
        check_end(drawn, by_template=any(templates))
    if settings.plays:
        environment = settings.environment.laid_out(by_template=settings.chat_form(model) is not None)
        check_environment(environment, settings.environment_name, rollout, settings.model.path, model)
    room = _rooms(model, drawn.max_tokens, held_out.max_tokens, demonstrates=settings.demonstrates)
    if training:
        if settings.model.adapter.trains:
            adapted = settings.model.adapter, algorithm, settings.algorithm_name
            programs = isinstance(settings.environment, ProgramSettings)
            check_adapter(*adapted, rollout.engine, model, plays_programs=programs)
        check_model_classes(settings.model)
        on_gpu = learner.device != "cpu" and bool(this_machine().num_gpus or os.environ.get("RAY_ADDRESS"))
        check_float16(learner, algorithm, settings.algorithm_name, on_gpu=on_gpu)
        keeps_masters(learner, settings.model, algorithm, on_gpu=on_gpu)  # may raise InputError
        check_processes(learner, settings.model, algorithm, settings.cluster.learner_gpus, model)
        _check_room(rollout, settings.cluster, learner, settings.reserved_gpus)
        choose_transport(learner, settings.model, deployment_of(settings, model, this_machine()))
        if reference := check_reference(settings.model, model):
            reads = room_for_prompts(reference, drawn.max_tokens)
            room["train"] = least_room(room["train"], reads)
    _check_memory(settings.model, algorithm, learner, rollout, model, training=training)
    if training and not os.environ.get("RAY_ADDRESS"):  # a cluster's resources are read when the run starts
        fitted(settings, model, this_machine())
    of_data, of_rows = _check_data(settings, model) if training else ([], {})
    asks_train = settings.data is None or settings.data.share is not None
    train: tuple[Split, ...] = ("train",) if training and asks_train else ()
    splits = train + (settings.evaluated_splits if training else HELD_OUT)
    prompts = check_prompts(settings, splits, Reading(model, token_counter(model), room))
    first = {part: ahead[0] for part, ahead in prompts.first.items()} if train else {}
    trial = trial_of_parts(prompts.first, settings.by_part)
    tasks = {part: run.task for part, run in settings.by_task.items()}
    columns = {
        part: task.columns_read(splits[0])
        for part, task in tasks.items()
        if splits and isinstance(task, TellsColumns)
    }
    num = rollout.prompts_per_iteration * settings.group_size
    sizes = {"rollouts": num, "iterations": settings.iterations, "longest": drawn.max_tokens}
    rates = rate_warnings(algorithm, settings.model, model.num_parameters, **sizes) if training else []
    budget = None
    if training:
        needs = memory_needs(settings.model, algorithm, learner, rollout, model)
        folder = Path(settings.output_dir) / settings.run_name
        budget = token_budget(needs, shape_of(model), deployment_of(settings, model, this_machine()), folder)
    return Checked(model, prompts, trial, first, of_rows or columns, [*of_data, *rates], budget)


def _check_data(
    settings: RunSettings, model: ModelFiles
) -> tuple[list[str], dict[str, Sequence[ColumnRead]]]:
    """Reject data that the algorithm can't learn from; return warnings, and how columns are read."""
    data, algorithm = settings.data, settings.algorithm
    if data is None:
        return [], {}
    # These modules import pyarrow, so import them late.
    from services.training.sources.annotated_data import check_first_batch, check_lengths, open_source
    from services.training.sources.data_needs import needs_of
    from services.training.sources.own_rows import rows_of, tokens_of
    from services.training.sources.row_rewards import check_inputs

    tokenizer = load_tokenizer(settings.model)
    source = open_source(settings, tokenizer)
    check_lengths(source, data, model)
    if data.share is None:
        num_prompts = settings.rollout.prompts_per_iteration
        check_first_batch(source, algorithm, settings.algorithm_name, num_prompts, has_rows=data.has_rows)
    warnings = []
    if algorithm.traits.labels and source.only_label:
        warnings.append(
            f"all {source.num_rows} responses of {data.source} are {source.only_label}, and "
            f"algorithm={settings.algorithm_name} learns from both kinds; expected a column of true and "
            "false: good, label, or data.good=NAME"
        )
    if not data.has_rows:
        return warnings, {}
    check_inputs(needs_of(algorithm, settings.reward, data).rewards or (), rows_of(data, "train").rows)
    # Evaluations of a share use only prompts.
    if data.share is None and settings.evaluated_splits:
        limits = settings.evaluation.num_prompts, settings.keep_best
        warnings += _check_held_out(data, algorithm, tokens_of(settings, tokenizer), *limits)
    if source.num_cut:
        warnings.append(
            f"{source.num_cut} of {source.num_rows} responses are longer than rollout.max_tokens="
            f"{settings.rollout.max_tokens} and lose their end"
        )
    rows = rows_of(data, "train")
    if left_out := rows.skipped + source.left_out:
        counts = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        warnings.append(f"training leaves out of {data.source}: {counts}")
    return warnings, {"": rows.columns}  # the task reads only their prompts


def _check_held_out(
    data: DataSettings,
    algorithm: Algorithm,
    to_tokens: ResponseTokens,
    num_prompts: int | None,
    keep_best: str | None,
) -> list[str]:
    """Return why held-out rows can't be measured, before anything is computed; [] if they can.

    Raises:
        InputError: the best checkpoint is chosen by one of these metrics.
    """
    from services.training.sources.held_out_rows import MEASURES, held_out_source

    warnings = []
    for split in SPLITS[1:]:
        try:
            held_out_source(data, algorithm, split, num_prompts, to_tokens)
        except InputError as error:
            if split == "validation" and keep_best and Criterion.of(keep_best).key in MEASURES:
                raise InputError(f"keep_best={keep_best} needs validation responses: {error}") from None
            warnings.append(f"evaluations do not measure {split} responses: {error}")
    return warnings


def _check_generation(
    model_settings: ModelSettings,
    algorithm: Algorithm,
    rollout: RolloutSettings,
    evaluation: EvaluationSettings,
    hottest: float,
    model: ModelFiles,
) -> None:
    """Check that the engine can decode with this model as training and evaluations require.

    Args:
        hottest: the higher temperature of the two.
    """
    if not model.is_encoder_decoder:
        check_decoding(evaluation.num_beams, hottest, rollout.engine)
    check_parallel(rollout, model)
    if model.is_encoder_decoder:
        check_encoder_decoder(model_settings, rollout.engine, evaluation, algorithm, model)


def _rooms(model: ModelFiles, drawn: int, held_out: int, *, demonstrates: bool) -> dict[Split, int | None]:
    """Return the most tokens of each split's prompts; None: no limit.

    Args:
        drawn: most tokens of a response in training.
        held_out: most tokens of a response in evaluations.
        demonstrates: whether training learns from references, for which it cuts prompts.
    """
    if demonstrates and not model.is_encoder_decoder:
        room = room_for_prompts(model, held_out)
        return {"train": None, "validation": room, "test": room}
    return dict.fromkeys(SPLITS, room_for_prompts(model, max(drawn, held_out)))


def _check_memory(
    model: ModelSettings,
    algorithm: Algorithm,
    learner: LearnerSettings,
    rollout: RolloutSettings,
    files: ModelFiles,
    *,
    training: bool,
) -> None:
    """Check that the run's models fit into memory, if their size is known."""
    share, base = share_and_base(model, files, files.num_parameters or 0)
    if files.num_parameters is None:
        return
    parts = model, algorithm, learner, rollout
    reference = num_parameters_of_reference(model) if training else None
    check_memory(MemoryNeeds(*parts, files.num_parameters, share, base, reference), training=training)


def _check_room(
    rollout: RolloutSettings, cluster: ClusterSettings, learner: LearnerSettings, rewards: Graders
) -> None:
    """Check that this machine has room for the run's processes."""
    if os.environ.get("RAY_ADDRESS"):  # nodes may join a cluster
        return
    gpus = find_gpus()
    num_gpus = len(gpus.names) if gpus.usable else 0
    check_room(rollout, cluster, learner, num_gpus, num_cores(), rewards)
