"""Score of 1 if the text's mathematical answer equals a reference's, else 0."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, PrivateAttr

from contracts.scores import Sample
from contracts.settings import Settings, Strings
from reward_servers.isolation.confined import Confined
from reward_servers.isolation.limits import Limits
from reward_servers.text.references import references_of

TOGETHER = 16  # texts that share a process


class Math(Settings):
    """Equality of mathematical objects, exactly: 1/2, 0.5 and \\frac{1}{2} are equal.

    `reward_servers/answers/answer.py` says where the answer is in a response and in a reference, and
    `verifiers/equality.py` what is equal. A text without an answer, or one that takes too long, scores 0.
    math-verify's parser reads LaTeX. Kydlíček et al., math-verify (2025).
    """

    needs_references: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = ("math-verify",)
    deterministic: ClassVar[bool] = False  # a time-out's 0 may be the machine's fault, so it is not cached

    extract: Literal["any", "boxed", "last_number", "hashes", "choice"] = "any"  # where the text's answer is
    choices: Strings = ("A", "B", "C", "D")  # possible answers with extract=choice
    limits: Limits = Field(default=Limits())
    _confined: Confined = PrivateAttr()

    def model_post_init(self, _: Any) -> None:
        self._confined = Confined("reward_servers.verifiers.math", self.limits, together=TOGETHER)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        rights = [references_of(sample, "math") for sample in samples]
        jobs = [
            [self._payload(sample.response) | {"right": list(right)}]
            for sample, right in zip(samples, rights, strict=True)
        ]
        return [float(outcome.value is True) for (outcome, *_) in self._confined.run(jobs)]

    def answer(self, text: str) -> str | None:
        """Return the text's answer in a normal form, for a majority vote; None without one."""
        return self.answers_in([text])[0]

    def answers_in(self, texts: Sequence[str]) -> list[str | None]:
        """Return what `answer` does for each text; the confined processes work side by side."""
        outcomes = self._confined.run([[self._payload(text) | {"find": True}] for text in texts])
        return [outcome.value if isinstance(outcome.value, str) else None for (outcome, *_) in outcomes]

    def _payload(self, text: str) -> dict[str, Any]:
        return {"text": text, "extract": self.extract, "choices": list(self.choices)}
