"""Rules about texts: length, repetition, and cuts at limits."""

from typing import ClassVar

from services.runs.diagnosis.history import History
from services.runs.diagnosis.rule import Evidence, Rule, scaled
from services.terminal.readable import number

LENGTH, REPEATED, STOPPED = "response_length/mean", "response_repetition/mean", "finish/stop"
PAID, CUT, REWARD = "reward/length_correlation", "prompts/cut", "reward/mean"


class LengthExploited(Rule):
    """Responses that grow or shrink because the reward pays for it."""

    name = "length_exploited"
    title = "Length exploited"
    reads = (LENGTH, PAID)
    shows = (LENGTH, PAID, REWARD)
    threshold = None
    reason = (
        "length half as long again, or half as long, is no side effect if length and reward correlate at 0.5 "
        "or more within batches: a quarter of the reward's variance is then length"
    )
    growth: ClassVar[float] = 1.5
    shrinkage: ClassVar[float] = 0.5
    correlation: ClassVar[float] = 0.5

    def find(self, seen: History) -> Evidence | None:
        early, late, paid = seen.first(LENGTH), seen.late(LENGTH), seen.median(PAID)
        if early is None or late is None or paid is None or not early or not seen.has_moved_on:
            return None
        grows = late >= self.growth * early and paid >= self.correlation
        shrinks = late <= self.shrinkage * early and paid <= -self.correlation
        if not grows and not shrinks:
            return None
        sentence = (
            f"responses went from {number(early)} to {number(late)} tokens; reward and length of a batch's "
            f"texts correlate at {number(paid)}"
        )
        return Evidence(sentence, {LENGTH: late, f"{LENGTH}/early": early, PAID: paid})

    def remedy(self, seen: History) -> tuple[str, ...]:
        return (
            "a reward that does not depend on length: divide by it, or add reward=length with a target and a "
            "weight",
            scaled(seen, "algorithm.kl.coefficient", 5, "algorithm.kl.coefficient=0.05"),
            scaled(seen, "rollout.max_tokens", 0.5, "a smaller rollout.max_tokens"),
        )


class RepetitionExploited(Rule):
    """Responses that repeat themselves more and more."""

    name = "repetition_exploited"
    title = "Repetition exploited"
    reads = (REPEATED,)
    shows = (REPEATED, REWARD)
    threshold = 0.2
    reason = (
        "people repeat 0.5 % of their 4-grams within a text, and degenerate models above 40 % (Welleck et "
        "al. 2020, arXiv 1908.04319); a fifth, far above the run's start, is on its way there"
    )
    rise: ClassVar[float] = 0.1  # above the start, because some tasks repeat by nature

    def find(self, seen: History) -> Evidence | None:
        early, late = seen.first(REPEATED), seen.late(REPEATED)
        if early is None or late is None or late < self.threshold or late < early + self.rise:
            return None
        sentence = f"{late:.0%} of a response's 4-grams repeat earlier ones, {early:.0%} at the start"
        return Evidence(sentence, {REPEATED: late, f"{REPEATED}/early": early})

    def remedy(self, seen: History) -> tuple[str, ...]:
        return (
            "a reward that penalises repetition: samples in report.html show what is repeated",
            scaled(seen, "algorithm.kl.coefficient", 5, "algorithm.kl.coefficient=0.05"),
        )


class ResponsesCut(Rule):
    """Responses that end at the token limit instead of an end by the model."""

    name = "responses_cut"
    title = "Responses cut off"
    reads = (STOPPED,)
    shows = (STOPPED, LENGTH)
    threshold = 0.5
    reason = "a reward can't judge an answer that it does not see; with half cut, the model learns the limit"

    def find(self, seen: History) -> Evidence | None:
        late, limit = seen.late(STOPPED), seen.settings.get("rollout.max_tokens")
        if late is None or late >= self.threshold:
            return None
        fixed = limit is not None and seen.settings.get("rollout.min_tokens") == limit
        if fixed or seen.settings.get("rollout.ignore_eos"):
            return None  # the user wants texts of a fixed length
        at = "the token limit" if limit is None else f"rollout.max_tokens={limit}"
        return Evidence(f"{1 - late:.0%} of the responses are cut off at {at}", {STOPPED: late})

    def remedy(self, seen: History) -> tuple[str, ...]:
        limit = seen.settings.get("rollout.max_tokens")
        meant = f"rollout.min_tokens={limit}" if limit else "rollout.min_tokens as large"
        return (
            scaled(seen, "rollout.max_tokens", 2, "a larger rollout.max_tokens"),
            f"{meant} if you want texts of a fixed length",
        )


class PromptsCut(Rule):
    """Prompts that the model does not read completely."""

    name = "prompts_cut"
    title = "Prompts cut"
    reads = (CUT,)
    shows = (CUT, REWARD)
    threshold = 0.1
    reason = "a model can't answer a prompt that it did not read; one prompt in ten is noise in every batch"

    def find(self, seen: History) -> Evidence | None:
        late = seen.late(CUT)
        if late is None or late < self.threshold:
            return None
        limit = seen.settings.get("rollout.max_prompt_tokens")
        setting = "rollout.max_prompt_tokens" + (f"={limit}" if limit else "")
        sentence = f"{late:.0%} of the prompts fill {setting}"
        return Evidence(sentence, {CUT: late})

    def remedy(self, seen: History) -> tuple[str, ...]:
        return (
            scaled(seen, "rollout.max_prompt_tokens", 2, "a larger rollout.max_prompt_tokens"),
            "task.truncation_side=left or right: the side to cut",
        )
