"""Derive what a run needs from its annotated data: columns, rewards, and responses of each prompt."""

from dataclasses import dataclass
from pathlib import Path

from contracts.errors import InputError
from contracts.rollout import Sampling
from learner.algorithms import ALGORITHMS
from learner.algorithms.base import Algorithm, Traits
from learner.algorithms.classes import algorithm_class
from reward_servers.settings import Part
from services.config.data_settings import DataSettings
from services.config.settings import RunSettings
from services.data.annotated.parts import read_manifest
from services.runs.claim import plain
from services.training.sources.mixed import mixture


@dataclass(frozen=True, slots=True)
class Needs:
    """Requirements of a run for its annotated data.

    Example: PPO with `data.share` needs scored responses, including rejected ones, and the reference's
    log-probabilities: `Needs(True, False, True, (Part("length"),), num_responses=1, only_good=False)`.
    """

    reference: bool  # the reference's log-probabilities
    values: bool
    scores: bool
    rewards: tuple[Part, ...] | None  # None: as annotated
    num_responses: int  # responses per example
    only_good: bool  # leave out rejected responses, unless they are compared

    @property
    def stages(self) -> list[str]:
        """Name the quantities that a run on rows computes at its start."""
        stages = [f"rewards by {', '.join(part.label for part in self.rewards or ())}"] if self.scores else []
        stages += ["log-probabilities of the start model"] if self.reference else []
        return stages + (["each prompt's value"] if self.values else [])


def needs_of(algorithm: Algorithm, reward: tuple[Part, ...], data: DataSettings) -> Needs:
    """Return what an algorithm needs from the data.

    Args:
        reward: the run's rewards.
    """
    if data.share is None:
        # Compared responses need no rewards, because the data set's order ranks them.
        scores = algorithm.needs_rewards and not algorithm.traits.whole_groups
        return Needs(
            reference=algorithm.needs_reference,
            values=algorithm.needs_values,
            scores=scores,
            rewards=(reward if scores else ()) if data.has_rows else data.reward,
            num_responses=num_responses(algorithm, data),
            only_good=not algorithm.traits.labels,
        )
    weighted, kl = algorithm.traits.mixes_data == "weighted", algorithm.kl
    earns = algorithm.traits.online  # imitation of reference texts uses no reward
    of_run = reward if earns else ()
    return Needs(
        reference=weighted or bool(kl.coefficient or kl.target),
        values=False,
        scores=earns,
        rewards=of_run if data.reward is None else data.reward,
        num_responses=num_responses(algorithm, data),
        only_good=not earns,
    )


def num_responses(algorithm: Algorithm, data: DataSettings) -> int:
    """Return the number of responses in one example of the data set."""
    traits = algorithm.traits
    compares = traits.whole_groups if data.share is None else bool(traits.default_group_size)
    return data.num_responses if compares else 1


def check_data_fits(settings: RunSettings) -> None:
    """Reject a run whose annotated data and algorithm do not fit.

    Raises:
        InputError: the algorithm needs data and has none, or algorithm or settings can't use the data.
    """
    name, data = settings.algorithm_name, settings.data
    if data is None:
        if settings.algorithm.traits.learns_from == "data":
            raise InputError(
                f"algorithm={name} learns from a data set: expected data=FOLDER with "
                f"{expected_rows(settings.algorithm)}, or the output of whetstone annotate … output=FOLDER"
            )
        return
    if settings.algorithm.traits.learns_from == "data" and data.share is not None:
        raise InputError(
            f"algorithm={name} learns from data alone: leave data.share={data.share:g} out, or choose an "
            f"algorithm that generates"
        )
    if settings.algorithm.traits.learns_from != "data":
        share = _share_of(data, name, settings.algorithm.traits)
        _check_teacher(settings.algorithm, share)
        sampling, level = settings.sampling(), settings.algorithm.credits
        if settings.algorithm.traits.mixes_data == "weighted":
            _check_weights(sampling, settings.learner.behavior, level, share)
        responses = num_responses(settings.algorithm, data)
        mixture(share, settings.rollout.prompts_per_iteration, settings.group_size, responses)
    needs = needs_of(settings.algorithm, settings.reward, data)
    if data.has_rows and needs.scores and not settings.reward:
        raise InputError(
            f"algorithm={name} weights responses by their rewards, but {data.source} has none: expected "
            f"reward=NAME, which scores them at the start, or data=FOLDER from whetstone annotate … "
            f"output=FOLDER"
        )
    if settings.plays:
        raise InputError(
            f"{data.source} has one response to each prompt, and "
            f"environment={settings.environment_name} has several turns: leave environment out"
        )


def _share_of(data: DataSettings, name: str, traits: Traits) -> float:
    """Return the data's share of a batch, for an algorithm that also generates.

    Raises:
        InputError: no share is set, or the algorithm can't mix.
    """
    if data.folder is not None and not Path(data.folder).exists():
        raise InputError(f"{data.source}: there is no such file or folder; expected rows, or an annotation")
    how = traits.mixes_data
    if data.share is None:
        known = [one for one in ALGORITHMS if algorithm_class(one).traits.learns_from == "data"]
        mix = ", or give data.share=0.25 to take a quarter of each batch from it" if how else ""
        raise InputError(
            f"{data.source} is for algorithms that learn from data ({', '.join(known)}); "
            f"algorithm={name} learns from {traits.learns_from}: leave data out{mix}"
        )
    if how is None:
        known = [one for one in ALGORITHMS if algorithm_class(one).traits.mixes_data]
        raise InputError(
            f"data.share={data.share:g}: algorithm={name} can't weight responses that the policy did not "
            f"write; expected one of {', '.join(known)}"
        )
    return data.share


def _check_teacher(algorithm: Algorithm, share: float) -> None:
    """Reject a data set's texts in a batch if the teacher can only score the model's own texts.

    Raises:
        InputError: the texts would teach nothing.
    """
    where = f"data.share={share:g}: a data set's texts would teach nothing"
    if algorithm.asks_teacher:
        raise InputError(
            f"{where}, because algorithm.teacher scores only the model's texts; leave data out, or load "
            "the teacher: model.reference.path=MODEL"
        )
    if algorithm.own_teacher is not None and algorithm.own_teacher.weight == 1:
        raise InputError(
            f"{where}, because the model's teacher reads only the model's texts; leave data out, or set "
            "algorithm.weight=0.5, so that rewards teach, too"
        )


def _check_weights(sampling: Sampling, behavior: str, level: str, share: float) -> None:
    """Reject settings with which π_old/μ is 0 for the data's tokens, or credit is not given to tokens."""
    cuts = {
        "rollout.top_k": sampling.top_k > 0,
        "rollout.top_p": sampling.top_p < 1,
        "rollout.min_tokens": sampling.min_tokens > 0,
    }
    if (keys := [key for key, cut in cuts.items() if cut]) and behavior == "exact":
        raise InputError(
            f"data.share={share:g}: with {', '.join(keys)} the policy never draws some tokens, and the data "
            f"may have them; leave {'these keys' if len(keys) > 1 else 'this key'} out"
        )
    if level != "token":
        raise InputError(
            f"data.share={share:g}: responses of the data are weighted token by token, but "
            f"algorithm.value_level={level} gives credit to whole turns; expected algorithm.value_level=token"
        )


def expected_rows(algorithm: Algorithm) -> str:
    """Say which rows an algorithm learns from."""
    if algorithm.traits.labels:
        return "rows of prompt, completion and label"
    if algorithm.traits.whole_groups and algorithm.needs_rewards:  # lists of any length
        return "rows of prompt and a ranked list of responses"
    return (
        "rows of prompt, chosen and rejected"
        if algorithm.traits.whole_groups
        else "rows of prompt and response"
    )


def check_same_rewards(data: DataSettings, needs: Needs) -> None:
    """Reject data whose rewards differ from the run's, because an update compares them.

    Raises:
        InputError: a reward of the same label was annotated with other options.
    """
    if data.share is None or data.reward is not None or not needs.rewards or data.has_rows:
        return
    annotated = read_manifest(data.annotation).get("rewards", {}).get("parts", {})
    for part in needs.rewards:
        reward = plain({"name": part.name, **part.options})
        if (kept := annotated.get(part.label)) is not None and kept != reward:
            raise InputError(
                f"{data.source}: reward '{part.label}' was annotated as {kept}, and this run's is "
                f"{reward}: their scores can't be compared in one batch. Annotate with the run's "
                f"reward, or give data.reward= if they are the same"
            )
