"""METEOR as RL4LMs computes it, against the printed list of the references (0 to 1)."""

from collections.abc import Sequence
from typing import ClassVar

from contracts.scores import Sample
from reward_servers.graders.meteor import Meteor
from reward_servers.text.references import printed_references
from reward_servers.text.words import words


class MeteorRl4lmsCompat(Meteor):
    """METEOR with brackets and quotes as words, and several references as one long one.

    Use it for comparison with published numbers only: a text of eight words that equals its one reference
    scores 0.69 here and 1.00 under `meteor`.
    """

    key: ClassVar[str] = "lexical/meteor_rl4lms_compat"
    needs_references: ClassVar[bool] = True

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [
            self.of_words(printed_references(sample, "meteor_rl4lms_compat"), words(sample.text))
            for sample in samples
        ]
