"""A teacher on vLLM's server: its log-probabilities are those of transformers, and a run learns from it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from contracts.rollout import Prompt
from contracts.settings import with_options
from learner.algorithms.distillation import Distillation, RemoteTeacher
from services.training.teachers.asking import OtherTokenizer, Teachers
from tests.local_run import train_here
from tests.models import make_tiny_model
from tests.services.training.teachers.test_asking import answered, bpe
from tests.services.training.teachers.test_distillation_run import curve, settings
from tests.vllm_server import served_by_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(900)]

TEXTS = ["the answer is 4 and the answer is 12", "größer is größer 😀 the answer"]
TOP = 20  # as many as vLLM tells at most by default
ITERATIONS = 16


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return bpe(TEXTS * 4, 330)


def made(folder: Path, tokenizer: Any, **options: Any) -> Path:
    words = [f"word{number}" for number in range(len(tokenizer) - 3)]
    tokenizer.save_pretrained(make_tiny_model(folder, vocab=words, **options))
    return folder


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    return made(tmp_path_factory.mktemp("teacher"), tokenizer, seed=1, sharpness=3.0)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, teacher: Path) -> Iterator[str]:
    screen = tmp_path_factory.mktemp("served") / "server.out"
    with served_by_vllm(teacher, "teacher", screen) as address:
        yield address


@torch.no_grad()
def local_logprobs(model: Path, tokens: list[int]) -> torch.Tensor:
    """The log-probabilities at each token after the first, by transformers."""
    lm = AutoModelForCausalLM.from_pretrained(model).eval()
    return lm(input_ids=torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)


def test_scores_are_those_of_transformers(url: str, teacher: Path, tokenizer: Any) -> None:
    contexts = [(3, 5), (4, 200, 17)]
    drawn = [tuple(range(7 + lease, len(tokenizer), 6)) for lease in range(2)]
    batch = [answered(lease, contexts[lease], drawn[lease]) for lease in range(2)]
    scored, metrics = Teachers(Distillation(teacher=RemoteTeacher(url=url, top_k=TOP)), {})(batch)
    assert metrics["teacher/scored"] == 1.0 and metrics["teacher/repeated_calls"] == 0.0
    for lease, rollout in enumerate(scored):
        tokens = [*contexts[lease], *drawn[lease]]
        rows_LV = local_logprobs(teacher, tokens)[len(contexts[lease]) - 1 :]
        scores, places = rollout.teacher, range(len(drawn[lease]))
        assert scores is not None
        assert scores.logprobs == pytest.approx(rows_LV[places, drawn[lease]].tolist(), abs=1e-4)
        top = rows_LV.topk(TOP)
        for place in places:
            assert scores.top_logprobs[place] == pytest.approx(top.values[place].tolist(), abs=1e-4)
            of_tokens = rows_LV[place, list(scores.top_tokens[place])].tolist()
            assert scores.top_logprobs[place] == pytest.approx(of_tokens, abs=1e-4)


def test_spans_of_another_tokenizer_are_those_of_transformers(
    url: str, teacher: Path, tokenizer: Any
) -> None:
    student = bpe(TEXTS, 257)  # bytes alone
    text, prompt = "the größer answer 😀 is 4", "the answer is"
    tokens = (*student(text)["input_ids"], student.eos_token_id)
    rollout = replace(answered(0, (1, 2), tokens), prompt=Prompt("p", prompt))
    remote = RemoteTeacher(url=url, align="text", tokenizer=str(teacher))
    both = {"": OtherTokenizer(tokenizer, student, is_chat=False)}
    scored, _ = Teachers(Distillation(teacher=remote), both)([rollout])
    scores = scored[0].teacher
    assert scores is not None
    context, answer = (tokenizer(words)["input_ids"] for words in (prompt, text))
    answer = [*answer, tokenizer.eos_token_id]
    rows_LV = local_logprobs(teacher, [*context, *answer])[len(context) - 1 :]
    each_token = rows_LV[range(len(answer)), answer].tolist()
    assert sum(scores.logprobs) == pytest.approx(sum(each_token), abs=1e-3)
    assert 3 < sum(scores.ends) <= len(answer) < len(tokens)
    first = scores.ends.index(True)  # the bytes of the teacher's first token are the first span
    assert student.decode(tokens[: first + 1]) == tokenizer.decode(answer[:1])
    assert scores.logprobs[first] == pytest.approx(each_token[0], abs=1e-4)
    assert scores.logprobs[-1] == pytest.approx(each_token[-1], abs=1e-4)  # the end of the text


def test_a_run_nears_its_teacher(url: str, tokenizer: Any, tmp_path: Path) -> None:
    student = made(tmp_path / "student", tokenizer)
    remote = {"teacher": {"url": url, "top_k": TOP}}
    longer = {"iterations": ITERATIONS, "rollout.prompts_per_iteration": 16}
    run = train_here(with_options(settings(student, tmp_path, remote), longer))
    losses = curve(run)
    print(losses)
    assert len(losses) == ITERATIONS
    assert all(row["teacher/scored"] == 1.0 for row in run.rollout_info())
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])
