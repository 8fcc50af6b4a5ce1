"""Prompts as the model reads them: which end is cut, for each split, and how many are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from contracts.rollout import Prompt
from services.config import compose
from services.config.settings import RunSettings
from services.data.tasks.base import SPLITS
from services.data.tasks.narrative_qa import NarrativeQa
from services.data.tokens.cut_prompts import CutPrompts, cut_examples
from services.data.tokens.prompt_limit import PromptLimit
from services.data.tokens.prompt_tokens import PromptTokens, sides_of
from services.studies.annotation.settings import settings_from as annotation_of
from tests.fakes import WordTokens
from tests.models import make_tiny_model


@pytest.fixture(scope="module", params=["gpt2", "t5"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp(request.param)
    return AutoTokenizer.from_pretrained(make_tiny_model(folder, architecture=request.param))


def run_of(*overrides: str) -> RunSettings:
    return compose.run_settings(["model.path=some/model", *overrides])


def test_a_long_prompt_is_cut_on_the_side_that_is_asked_for() -> None:
    assert PromptTokens(WordTokens(), PromptLimit(2, "left")).of_text("a bb ccc") == (12, 13)
    assert PromptTokens(WordTokens(), PromptLimit(2, "right")).of_text("a bb ccc") == (11, 12)
    assert PromptTokens(WordTokens()).of_text("a bb ccc") == (11, 12, 13)


def test_the_side_holds_for_a_real_tokenizer_and_its_special_tokens_stay(tokenizer: Any) -> None:
    whole = tokenizer("1 2 3 4 5 6")["input_ids"]
    ends = whole[6:]  # T5 ends every text with a token of its own
    room = 4 - len(ends)
    left, right = (PromptTokens(tokenizer, PromptLimit(4, side)) for side in ("left", "right"))
    for _ in range(2):  # both share the tokenizer, and neither changes what the other does
        assert left.of_text("1 2 3 4 5 6") == (*whole[:6][-room:], *ends)
        assert right.of_text("1 2 3 4 5 6") == (*whole[:room], *ends)
    assert left.text(left.of_text("1 2 3 4 5 6")).startswith("3 4 5 6" if room == 4 else "4 5 6")


def test_an_empty_prompt_is_one_token_to_start_from() -> None:
    class WithStart(WordTokens):
        bos_token_id = 0  # a token like any other, though it is falsy

    assert PromptTokens(WithStart()).of_text("") == (0,)
    assert PromptTokens(WordTokens()).of_text("  ") == (WordTokens.eos_token_id,)


def test_a_task_knows_its_side_and_an_option_changes_it_for_each_split() -> None:
    assert set(sides_of(None, NarrativeQa()).values()) == {"right"}
    assert set(sides_of(None, object()).values()) == {"left"}

    run = run_of("task=narrative_qa", "rollout.max_prompt_tokens=512", "evaluation.max_prompt_tokens=64")
    assert [run.prompt_limit(split) for split in SPLITS] == [
        PromptLimit(512, "right"),
        PromptLimit(64, "right"),
        PromptLimit(64, "right"),
    ]
    options = ("rollout.max_prompt_tokens", "evaluation.max_prompt_tokens", "evaluation.max_prompt_tokens")
    for split, option in zip(SPLITS, options, strict=True):
        assert f" tokens ({option}): " in str(CutPrompts(split, 50, 41, run.prompt_limit(split)))
    run = run_of("task=narrative_qa", "task.truncation_side={validation: left, test: left}")
    assert [run.prompt_limit(split).side for split in SPLITS] == ["right", "left", "left"]


def test_the_option_comes_back_from_a_runs_configuration() -> None:
    sides = {"train": "right", "validation": "left", "test": "left"}
    run = run_of("task=imdb", "task.truncation_side={train: right}")
    assert run.resolved()["task"]["truncation_side"] == sides
    assert RunSettings.model_validate(run.resolved()).resolved() == run.resolved()
    assert run_of("task=imdb").resolved()["task"]["truncation_side"] == "left"


@pytest.mark.parametrize(
    ("side", "message"),
    [
        ("middle", "got 'middle'; expected left"),
        ("{trian: left}", "no such split 'trian'; did you mean 'train'?"),
        ("3", "got 3; expected left"),
    ],
)
def test_another_side_is_refused(side: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run_of("task=imdb", f"task.truncation_side={side}")


@pytest.mark.parametrize(
    "read",
    [
        lambda key: run_of("task=imdb", f"task.{key}=right"),
        lambda key: annotation_of(["task=imdb", f"task.{key}=right", "reward=length", "output=there"]),
    ],
)
def test_the_option_is_named_where_it_is_misspelt(read: Callable[[str], object]) -> None:
    with pytest.raises(InputError) as caught:
        read("truncaton_side")
    assert "task.truncaton_side: there is no such option; did you mean 'truncation_side'?" in str(
        caught.value
    )
    with pytest.raises(InputError, match=r"task\.zzz: .*there are: .*truncation_side"):
        read("zzz")
    read("truncation_side")


def test_a_task_of_ones_own_has_the_option_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_task.py").write_text(
        "from contracts.rollout import Prompt\n"
        "class Capitals:\n"
        "    default_reward = 'length'\n"
        "    def prompts(self, split):\n"
        "        return [Prompt('0', 'a b')]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    run = run_of("task=own_task:Capitals", "task.truncation_side=right")
    assert run.prompt_limit("train").side == "right"
    assert run.resolved()["task"] == {"name": "own_task:Capitals", "truncation_side": "right"}


def test_what_is_cut_is_said_with_its_share_and_what_is_left() -> None:
    message = str(CutPrompts("train", num_prompts=50, num_cut=41, limit=PromptLimit(512, "right")))
    assert message == (
        "train: 41 of 50 (82%) prompts are longer than 512 tokens (rollout.max_prompt_tokens): the model "
        "reads their first 512, without their end (task.truncation_side=right)"
    )


def test_examples_that_are_not_learned_whole_are_counted() -> None:
    """By words: prompts of 2 and 6, references of 3, 5 and 1; at most 4 of a reference, 8 of both."""
    prompts = [Prompt("0", "a b", ("c d e", "a b c d e f g")), Prompt("1", "a b c d e f", ("g",))]
    prompts[1] = Prompt("1", "a b c d e f", ("g", "h i j k l m"))
    cut = cut_examples(prompts, PromptLimit(), 4, 8, lambda texts: [len(t.split()) for t in texts])
    assert (cut.num_examples, cut.num_cut, cut.num_crowded) == (4, 2, 1)
    assert [sentence.split(":")[1] for sentence in cut.sentences()] == [
        " 2 of 4 (50%) references are longer than rollout.max_tokens=4",
        " 1 of 4 (25%) examples are longer than the model's window of 8 tokens",
    ]
