"""Prompts of the policy's own teacher: templates, the best answer, comments, and who has nothing."""

from dataclasses import replace
from typing import Any

import pytest

from contracts.rollout import FinishReason, Prompt, Rollout, Turn
from learner.algorithms.self_distillation import SelfDistillation
from services.training.teachers.teacher_prompts import TeacherPrompts, with_question

SHORT = {
    "template": "{prompt}{answer}{comment}",
    "answer_template": "|A:{answer}",
    "comment_template": "|C:{comment}",
}


def letters(prompt: Prompt) -> tuple[int, ...]:
    text = prompt.messages[-1]["content"] if prompt.messages else prompt.text
    return tuple(map(ord, text))


def answered(lease: int, reward: float, comment: str = "", group: int = 0, text: str = "") -> Rollout:
    prompt = Prompt(f"p{group}", f"q{group}")
    text = text or f"a{lease}"
    turn = Turn(letters(prompt), tuple(map(ord, text)), text, (-1.0,) * len(text), (0,) * len(text), reward)
    return Rollout(lease, group, prompt, (turn,), FinishReason.STOP, comment=comment)


def contexts(
    rollouts: list[Rollout], window: int | None = None, **options: Any
) -> tuple[list[str], dict[str, float]]:
    algorithm = SelfDistillation(**SHORT, **options)  # type: ignore[arg-type]
    taught, metrics = TeacherPrompts(algorithm, letters, letters, window)(rollouts)
    return ["".join(map(chr, rollout.teacher_context)) for rollout in taught], metrics


def test_the_teacher_reads_the_best_other_answer_and_the_own_comment() -> None:
    batch = [answered(0, 0.0, "Wrong."), answered(1, 1.0), answered(2, 0.5), answered(3, 0.0, group=1)]
    seen, metrics = contexts(batch)
    assert seen == ["q0|A:a1|C:Wrong.", "", "q0|A:a1", ""]
    assert metrics["teacher/taught"] == 0.5 and metrics["teacher/answers"] == 0.5
    assert metrics["teacher/comments"] == 0.25 and metrics["teacher/nothing_to_read"] == 0.5


def test_the_best_response_reads_another_that_is_good_enough() -> None:
    """SDPO: any other success of the group; the first by lease where several are equal."""
    batch = [answered(0, 1.0), answered(1, 1.0), answered(2, 0.0)]
    assert contexts(batch, answer_from=1.0)[0] == ["q0|A:a1", "q0|A:a0", "q0|A:a0"]
    assert contexts(batch, answer_from=2.0)[0] == ["", "", ""]


def test_one_of_the_two_alone() -> None:
    batch = [answered(0, 0.0, "Wrong."), answered(1, 1.0, "Right.")]
    assert contexts(batch, reads="comment")[0] == ["q0|C:Wrong.", "q0|C:Right."]
    assert contexts(batch, reads="answer")[0] == ["q0|A:a1", ""]


def test_a_comment_is_never_read_as_a_template() -> None:
    seen, _ = contexts([answered(0, 0.0, "{answer} {prompt} {0}"), answered(1, 0.0)])
    assert seen[0] == "q0|C:{answer} {prompt} {0}"


def test_what_the_window_has_no_room_for_is_left_out_and_counted() -> None:
    batch = [answered(0, 0.0, "C" * 9), answered(1, 0.0, "C")]  # 14 and 6 letters, and two of the answer
    seen, metrics = contexts(batch, window=15)
    assert seen == ["", "q0|C:C"] and metrics["teacher/too_long"] == 0.5
    assert contexts(batch, window=16)[0][0] == "q0|C:" + "C" * 9
    assert contexts(batch, max_teacher_tokens=13)[0] == ["", "q0|C:C"]


def test_other_first_contexts_and_several_sequences_have_no_teacher() -> None:
    other = answered(0, 0.0, "Wrong.")
    other = replace(other, turns=(replace(other.turns[0], observation=(1, 2)),))
    again = answered(1, 0.0, "Wrong.")
    again = replace(again, turns=(*again.turns, replace(again.turns[0], fresh=True)))
    seen, metrics = contexts([other, again])
    assert seen == ["", ""] and metrics["teacher/other_context"] == 1.0


def test_a_conversation_keeps_all_but_its_last_message_by_the_user() -> None:
    talk = [{"role": role, "content": role} for role in ("system", "user", "assistant", "user")]
    prompt = with_question(Prompt("p", "u", meta={"messages": talk}), lambda text: text + "!")
    assert prompt is not None and [message["content"] for message in prompt.messages] == [
        "system", "user", "assistant", "user!"
    ]  # fmt: skip
    picture = Prompt("p", "u", meta={"messages": [{"role": "user", "content": [{"type": "image"}]}]})
    assert with_question(picture, str.upper) is None


def test_a_template_without_its_place_is_refused() -> None:
    with pytest.raises(ValueError, match=r"which must contain \{comment\}"):
        SelfDistillation(comment_template="Oh.")


def test_comments_and_answers_can_not_end_their_message() -> None:
    algorithm = SelfDistillation(**SHORT)  # type: ignore[arg-type]
    prompts = TeacherPrompts(algorithm, letters, letters, None, ("<|im_end|>",))
    batch = [answered(0, 0.0, "No.<|im_end|>Yes."), answered(1, 1.0, text="7<|im_end|>8")]
    (taught, _), _ = prompts(batch)
    assert "".join(map(chr, taught.teacher_context)) == "q0|A:7< |im_end|>8|C:No.< |im_end|>Yes."
