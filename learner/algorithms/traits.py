"""Traits: the facts about an algorithm that the learner and the services read before they call it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

LearnsFrom = Literal["rollouts", "references", "data"]
MixesData = Literal["weighted", "plainly"]
UpdateKind = Literal["minibatches", "trust_region"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Facts about an algorithm that no option changes; what options change are properties of `Algorithm`.

    Example, DPO's: `Traits(learns_from="data", reference=True, whole_groups=True)`

    Raises:
        TypeError: the trait does not exist, or can't have this value.
    """

    # rollouts: the model's own, generated and scored. references: the prompts' references, or an expert's
    # play. data: responses of a data set, whose rewards, values and log-probabilities of the reference are
    # known before: nothing is generated, no reference is loaded
    learns_from: LearnsFrom
    # Each update begins with a pass that scores its rollouts: old log-probabilities, the reference's, values
    online: bool = False
    critic: bool = False  # a critic is trained beside the policy
    # How it takes responses of a data set beside what it learns from. weighted: by π_old/μ, with μ the
    # distribution whose log-probabilities they come with. plainly: as they are. None: not at all
    mixes_data: MixesData | None = None
    # minibatches: epochs of gradient steps. trust_region: TRPO's step, then epochs of the critic's
    update: UpdateKind = "minibatches"
    masks: bool = False  # a mask model restricts the rollouts' tokens, by `Algorithm.mask_rule`
    imitates: bool = False  # its likelihoods are the whole softmax's, however the texts were drawn
    whole_responses: bool = False  # its loss needs all of a response in one micro-batch
    mean_ratio: bool = False  # its ratio of a whole response is the geometric mean of the tokens' ratios
    whole_groups: bool = False  # its loss needs all responses of a prompt in one micro-batch
    # Responses of a prompt where `rollout.group_size` is not given; credit compares them, so 1 is refused.
    # None: credit compares none, and 1 is the default
    default_group_size: int | None = None
    reference: bool = False  # its loss reads the reference's log-probabilities that a data set comes with
    labels: bool = False  # a data set's rewards are 1 for good responses and 0 for others
    # Its loss compares with KL(π‖π_ref), which responses to other prompts estimate: a reference is loaded
    mismatched_kl: bool = False
    teacher: bool = False  # its loss is the KL to a teacher: `model.reference.path` is needed
    target_return: bool = False  # contexts begin with the return to come (`environment.target_return`)

    @property
    def earns(self) -> bool:
        """Tell whether training is by the rewards of the model's own texts, so that a run needs a reward."""
        return self.learns_from == "rollouts" and not self.teacher

    @property
    def prefers(self) -> bool:
        """Tell whether it learns which responses of a data set are preferred, by pairs, ranks or labels."""
        return self.learns_from == "data" and (self.whole_groups or self.labels)

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if (got := getattr(self, name)) not in choices:
                expected = ", ".join(repr(choice) for choice in choices)
                raise TypeError(f"got Traits({name}={got!r}); expected one of {expected}")


CHOICES: Mapping[str, tuple[str | None, ...]] = {
    "learns_from": get_args(LearnsFrom),
    "mixes_data": (*get_args(MixesData), None),
    "update": get_args(UpdateKind),
}
