"""Score by reasoning_gym's own scorer of the task that made the prompt (0 to 1)."""

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field, PrivateAttr

from contracts.conversations.thoughts import behind_thought
from contracts.scores import Sample
from contracts.settings import Settings
from reward_servers.answers.answer import TAG_OF, inside_tags
from reward_servers.isolation.confined import Confined
from reward_servers.isolation.limits import Limits


class ReasoningGym(Settings):
    """The scorer of `task=reasoning_gym`'s prompts, in a confined process.

    Some scorers evaluate the answer, so all of them run there.

    The answer is the text after the thought, or its part in the last `<answer>` tags.
    Stojanovski et al., "Reasoning Gym: Reasoning Environments for RL with Verifiable Rewards" (2025,
    2505.24760).
    """

    needs_meta: ClassVar[tuple[str, ...]] = ("reasoning_gym",)
    requires: ClassVar[tuple[str, ...]] = ("reasoning-gym",)
    deterministic: ClassVar[bool] = False  # a time-out's 0 may be the machine's fault, so it is not cached

    answer_tag: str | None = "answer"  # None: all text after the thought is the answer
    limits: Limits = Field(default=Limits())
    _confined: Confined = PrivateAttr()

    def model_post_init(self, _: Any) -> None:
        self._confined = Confined("reward_servers.verifiers.reasoning_gym", self.limits)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        jobs = [
            [{**sample.meta["reasoning_gym"], "answer": answer_in(sample.response, self.answer_tag)}]
            for sample in samples
        ]
        return [float(outcome.value or 0.0) for (outcome,) in self._confined.run(jobs)]

    def answer(self, text: str) -> str | None:
        """Return the text's answer, for a majority vote; None if it is empty."""
        return answer_in(text, self.answer_tag) or None


def answer_in(response: str, tag: str | None) -> str | None:
    """Return the answer after the thought, without blanks around it; None if the thought was cut off.

    >>> [answer_in(text, "answer") for text in ("4? <answer> 5 </answer>", "5", "<answer>5", "<think>5")]
    ['5', '5', '5', None]
    """
    answer = behind_thought(response)
    if answer is None or tag is None:
        return answer and answer.strip()
    return inside_tags(answer, re.compile(TAG_OF.format(re.escape(tag)))).strip()
