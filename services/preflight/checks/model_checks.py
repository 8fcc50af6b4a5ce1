"""Check the model's kind: what it can write with, how long, and split over how many GPUs."""

from contracts.errors import InputError
from learner.algorithms.base import Algorithm
from learner.settings import ModelSettings
from rollout_workers.engines.choice import choose_engine
from rollout_workers.settings import RolloutSettings
from services.config.evaluation_settings import EvaluationSettings
from services.models.files import ModelFiles
from services.models.shape import num_heads

VLLM_HOTTEST = 2.0  # the highest temperature that vLLM accepts


def check_decoding(beams: int, hottest: float, engine: str) -> None:
    """Check how a causal model's texts are searched or drawn.

    Args:
        hottest: the highest temperature of training and evaluations.
        engine: as asked for: rollout.engine.

    Raises:
        InputError: the engine may be vLLM, which can't do it.
    """
    if engine == "transformers":
        return
    if beams > 1:
        raise InputError(
            f"evaluation.num_beams={beams}: beam search is the transformers engine's, and "
            f"rollout.engine={engine} may be vLLM; expected rollout.engine=transformers"
        )
    if hottest > VLLM_HOTTEST:
        raise InputError(
            f"temperature={hottest:g}: vLLM takes at most {VLLM_HOTTEST:g}, and rollout.engine={engine} may "
            f"be vLLM; expected a lower temperature, or rollout.engine=transformers"
        )


def check_encoder_decoder(
    asked: ModelSettings,
    engine: str,
    evaluation: EvaluationSettings,
    algorithm: Algorithm,
    model: ModelFiles,
) -> None:
    """Refuse what an encoder-decoder can't do.

    Raises:
        InputError: with the setting that asks for it.
    """
    if evaluation.perplexity_stride is not None:
        raise InputError(
            "evaluation.perplexity_stride: an encoder-decoder has no likelihood of a text alone; leave it out"
        )
    where = f"model.path={asked.path} is an encoder-decoder ({model.config.get('model_type')})"
    if asked.trainable_layers is not None:
        raise InputError(f"{where}, and model.trainable_layers is for causal models alone; leave it out")
    if engine == "vllm":
        raise InputError(f"{where}, which vLLM can't run; expected rollout.engine=auto or transformers")
    if not algorithm.scores_first_token:
        raise InputError(
            f"{where}: a response's first token is no part of its prompt; expected "
            f"algorithm.suffix_mask=aligned"
        )
    if algorithm.loss_over == "text":
        raise InputError(
            f"{where}: its prompt is not part of what it writes; expected algorithm.loss_on=response"
        )


def check_parallel(rollout: RolloutSettings, model: ModelFiles) -> None:
    """Check that rollout.tensor_parallel_size GPUs can share the model.

    Raises:
        InputError: the engine is not vLLM, or the attention heads can't be shared out evenly.
    """
    heads, size = num_heads(model), rollout.tensor_parallel_size
    engine = choose_engine(rollout.engine, is_encoder_decoder=model.is_encoder_decoder)
    if size > 1 and engine != "vllm":
        raise InputError(
            f"rollout.tensor_parallel_size={size} is vLLM's, and the engine here is {engine}; expected 1"
        )
    if heads % size:
        raise InputError(
            f"rollout.tensor_parallel_size={size}: the model has {heads} attention heads, which can't be "
            "shared out evenly; expected a divisor"
        )


def check_model_classes(asked: ModelSettings) -> None:
    """Check a policy and a critic of the user's own, which alone need torch here.

    Raises:
        InputError: a class can't be imported, or is not of the expected form.
    """
    own_policy, own_critic = asked.policy != "auto", ":" in asked.critic
    if own_policy or own_critic:
        from learner.models import actor_critic

        if own_policy:
            actor_critic.own_policy(asked)
        if own_critic:
            actor_critic.critic_class(asked)


def room_for_prompts(model: ModelFiles, max_tokens: int) -> int | None:
    """Return the most tokens of a prompt that leave room for the response; None: no limit.

    Args:
        max_tokens: of the longest response.

    Raises:
        InputError: the response leaves no room.
    """
    if model.window is None:
        return None
    if model.is_encoder_decoder:  # prompt and response have a window each; the response's holds its start
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
