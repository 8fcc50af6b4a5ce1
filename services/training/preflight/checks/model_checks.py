"""Check whether the engine can run the model: decoding, lengths, and splitting over GPUs."""

from contracts.errors import InputError
from learner.algorithms.base import Algorithm
from learner.settings import ModelSettings
from rollout_workers.engines.choice import choose_engine
from rollout_workers.engines.traits import traits_of
from rollout_workers.settings import RolloutSettings
from services.config.evaluation_settings import EvaluationSettings
from services.models.files import ModelFiles
from services.models.shape import num_heads


def check_decoding(beams: int, hottest: float, engine: str) -> None:
    """Check how a causal model's texts are searched or sampled.

    Args:
        hottest: highest temperature of training and evaluations.
        engine: the user's rollout.engine.

    Raises:
        InputError: the engine, or vLLM if `auto` may choose it, lacks the decoding.
    """
    traits = traits_of(engine)
    if beams > 1 and not traits.searches_beams:
        raise InputError(
            f"evaluation.num_beams={beams}: {traits.title} has no beam search, and rollout.engine={engine}; "
            "expected rollout.engine=transformers"
        )
    if traits.hottest is not None and hottest > traits.hottest:
        raise InputError(
            f"temperature={hottest:g}: {traits.title} takes at most {traits.hottest:g}, and "
            f"rollout.engine={engine}; expected a lower temperature, or rollout.engine=transformers"
        )


def check_encoder_decoder(
    model_settings: ModelSettings,
    engine: str,
    evaluation: EvaluationSettings,
    algorithm: Algorithm,
    model: ModelFiles,
) -> None:
    """Reject settings that an encoder-decoder can't use.

    Raises:
        InputError: a setting does not fit; the message names it.
    """
    if evaluation.perplexity_stride is not None:
        raise InputError(
            "evaluation.perplexity_stride: an encoder-decoder can't score a text alone; leave it out"
        )
    where = f"model.path={model_settings.path} is an encoder-decoder ({model.config.get('model_type')})"
    if model_settings.trainable_layers is not None:
        raise InputError(f"{where}, but model.trainable_layers is for causal models only; leave it out")
    if engine != "auto" and not traits_of(engine).runs_encoder_decoders:
        raise InputError(
            f"{where}, which {traits_of(engine).title} can't run; expected rollout.engine=auto or "
            "transformers"
        )
    if not algorithm.scores_first_token:
        raise InputError(
            f"{where}: the prompt does not contain a response's first token; expected "
            f"algorithm.suffix_mask=aligned"
        )
    if algorithm.loss_over == "text":
        raise InputError(
            f"{where}: its responses do not contain the prompt; expected algorithm.loss_on=response"
        )


def check_parallel(rollout: RolloutSettings, model: ModelFiles) -> None:
    """Check that rollout.tensor_parallel_size GPUs can share the model.

    Raises:
        InputError: the engine can't split models, or the attention heads can't be shared out evenly.
    """
    heads, size = num_heads(model), rollout.tensor_parallel_size
    engine = choose_engine(rollout.engine, is_encoder_decoder=model.is_encoder_decoder)
    if size > 1 and not traits_of(engine).splits:
        raise InputError(
            f"rollout.tensor_parallel_size={size}: the engine here is {engine}, which can't split models; "
            "expected 1"
        )
    if heads % size:
        raise InputError(
            f"rollout.tensor_parallel_size={size}: the model has {heads} attention heads, which "
            "can't be shared out evenly; expected a divisor"
        )


def check_model_classes(model_settings: ModelSettings) -> None:
    """Check the user's policy and critic classes. Only these need torch here.

    Raises:
        InputError: a class can't be imported, or has the wrong form.
    """
    own_policy, own_critic = model_settings.policy != "auto", ":" in model_settings.critic
    if own_policy or own_critic:
        from learner.models import actor_critic

        if own_policy:
            actor_critic.own_policy(model_settings)
        if own_critic:
            actor_critic.critic_class(model_settings)


def room_for_prompts(model: ModelFiles, max_tokens: int) -> int | None:
    """Return the most tokens of a prompt that leave room for the response; None: no limit.

    Args:
        max_tokens: tokens of the longest response.

    Raises:
        InputError: the response leaves no room.
    """
    if model.window is None:
        return None
    if model.is_encoder_decoder:  # separate windows; the response's includes a start token
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
