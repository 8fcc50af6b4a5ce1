"""Whole commands with chat templates: what is read is what `apply_chat_template` writes.

The tokens that were drawn are trained on. One turn and three, as data and as an environment's.
"""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.conversations.chat import CHANNEL
from contracts.rollout import Rollout
from learner.learner import Learner
from rollout_workers.engines.base import Generation, Request
from rollout_workers.engines.transformers_engine import TransformersEngine
from services import cli
from services.config import compose
from services.inference.chat.speaker import Answer, Speaker
from services.terminal.interrupts import handlers_kept
from tests.chat_templates import TEXTS, make_chat_model
from tests.contracts.test_chat import ONE, THREE
from tests.local_run import train_here
from tests.rollout_workers.test_chat_episodes import SAYS, USER

Talk = list[dict[str, str]]
IN_SHORT = ("strips_reasoning",)
NAMES = [name if name in IN_SHORT else pytest.param(name, marks=pytest.mark.long) for name in TEXTS]
MAX_TOKENS = 6


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp(request.param) / request.param, TEXTS[request.param])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    lines = [json.dumps({"prompt": talk}) + "\n" for talk in (ONE, THREE) * 2]
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.jsonl").write_text("".join(lines))
    return tmp_path


class Seen:
    """Texts that a real engine reads and writes here, and rollouts that a real learner is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: list[tuple[int, ...]] = []
        self.drawn: list[tuple[int, ...]] = []
        self.trained: list[Rollout] = []
        add, step, update = TransformersEngine.add, TransformersEngine.step, Learner.update

        def adding(engine: TransformersEngine, request: Request) -> None:
            self.read.append(request.tokens)
            add(engine, request)

        def stepping(engine: TransformersEngine) -> list[Generation]:
            finished = step(engine)
            self.drawn += [generation.tokens for generation in finished]
            return finished

        def updating(learner: Learner, rollouts: Any, *arguments: Any) -> dict[str, float]:
            self.trained += rollouts
            return update(learner, rollouts, *arguments)

        monkeypatch.setattr(TransformersEngine, "add", adding)
        monkeypatch.setattr(TransformersEngine, "step", stepping)
        monkeypatch.setattr(Learner, "update", updating)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


def tokenizer_of(model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


def as_template(its: Any, talk: Talk) -> tuple[int, ...]:
    return tuple(its.apply_chat_template(talk, add_generation_prompt=True, return_dict=False))


def train(model: Path, data: Path, *overrides: str) -> list[dict[str, Any]]:
    """Two iterations in this process; the numbers of both."""
    folder = train_here(
        compose.run_settings(
            [
                *(f"model.path={model}", "task=prompts", f"task.data_files={data}", "reward=length"),
                *("reward.target=3", "metrics=[]", "algorithm=ppo", "algorithm.num_epochs=1"),
                *("algorithm.minibatch_size=null", "algorithm.learning_rate=1e-3", "iterations=2"),
                *("rollout.prompts_per_iteration=4", f"rollout.max_tokens={MAX_TOKENS}"),
                *("rollout.engine=transformers", "rollout.num_threads=1", "learner.num_threads=1"),
                *("learner.device=cpu", "rollout.kv_cache_gib=0.01", "tracking.enabled=false"),
                *("evaluate_every=0", "save_every=0", f"output_dir={data}", "run_name=run", *overrides),
            ]
        )
    )
    return [
        rolled | learned
        for rolled, learned in zip(folder.rollout_info(), folder.training_info(), strict=True)
    ]


def test_prompts_are_read_as_the_template_writes_them(model: Path, data: Path, seen: Seen) -> None:
    """By train, and by its evaluations of validation and test."""
    its = tokenizer_of(model)
    one, three = (as_template(its, talk) for talk in (ONE, THREE))
    rows = train(model, data)
    assert set(seen.read) == {one, three}
    assert len(seen.read) == 4 * (2 + 2 * 2)  # two iterations, and both splits before and after them
    assert {rollout.context(0) for rollout in seen.trained} == {one, three}
    assert {count_of_bos(its, tokens) for tokens in (one, three)} == {"bos_token" in TEXTS[model.name]}
    as_drawn(seen, rows)


@pytest.mark.parametrize("history", ["recorded", "template"])
def test_three_turns_are_trained_on_as_they_were_drawn(
    model: Path, data: Path, seen: Seen, history: str
) -> None:
    its = tokenizer_of(model)
    environment = f"{{name: 'tests.rollout_workers.episodes:Told', says: {list(SAYS)}, isolated: false}}"
    rows = train(model, data, f"environment={environment}", f"model.chat.history={history}")
    as_drawn(seen, rows)
    assert len(seen.trained) == 8
    for rollout in seen.trained:
        assert rollout.context(0) == as_template(its, USER[:1])
        assert len(rollout.turns) == 3
        assert all(rollout.context(turn) in seen.read for turn in range(3))
        if history == "recorded":  # every answer stands where it was drawn
            assert len(rollout.segments) == 1
            continue
        answers_drawn = [content_of(its, turn.tokens) for turn in rollout.turns]
        if any(CHANNEL.search(text) or "<|channel|>" in text for text in answers_drawn):
            continue  # a random text that forges a channel: such templates refuse it, or divide it
        answers = [{"role": "assistant", "content": text} for text in answers_drawn]
        for turn in range(3):
            talk = [message for pair in zip(USER, answers, strict=True) for message in pair][: 2 * turn + 1]
            assert rollout.context(turn) == as_template(its, talk)


def as_drawn(seen: Seen, rows: list[dict[str, Any]]) -> None:
    """The learner trains on the engine's tokens, and computes their probabilities as it did."""
    for rollout in seen.trained:
        for turn in rollout.turns:
            assert turn.tokens in seen.drawn
        trained = [token for token, mine in zip(rollout.tokens, rollout.loss_mask, strict=True) if mine]
        assert trained == [token for turn in rollout.turns for token in turn.tokens]
    for row in rows:
        assert row["mismatch/max_ratio"] < 1 + 1e-4
        assert row["ratio/mean"] == pytest.approx(1, abs=1e-5)


def content_of(its: Any, answer: tuple[int, ...]) -> str:
    """An answer's text without its end: the tokenizer's, or the template's."""
    ends = {its.eos_token_id} | {
        its.convert_tokens_to_ids(mark)
        for mark in (
            "<|stop|>",
            "<end_of_turn>",
            "<|end|>",
            "<|return|>",
            "<|eot|>",
            "<|im_end|>",
            "<|eot_id|>",
        )
        if mark in its.get_added_vocab()
    }
    return str(its.decode(answer[:-1] if answer[-1] in ends else answer))


def count_of_bos(its: Any, tokens: tuple[int, ...]) -> int:
    return tokens.count(its.bos_token_id)


def test_generate_reads_them_so(
    model: Path, tmp_path: Path, seen: Seen, capsys: pytest.CaptureFixture[str]
) -> None:
    its = tokenizer_of(model)
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": talk}) + "\n" for talk in (ONE, THREE)))
    arguments = ["--prompts", str(file), "--prompt", ONE[0]["content"], "--engine", "transformers", "--json"]
    assert cli.main(["generate", str(model), *arguments, "--max-tokens", "4"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    one, three = (as_template(its, talk) for talk in (ONE, THREE))
    assert sorted(seen.read) == sorted([one, one, three])


def test_chat_reads_its_own_answers_so(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three questions through a pipe; the second and third follow earlier answers."""
    read: list[tuple[int, ...]] = []
    texts: list[str] = []
    answer: Callable[..., Answer] = Speaker.answer

    def answering(speaker: Speaker, tokens: Any, *arguments: Any) -> Answer:
        read.append(tuple(tokens))
        reply = answer(speaker, tokens, *arguments)
        texts.append(reply.text)
        return reply

    monkeypatch.setattr(Speaker, "answer", answering)
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{text}\n" for text in SAYS)))
    with handlers_kept():
        assert cli.main(["chat", str(model), "--max-tokens", "4", "--seed", "3"]) == 0
    its = tokenizer_of(model)
    answers = [{"role": "assistant", "content": text} for text in texts]
    talk = [message for pair in zip(USER, answers, strict=True) for message in pair]
    assert read == [as_template(its, talk[: 2 * turn + 1]) for turn in range(3)]
