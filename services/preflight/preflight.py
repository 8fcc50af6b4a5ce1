"""Check everything that can be refused before anything is started, the cheap checks first."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contracts.chat import Chat
from contracts.rollout import Prompt
from learner.settings import LearnerSettings
from reward_servers.server import check_at_hand
from reward_servers.trial import Trial, trial_of
from rollout_workers.settings import RolloutSettings
from services.config.cluster_settings import ClusterSettings
from services.config.settings import RunSettings
from services.loop.policy_perplexity import texts_of
from services.models.files import ModelFiles, read_model, shared_window
from services.models.token_counter import CountsTokens, token_counter
from services.preflight.adapter_checks import check_adapter
from services.preflight.chat_checks import chat_warnings, checked_chat
from services.preflight.environment_checks import check_environment, check_environment_prompts
from services.preflight.machine import find_gpus, num_cores
from services.preflight.memory import MemoryNeeds, check_memory, share_and_base
from services.preflight.model_checks import (
    check_decoding,
    check_encoder_decoder,
    check_model_classes,
    check_parallel,
    room_for_prompts,
)
from services.preflight.placement import check_room
from services.preflight.process_checks import check_processes
from services.preflight.prompt_checks import (
    check_context,
    check_meta,
    check_references,
    graders_of,
    num_cut,
)
from services.preflight.reference_checks import (
    check_reference,
    least_room,
    num_parameters_of_reference,
)
from services.preflight.sampling_checks import check_behavior, check_staleness
from services.sources.prompts import prompts_of
from services.tasks.base import SPLITS, ReadsAhead, Split
from services.tokens import cut_prompts
from services.tokens.cut_prompts import CutExamples, CutPrompts, cut_examples
from services.tracking.checks import check_tracking


@dataclass(frozen=True, slots=True)
class Checked:
    """Model files, the number of prompts in each checked split, and how many of them are cut."""

    model: ModelFiles
    num_prompts: Mapping[Split, int]
    cut_prompts: Mapping[Split, CutPrompts]
    trial: Trial  # for trying the user's own rewards and metrics
    cut_examples: CutExamples | None = None  # supervised training's
    first_prompt: Prompt | None = None  # of training; None: it learns from data alone
    of_chat: Sequence[str] = ()  # warnings about the chat template

    @property
    def warnings(self) -> list[str]:
        """Name the splits whose prompts the model does not read whole, and what a chat template does."""
        return [*cut_prompts.warnings(self.cut_prompts, self.cut_examples), *self.of_chat]


def check(settings: RunSettings, *, training: bool = True) -> Checked:
    """Refuse a run that can't work. Nothing is started, nothing written.

    Args:
        training: False for an evaluation, which needs no learner and no training prompts.

    Raises:
        InputError: model, tokenizer, data, memory or a combination of settings is wrong.
    """
    if training:
        check_tracking(settings.tracking)
        from services.sources.data_needs import check_data_fits  # imports pyarrow

        check_data_fits(settings)
    model, room = _check_model(settings)
    if training:
        _check_learner(settings, model)
        if reference := check_reference(settings.model, model):
            reads = room_for_prompts(reference, settings.sampling().max_tokens)
            room["train"] = least_room(room["train"], reads)
    _check_memory(settings, model, training=training)
    count, chat = token_counter(model), checked_chat(settings, model)
    if training and settings.data is not None:
        from services.sources.annotated_data import check_data  # imports pyarrow

        check_data(settings, model)
    asks_train = settings.data is None or settings.data.share is not None
    splits = SPLITS if training and asks_train else SPLITS[1:]
    if isinstance(settings.task, ReadsAhead):
        for split in splits:
            _check_prompts(settings, split, settings.task.first_prompts(split), count, room[split], chat)
    num_prompts: dict[Split, int] = {}
    cut: dict[Split, CutPrompts] = {}
    examples = None
    first: Sequence[Prompt] = ()
    for split in splits:
        prompts = prompts_of(settings.task, settings.task_name, split)
        cut[split] = _check_prompts(settings, split, prompts, count, room[split], chat)
        num_prompts[split] = len(prompts)
        if split == "train" and settings.demonstrates:
            limit, window = settings.prompt_limit(split), shared_window(model)
            examples = cut_examples(prompts, limit, settings.rollout.max_tokens, window, count, chat)
        first = first or prompts[:2]
    trained = first[0] if splits[0] == "train" else None
    of_chat = chat_warnings(chat, settings, model)
    return Checked(model, num_prompts, cut, trial_of(first), examples, trained, of_chat)


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


def _check_learner(settings: RunSettings, model: ModelFiles) -> None:
    """Check what trains the model, and that its processes have room."""
    adapter, algorithm, learner = settings.model.adapter, settings.algorithm, settings.learner
    if adapter.trains:
        check_adapter(adapter, algorithm, settings.algorithm_name, settings.rollout.engine, model)
    check_model_classes(settings.model)
    gpus_each = settings.cluster.learner_gpus
    check_processes(learner.num_processes, settings.model, algorithm, gpus_each, model)
    _check_room(settings.rollout, settings.cluster, learner)


def _check_memory(settings: RunSettings, model: ModelFiles, *, training: bool) -> None:
    """Check that the run's models fit into memory, where their size is known."""
    share, base = share_and_base(settings.model, model, model.num_parameters or 0)
    if model.num_parameters is None:
        return
    parts = settings.model, settings.algorithm, settings.learner, settings.rollout
    reference = num_parameters_of_reference(settings.model) if training else None
    check_memory(MemoryNeeds(*parts, model.num_parameters, share, base, reference), training=training)


def _check_room(rollout: RolloutSettings, cluster: ClusterSettings, learner: LearnerSettings) -> None:
    """Check that this machine has room for the run's processes."""
    if os.environ.get("RAY_ADDRESS"):  # nodes may join a cluster
        return
    gpus = find_gpus()
    num_gpus = len(gpus.names) if gpus.usable else 0
    check_room(rollout, cluster, learner, num_gpus, num_cores())


def _check_prompts(
    settings: RunSettings,
    split: Split,
    prompts: Sequence[Prompt],
    count: CountsTokens,
    room: int | None,
    chat: Chat | None,
) -> CutPrompts:
    """Refuse prompts that the run can't use; return how many of those that it asks are cut."""
    evaluation, graders = settings.evaluation, graders_of(settings.reward, settings.metrics)
    imitated_by = settings.algorithm_name if settings.demonstrates else None
    check_references(prompts, evaluation, graders, imitated_by)
    check_meta(prompts, graders, settings.task_name)
    if split != "train" and evaluation.perplexity_stride is not None:
        texts_of(prompts, evaluation.perplexity_meta)
    check_environment_prompts(settings.environment, settings.environment_name, settings.task_name, prompts)
    limit = settings.prompt_limit(split)
    num_asked = len(prompts) if split == "train" else evaluation.num_prompts or len(prompts)
    num_asked = min(num_asked, len(prompts))
    if settings.plays:
        check_context(room, limit)
        if chat is not None:
            for prompt in prompts:
                if prompt.messages:
                    chat.of_prompt(prompt)
        return CutPrompts(split, num_asked, 0, limit)
    return CutPrompts(split, num_asked, num_cut(prompts, num_asked, limit, room, count, chat), limit)
