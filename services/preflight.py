"""Everything that can be refused before anything is started, the cheap checks first."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contracts.errors import InputError
from contracts.rollout import Prompt
from contracts.whole_texts import expect_whole
from learner.algorithms.base import Algorithm
from reward_servers.server import check_at_hand, has_reference, needs_meta, needs_references, shown_keys
from reward_servers.settings import Part
from reward_servers.trial import Trial, trial_of
from services import cut_prompts
from services.adapter_checks import check_adapter
from services.cut_prompts import CutExamples, CutPrompts, cut_examples, lengths
from services.environment_checks import check_environment, check_environment_prompts
from services.machine import find_gpus, num_cores
from services.memory import check_memory, share_and_base
from services.model_files import ModelFiles, read_model, shared_window
from services.model_shape import num_heads
from services.placement import check_room
from services.plan_processes import engine_of
from services.policy_perplexity import texts_of
from services.process_checks import check_processes
from services.settings import RunSettings
from services.tasks.base import SPLITS, ReadsAhead, Split
from services.token_counter import CountsTokens, token_counter
from services.tracking_checks import check_tracking

VLLM_HOTTEST = 2.0  # the highest temperature that vLLM accepts
LEAST_CONTEXT = 4  # tokens; an environment could hardly say less


@dataclass(frozen=True, slots=True)
class Checked:
    """The model's files, the number of prompts in each split that was looked at, and what is cut of them."""

    model: ModelFiles
    num_prompts: Mapping[Split, int]
    cut_prompts: Mapping[Split, CutPrompts]
    trial: Trial  # what the user's own rewards and metrics are to be tried on
    cut_examples: CutExamples | None = None  # of supervised training

    @property
    def warnings(self) -> list[str]:
        """Name the splits whose prompts the model does not read whole."""
        return cut_prompts.warnings(self.cut_prompts, self.cut_examples)


def check(settings: RunSettings, *, training: bool = True) -> Checked:
    """Refuse a run that can't work. Nothing is started, nothing written.

    Args:
        training: False for an evaluation, which needs no learner and no training prompts.

    Raises:
        InputError: model, tokenizer, data, memory or a combination of settings is wrong.
    """
    if training:
        check_tracking(settings.tracking)
    _check_algorithm(settings)
    if training:
        from services.data_needs import check_data_fits  # imports pyarrow

        check_data_fits(settings)
    _check_behavior(settings)
    _check_staleness(settings)
    check_at_hand("reward", settings.reward)
    check_at_hand("metric", settings.metrics)
    model = read_model(settings.model)
    _check_family(settings, model)
    check_environment(settings, model)
    room = {split: _room_for_prompts(settings, model, split) for split in SPLITS}
    if training and settings.model.adapter.trains:
        check_adapter(settings, model)
    if training:
        _check_model_classes(settings)
        check_processes(settings, model)
        _check_room(settings)
    _check_memory(settings, model, training)
    count = token_counter(model)
    if training and settings.data is not None:
        from services.annotated_data import check_data  # imports pyarrow

        check_data(settings, model)
    asks_train = settings.data is None or settings.data.share is not None
    splits = SPLITS if training and asks_train else SPLITS[1:]
    if isinstance(settings.task, ReadsAhead):
        for split in splits:
            _check_prompts(settings, split, settings.task.first_prompts(split), count, room[split])
    num_prompts: dict[Split, int] = {}
    cut: dict[Split, CutPrompts] = {}
    examples = None
    first: Sequence[Prompt] = ()
    for split in splits:
        prompts = prompts_of(settings, split)
        cut[split] = _check_prompts(settings, split, prompts, count, room[split])
        num_prompts[split] = len(prompts)
        if split == "train" and settings.demonstrates:
            limit, window = settings.prompt_limit(split), shared_window(model)
            examples = cut_examples(prompts, limit, settings.rollout.max_tokens, window, count)
        first = first or prompts[:2]
    return Checked(model, num_prompts, cut, trial_of(first), examples)


def _check_algorithm(settings: RunSettings) -> None:
    """One of the user's own needs the fields that the learner reads, too; its methods are checked already."""
    fields = [name for name, member in vars(Algorithm).items() if isinstance(member, property)]
    missing = [name for name in fields if not hasattr(settings.algorithm, name)]
    if missing:
        raise InputError(
            f"algorithm={settings.algorithm_name} is no algorithm: it lacks {', '.join(missing)}. The fields "
            f"and their meaning are those of learner.algorithms.base.Algorithm"
        )


def _check_model_classes(settings: RunSettings) -> None:
    """A policy and a critic of the user's own; torch, which these need, is not needed for the others."""
    own_policy, own_critic = settings.model.policy != "auto", ":" in settings.model.critic
    if own_policy or own_critic:
        from learner import actor_critic

        if own_policy:
            actor_critic.own_policy(settings.model)
        if own_critic:
            actor_critic.critic_class(settings.model)


def prompts_of(settings: RunSettings, split: Split) -> Sequence[Prompt]:
    """The task's prompts, checked to be some.

    Raises:
        InputError: the task can't read its data, or returns something else than prompts.
    """
    where = f"task={settings.task_name}: prompts({split!r})"
    try:
        prompts = settings.task.prompts(split)
    except InputError:
        raise
    except Exception as error:  # a user's task may raise anything
        raise InputError(f"{where} raised {type(error).__name__}: {error}") from error
    if not isinstance(prompts, Sequence) or len(prompts) == 0:
        raise InputError(f"{where}: expected a list of at least one prompt, got {_shown(prompts)}")
    for prompt in prompts:
        if not isinstance(prompt, Prompt):
            raise InputError(f"{where}: expected contracts.rollout.Prompt, got {_shown(prompt)}")
        if not isinstance(prompt.text, str):
            raise InputError(f"{where}: prompt {prompt.id}: expected a text, got {_shown(prompt.text)}")
        expect_whole([prompt.text, *prompt.references], f"{where}: prompt {prompt.id}")
    return prompts


def _room_for_prompts(settings: RunSettings, model: ModelFiles, split: Split) -> int | None:
    """Return the most tokens a prompt may have, so that the response fits behind it; None: no limit."""
    if model.window is None:
        return None
    max_tokens = settings.sampling(evaluating=True).max_tokens
    if settings.demonstrates and not model.is_encoder_decoder:
        if split == "train":  # each prompt is cut beside its reference
            return None
    else:
        max_tokens = max(max_tokens, settings.sampling().max_tokens)
    if model.is_encoder_decoder:  # prompt and response have a window each; the response's has its start token
        if max_tokens >= model.window:
            raise InputError(
                f"max_tokens={max_tokens} is more than the model's decoder can write: its window is "
                f"{model.window} tokens, one of them the start. Lower rollout.max_tokens or "
                f"evaluation.max_tokens"
            )
        return model.window
    room = model.window - max_tokens
    if room < 1:
        raise InputError(
            f"max_tokens={max_tokens} leaves no room for a prompt: the model's window is {model.window} "
            f"tokens. Lower rollout.max_tokens or evaluation.max_tokens"
        )
    return room


def _check_behavior(settings: RunSettings) -> None:
    """Importance weights correct for how likely a drawn token was, and never for one that can't be drawn."""
    if settings.learner.behavior != "importance":
        return
    sampling = settings.sampling()
    cuts = [
        name
        for name, cut in (
            ("rollout.top_k", sampling.top_k > 0),
            ("rollout.top_p", sampling.top_p < 1),
            ("rollout.min_tokens", sampling.min_tokens > 0),
            ("algorithm.name=nlpo", sampling.masked),
        )
        if cut
    ]
    if cuts:
        raise InputError(
            f"learner.behavior=importance corrects for a temperature only, and {', '.join(cuts)} leaves "
            f"tokens that are never drawn; expected learner.behavior=exact"
        )


def _check_staleness(settings: RunSettings) -> None:
    """A token that the mask of its own weights allowed, and the current one does not, has no ratio."""
    ahead = settings.rollout.max_staleness
    if ahead and settings.sampling().masked:
        raise InputError(
            f"rollout.max_staleness={ahead} with algorithm={settings.algorithm_name}: the mask may change "
            "while a text is written, and ratios are exact under one mask alone; expected "
            "rollout.max_staleness=0"
        )
    if ahead and settings.model.adapter.serve == "adapter":
        raise InputError(
            f"rollout.max_staleness={ahead} with model.adapter.serve=adapter: a text that vLLM has begun "
            "keeps the adapter it began with; expected model.adapter.serve=merged"
        )
    if ahead and not settings.algorithm.online:
        raise InputError(
            f"rollout.max_staleness={ahead} with algorithm={settings.algorithm_name}: nothing is written "
            "that could be ahead; expected rollout.max_staleness=0"
        )


def _check_room(settings: RunSettings) -> None:
    """On a cluster, others may come; on this machine there is what there is."""
    if os.environ.get("RAY_ADDRESS"):
        return
    gpus = find_gpus()
    check_room(settings, len(gpus.names) if gpus.usable else 0, num_cores())


def _check_memory(settings: RunSettings, model: ModelFiles, training: bool) -> None:
    count = model.num_parameters
    share, base = share_and_base(settings, model, count or 0)
    if count is not None:
        check_memory(settings, count, training=training, trained_share=share, base_bytes=base)


def _check_family(settings: RunSettings, model: ModelFiles) -> None:
    """What only some kinds of model can do."""
    beams, engine = settings.evaluation.num_beams, settings.rollout.engine
    if beams > 1 and engine != "transformers" and not model.is_encoder_decoder:
        raise InputError(
            f"evaluation.num_beams={beams}: beam search is the transformers engine's, and "
            f"rollout.engine={engine} may be vLLM; expected rollout.engine=transformers"
        )
    hottest = max(settings.sampling().temperature, settings.sampling(evaluating=True).temperature)
    if hottest > VLLM_HOTTEST and engine != "transformers" and not model.is_encoder_decoder:
        raise InputError(
            f"temperature={hottest:g}: vLLM takes at most {VLLM_HOTTEST:g}, and rollout.engine={engine} may "
            f"be vLLM; expected a lower temperature, or rollout.engine=transformers"
        )
    _check_parallel(settings, model)
    if not model.is_encoder_decoder:
        return
    if settings.evaluation.perplexity_stride is not None:
        raise InputError(
            "evaluation.perplexity_stride: an encoder-decoder has no likelihood of a text alone; leave it out"
        )
    where = f"model.path={settings.model.path} is an encoder-decoder ({model.config.get('model_type')})"
    if settings.model.trainable_layers is not None:
        raise InputError(f"{where}, and model.trainable_layers is for causal models alone; leave it out")
    if settings.rollout.engine == "vllm":
        raise InputError(f"{where}, which vLLM can't run; expected rollout.engine=auto or transformers")
    if getattr(settings.algorithm, "suffix_mask", "aligned") == "shifted":
        raise InputError(
            f"{where}: a response's first token is no part of its prompt; expected "
            f"algorithm.suffix_mask=aligned"
        )
    if getattr(settings.algorithm, "loss_on", "response") == "text":
        raise InputError(
            f"{where}: its prompt is not part of what it writes; expected algorithm.loss_on=response"
        )


def _check_parallel(settings: RunSettings, model: ModelFiles) -> None:
    """What can be split over several GPUs."""
    heads, size = num_heads(model), settings.rollout.tensor_parallel_size
    if size > 1 and (engine := engine_of(settings, model)) != "vllm":
        raise InputError(
            f"rollout.tensor_parallel_size={size} is vLLM's, and the engine here is {engine}; expected 1"
        )
    if heads % size:
        raise InputError(
            f"rollout.tensor_parallel_size={size}: the model has {heads} attention heads, which can't be "
            "shared out evenly; expected a divisor"
        )


def _check_prompts(
    settings: RunSettings, split: Split, prompts: Sequence[Prompt], count: CountsTokens, room: int | None
) -> CutPrompts:
    """Refuse prompts that can't be used; return how many of those that the run asks are cut."""
    _check_references(settings, prompts)
    _check_meta(settings, prompts)
    if split != "train" and settings.evaluation.perplexity_stride is not None:
        texts_of(prompts, settings.evaluation.perplexity_meta)
    check_environment_prompts(settings, prompts)
    limit = settings.prompt_limit(split)
    num_asked = len(prompts) if split == "train" else settings.evaluation.num_prompts or len(prompts)
    num_asked = min(num_asked, len(prompts))
    if settings.plays:  # its first words are the environment's, and cut where they are too long
        least = min(most for most in (room, limit.max_tokens, LEAST_CONTEXT) if most is not None)
        if least < LEAST_CONTEXT:
            raise InputError(
                f"rollout.max_tokens and rollout.max_prompt_tokens leave {least} tokens for what the world "
                f"says; expected {LEAST_CONTEXT} or more: lower the former, or raise the latter"
            )
        return CutPrompts(split, num_asked, 0, limit)
    num_cut = 0
    for number, length in enumerate(lengths((prompt.text for prompt in prompts), count)):
        num_cut += number < num_asked and limit.cuts(length)
        if room is not None and min(length, limit.max_tokens or length) > room:
            raise InputError(
                f"prompt {prompts[number].id} has {length} tokens, and the model's window leaves room for "
                f"{room} beside the response. rollout.max_prompt_tokens={room} keeps the {limit.kept} {room} "
                f"of each (task.truncation_side={limit.side}); or lower rollout.max_tokens"
            )
    return CutPrompts(split, num_asked, num_cut, limit)


def _check_references(settings: RunSettings, prompts: Sequence[Prompt]) -> None:
    """Graders that compare with references need some."""
    lacking = next((prompt for prompt in prompts if not has_reference(prompt.references)), None)
    if lacking is None:
        return
    given = "only empty ones" if lacking.references else "none"
    remedy = (
        "Leave it out of the data"
        if lacking.references
        else "The task prompts takes them from a column of yours: task.references_column="
    )
    asks_perplexity = settings.evaluation.perplexity_stride is not None
    if asks_perplexity and settings.evaluation.perplexity_meta is None:
        raise InputError(
            f"evaluation.perplexity_stride asks for the references' perplexity, and prompt {lacking.id} has "
            f"{given}. {remedy}"
        )
    if settings.demonstrates:
        raise InputError(
            f"algorithm={settings.algorithm_name} learns to write references, and prompt {lacking.id} has "
            f"{given}. {remedy}"
        )
    for key, kind, part in _graders(settings):
        if needs_references(kind, part):
            raise InputError(
                f"{key}={part.name} compares with references, and prompt {lacking.id} has {given}. {remedy}"
            )


def _check_meta(settings: RunSettings, prompts: Sequence[Prompt]) -> None:
    """Graders that read a prompt's meta data find it there."""
    needs = [
        (key, part, needed) for key, kind, part in _graders(settings) if (needed := needs_meta(kind, part))
    ]
    if not needs:
        return
    for prompt in prompts:
        for key, part, needed in needs:
            missing = [name for name in needed if prompt.meta.get(name) is None]
            if missing:
                raise InputError(
                    f"{key}={part.name} needs meta data {', '.join(missing)}, and task={settings.task_name} "
                    f"gives: {shown_keys(prompt.meta)} (prompt {prompt.id}). Choose another for this task"
                )


def _graders(settings: RunSettings) -> list[tuple[str, str, Part]]:
    """Each one's key in the configuration, its kind, and the part itself."""
    rewards = [("reward", "reward", part) for part in settings.reward]
    return rewards + [("metrics", "metric", part) for part in settings.metrics]


def _shown(value: object) -> str:
    return f"{type(value).__name__} {value!r:.80}"
