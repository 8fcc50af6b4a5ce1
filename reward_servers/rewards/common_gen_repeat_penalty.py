"""-1 when the text repeats its task (the list of concepts, or words of the instruction), else 0."""

from collections.abc import Sequence
from typing import ClassVar

from contracts.scores import Sample
from contracts.settings import Settings
from reward_servers.rewards.coverage import concepts_of

INSTRUCTION_WORDS = ("generate", "sentence")


class CommonGenRepeatPenalty(Settings):
    """RL4LMs' penalty for CommonGen, to be added to another reward.

    What must not occur, letter by letter: the concepts in a row, as the prompt has them after its prefix or
    with blanks between; the prefix; "generate"; "sentence". A prompt without the prefix is no error here.
    """

    needs_meta: ClassVar[tuple[str, ...]] = ("concepts",)

    prefix: str = "generate a sentence with: "

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [-1.0 if self.repeats(sample) else 0.0 for sample in samples]

    def repeats(self, sample: Sample) -> bool:
        concepts = concepts_of(sample, "common_gen_repeat_penalty")
        phrases = [self.prefix.strip(), *INSTRUCTION_WORDS]
        if len(concepts) > 1:  # one concept alone has to occur
            phrases.append(" ".join(concepts))
            if sample.prompt.startswith(self.prefix):
                phrases.append(sample.prompt.removeprefix(self.prefix).strip())
        return any(phrase in sample.text for phrase in phrases if phrase)
