"""Prompts for self-distillation: the question, with a grader's comment and the group's best answer.

prompt, comment, answer ──▶ the algorithm's templates ──▶ the model's chat template ──▶ tokens
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from contracts.conversations.encoding import without_marks
from contracts.rollout import Prompt, Rollout
from learner.algorithms.self_distillation import SelfDistillation
from services.data.tokens.prompt_tokens import ToTokens

PLACES = re.compile(r"\{(prompt|answer|comment)\}")


@dataclass(frozen=True, slots=True)
class TeacherPrompts:
    """Writer of the contexts in which the teacher reads the answers of rollouts.

    A rollout gets no context if no comment or answer exists, or if the context exceeds the window. Rollouts
    of several sequences get none either, nor rollouts whose first context is more than the prompt.
    """

    algorithm: SelfDistillation
    student_reads: ToTokens  # prompts as the student reads them
    reads: ToTokens  # prompts without a limit on their length
    window: int | None  # most tokens of prompt and answer together
    marks: tuple[str, ...] = ()  # the tokenizer's special tokens, which are defused in comments and answers

    def __call__(self, rollouts: Sequence[Rollout]) -> tuple[list[Rollout], dict[str, float]]:
        """Return the rollouts with their teacher's contexts, and the shares of rollouts by outcome."""
        counts: Counter[str] = Counter()
        best = _best_two(rollouts)
        taught = [self._taught(rollout, best[rollout.group], counts) for rollout in rollouts]
        names = ("taught", "comments", "answers", "nothing_to_read", "too_long", "other_context")
        shares = {f"teacher/{name}": counts[name] / max(1, len(rollouts)) for name in names}
        return taught, shares

    def _taught(self, rollout: Rollout, best: Sequence[Rollout], counts: Counter[str]) -> Rollout:
        parts = self._parts(rollout, best)
        if not parts:
            counts["nothing_to_read"] += 1
            return rollout
        prompt = rollout.prompt
        filled = with_question(prompt, lambda text: self._filled(text, parts))
        is_plain = len(rollout.segments) == 1 and len(rollout.roles) == 1
        if filled is None or not is_plain or self.student_reads(prompt) != rollout.turns[0].observation:
            counts["other_context"] += 1
            return rollout
        context = self.reads(filled)
        if len(context) > self._most(rollout):
            counts["too_long"] += 1
            return rollout
        counts.update({"taught": 1, "comments": "comment" in parts, "answers": "answer" in parts})
        return replace(rollout, teacher_context=context)

    def _parts(self, rollout: Rollout, best: Sequence[Rollout]) -> dict[str, str]:
        """Return the comment and answer that the teacher reads, by the templates' placeholders."""
        reads, parts = self.algorithm.reads, dict[str, str]()
        if reads != "comment" and (answer := self._answer(rollout, best)) is not None:
            text = without_marks(answer.text, self.marks)
            parts["answer"] = fill(self.algorithm.answer_template, {"answer": text})
        if reads != "answer" and rollout.comment.strip():
            comment = without_marks(rollout.comment, self.marks)
            parts["comment"] = fill(self.algorithm.comment_template, {"comment": comment})
        return parts

    def _answer(self, rollout: Rollout, best: Sequence[Rollout]) -> Rollout | None:
        """Return the best other response to the prompt, if its reward is high enough."""
        other = next((mate for mate in best if mate.lease_id != rollout.lease_id), None)
        if other is None:
            return None
        least = self.algorithm.answer_from
        if least is None:
            return other if other.total_reward > rollout.total_reward else None
        return other if other.total_reward >= least else None

    def _filled(self, question: str, parts: Mapping[str, str]) -> str:
        return fill(self.algorithm.template, {"prompt": question, **parts})

    def _most(self, rollout: Rollout) -> float:
        """Return the most tokens that the teacher's prompt may have."""
        rest = sum(turn.num_tokens + turn.num_observed for turn in rollout.turns)
        rest -= rollout.turns[0].num_observed
        limits = [self.algorithm.max_teacher_tokens, None if self.window is None else self.window - rest]
        return min((limit for limit in limits if limit is not None), default=float("inf"))


def fill(template: str, parts: Mapping[str, str]) -> str:
    """Replace placeholders by parts. A placeholder inside a part is left as text.

    >>> fill("{prompt}{answer} {x}", {"prompt": "{answer}?"})
    '{answer}? {x}'
    """
    return PLACES.sub(lambda place: parts.get(place[1], ""), template)


def with_question(prompt: Prompt, changed: Any) -> Prompt | None:
    """Return the prompt with a changed question, which is its text or the last message by the user.

    Args:
        changed: function from the old question to the new one.

    Returns: None if no message by the user is a text.
    """
    if not prompt.messages:
        return replace(prompt, text=changed(prompt.text))
    messages = list(prompt.messages)
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if message.get("role") == "user" and isinstance(message.get("content"), str):
            messages[place] = {**message, "content": changed(message["content"])}
            meta = {**prompt.meta, "messages": messages}
            return replace(prompt, text=changed(prompt.text), meta=meta)
    return None


def _best_two(rollouts: Sequence[Rollout]) -> dict[int, list[Rollout]]:
    """Return the two best responses of each group. Ties are in the order of leases."""
    groups: dict[int, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    return {
        group: sorted(them, key=lambda mate: (-mate.total_reward, mate.lease_id))[:2]
        for group, them in groups.items()
    }
