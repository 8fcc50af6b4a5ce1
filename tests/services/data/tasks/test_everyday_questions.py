"""Everyday questions: no split shares a subject, and no question gives its answer away."""

from itertools import combinations

import pytest

from contracts.errors import InputError
from reward_servers.graders.coverage import share_covered
from services.data.tasks.base import Split
from services.data.tasks.everyday_questions import EverydayQuestions, questions

SPLITS: tuple[Split, ...] = ("train", "validation", "test")


def test_the_questions_are_asked_with_their_key_words() -> None:
    meta_of = {prompt.text: prompt.meta for split in SPLITS for prompt in EverydayQuestions().prompts(split)}
    assert meta_of["What does a cow eat?"] == {"key_words": ["grass", "hay", "plant"]}
    assert meta_of["Why do people go to a library?"] == {"key_words": ["book", "read", "study", "learn"]}
    # 30 things, 30 animals, 24 jobs, 24 foods and 20 places; all but things are in two questions
    assert len(meta_of) == 30 + 2 * (30 + 24 + 24 + 20)


@pytest.mark.parametrize("seed", [0, 1])
def test_no_split_shares_a_subject(seed: int) -> None:
    about = {
        question.format(subject): subject for question, words in questions().items() for subject in words
    }
    task = EverydayQuestions(seed=seed)
    by_split = [{about[prompt.text] for prompt in task.prompts(split)} for split in SPLITS]
    assert [len(subjects) for subjects in by_split] == [96, 16, 16]
    assert [one & other for one, other in combinations(by_split, 2)] == [set()] * 3


def test_no_question_holds_a_word_of_its_answer() -> None:
    prompts = [prompt for split in SPLITS for prompt in EverydayQuestions().prompts(split)]
    assert [prompt.text for prompt in prompts if share_covered(prompt.text, prompt.meta["key_words"])] == []


def test_more_subjects_than_there_are_is_refused() -> None:
    with pytest.raises(InputError, match="128"):
        EverydayQuestions(num_subjects=97).prompts("train")
