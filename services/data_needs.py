"""What a run asks of its annotated data: columns, rewards, how many responses of a prompt, which of them."""

from dataclasses import dataclass
from pathlib import Path

from contracts.components import find
from contracts.errors import InputError
from learner.algorithms import ALGORITHMS
from learner.algorithms.base import learns_from, mixes_data
from reward_servers.settings import Part
from services.annotation import read_manifest
from services.data_settings import DataSettings
from services.mixed_source import mixture
from services.run_claim import plain
from services.settings import RunSettings


@dataclass(frozen=True, slots=True)
class Needs:
    """Example: PPO with `data.share` needs scored responses, rejected ones too, and the reference's
    log-probabilities: `Needs(True, False, True, (Part("length"),), num_responses=1, only_good=False)`.
    """

    reference: bool  # log-probabilities
    values: bool
    scores: bool
    rewards: tuple[Part, ...] | None  # None: as annotated
    num_responses: int  # that an example has
    only_good: bool  # rejected responses are left out, unless they are compared


def needs_of(settings: RunSettings, data: DataSettings) -> Needs:
    algorithm = settings.algorithm
    if data.share is None:
        compares = bool(getattr(algorithm, "whole_groups", False))
        return Needs(
            reference=bool(getattr(algorithm, "needs_reference", False)),
            values=bool(getattr(algorithm, "needs_values", False)),
            # Of responses that are compared, the data set's order says enough.
            scores=bool(getattr(algorithm, "needs_rewards", False)) and not compares,
            rewards=data.reward,
            num_responses=data.num_responses if compares else 1,
            only_good=True,
        )
    weighted, kl = mixes_data(algorithm) == "weighted", algorithm.kl
    earns = algorithm.online  # imitation of references minds no reward
    own = settings.reward if earns else ()
    return Needs(
        reference=weighted or bool(kl.coefficient or kl.target),
        values=False,
        scores=earns,
        rewards=own if data.reward is None else data.reward,
        num_responses=data.num_responses if hasattr(algorithm, "default_group_size") else 1,
        only_good=not earns,
    )


def check_data_fits(settings: RunSettings) -> None:
    """Annotated data, and algorithms that learn from such or take some of it, need each other.

    Raises:
        InputError: they do not fit, or other settings do not.
    """
    name, data = settings.algorithm_name, settings.data
    if data is None:
        if learns_from(settings.algorithm) == "data":
            raise InputError(
                f"algorithm={name} learns from an annotated data set: expected data=FOLDER, which "
                f"whetstone annotate … output=FOLDER makes"
            )
        return
    if learns_from(settings.algorithm) == "data" and data.share is not None:
        raise InputError(
            f"algorithm={name} learns from data alone: leave data.share={data.share:g} out, or choose an "
            f"algorithm that generates"
        )
    if learns_from(settings.algorithm) != "data":
        _check_mixed(settings, data)
    if settings.plays:
        raise InputError(
            f"data={data.folder} has one response to each prompt, and "
            f"environment={settings.environment_name} is of several turns: leave environment out"
        )


def _check_mixed(settings: RunSettings, data: DataSettings) -> None:
    name, how = settings.algorithm_name, mixes_data(settings.algorithm)
    if data.share is None:
        known = [one for one in ALGORITHMS if learns_from(find("algorithm", one, ALGORITHMS)) == "data"]
        mix = ", or give data.share=0.25 to make a quarter of each batch of it" if how else ""
        raise InputError(
            f"data={data.folder} is for algorithms that learn from data ({', '.join(known)}); "
            f"algorithm={name} learns from {learns_from(settings.algorithm)}: leave data out{mix}"
        )
    if how is None:
        known = [one for one in ALGORITHMS if mixes_data(find("algorithm", one, ALGORITHMS))]
        raise InputError(
            f"data.share={data.share:g}: algorithm={name} can't weigh responses that somebody else wrote; "
            f"those that can are {', '.join(known)}"
        )
    if how == "weighted":
        _check_weights(settings, data.share)
    needs = needs_of(settings, data)
    mixture(data.share, settings.rollout.prompts_per_iteration, settings.group_size, needs.num_responses)


def _check_weights(settings: RunSettings, share: float) -> None:
    """π_old/μ is of tokens that both could have drawn, and credit one that it corrects."""
    sampling = settings.sampling()
    cuts = {
        "rollout.top_k": sampling.top_k > 0,
        "rollout.top_p": sampling.top_p < 1,
        "rollout.min_tokens": sampling.min_tokens > 0,
    }
    if (told := [key for key, cut in cuts.items() if cut]) and settings.learner.behavior == "exact":
        raise InputError(
            f"data.share={share:g}: {', '.join(told)} leaves tokens that the policy never draws, and the "
            f"data may have them; expected none of these, which leaves the policy's own distribution"
        )
    if (level := getattr(settings.algorithm, "value_level", "token")) != "token":
        raise InputError(
            f"data.share={share:g}: responses of the data are weighed token by token, and "
            f"algorithm.value_level={level} gives credit to whole turns; expected algorithm.value_level=token"
        )


def check_same_rewards(data: DataSettings, needs: Needs) -> None:
    """An update compares rewards of the data with those of the run: they are to be the same ones.

    Raises:
        InputError: a reward of one label was annotated with other options.
    """
    if data.share is None or data.reward is not None or not needs.rewards:
        return
    annotated = read_manifest(Path(data.folder)).get("rewards", {}).get("parts", {})
    for part in needs.rewards:
        asked = plain({"name": part.name, **part.options})
        if (found := annotated.get(part.label)) is not None and found != asked:
            raise InputError(
                f"data={data.folder}: reward '{part.label}' was annotated as {found}, and this run's is "
                f"{asked}: batches of both would compare what can't be compared. Annotate with the run's "
                f"reward, or give data.reward= if they are the same"
            )
