"""Open and check a run's annotated data set, and convert its epochs to iterations."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from contracts.conversations.chat_settings import ChatForm
from contracts.errors import InputError, LearnerError
from contracts.rollout import Rollout
from learner.algorithms.base import Algorithm
from learner.settings import ModelSettings
from services.config.data_settings import DataSettings
from services.config.settings import RunSettings
from services.data.annotated.parts import TOLD, read_manifest, reference_fingerprint
from services.data.annotated.rows import AnnotatedRows, check_vocabulary, read_annotated
from services.data.annotated.task import disagreement
from services.data.tokens.response_tokens import ResponseTokens
from services.models.adapters import for_use, model_in_words
from services.models.files import ModelFiles, read_model
from services.models.tokenizer import load_tokenizer
from services.runs.claim import plain
from services.training.sources.data_needs import Needs, check_same_rewards, expected_rows, needs_of
from services.training.sources.offline import OfflineSource
from services.training.sources.own_rows import as_they_are, is_annotated, kept_in, rows_of, tokens_of


def open_source(settings: RunSettings, tokenizer: Any) -> OfflineSource:
    """Return the source of the rows that the algorithm can learn from, before the first epoch.

    Raises:
        InputError: the folder has no annotation, or the annotation lacks what the algorithm needs, has
            another vocabulary, or teaches nothing.
    """
    data = _given(settings.data)
    needs = needs_of(settings.algorithm, settings.reward, data)
    name = settings.algorithm_name
    if data.has_rows:
        rows = _own(data, needs, kept_in(settings.run_folder, "train"), settings.algorithm, name)
    else:
        rows = _annotated(data, needs, tokenizer, name)
    to_tokens = tokens_of(settings, tokenizer)
    return source_of(rows, settings.algorithm, needs, data, to_tokens, settings.seed)


def source_of(
    rows: AnnotatedRows,
    algorithm: Algorithm,
    needs: Needs,
    data: DataSettings,
    to_tokens: ResponseTokens,
    seed: int,
) -> OfflineSource:
    """Return the source of these rows."""
    return OfflineSource(
        rows,
        algorithm,
        seed=seed,
        to_tokens=to_tokens,
        num_responses=needs.num_responses,
        rank_by=data.rank_by,
        only_good=needs.only_good,
    )


def _annotated(data: DataSettings, needs: Needs, tokenizer: Any, name: str) -> AnnotatedRows:
    rows = read_annotated(
        data.annotation, needs.rewards, needs_reference=needs.reference, needs_values=needs.values
    )
    check_same_rewards(data, needs)
    if needs.scores and rows.rewards_M is None:
        raise InputError(
            f"{data.source} has no rewards, which algorithm={name} needs: repeat the "
            f"command that annotated it, with reward=NAME; it adds the rewards and keeps the rest"
        )
    check_vocabulary(data.annotation, tokenizer)
    return rows


def _own(data: DataSettings, needs: Needs, folder: Path, algorithm: Algorithm, name: str) -> AnnotatedRows:
    """Return the run's own rows, with the annotation in its folder if it is complete."""
    try:
        rows = rows_of(data, "train").rows
    except InputError as error:
        message = f"{str(error).rstrip('.')}. algorithm={name} learns from {expected_rows(algorithm)}"
        raise InputError(message) from None
    if not needs.stages or not is_annotated(folder, rows):
        return as_they_are(rows, needs)
    return read_annotated(
        folder,
        needs.rewards,
        needs_reference=needs.reference,
        needs_values=needs.values,
    )


def check_lengths(source: OfflineSource, data: DataSettings, model: ModelFiles) -> None:
    """Reject data whose prompts and responses are longer than the model's window.

    Raises:
        InputError: the longest example exceeds the window; the message names both lengths in tokens.
    """
    longest = source.longest(apart=model.is_encoder_decoder)
    if model.window is not None and longest > model.window:
        how = "Set a lower" if data.has_rows else "Annotate with a lower"
        more = "" if data.has_rows else "; data without a reference are cut by the run's own keys"
        raise InputError(
            f"{data.source}: the longest example has {longest} tokens, and the model's window is "
            f"{model.window}. {how} rollout.max_prompt_tokens or rollout.max_tokens{more}"
        )


def check_first_batch(
    source: OfflineSource, algorithm: Algorithm, name: str, num_prompts: int, *, has_rows: bool
) -> None:
    """Reject data whose first iteration the algorithm can't learn from.

    Args:
        name: name of the algorithm.
        num_prompts: prompts of an iteration.
        has_rows: whether a run computes the algorithm's numbers only at its start.

    Raises:
        InputError: the algorithm rejects the batch; the message gives its reason.
    """
    rollouts = source.next(num_prompts)
    try:
        algorithm.check(list(map(_as_if_scored, rollouts)) if has_rows else rollouts)
    except LearnerError as error:
        raise InputError(f"algorithm={name}: {error}") from None


def _as_if_scored(rollout: Rollout) -> Rollout:
    turns = [replace(turn, behavior_logprobs=(-1.0,) * len(turn.tokens)) for turn in rollout.turns]
    return replace(rollout, turns=tuple(turns))


def with_iterations(settings: RunSettings) -> RunSettings:
    """Return settings with `data.num_epochs` and `data.evaluations_per_epoch` converted to iterations."""
    data = settings.data
    if data is None or data.num_epochs is None:
        return settings
    source = open_source(settings, load_tokenizer(settings.model))
    an_epoch = source.num_batches(1, settings.rollout.prompts_per_iteration)
    counted = {"iterations": data.num_epochs * an_epoch}
    if data.evaluations_per_epoch is not None:
        counted["evaluate_every"] = max(1, an_epoch // data.evaluations_per_epoch)
    return settings.model_copy(update=counted)


def summary(source: OfflineSource) -> str:
    """Return one line for the console.

    Example: `data: 640 examples an epoch, 36 % dropped; left out before: 2 not scored`
    """
    text = f"data: {source.num_kept} examples an epoch"
    if source.share_dropped:
        text += f", {source.share_dropped:.0%} dropped"
    if source.left_out:
        counts = ", ".join(f"{count} {reason}" for reason, count in source.left_out.items())
        text += f"; left out before: {counts}"
    return text


def warnings(
    data: DataSettings, needs: Needs, model: ModelSettings, task_name: str, chat: ChatForm | None = None
) -> list[str]:
    """Return warnings about the data, one sentence each.

    Args:
        chat: chat template with which the run reads prompts; None: plain texts.
    """
    if data.has_rows:
        return []
    texts = (
        disagreement(data.annotation, task_name),
        other_reference(data, needs, model),
        other_template(data, chat),
        other_values(data, needs),
    )
    return [warning for warning in texts if warning]


def other_reference(data: DataSettings, needs: Needs, model: ModelSettings) -> str | None:
    """Return a warning if another model computed the log-probabilities for the algorithm, else None."""
    reference = read_manifest(data.annotation).get("reference")
    if data.share is not None or reference is None or not needs.reference:
        return None
    whole = for_use(model)
    if reference.get("sha256") == reference_fingerprint(whole.path, read_model(whole).folder):
        return None
    return (
        f"{data.source} was annotated with reference={reference.get(TOLD)}, and the files of "
        f"model.path={model_in_words(model)} differ: importance weights and the distance to the reference "
        f"then refer to a model that training did not start from"
    )


def other_template(data: DataSettings, chat: ChatForm | None) -> str | None:
    """Return a warning if the annotated prompts have another chat template than the run's, else None."""
    reference = read_manifest(data.annotation).get("reference")
    now = None if chat is None else plain(chat.plain())
    if reference is None or reference.get("chat") == now:
        return None
    return (
        f"{data.source} has tokens of prompts that were read {said_of_form(reference.get('chat'))}, and "
        f"this run reads prompts {said_of_form(now)}: model.chat and annotate's chat differ"
    )


def said_of_form(form: Mapping[str, Any] | None) -> str:
    """Say how prompts become text.

    >>> said_of_form(None), said_of_form({"system": "Be brief."})
    ('as plain text', "by a chat template with system='Be brief.'")
    """
    if form is None:
        return "as plain text"
    options = ", ".join(f"{name}={value!r}" for name, value in form.items() if value)
    return "by a chat template" + (f" with {options}" if options else "")


def other_values(data: DataSettings, needs: Needs) -> str | None:
    """Return a warning if the values that the algorithm needs were learned with other settings, else None.

    Example: "data=a has values that were not learned as data.value says: num_epochs=10 instead of 5; …"
    """
    if data.value is None or not needs.values:
        return None
    manifest = read_manifest(data.annotation)
    annotated = {**manifest.get("generations", {}), **manifest.get("value", {})}
    settings = data.value.model_dump(mode="json")
    if differs := [
        f"{key}={annotated[key]} instead of {settings[key]}"
        for key in settings
        if annotated.get(key, settings[key]) != settings[key]
    ]:
        return (
            f"{data.source} has values that were not learned as data.value says: {', '.join(differs)}; "
            f"whetstone annotate experiment=… value=true overwrite=true learns them as the experiment says"
        )
    return None


def _given(data: DataSettings | None) -> DataSettings:
    if data is None:
        raise ValueError("there is no data= to open")
    return data
