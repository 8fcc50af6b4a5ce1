"""A run's annotated data set: opened for its algorithm, checked beforehand, its epochs as iterations."""

from pathlib import Path
from typing import Any

from contracts.errors import InputError, LearnerError
from learner.algorithms.base import Checks
from services.annotated_rows import check_vocabulary, read_annotated
from services.annotation import TOLD, read_manifest, reference_fingerprint
from services.data_needs import check_same_rewards, needs_of
from services.data_settings import DataSettings
from services.leasing import LeaseSource
from services.mixed_source import MixedSource
from services.model_files import ModelFiles, read_model
from services.offline_source import OfflineSource
from services.response_tokens import ResponseTokens
from services.settings import RunSettings


def open_source(settings: RunSettings, tokenizer: Any) -> OfflineSource:
    """The rows that the algorithm can learn from, at the beginning of their first epoch.

    Raises:
        InputError: there is no such annotation; it lacks what the algorithm needs, is of another vocabulary,
            or has nothing to learn from.
    """
    data, rollout = _data(settings), settings.rollout
    needs = needs_of(settings, data)
    rows = read_annotated(
        Path(data.folder), needs.rewards, needs_reference=needs.reference, needs_values=needs.values
    )
    check_same_rewards(data, needs)
    if needs.scores and rows.rewards_M is None:
        raise InputError(
            f"data={data.folder} has no rewards, which algorithm={settings.algorithm_name} needs: the "
            f"command that annotated it with reward=NAME adds them, and does nothing again that is done"
        )
    check_vocabulary(Path(data.folder), tokenizer)
    return OfflineSource(
        rows,
        settings.algorithm,
        seed=settings.seed,
        to_tokens=ResponseTokens(tokenizer, settings.prompt_limit("train"), rollout.max_tokens, room=None),
        num_responses=needs.num_responses,
        rank_by=data.rank_by,
        only_good=needs.only_good,
    )


def check_data(settings: RunSettings, model: ModelFiles) -> None:
    """Refuse data that the algorithm or the model can't train on.

    Raises:
        InputError: as `open_source`, or that responses don't fit in the model's window, or that the first
            iteration's are refused by the algorithm.
    """
    from services.train import load_tokenizer

    source = open_source(settings, load_tokenizer(settings))
    longest = source.longest(apart=model.is_encoder_decoder)
    if model.window is not None and longest > model.window:
        raise InputError(
            f"data={_data(settings).folder}: the longest example has {longest} tokens, "
            f"and the model's window is {model.window}. Annotate with a lower rollout.max_prompt_tokens or "
            f"rollout.max_tokens; without a reference in the data, those of this run count"
        )
    if isinstance(settings.algorithm, Checks) and _data(settings).share is None:
        try:
            settings.algorithm.check(source.next(settings.rollout.prompts_per_iteration))
        except LearnerError as error:
            raise InputError(f"algorithm={settings.algorithm_name}: {error}") from None


def with_iterations(settings: RunSettings) -> RunSettings:
    """Count the iterations that `data.num_epochs` take, and those between two evaluations, where given."""
    from services.train import load_tokenizer

    data = settings.data
    if data is None or data.num_epochs is None:
        return settings
    source = open_source(settings, load_tokenizer(settings))
    an_epoch = source.num_batches(1, settings.rollout.prompts_per_iteration)
    counted = {"iterations": data.num_epochs * an_epoch}
    if data.evaluations_per_epoch is not None:
        counted["evaluate_every"] = max(1, an_epoch // data.evaluations_per_epoch)
    return settings.model_copy(update=counted)


def mixed_with(settings: RunSettings, prompts: LeaseSource, source: OfflineSource) -> MixedSource:
    """The prompts' own rollouts and the data's, in the shares that `data.share` asks for."""
    data = _data(settings)
    if data.share is None:
        raise ValueError("there is no data.share= to mix by")
    num_responses = needs_of(settings, data).num_responses
    return MixedSource(prompts, source, data.share, settings.group_size, num_responses)


def summary(source: OfflineSource) -> str:
    """One line for a person.

    Example: `data: 640 examples an epoch, 36 % dropped; left out before: 2 not scored`
    """
    told = f"data: {source.num_kept} examples an epoch"
    if source.share_dropped:
        told += f", {source.share_dropped:.0%} dropped"
    if source.left_out:
        counts = ", ".join(f"{count} {reason}" for reason, count in source.left_out.items())
        told += f"; left out before: {counts}"
    return told


def other_reference(settings: RunSettings) -> str | None:
    """A sentence for people, where the log-probabilities that the algorithm needs are another model's."""
    data = _data(settings)
    found = read_manifest(Path(data.folder)).get("reference")
    if data.share is not None or found is None or not needs_of(settings, data).reference:
        return None
    model = read_model(settings.model)
    if found.get("sha256") == reference_fingerprint(settings.model.path, model.folder):
        return None
    return (
        f"data={data.folder} was annotated with reference={found.get(TOLD)}, and the files of "
        f"model.path={settings.model.path} are others: importance weights and the distance to the reference "
        f"are then measured from a model that training did not start from"
    )


def other_values(settings: RunSettings) -> str | None:
    """Say for people where the values that the algorithm needs were learned otherwise than `data.value`.

    Example: "data=annotated has values learned with num_epochs=10, and data.value says 5: …"
    """
    data = _data(settings)
    if data.value is None or not needs_of(settings, data).values:
        return None
    manifest = read_manifest(Path(data.folder))
    found = {**manifest.get("generations", {}), **manifest.get("value", {})}
    asked = data.value.model_dump(mode="json")
    if differs := [
        f"{key}={found[key]} for {asked[key]}" for key in asked if found.get(key, asked[key]) != asked[key]
    ]:
        return (
            f"data={data.folder} has values that were learned with {', '.join(differs)} of data.value; "
            f"whetstone annotate experiment=… value=true overwrite=true learns them as the experiment says"
        )
    return None


def _data(settings: RunSettings) -> DataSettings:
    if settings.data is None:
        raise ValueError("there is no data= to open")
    return settings.data
