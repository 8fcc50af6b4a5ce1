"""Counts of prompts and references that are too long, and sentences about the parts that the model reads."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from contracts.conversations.chat import Chat
from contracts.rollout import Prompt
from services.data.tasks.base import Split
from services.data.tasks.responses import behind
from services.data.tokens.prompt_limit import PromptLimit
from services.models.token_counter import CountsTokens

AT_ONCE = 1000  # texts that are tokenized together


@dataclass(frozen=True, slots=True)
class CutPrompts:
    """Counts of the cut prompts of one split.

    Example: `CutPrompts("train", num_prompts=50, num_cut=41, limit=PromptLimit(512, "right"))`
    """

    split: Split
    num_prompts: int  # prompts in the run
    num_cut: int
    limit: PromptLimit
    part: str = ""  # the part of a mixture

    def __str__(self) -> str:
        of_part = f" of {self.part}" if self.part else ""
        return f"{self.split}{of_part}: {said_of_cuts(self.num_cut, self.num_prompts, self.limit)}"


@dataclass(frozen=True, slots=True)
class CutExamples:
    """Counts of supervised examples that the model does not learn whole.

    Example: `CutExamples(num_examples=400, num_cut=3, num_crowded=1, max_tokens=512, window=1024)`
    """

    num_examples: int  # one per reference
    num_cut: int  # references that lose their end
    num_crowded: int  # examples whose prompt is cut to fit beside its reference
    max_tokens: int
    window: int | None

    def sentences(self) -> list[str]:
        """Return sentences for the user; [] if every example is whole."""
        sentences = []
        if self.num_cut:
            sentences.append(
                f"train: {self._share(self.num_cut)} references are longer than rollout.max_tokens="
                f"{self.max_tokens}: training learns them without their end"
            )
        if self.num_crowded:
            sentences.append(
                f"train: {self._share(self.num_crowded)} examples are longer than the model's window of "
                f"{self.window:,} tokens: their prompts are cut (task.truncation_side)"
            )
        return sentences

    def _share(self, count: int) -> str:
        return f"{count:,} of {self.num_examples:,} ({count / self.num_examples:.0%})"


def said_of_cuts(num_cut: int, num_prompts: int, limit: PromptLimit) -> str:
    """Say how many prompts are cut, and which part of them the model reads.

    >>> said_of_cuts(41, 50, PromptLimit(64, "right"))[:64]
    '41 of 50 (82%) prompts are longer than 64 tokens (rollout.max_pr'
    """
    share, most = num_cut / num_prompts, f"{limit.max_tokens:,}"
    lost = "end" if limit.side == "right" else "beginning"
    return (
        f"{num_cut:,} of {num_prompts:,} ({share:.0%}) prompts are longer than {most} tokens "
        f"({limit.option}): the model reads their {limit.kept} {most}, without their {lost} "
        f"(task.truncation_side={limit.side})"
    )


def said_of_limits(limits: Mapping[Split, PromptLimit]) -> str:
    """Say how much of a prompt the model reads.

    >>> said_of_limits(dict.fromkeys(("train", "test"), PromptLimit(512, "right")))
    'the first 512 tokens of each'
    >>> said_of_limits({"train": PromptLimit(64, "right"), "test": PromptLimit()})
    'the first 64 tokens of each (train), all tokens of each (test)'
    """
    by_part: dict[str, list[str]] = {}
    for split, limit in limits.items():
        part = "all tokens" if limit.max_tokens is None else f"the {limit.kept} {limit.max_tokens:,} tokens"
        by_part.setdefault(f"{part} of each", []).append(split)
    if len(by_part) == 1:
        return next(iter(by_part))
    return ", ".join(f"{part} ({', '.join(splits)})" for part, splits in by_part.items())


def lengths(texts: Iterable[str], count: CountsTokens) -> Iterator[int]:
    """Yield each text's number of tokens."""
    remaining = iter(texts)
    while some := list(islice(remaining, AT_ONCE)):
        yield from count(some)


def lengths_of(prompts: Sequence[Prompt], count: CountsTokens, chat: Chat | None) -> Iterator[int]:
    """Yield each prompt's number of tokens, as plain text or by a chat template.

    Raises:
        InputError: the template rejects a prompt; the message names it.
    """
    if chat is None:
        return lengths((prompt.text for prompt in prompts), count)
    return (len(chat.of_prompt(prompt)) for prompt in prompts)


def cut_examples(
    prompts: Sequence[Prompt],
    limit: PromptLimit,
    max_tokens: int,
    window: int | None,
    count: CountsTokens,
    chat: Chat | None = None,
    whole_references: bool = False,
) -> CutExamples:
    """Count the examples that supervised training does not learn whole.

    Args:
        max_tokens: most tokens of a reference that is not cut.
        window: most tokens of prompt and reference together; None: no limit.
        chat: renderer of conversations; None: prompts are plain texts.
        whole_references: whether references begin with their prompts, which do not count as parts of them.

        Raises:
        InputError: the chat template has no place for a prompt or its reference; the message names it.
    """
    pairs = [(prompt, text) for prompt in prompts for text in prompt.references]
    num_cut = num_crowded = 0
    of_prompts = lengths_of([prompt for prompt, _ in pairs], count, chat)
    if whole_references:
        pairs = [(prompt, behind(prompt, text)) for prompt, text in pairs]
    if chat is None:
        of_references = lengths((text for _, text in pairs), count)
    else:  # with end tokens; raises an error if the template can't express a reference
        of_references = (len(chat.answer_to(*pair)) for pair in pairs)
    for before, after in zip(of_prompts, of_references, strict=True):
        num_cut += after > max_tokens
        kept = min(before, limit.max_tokens or before) + min(after, max_tokens)
        num_crowded += window is not None and kept > window
    return CutExamples(len(pairs), num_cut, num_crowded, max_tokens, window)


def warnings(cut_prompts: Iterable[CutPrompts], examples: Iterable[CutExamples]) -> list[str]:
    """Return a sentence for each split with cut prompts, and the sentences about supervised examples."""
    sentences = [str(cut) for cut in cut_prompts if cut.num_cut]
    return sentences + [sentence for cut in examples for sentence in cut.sentences()]
