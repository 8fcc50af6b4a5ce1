"""Post-processing: sentences by hand, functions of one's own, and that evaluations judge what comes out."""

import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console as Terminal

from contracts.errors import InputError
from contracts.rollout import Rollout, Sampling
from contracts.settings import build
from services.config.evaluation_settings import EvaluationSettings
from services.config.post_processing import (
    PostProcessed,
    find_post_processor,
    lolrl_reply,
    sentences,
    three_sentence_summary,
)
from services.data.tokens.prompt_tokens import PromptTokens
from services.runs.tracking.console import Console
from services.training.loop.collecting import Collector, FailureBudget
from services.training.loop.evaluations.evaluation import evaluate
from services.training.sources.leasing import EVALUATION, evaluation_leases
from tests.fakes import FakeRewards, FakeWorkers, WordTokens, prompts
from tests.services.training.loop.test_controller import Loop


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("  \n ", []),
        ("no end", ["no end"]),
        ("One. Two.", ["One.", "Two."]),
        ("One.Two.", ["One.Two."]),  # no blank
        ("One. two.", ["One.", "two."]),
        ("Well... no. Well... So.", ["Well... no.", "Well...", "So."]),
        ("Really?! Yes… 3 of them.", ["Really?!", "Yes…", "3 of them."]),
        ("He said: “Go.” (He went.) Fine.", ["He said: “Go.”", "(He went.)", "Fine."]),
        (
            "Dr. Who met Mr. J. R. Smith in the U.S. Army. Over.",
            ["Dr. Who met Mr. J. R. Smith in the U.S. Army.", "Over."],
        ),
        ("It was I. She knew.", ["It was I.", "She knew."]),
        ("It cost $3.50. Élan sold it.", ["It cost $3.50.", "Élan sold it."]),
        ("A line\nand its end.\nAnother.", ["A line\nand its end.", "Another."]),
    ],
)
def test_sentences_end_where_they_end(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@given(st.text())
def test_no_character_is_lost_but_blanks(text: str) -> None:
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" Yes. ", "Yes."),
        ("Yes.\n Human: Why?", "Yes."),
        ("Yes.\nHuman: Why?\n Human: So?", "Yes."),
        ("Yes.\n### Human: Why?", "Yes."),
        ("Yes. ### Human: Why?", "Yes."),  # the token ends the reply
        ("###Yes.", ""),
        ("Yes.###", "Yes."),
        ("A###B\n###C D ###", "AB\nC D"),  # each of them, where one ends the text
        ("A###B\n###C D", "A###B\n###C D"),  # and none where none does
        ("A###B\nHuman: ###", "A###B"),  # what follows a speaker is cut first
        ("Four #### are no end ####", "Four # are no end #"),
        ("", ""),
    ],
)
def test_replies_are_cleaned_up_as_in_lolrl(text: str, expected: str) -> None:
    assert lolrl_reply(text) == expected
    assert find_post_processor("lolrl_reply") is lolrl_reply


def test_a_summary_has_three_sentences_a_line_each() -> None:
    assert three_sentence_summary("A b. C d. E f. G h.") == "A b.\nC d.\nE f."
    assert three_sentence_summary("A b. C") == "A b.\nC"


def test_a_summary_is_that_of_nltk_on_plain_sentences() -> None:
    """Punkt without what it learned: it knows no abbreviation, so there are none in this text."""
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    text = (
        'The town woke early. "Bread!" cried a boy. Was it 6 already? It was!! nobody bought any. '
        "It cost 3.50 (or so). They said it was dear.\nThey left."
    )
    assert sentences(text) == PunktSentenceTokenizer().tokenize(text)


def evaluated(name: str | None) -> tuple[list[str], list[str], float]:
    """Texts of an evaluation, texts of its workers, and the mean of a metric that counts letters."""
    leases = evaluation_leases(
        prompts(2), PromptTokens(WordTokens()), Sampling(max_tokens=4), samples=1, seed=0
    )
    workers, console = FakeWorkers([]), Console(Terminal(file=io.StringIO()))
    evaluation = evaluate(
        "validation",
        leases,
        Collector(workers, FakeRewards(), FailureBudget(10, 10), console, lambda: None, 1.0),
        find_post_processor(name),
    )
    written = [rollout.text for finished in workers.generate(leases) for rollout in finished]
    return [row["generated_text"] for row in evaluation.rows], written, evaluation.metrics["length/mean"]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "of_mine", raising=False)
    return tmp_path / "of_mine.py"


def test_everything_is_judged_as_it_was_processed(module: Path) -> None:
    module.write_text("def last_word(text):\n    return text.split()[-1]\n")
    shown, written, letters = evaluated("of_mine:last_word")
    assert shown == [str(EVALUATION), str(EVALUATION + 1)]  # the workers write "text <number>"
    assert written[0] == f"text {EVALUATION + 1}"
    assert letters == len(str(EVALUATION))
    shown, written, letters = evaluated(None)
    assert shown == list(reversed(written)) and letters == len(written[0])


def test_tokens_stay_those_that_were_written() -> None:
    leases = evaluation_leases(
        prompts(1), PromptTokens(WordTokens()), Sampling(max_tokens=4), samples=1, seed=0
    )
    workers = FakeWorkers([])
    (before,) = [rollout for finished in workers.generate(leases) for rollout in finished]
    processed = PostProcessed(workers, lambda text: "")
    (after,) = [rollout for finished in processed.generate(leases) for rollout in finished]
    assert after.text == "" and after.turns[0].tokens == before.turns[0].tokens
    assert [] in list(processed.generate(leases))  # rounds without news are passed on
    workers.environment_restarts = 3
    assert processed.environment_restarts == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("three_sentences", "there is no such post-processor; did you mean 'three_sentence_summary'?"),
        ("nowhere_at_all:function", "importing nowhere_at_all failed: ModuleNotFoundError"),
        ("of_mine:upper", "of_mine has no function upper"),
    ],
)
def test_an_unknown_post_processor_is_refused_at_the_door(module: Path, name: str, message: str) -> None:
    module.write_text("def lower(text):\n    return text.lower()\n")
    with pytest.raises(InputError) as caught:
        build(EvaluationSettings, {"post_processor": name}, where="evaluation")
    assert message in str(caught.value) and f"evaluation.post_processor={name}" in str(caught.value)


def test_what_a_function_of_ones_own_does_wrong_is_shown_with_the_text(module: Path) -> None:
    module.write_text("def nothing(text):\n    pass\ndef fails(text):\n    return {}[text]\n")
    with pytest.raises(InputError, match=r"of_mine:nothing: expected a text, got None\ntext: 'text \d+'"):
        evaluated("of_mine:nothing")
    with pytest.raises(InputError, match=r"of_mine:fails raised KeyError: "):
        evaluated("of_mine:fails")


def test_a_runs_evaluations_are_processed_and_its_training_is_not(module: Path, tmp_path: Path) -> None:
    module.write_text("def last_word(text):\n    return text.split()[-1]\n")
    loop = Loop(tmp_path / "runs", iterations=1, evaluation={"post_processor": "of_mine:last_word"})
    trained: list[str] = []
    update = loop.learner.update

    def seen(rollouts: Sequence[Rollout], on_progress: Callable[[str, int, int], None]) -> dict[str, float]:
        trained.extend(rollout.text for rollout in rollouts)
        return update(rollouts, on_progress)

    loop.learner.update = seen  # type: ignore[method-assign]
    loop.run()

    assert sorted(trained) == ["text 0", "text 1"]
    shown = [
        row["generated_text"]
        for file in loop.folder.path.glob("epoch_*_split_predictions.json")
        for row in json.loads(file.read_text())
    ]
    assert shown and set(shown) == {str(EVALUATION), str(EVALUATION + 1)}
