"""Check everything that can be refused before anything is started, the cheap checks first."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from contracts.rollout import Prompt
from learner.algorithms.base import Algorithm
from learner.settings import LearnerSettings, ModelSettings
from reward_servers.by_part import trial_of_parts
from reward_servers.server import check_at_hand
from reward_servers.trial import Trial
from rollout_workers.settings import RolloutSettings
from services.config.settings import RunSettings
from services.models.files import ModelFiles, read_model
from services.models.token_counter import token_counter
from services.preflight.adapter_checks import check_adapter
from services.preflight.checked_prompts import CheckedPrompts, Reading, check_prompts
from services.preflight.deployment import deployment, this_machine
from services.preflight.environment_checks import check_environment
from services.preflight.gpu_defaults import fitted
from services.preflight.machine import find_gpus, num_cores
from services.preflight.memory import check_memory
from services.preflight.memory_model import MemoryNeeds, share_and_base
from services.preflight.model_checks import (
    check_decoding,
    check_encoder_decoder,
    check_model_classes,
    check_parallel,
    room_for_prompts,
)
from services.preflight.placement import check_room
from services.preflight.process_checks import check_processes
from services.preflight.reference_checks import (
    check_reference,
    least_room,
    num_parameters_of_reference,
)
from services.preflight.sampling_checks import check_behavior, check_staleness
from services.preflight.transport import choose_transport
from services.tasks.base import SPLITS, Split
from services.tokens import cut_prompts
from services.tracking.checks import check_tracking


@dataclass(frozen=True, slots=True)
class Checked:
    """Model files and prompts with which the run can work."""

    model: ModelFiles
    prompts: CheckedPrompts
    trial: Trial  # for trying the user's own rewards and metrics
    # The first training prompt of each part, of the only task under ""; {}: training learns from data alone
    first_prompts: Mapping[str, Prompt]

    @property
    def warnings(self) -> list[str]:
        """Name the splits whose prompts the model does not read whole, and what a chat template does."""
        found = self.prompts
        return [*cut_prompts.warnings(found.cut, found.examples), *found.of_chat]


def check(settings: RunSettings, *, training: bool = True) -> Checked:
    """Refuse a run that can't work. Nothing is started, nothing written.

    Args:
        training: False for an evaluation, which needs no learner and no training prompts.

    Raises:
        InputError: model, tokenizer, data, memory or a combination of settings is wrong.
    """
    algorithm, learner = settings.algorithm, settings.learner
    if training:
        check_tracking(settings.tracking)
        from services.sources.data_needs import check_data_fits  # imports pyarrow

        check_data_fits(settings)
    model, room = _check_model(settings)
    if training:
        if settings.model.adapter.trains:
            adapted = settings.model.adapter, algorithm, settings.algorithm_name
            check_adapter(*adapted, settings.rollout.engine, model)
        check_model_classes(settings.model)
        check_processes(learner, settings.model, algorithm, settings.cluster.learner_gpus, model)
        _check_room(settings)
        here = settings.rollout, settings.cluster, learner.num_processes, this_machine()
        deployed = deployment(*here, is_encoder_decoder=model.is_encoder_decoder)
        choose_transport(learner, settings.model, deployed)
        if reference := check_reference(settings.model, model):
            reads = room_for_prompts(reference, settings.sampling().max_tokens)
            room["train"] = least_room(room["train"], reads)
    _check_memory(settings.model, algorithm, learner, settings.rollout, model, training=training)
    if training and not os.environ.get("RAY_ADDRESS"):  # a cluster is asked what it has when the run starts
        fitted(settings, model, this_machine())
    if training and settings.data is not None:
        from services.sources.annotated_data import check_data  # imports pyarrow

        check_data(settings, model)
    asks_train = settings.data is None or settings.data.share is not None
    splits = SPLITS if training and asks_train else SPLITS[1:]
    prompts = check_prompts(settings, splits, Reading(model, token_counter(model), room))
    first = {part: own[0] for part, own in prompts.first.items()} if splits[0] == "train" else {}
    return Checked(model, prompts, trial_of_parts(prompts.first, settings.by_part), first)


def _check_model(settings: RunSettings) -> tuple[ModelFiles, dict[Split, int | None]]:
    """Check what writes texts, and how; return the model's files and each split's room for prompts."""
    rollout, algorithm, evaluation = settings.rollout, settings.algorithm, settings.evaluation
    drawn, held_out = settings.sampling(), settings.sampling(evaluating=True)
    check_behavior(settings.learner.behavior, drawn)
    check_staleness(
        rollout.max_staleness, drawn, algorithm, settings.algorithm_name, settings.model.adapter.serve
    )
    check_at_hand("reward", settings.reward)
    check_at_hand("metric", settings.metrics)
    model = read_model(settings.model)
    if not model.is_encoder_decoder:
        hottest = max(drawn.temperature, held_out.temperature)
        check_decoding(evaluation.num_beams, hottest, rollout.engine)
    check_parallel(rollout, model)
    if model.is_encoder_decoder:
        check_encoder_decoder(settings.model, rollout.engine, evaluation, algorithm, model)
    if settings.plays:
        name, path = settings.environment_name, settings.model.path
        environment = settings.environment.laid_out(by_template=settings.chat_form(model) is not None)
        check_environment(environment, name, rollout, path, model)
    if settings.demonstrates and not model.is_encoder_decoder:  # training cuts a prompt beside its reference
        room = room_for_prompts(model, held_out.max_tokens)
        return model, {"train": None, "validation": room, "test": room}
    return model, dict.fromkeys(SPLITS, room_for_prompts(model, max(drawn.max_tokens, held_out.max_tokens)))


def _check_memory(
    model: ModelSettings,
    algorithm: Algorithm,
    learner: LearnerSettings,
    rollout: RolloutSettings,
    files: ModelFiles,
    *,
    training: bool,
) -> None:
    """Check that the run's models fit into memory, where their size is known."""
    share, base = share_and_base(model, files, files.num_parameters or 0)
    if files.num_parameters is None:
        return
    parts = model, algorithm, learner, rollout
    reference = num_parameters_of_reference(model) if training else None
    check_memory(MemoryNeeds(*parts, files.num_parameters, share, base, reference), training=training)


def _check_room(settings: RunSettings) -> None:
    """Check that this machine has room for the run's processes."""
    if os.environ.get("RAY_ADDRESS"):  # nodes may join a cluster
        return
    gpus = find_gpus()
    num_gpus = len(gpus.names) if gpus.usable else 0
    asked = settings.rollout, settings.cluster, settings.learner
    check_room(*asked, num_gpus, num_cores(), settings.reserved_gpus)
