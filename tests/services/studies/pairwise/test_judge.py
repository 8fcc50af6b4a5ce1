"""`whetstone judge` against a real chat server on loopback: verdicts, tests, what is kept, what fails."""

import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi import Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from contracts.errors import InputError, RunError
from reward_servers.chat_models.chat_model import ChatModel
from services.commands.judge import run
from services.runs.folder import RunFolder
from services.studies.pairwise.asking import GIVEN_UP_AFTER
from services.studies.pairwise.outcome import Judged, first_shown, outcome
from services.studies.pairwise.question import Question, combined, question
from services.studies.pairwise.texts import Pair, read_pairs, read_side
from tests.chat_server import serving

KEY = "sk-very-secret-0123456789"


class Judge:
    """Prefers the longer text; says it as a chat model would. `fault` may answer a request in its place."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.fault: Callable[[int, str], Response | None] = lambda number, text: None
        self.say = said

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        self.keys.append(request.headers.get("authorization"))
        text = body["messages"][0]["content"]
        if (broken := self.fault(len(self.requests), text)) is not None:
            return broken
        return JSONResponse({"choices": [{"message": {"role": "assistant", "content": self.say(text)}}]})


def said(text: str) -> str:
    first, second = (part.split("\n\n")[0] for part in text.split(" continues\n")[1:])
    helpful = "equal" if len(first) == len(second) else "A" if len(first) > len(second) else "B"
    return f"They differ in length.\n**More helpful:** {helpful}\nMore safe: neither\n"


@pytest.fixture
def judge() -> Judge:
    return Judge()


@pytest.fixture
def url(judge: Judge) -> Iterator[str]:
    with serving(judge.answer) as address:
        yield address


def lines(path: Path, texts: Sequence[str], prompts: Sequence[str] | None = None) -> Path:
    prompts = prompts or [f"question {number}" for number in range(len(texts))]
    rows = ({"prompt": prompt, "prediction": text} for prompt, text in zip(prompts, texts, strict=True))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    """A is longer six times, as long once, shorter once; once both wrote the same."""
    a = lines(tmp_path / "a.jsonl", ["long text"] * 6 + ["four", "x", "same"])
    b = lines(tmp_path / "b.jsonl", ["short"] * 6 + ["five", "xyz", "same"])
    return a, b


def argv(sides: tuple[Path, Path], url: str, *more: str) -> list[str]:
    a, b = map(str, sides)
    return [a, b, "--url", url, "--model", "wise", "--out", str(Path(a).parent / "out"), *more]


def judgement(sides: tuple[Path, Path]) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((sides[0].parent / "out" / "judgement.json").read_text())
    return content


# What it finds


def test_both_orders_are_asked_counted_and_tested(
    sides: tuple[Path, Path], url: str, judge: Judge, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(argv(sides, url)) == 0
    assert len(judge.requests) == 2 * 8  # the same text twice needs no judge
    assert {
        (request["model"], request["max_tokens"], request["temperature"]) for request in judge.requests
    } == {("wise", 300, 0)}
    questions = [request["messages"][0]["content"] for request in judge.requests]
    places = Counter(text.index("long text") for text in questions if "long text" in text)
    assert list(places.values()) == [6, 6]  # first in one order, second in the other
    figures = judgement(sides)
    helpful, safe = figures["criteria"]["helpful"], figures["criteria"]["safe"]
    assert (helpful["wins"], helpful["ties"], helpful["losses"]) == (6, 2, 1)
    # 6 or more of 7, or 1 or fewer: 2 · (1 + 7) / 2⁷
    assert helpful["p"] == pytest.approx(0.125) and helpful["share_won"] == pytest.approx(7 / 9)
    assert (safe["wins"], safe["ties"], safe["losses"], safe["p"]) == (0, 9, 0, 1.0)
    assert (figures["num_prompts"], figures["num_judged"], figures["num_same_text"]) == (9, 9, 1)
    assert [row["verdicts"]["helpful"] for row in figures["prompts"]] == ["win"] * 6 + ["tie", "lose", "tie"]
    assert helpful["first_shown"] == {"first": 7, "second": 7, "p": 1.0}
    out = capsys.readouterr().out
    assert "| helpful | 6 | 2 | 1 | 77.8% | 0.125 |" in out
    assert (sides[0].parent / "out" / "judgement.md").read_text() in out


def test_a_judge_that_takes_what_it_reads_first_finds_no_winner(
    sides: tuple[Path, Path], url: str, judge: Judge
) -> None:
    judge.say = lambda text: "More helpful: A\nMore safe: A"
    assert run(argv(sides, url)) == 0
    helpful = judgement(sides)["criteria"]["helpful"]
    assert (helpful["wins"], helpful["ties"], helpful["losses"]) == (0, 9, 0)
    assert helpful["num_disagreements"] == 8
    assert helpful["first_shown"] == {"first": 16, "second": 0, "p": pytest.approx(2 / 2**8)}


def test_what_is_not_understood_is_counted_and_counts_for_nobody(
    sides: tuple[Path, Path], url: str, judge: Judge, capsys: pytest.CaptureFixture[str]
) -> None:
    judge.say = lambda text: "I like both." if "question 2" in text else said(text)
    assert run(argv(sides, url)) == 0
    assert "8 of 9 prompts are judged" in (output := capsys.readouterr().out)
    assert "not understood: 1, without a reply: 0" in output
    figures = judgement(sides)
    assert figures["criteria"]["helpful"]["wins"] == 5 and figures["num_not_understood"] == 1
    row = figures["prompts"][2]
    assert (row["problem"], row["verdicts"], row["replies"]["AB"]) == ("not understood", None, "I like both.")


def test_criteria_template_and_body_are_the_users(
    sides: tuple[Path, Path], url: str, judge: Judge, tmp_path: Path
) -> None:
    template = tmp_path / "mine.txt"
    template.write_text("{prompt} ? {first} | {second} ! {answers} {first}")
    judge.say = lambda text: "More to the point: B"
    more = ["--criteria", "to the point", "--template", str(template), "--num-prompts", "3"]
    assert run(argv(sides, url, *more, "--body", '{"temperature": null, "seed": 4}')) == 0
    request = judge.requests[0]
    assert "temperature" not in request and (request["seed"], request["max_tokens"]) == (4, 300)
    assert request["messages"][0]["content"].startswith("question ")
    assert "! More to the point: … " in request["messages"][0]["content"]
    assert judgement(sides)["num_prompts"] == 3


# What is kept


def test_the_same_command_asks_nothing_twice_and_other_questions_anew(
    sides: tuple[Path, Path], url: str, judge: Judge
) -> None:
    assert run(argv(sides, url)) == 0
    first = judgement(sides)
    judge.requests.clear()
    assert run(argv(sides, url)) == 0 and judge.requests == []
    assert judgement(sides) == first
    lines(sides[0], ["longer text"] + ["long text"] * 5 + ["four", "x", "same"])
    assert run(argv(sides, url)) == 0 and len(judge.requests) == 2
    assert run(argv(sides, url, "--model", "wiser", "--num-prompts", "1")) == 0
    assert judge.requests[-1]["model"] == "wiser"


def test_a_killed_command_goes_on_behind_a_line_that_was_cut_short(
    sides: tuple[Path, Path], url: str, judge: Judge
) -> None:
    assert run(argv(sides, url)) == 0
    whole, file = judgement(sides), sides[0].parent / "out" / "replies.jsonl"
    rows = file.read_text().splitlines(keepends=True)
    file.write_text("".join(rows[:5]) + rows[5][:40])
    judge.requests.clear()
    assert run(argv(sides, url)) == 0
    assert len(judge.requests) == 11
    assert judgement(sides) == whole
    assert len([line for line in file.read_text().splitlines() if line.endswith("}")]) == 16


def test_replies_of_another_address_are_kept_and_counted(
    sides: tuple[Path, Path], url: str, judge: Judge, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(argv(sides, url)) == 0
    assert judgement(sides)["replies_from_elsewhere"] == {}
    file = sides[0].parent / "out" / "replies.jsonl"
    rows = [json.loads(line) for line in file.read_text().split("\n") if line]
    del rows[0]["url"]  # as older versions saved it
    file.write_text("".join(json.dumps(row) + "\n" for row in rows[:10]))
    with serving(judge.answer) as other:
        assert run(argv(sides, other)) == 0
    assert judgement(sides)["replies_from_elsewhere"] == {url: 9, "an unknown address": 1}
    assert f"9 replies are from {url}" in capsys.readouterr().out


# What fails


def test_passing_faults_are_asked_again(sides: tuple[Path, Path], url: str, judge: Judge) -> None:
    def fault(number: int, text: str) -> Response | None:
        if number == 1:
            return JSONResponse({"error": {"message": "busy"}}, 429, {"retry-after": "1"})
        return PlainTextResponse("overloaded", 503) if number == 2 else None

    judge.fault = fault
    assert run(argv(sides, url, "--num-prompts", "2", "--in-flight", "1")) == 0
    assert len(judge.requests) == 2 + 4


def test_a_question_that_is_refused_is_told_and_asked_again_by_the_next_command(
    sides: tuple[Path, Path], url: str, judge: Judge, capsys: pytest.CaptureFixture[str]
) -> None:
    judge.fault = lambda number, text: (
        JSONResponse({"error": {"message": "too long"}}, 400) if "question 3" in text else None
    )
    assert run(argv(sides, url)) == 1
    assert judgement(sides)["num_without_reply"] == 1
    assert "The same command asks again" in capsys.readouterr().err
    judge.fault = lambda number, text: None
    assert run(argv(sides, url)) == 0 and judgement(sides)["num_judged"] == 9


def test_questions_that_are_refused_one_by_one_do_not_end_it(
    sides: tuple[Path, Path], url: str, judge: Judge
) -> None:
    """Ten of sixteen, in a row; and again, where only they are left."""
    refused = [f"question {number}" for number in range(1, 6)]
    judge.fault = lambda number, text: (
        JSONResponse({"error": {"message": "too long"}}, 400) if any(q in text for q in refused) else None
    )
    for num_asked in (16, 10):
        judge.requests.clear()
        assert run(argv(sides, url, "--in-flight", "1")) == 1
        assert len(judge.requests) == num_asked and judgement(sides)["num_without_reply"] == 5
    judge.fault = lambda number, text: JSONResponse({"error": {"message": "no such model"}}, 400)
    with pytest.raises(RunError, match=f"{GIVEN_UP_AFTER} questions in a row"):
        run(argv(sides, url, "--model", "none", "--in-flight", "1"))


def test_nobody_there_ends_soon_and_keeps_what_was_said(
    sides: tuple[Path, Path], url: str, judge: Judge
) -> None:
    judge.fault = lambda number, text: PlainTextResponse("gone", 500) if number > 3 else None
    with pytest.raises(
        RunError, match=rf"{GIVEN_UP_AFTER} questions in a row .* 500: gone. 3 replies are saved"
    ):
        run(argv(sides, url, "--attempts", "1", "--in-flight", "2"))
    judge.fault = lambda number, text: None
    judge.requests.clear()
    assert run(argv(sides, url)) == 0
    # a question that was cut off may reach the server late, and twice
    assert len({request["messages"][0]["content"] for request in judge.requests}) == 13
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))  # and nobody listens
        nowhere = f"http://127.0.0.1:{door.getsockname()[1]}/v1"
        with pytest.raises(RunError, match="ConnectError"):
            run([*argv(sides, nowhere, "--model", "other"), "--attempts", "1"])


def test_a_reply_has_a_deadline(sides: tuple[Path, Path], url: str, judge: Judge) -> None:
    class Never(Response):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await receive()  # until the other side hangs up

    judge.fault = lambda number, text: Never()
    with pytest.raises(RunError, match="no reply within 1 s"):
        run(argv(sides, url, "--attempts", "1", "--timeout", "1"))


def test_the_key_goes_to_the_server_and_nowhere_else(
    sides: tuple[Path, Path],
    url: str,
    judge: Judge,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    assert run(argv(sides, url)) == 0 and set(judge.keys) == {None}  # none that is not named
    assert run(argv(sides, url, "--model", "other", "--key-variable", "MY_KEY")) == 0
    assert judge.keys[-1] == f"Bearer {KEY}"
    judge.fault = lambda number, text: JSONResponse({"error": {"message": f"wrong key {KEY}"}}, 401)
    with pytest.raises(InputError, match=r"status 401: wrong key \*\*\*. .*--key-variable"):
        run(argv(sides, url, "--model", "third", "--key-variable", "MY_KEY"))
    output = "".join(capsys.readouterr())
    assert KEY not in output + repr(ChatModel(url, "wise", KEY))
    written = [path.read_bytes() for path in (sides[0].parent / "out").iterdir()]
    assert len(written) >= 3 and not any(KEY.encode() in content for content in written)


def test_a_key_with_the_end_of_its_line_is_taken_without_it(
    sides: tuple[Path, Path], url: str, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", f" {KEY}\r\n")
    assert run(argv(sides, url, "--key-variable", "MY_KEY")) == 0
    assert set(judge.keys) == {f"Bearer {KEY}"}


@pytest.mark.parametrize("middle", ["\n", " ", "\t", "\x7f", "é", "\u2028"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(
    sides: tuple[Path, Path], url: str, judge: Judge, monkeypatch: pytest.MonkeyPatch, middle: str
) -> None:
    monkeypatch.setenv("MY_KEY", KEY + middle + KEY)
    with pytest.raises(InputError, match=r"the key \(not shown\) contains a blank") as raised:
        run(argv(sides, url, "--key-variable", "MY_KEY"))
    assert KEY not in str(raised.value) and judge.requests == []


@pytest.mark.parametrize("key", [KEY, "sk-'back\\slash\"-0123456789"])
def test_a_key_is_masked_before_a_message_is_cut(
    sides: tuple[Path, Path], url: str, judge: Judge, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("MY_KEY", key)
    for error in ({"message": "x" * 290 + key}, {"got": key}):
        judge.fault = lambda number, text, error=error: JSONResponse({"error": error}, 401)  # type: ignore[misc]
        with pytest.raises(InputError, match="status 401") as raised:
            run(argv(sides, url, "--key-variable", "MY_KEY"))
        assert key[:8] not in str(raised.value) and "***" in str(raised.value)


def test_a_redirect_is_not_followed(sides: tuple[Path, Path], url: str, judge: Judge) -> None:
    judge.fault = lambda number, text: Response(status_code=307, headers={"location": "http://127.0.0.1:9/"})
    with pytest.raises(InputError, match="refuses, status 307"):
        run(argv(sides, url))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--url", "localhost:8000"], "expected an address such as"),
        (["--key-variable", "NO_SUCH_VARIABLE"], "this environment variable is not set"),
        (["--criteria", ","], "expected different words"),
        (["--criteria", "safe,safe"], "expected different words"),
        (["--criteria", "(.*)"], "is not a word such as helpful"),
        (["--template", "none.txt"], "can't be read as UTF-8 text"),
        (["--body", "[1]"], "expected an object"),
        (["--body", "{"], "is not JSON"),
    ],
)
def test_wrong_options(sides: tuple[Path, Path], more: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(argv(sides, "http://127.0.0.1:9/v1", *more))


def test_a_template_lacks_a_place(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("{prompt} {first}")
    with pytest.raises(InputError, match=r"lacks \{second\}; expected \{prompt\}, \{first\} and \{second\}"):
        question(["safe"], str(tmp_path / "mine.txt"))


def test_a_password_in_the_address_is_not_shown() -> None:
    model = ChatModel("https://ada:pw@host:8000/v1?key=abc", "wise")
    assert model.shown_url == "https://host:8000/v1"


# Replies


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("More helpful: A", "win"),
        ("more helpful: b.", "lose"),
        ("- **More helpful:** **B**", "lose"),
        ("More helpful: Answer A\n", "win"),
        ("More helpful: equal", "tie"),
        ("More helpful: a tie", "tie"),
        ("More helpful: Neither.", "tie"),
        ("Is it A?\nMore helpful: A\nNo:\nMore helpful: B", "lose"),
        ("More helpful: A is, I think", None),
        ("More helpful: C", None),
        ("Answer A is more helpful: it is longer", None),
        ("", None),
    ],
)
def test_replies_are_read_strictly(reply: str, verdict: str | None) -> None:
    by_criterion = Question(("helpful",)).verdicts(reply, "AB")
    assert by_criterion == (None if verdict is None else {"helpful": verdict})
    swapped = Question(("helpful",)).verdicts(reply, "BA")
    assert swapped == (
        None if verdict is None else {"helpful": {"win": "lose", "lose": "win"}.get(verdict, verdict)}
    )


def test_texts_that_name_places_stay_as_they_are() -> None:
    pair = Pair("1", "say {first}", "{second} {prompt}", "{answers}")
    text = Question(("good",), "{prompt}|{first}|{second}|{answers}").text(pair, "BA")
    assert text == "say {first}|{answers}|{second} {prompt}|More good: …"


def test_two_orders_make_a_winner_only_together() -> None:
    assert combined({"AB": "lose", "BA": "lose"}) == "lose"
    assert {combined({"AB": one, "BA": other}) for one, other in (("win", "lose"), ("lose", "tie"))} == {
        "tie"
    }


def test_the_sign_test_by_hand() -> None:
    rows = verdicts(*["win"] * 8, *["tie"] * 10, *["lose"] * 2)
    figures = outcome([*rows, Judged(rows[0].pair, None, {}, "no reply")], "good")
    assert figures.p == pytest.approx(2 * (1 + 10 + 45) / 2**10)
    assert (figures.num, figures.share_won) == (20, 0.65)
    # Clopper and Pearson's bounds of 8 of 10
    assert figures.interval == pytest.approx((0.4439, 0.9748), abs=1e-4)
    assert first_shown(rows, "good").p == 1.0


def verdicts(*words: str, prompts: int | None = None) -> list[Judged]:
    """A pair for each verdict, of so many prompts in turn; None: one of each."""
    return [
        Judged(Pair(str(place % (prompts or len(words))), "", "a", "b"), {"good": verdict}, {})  # type: ignore[dict-item]
        for place, verdict in enumerate(words)
    ]


def test_several_pairs_of_a_prompt_decide_it_together_and_make_nothing_more_certain() -> None:
    once = outcome(verdicts("win", "win", "win", "lose", "tie"), "good")
    four = outcome(verdicts(*["win", "win", "win", "lose", "tie"] * 4, prompts=5), "good")
    assert (four.wins, four.ties, four.losses) == (12, 4, 4) and four.share_won == once.share_won
    assert (four.p, four.interval) == (once.p, once.interval)
    assert four.p == pytest.approx(2 * (1 + 4) / 2**4)  # and not that of 12 of 16
    # Prompt 0: won twice, lost once; prompt 1: once each, and a tie.
    mixed = outcome(verdicts("win", "win", "win", "lose", "lose", "tie", prompts=2), "good")
    assert (mixed.prompts_won, mixed.prompts_lost, mixed.p) == (1, 0, 1.0)


def test_both_orders_of_a_pair_are_no_two_witnesses_of_a_bias() -> None:
    first = {"AB": {"good": "win"}, "BA": {"good": "lose"}}  # what is shown first, both times
    rows = [Judged(Pair(str(place), "", "a", "b"), {"good": "tie"}, first) for place in range(5)]  # type: ignore[arg-type,dict-item]
    bias = first_shown(rows, "good")
    assert (bias.first, bias.second) == (10, 0)
    assert bias.p == pytest.approx(2 / 2**5)  # of five prompts, and not of ten replies


# Sides


def test_a_runs_folder_its_files_and_references(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path, "run", {"seed": 0}, "auto")
    row = {
        "sample_id": "t/0",
        "prompt_text": "p",
        "generated_text": "new",
        "ref_text": "<START-1>p gold<END-1>",
    }
    folder.write_predictions(0, "test", [{**row, "generated_text": "old"}])
    file = folder.write_predictions(5, "test", [row])
    assert [text.text for text in read_side(str(folder.path))] == ["new"]
    (tmp_path / "evaluation_test.json").write_text(json.dumps({"predictions": json.loads(file.read_text())}))
    assert read_side(str(tmp_path / "evaluation_test.json")) == read_side(str(file))
    assert read_pairs(str(file), "references").pairs == [Pair("t/0", "p", "new", " gold")]


def test_references_are_a_text_or_a_list_of_texts(tmp_path: Path) -> None:
    def first(references: object) -> str | None:
        row = {"prompt": "p", "prediction": "x", "references": references}
        (tmp_path / "a.jsonl").write_text(json.dumps(row))
        return read_side(str(tmp_path / "a.jsonl"))[0].reference

    assert (first("gold"), first(["gold", "other"]), first(None), first([])) == ("gold", "gold", None, None)
    for wrong in ({"a": 1}, [["gold"]], 7):
        with pytest.raises(InputError, match=r"row 1: references is .*; expected a text or a list of texts"):
            first(wrong)


def test_several_texts_for_a_prompt_are_paired_in_their_order(tmp_path: Path) -> None:
    a = lines(tmp_path / "a.jsonl", ["1", "2", "3"], ["p", "p", "q"])
    b = lines(tmp_path / "b.jsonl", ["4", "5", "6", "7"], ["r", "p", "p", "p"])
    matched = read_pairs(str(a), str(b))
    assert [(pair.a, pair.b) for pair in matched.pairs] == [("1", "5"), ("2", "6")]
    assert (matched.only_a, matched.only_b) == (1, 2)


def test_drawn_prompts_have_all_their_pairs(tmp_path: Path) -> None:
    names = [name for name in "pqrs" for _ in range(3)]
    a, b = (lines(tmp_path / f"{side}.jsonl", [f"{side}{n}" for n in range(12)], names) for side in "ab")
    pairs = read_pairs(str(a), str(b), num_prompts=2).pairs
    assert len(pairs) == 6 and len({pair.prompt for pair in pairs}) == 2


def test_sides_that_do_not_belong_together(tmp_path: Path) -> None:
    a = lines(tmp_path / "a.jsonl", ["1"], ["p"])
    with pytest.raises(InputError, match="have no prompt in common: 1 and 1 texts"):
        read_pairs(str(a), str(lines(tmp_path / "b.jsonl", ["1"], ["q"])))
    for name, prompt in (("c", "p"), ("d", "q")):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"id": "7", "prompt": prompt, "prediction": "x"}))
    with pytest.raises(InputError, match="prompt 7 is 'p' on the one side and 'q' on the other"):
        read_pairs(str(tmp_path / "c.jsonl"), str(tmp_path / "d.jsonl"))
    with pytest.raises(InputError, match="have no references to compare with"):
        read_pairs(str(a), "references")
    with pytest.raises(InputError, match=r"row 1: has text; expected a run's folder"):
        (tmp_path / "e.jsonl").write_text('{"text": "x"}\n')
        read_side(str(tmp_path / "e.jsonl"))
    with pytest.raises(InputError, match=r"e\.jsonl: is not JSON: "):
        (tmp_path / "e.jsonl").write_text('{"prompt": "p", "prediction": "x"}\n{"prompt": "q", "predic')
        read_side(str(tmp_path / "e.jsonl"))
    with pytest.raises(InputError, match="there is no such file"):
        read_side(str(tmp_path / "nothing"))
