"""Teachers behind addresses: a real HTTP server of a tiny model, killed or refusing; two tokenizers."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from contracts.errors import InputError, RunError
from contracts.rollout import FinishReason, Prompt, Rollout, Turn
from learner.algorithms.distillation import Distillation, RemoteTeacher
from services.models.new_tokenizer import byte_tokenizer
from services.training.teachers import served_teacher
from services.training.teachers.aligned_texts import aligned, ends_of_tokens, tokens_with_ends
from services.training.teachers.asking import OtherTokenizer, Teachers
from tests.free_ports import free_port
from tests.models import make_tiny_model


class Server:
    """A server that answers as vLLM does, by whole softmaxes of a tiny model; some calls fail first."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.lm = AutoModelForCausalLM.from_pretrained(folder).eval()
        self.failures: list[int] = []  # statuses of the next calls
        self.num_calls = 0
        self.message = "no"  # of a failure
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                """Write nothing."""

            def answer(self, status: int, body: Any) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self) -> None:
                self.answer(200, {"data": [{"id": "tiny"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.num_calls += 1
                if outer.failures:
                    self.answer(outer.failures.pop(0), {"error": outer.message})
                    return
                assert body["model"] == "tiny"
                places = outer.places(body["prompt"], body["prompt_logprobs"])
                self.answer(200, {"choices": [{"prompt_logprobs": places}]})

        self.http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    @torch.no_grad()
    def places(self, tokens: list[int], count: int) -> list[Any]:
        logprobs_LV = self.lm(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)
        answer: list[Any] = [None]
        for row_V, token in zip(logprobs_LV, tokens[1:], strict=False):
            order = row_V.argsort(descending=True).tolist()
            shown = {order.index(token) + 1: token} | {rank + 1: order[rank] for rank in range(count)}
            answer.append(
                {str(token): {"logprob": float(row_V[token]), "rank": rank} for rank, token in shown.items()}
            )
        return answer

    def stop(self) -> None:
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("teacher"))


@contextmanager
def serving(folder: Path, port: int = 0) -> Iterator[Server]:
    server = Server(folder, port)
    try:
        yield server
    finally:
        server.stop()


def answered(lease: int, observed: tuple[int, ...], drawn: tuple[int, ...], part: str = "") -> Rollout:
    turn = Turn(observed, drawn, "", (-1.0,) * len(drawn), (0,) * len(drawn), 0.0)
    prompt = Prompt("p", "3 5", meta={"part": part} if part else {})
    return Rollout(lease, lease, prompt, (turn,), FinishReason.STOP)


def address(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}/v1"


def teachers(server: Server, **options: Any) -> Teachers:
    return Teachers(Distillation(teacher=RemoteTeacher(url=address(server), **options)), {})


def test_scores_are_the_models_own_log_probabilities(model: Path) -> None:
    batch = [answered(0, (3, 5), (7, 9, 1)), answered(1, (4,), (6,))]
    batch[1] = replace(batch[1], turns=(*batch[1].turns, replace(batch[0].turns[0], fresh=True)))
    with serving(model) as server:
        scored, metrics = teachers(server, top_k=4)(batch)
        logprobs_LV = server.lm(input_ids=torch.tensor([[3, 5, 7, 9, 1]])).logits[0].log_softmax(-1)
    expected = [float(logprobs_LV[1, 7]), float(logprobs_LV[2, 9]), float(logprobs_LV[3, 1])]
    assert scored[0].teacher is not None and scored[1].teacher is not None
    assert list(scored[0].teacher.logprobs) == pytest.approx(expected, abs=1e-6)
    assert list(scored[1].teacher.logprobs[1:]) == pytest.approx(expected, abs=1e-6)  # after the first turn
    top = logprobs_LV[1:4].topk(4)
    assert [sorted(row) for row in scored[0].teacher.top_tokens] == [
        sorted(row) for row in top.indices.tolist()
    ]
    assert metrics["teacher/scored"] == 1.0 and metrics["teacher/calls"] == 3.0


def test_calls_that_fail_are_made_again_with_the_same_texts(model: Path) -> None:
    batch = [answered(0, (3, 5), (7, 9, 1))]
    with serving(model) as server:
        plain, _ = teachers(server)(batch)
        server.failures = [503, 500]
        again, metrics = teachers(server)(batch)
    assert again == plain and metrics["teacher/repeated_calls"] == 2.0


def test_a_teacher_that_is_killed_and_comes_back_scores_the_same_batch(model: Path) -> None:
    batch = [answered(lease, (3, 5), (7, 9, 1)) for lease in range(3)]
    with serving(model) as server:
        expected, _ = teachers(server)(batch)
        port, asking = server.port, teachers(server)
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(asking(batch)))
    thread.start()
    time.sleep(1.2)  # at least one call to nobody
    assert not answers
    with serving(model, port):
        thread.join(30)
    ((scored, metrics),) = answers
    assert scored == expected and metrics["teacher/repeated_calls"] >= 3


def test_patience_ends_and_says_what_to_do() -> None:
    port = free_port()
    algorithm = Distillation(
        teacher=RemoteTeacher(url=f"http://127.0.0.1:{port}/v1", model="m", patience_s=1.0)
    )
    with pytest.raises(RunError, match=r"did not answer for 1 s .* continues from the newest checkpoint"):
        Teachers(algorithm, {})([answered(0, (3,), (5,))])


def test_refusals_are_told_from_texts_that_are_too_long(model: Path) -> None:
    batch = [answered(0, (3, 5), (7,)), answered(1, (3, 5), (8,))]
    with serving(model) as server:
        server.failures = [400]
        scored, metrics = teachers(server, max_concurrent=1)(batch)
        assert [rollout.teacher is None for rollout in scored] == [True, False]
        assert metrics["teacher/scored"] == 0.5
        server.failures = [404]
        with pytest.raises(InputError, match="rejects the request, status 404"):
            teachers(server)(batch[:1])  # a second call could come late, and take a failure of the next batch
        server.failures = [400, 400]
        with pytest.raises(InputError, match="scored none of 2 texts"):
            teachers(server)(batch)


@pytest.mark.parametrize("places", [[None, {"5": {"logprob": -1.0, "rank": 1}}], [None], [None, {}, {}]])
def test_an_answer_without_a_sent_token_is_refused(model: Path, places: list[Any]) -> None:
    with serving(model) as server:
        server.places = lambda tokens, count: places  # type: ignore[method-assign]
        with pytest.raises(InputError, match="prompt_logprobs lack a token that was sent"):
            teachers(server)([answered(0, (3, 5), (7,))])


def test_an_answer_longer_than_its_numbers_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_teacher, "MOST_BYTES", 0)
    with serving(model) as server:
        rollout = answered(0, (3, 5), (7,))  # three tokens, each with its own number and two more
        assert teachers(server, top_k=2)([rollout])[0][0].teacher is not None
        server.places = lambda tokens, count: ["1" * 3 * 3 * served_teacher.ENTRY_BYTES]  # type: ignore[method-assign]
        with pytest.raises(InputError, match=r"the answer has more than 4608 bytes; expected a vLLM server"):
            teachers(server, top_k=2)([rollout])


def test_a_servers_message_shows_no_key(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEACHERS_KEY", "sk-of-a-teacher")
    with serving(model) as server:
        server.message = "x" * 280 + " sk-of-a-teacher"
        server.failures = [404]
        with pytest.raises(InputError) as refused:
            teachers(server, key_variable="TEACHERS_KEY")([answered(0, (3,), (5,))])
    assert "status 404" in str(refused.value) and "sk-of" not in str(refused.value)


def test_a_stop_ends_the_wait() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    algorithm = Distillation(teacher=RemoteTeacher(url="http://127.0.0.1:9/v1", model="m"))
    with pytest.raises(KeyboardInterrupt):
        Teachers(algorithm, {}, stop)([answered(0, (3,), (5,))])


def test_parts_of_a_mixture_have_their_own_teachers(model: Path) -> None:
    batch = [answered(0, (3, 5), (7,), "sums"), answered(1, (3, 5), (7,))]
    with serving(model) as general, serving(model) as special:
        algorithm = Distillation(
            teacher=RemoteTeacher(url=address(general)),
            teachers={"sums": RemoteTeacher(url=address(special))},
        )
        Teachers(algorithm, {})(batch)
        assert general.num_calls == special.num_calls == 1


def bpe(texts: list[str], size: int) -> PreTrainedTokenizerFast:
    return byte_tokenizer(("<end>",), texts, size, eos_token="<end>")


@pytest.fixture(scope="module")
def pair() -> tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast]:
    """A tokenizer of bytes, and one of longer pieces."""
    text = ["the answer is 4 and the answer is 12", "größer is größer 😀 the answer"]
    return bpe(text, 257), bpe(text * 4, 330)


def test_spans_end_where_both_tokenizers_do(pair: tuple[Any, Any]) -> None:
    student, teacher = pair
    drawn = student("the größer answer 😀 is 4")["input_ids"]
    text, student_ends = ends_of_tokens(student, drawn)
    tokens, teacher_ends = tokens_with_ends(teacher, text)
    assert text == "the größer answer 😀 is 4" and len(tokens) < len(drawn)
    scores = aligned(student_ends, teacher_ends, [-float(2**-place) for place in range(len(tokens))])
    assert sum(scores.ends) <= len(tokens) and scores.ends[-1]
    assert sum(scores.logprobs) == pytest.approx(-sum(2**-place for place in range(len(tokens))))
    ends = {end for end in student_ends if end is not None}
    assert all(end in ends for end, is_end in zip(student_ends, scores.ends, strict=True) if is_end)
    assert None in student_ends  # bytes within ö and the picture


def test_ends_are_those_of_whole_beginnings(pair: tuple[Any, Any]) -> None:
    """The lengths of all beginnings that are whole letters, at the tokens that add a letter."""
    for tokenizer in pair:
        drawn = tokenizer("the größer answer 😀😀 is\n\n  4")["input_ids"]
        drawn[3:3] = [tokenizer.eos_token_id]  # no text
        text, ends = ends_of_tokens(tokenizer, drawn)
        expected: list[int | None] = []
        for count in range(1, len(drawn) + 1):
            beginning = tokenizer.decode(drawn[:count], skip_special_tokens=True)
            expected.append(None if "\ufffd" in beginning else len(beginning))
        expected[3] = None
        assert ends == expected and ends[-1] == len(text)


def test_the_ends_of_a_long_text_take_no_time(pair: tuple[Any, Any]) -> None:
    student, _ = pair
    drawn = student("the answer is 4 " * 500)["input_ids"]
    decoded = 0

    class Counting:
        def decode(self, tokens: list[int], **options: Any) -> str:
            nonlocal decoded
            decoded += len(tokens)
            return str(student.decode(tokens, **options))

    ends_of_tokens(Counting(), drawn)
    assert decoded < 6 * len(drawn)


def test_another_tokenizer_scores_the_text_and_its_end(pair: tuple[Any, Any]) -> None:
    """Calls by hand: the context in the teacher's tokens, the text, its end; one score a span."""
    student, teacher = pair
    drawn = (*student("the answer")["input_ids"], student.eos_token_id)
    rollout = replace(answered(0, (1, 2), drawn), prompt=Prompt("p", "is"))
    seen: list[list[int]] = []
    algorithm = Distillation(
        teacher=RemoteTeacher(url="http://127.0.0.1:9/v1", model="m", align="text", tokenizer="here")
    )
    asking = Teachers(algorithm, {"": OtherTokenizer(teacher, student, is_chat=False)})

    class Shown:
        settings = algorithm.teacher
        num_calls = num_repeated = 0

        def client(self) -> Any:
            import httpx

            return httpx.AsyncClient()

        async def places(self, _client: Any, tokens: list[int]) -> list[dict[int, float]]:
            seen.append(tokens)
            return [{token: -1.0} for token in tokens[1:]]

    asking._servers = {"": Shown()}  # type: ignore[dict-item]
    (scored,), _ = asking([rollout])
    expected = [*teacher("is")["input_ids"], *teacher("the answer")["input_ids"], teacher.eos_token_id]
    assert seen == [expected]
    assert scored.teacher is not None and scored.teacher.logprobs[-1] == -1.0
    assert sum(scored.teacher.logprobs) == -(len(teacher("the answer")["input_ids"]) + 1)


@pytest.mark.parametrize("impossible", [-9999.0, float("-inf")])
def test_an_impossible_token_is_as_bad_as_a_token_gets(model: Path, impossible: float) -> None:
    with serving(model) as server:
        place = {"7": {"logprob": impossible, "rank": 9}}
        server.places = lambda tokens, count: [None, {"5": {"logprob": -1.0, "rank": 1}}, place]  # type: ignore[method-assign]
        (scored,), _ = teachers(server)([answered(0, (3, 5), (7,))])
        assert scored.teacher is not None and scored.teacher.logprobs == (-50.0,)


def test_teachers_answer_within_a_running_event_loop(model: Path) -> None:
    async def cell() -> Any:
        return teachers(server)([answered(0, (3, 5), (7,))])[0]

    with serving(model) as server:
        outside = teachers(server)([answered(0, (3, 5), (7,))])[0]
        assert asyncio.run(cell()) == outside and outside[0].teacher is not None
