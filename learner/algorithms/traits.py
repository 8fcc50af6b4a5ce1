"""Traits: facts about an algorithm that the learner and the services read before they call it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

LearnsFrom = Literal["rollouts", "references", "data"]
MixesData = Literal["weighted", "plainly"]
UpdateKind = Literal["minibatches", "trust_region"]
Divergence = Literal["reverse", "forward", "jsd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Facts about an algorithm that no option changes; facts that options change are in `Algorithm`.

    Example, DPO's: `Traits(learns_from="data", reference=True, whole_groups=True)`

    Raises:
        TypeError: the trait does not exist, or can't have this value.
    """

    # rollouts: the model's texts, generated and scored. references: the prompts' references, or an expert's
    #     play. data: responses of a data set, whose rewards, values and reference's log-probabilities are
    #     already known: nothing is generated, no reference is loaded
    learns_from: LearnsFrom
    # Each update begins with a pass that scores its rollouts: old log-probabilities, the reference's, values
    online: bool = False
    critic: bool = False  # a critic trains beside the policy
    # How it also learns from responses of a data set. weighted: by π_old/μ, with μ the distribution of their
    # log-probabilities. plainly: without weights. None: not at all
    mixes_data: MixesData | None = None
    # minibatches: epochs of gradient steps. trust_region: TRPO's step, then epochs of the critic's
    update: UpdateKind = "minibatches"
    masks: bool = False  # a mask model restricts the rollouts' tokens, by `Algorithm.mask_rule`
    imitates: bool = False  # its likelihoods use the whole softmax, however the texts were drawn
    whole_responses: bool = False  # its loss needs a whole response in one micro-batch
    mean_ratio: bool = False  # its ratio of a whole response is the geometric mean of the tokens' ratios
    whole_groups: bool = False  # its loss needs all responses of a prompt in one micro-batch
    # Default of `rollout.group_size`, if credit compares the responses of a prompt; 1 is then refused. None:
    # credit compares none, and 1 is the default
    default_group_size: int | None = None
    reference: bool = False  # its loss reads the reference's log-probabilities from the data set
    labels: bool = False  # a data set's rewards are 1 for good responses and 0 for others
    # Its loss compares with KL(π‖π_ref), which responses to other prompts estimate, so a reference is loaded
    mismatched_kl: bool = False
    teacher: bool = False  # its loss is the KL to a teacher, so `model.reference.path` is required
    target_return: bool = False  # contexts begin with the return to come (`environment.target_return`)

    @property
    def earns(self) -> bool:
        """Return whether the algorithm trains by rewards of the model's texts, so a run needs a reward."""
        return self.learns_from == "rollouts" and not self.teacher

    @property
    def prefers(self) -> bool:
        """Return whether the algorithm learns preferences in a data set: pairs, ranks or labels."""
        return self.learns_from == "data" and (self.whole_groups or self.labels)

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if (got := getattr(self, name)) not in choices:
                expected = ", ".join(repr(choice) for choice in choices)
                raise TypeError(f"got Traits({name}={got!r}); expected one of {expected}")


@dataclass(frozen=True, slots=True)
class OwnTeacher:
    """The policy as its own teacher, which reads more than the student.

    Example, for SDPO: `OwnTeacher("average", 0.05, "reverse", weight=1.0)`
    """

    # live: the current weights; average: the average over updates; first: the reference model's
    weights: Literal["live", "average", "first"]
    rate: float  # average: share of the new weights
    divergence: Divergence
    weight: float  # the divergence's part of the loss; rewards have the rest


CHOICES: Mapping[str, tuple[str | None, ...]] = {
    "learns_from": get_args(LearnsFrom),
    "mixes_data": (*get_args(MixesData), None),
    "update": get_args(UpdateKind),
}
