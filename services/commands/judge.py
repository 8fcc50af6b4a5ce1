"""`whetstone judge A B`: let a chat model say for each prompt which of two texts is better.

A, B ─▶ pairs ─▶ both orders ─▶ chat model ─▶ OUT/replies.jsonl ─▶ OUT/judgement.json, judgement.md
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from contracts.secrets.secret_values import remember_in
from reward_servers.chat_models.chat_model import ChatModel, key_of
from services.runs.json_lines import without_nan
from services.studies.pairwise.judging import judge
from services.studies.pairwise.question import question
from services.studies.pairwise.report import summary, to_markdown, write
from services.studies.pairwise.texts import REFERENCES, read_pairs
from services.terminal.options import at_least, names_in
from services.terminal.visible import visible, visible_json

BODY: dict[str, Any] = {"max_tokens": 300, "temperature": 0}
EPILOG = f"""A and B are runs' folders (their last test predictions), files of predictions of a run or of
whetstone evaluate, or files of lines {{"prompt": "…", "prediction": "…"}}. B may be the word
{REFERENCES}: the data set's own responses. Replies are saved; the same command continues.

  whetstone judge runs/a_lol runs/nll --url http://127.0.0.1:8000/v1 --model NAME --num-prompts 200
  whetstone judge runs/a_lol {REFERENCES} --url https://HOST/v1 --model NAME --key-variable OPENAI_API_KEY

--key-variable names the environment variable with the key. The key is written nowhere."""


def run(argv: Sequence[str]) -> int:
    """Ask the open questions, and print the result. Return 1 if a question got no reply, else 0.

    Raises:
        InputError: a side, the template, the address or an option is wrong; or the server refuses.
        RunError: the server has stopped answering.
    """
    arguments = _parser().parse_args(list(argv))
    about = question(names_in(arguments.criteria), arguments.template)
    model = _model(arguments)
    pairs = read_pairs(arguments.a, arguments.b, arguments.num_prompts)
    out = Path(arguments.out)
    rows, elsewhere = judge(pairs, about, model, out, arguments.in_flight)
    result = summary(arguments.a, arguments.b, rows, about, model) | {"replies_from_elsewhere": elsewhere}
    written = write(result, rows, out)
    if arguments.json:
        print(visible_json(json.dumps(without_nan(result), ensure_ascii=False)))
    else:
        print(visible(to_markdown(result)), *written, sep="\n")
    if result["num_without_reply"]:
        print("The same command asks again what got no reply.", file=sys.stderr)
    return 1 if result["num_without_reply"] else 0


def _model(arguments: argparse.Namespace) -> ChatModel:
    try:
        body = json.loads(arguments.body)
    except ValueError as error:
        raise InputError(f"--body {arguments.body}: is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise InputError(f"--body {arguments.body}: expected an object")
    key = key_of(arguments.key_variable, "--key-variable")
    remember_in(body)
    model = ChatModel(
        arguments.url,
        arguments.model,
        key,
        BODY | body,
        timeout_s=arguments.timeout,
        attempts=arguments.attempts,
    )
    model.check()
    return model


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whetstone judge",
        description="Let a chat model say which of two texts is better, in both orders; count and test.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("a", metavar="A", help="the side whose wins are counted")
    parser.add_argument("b", metavar="B", help=f"the other side, or {REFERENCES}")
    parser.add_argument("--url", required=True, help="address of an OpenAI-style service, up to /v1")
    parser.add_argument("--model", required=True, metavar="NAME", help="the model's name at that service")
    parser.add_argument("--key-variable", metavar="NAME", help="the environment variable with the key")
    parser.add_argument("--criteria", default="helpful,safe", metavar="A,B", help="default helpful,safe")
    parser.add_argument("--template", metavar="FILE", help="your own wording of the question")
    parser.add_argument(
        "--num-prompts", type=at_least(1), metavar="N", help="size of a random sample, always the same"
    )
    parser.add_argument("--out", default="judged", metavar="FOLDER", help="default judged")
    parser.add_argument(
        "--body",
        default="{}",
        metavar="JSON",
        help=f"keys of each request; default {json.dumps(BODY)}",
    )
    parser.add_argument(
        "--in-flight", type=at_least(1), default=8, metavar="N", help="questions at a time (8)"
    )
    parser.add_argument("--timeout", type=at_least(1), default=120, metavar="S", help="for a reply (120)")
    parser.add_argument("--attempts", type=at_least(1), default=4, metavar="N", help="for each question (4)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser
