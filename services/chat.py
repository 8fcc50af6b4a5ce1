"""`whetstone chat`: talk to a trained model, and see its answer while it is written.

line ─▶ Conversation (what the model is to read, cut to its window) ─▶ Speaker ─▶ letters ─▶ Conversation
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from contracts.errors import InputError
from contracts.rollout import Sampling
from services.run_model import (
    ARGUMENT,
    RunModel,
    add_sampling_options,
    chosen_sampling,
    find_model,
    quiet_transformers,
    room_for_prompt,
)

MAX_TOKENS = 256  # of an answer by a model that is no run's
WELCOME = "Ctrl-C stops an answer; reset forgets the conversation; quit or Ctrl-D leaves."


def run(argv: Sequence[str]) -> int:
    """Converse until `quit` or the input's end; the exit code.

    Raises:
        InputError: no model there, an option out of range, or a system message where none is possible.
    """
    arguments = _parser().parse_args(argv)
    model = _with_longer_answers(find_model(arguments.model))
    sampling = chosen_sampling(model, arguments)
    room = room_for_prompt(model, sampling.max_tokens)
    speaker = Speaker(model, sampling, arguments.seed)
    conversation = Conversation(speaker.tokenizer, arguments.system, room)
    converse(conversation, speaker, _lines(), _say)
    return 0


@dataclass(slots=True)
class Conversation:
    """Who said what, and how the model reads it: by its chat template, or as one text of all that was said.

    Example: after a user's "3 5" and the model's "7", the user's "9" makes a model without a template
    read "3 5\\n7\\n9".
    """

    tokenizer: Any
    system: str | None = None
    room: int | None = None  # the most tokens the model may be shown; None: no limit
    turns: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._read([{"role": "user", "content": "…"}])  # a template without system messages says so now

    def add(self, role: str, content: str) -> None:
        self.turns.append({"role": role, "content": content})

    def reset(self) -> None:
        self.turns.clear()

    def tokens(self) -> list[int]:
        """What the model reads to answer next; the oldest questions, with their answers, go if it must be.

        Raises:
            InputError: the last question does not fit even alone; nothing is forgotten then.
        """
        found: list[int] = []
        for start, turn in enumerate(self.turns):
            if turn["role"] != "user":
                continue
            found = self._read(self.turns[start:])
            if self.room is None or len(found) <= self.room:
                del self.turns[:start]
                return found
        raise InputError(f"that makes {len(found)} tokens, and the model can read {self.room}")

    def _read(self, turns: Sequence[dict[str, str]]) -> list[int]:
        opening = [] if self.system is None else [{"role": "system", "content": self.system}]
        messages = [*opening, *turns]
        if not self.tokenizer.chat_template:
            return list(self.tokenizer("\n".join(message["content"] for message in messages))["input_ids"])
        from jinja2 import TemplateError

        try:
            text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            raise InputError(f"the model's chat template refuses the conversation: {error}") from None
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])  # the template wrote them


class Speaker:
    """A model that answers token by token."""

    def __init__(self, model: RunModel, sampling: Sampling, seed: int | None) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from rollout_workers.engines.dtypes import engine_dtype

        quiet_transformers()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(model.path)
        dtype = getattr(torch, engine_dtype(model.rollout))
        self._lm: Any = AutoModelForCausalLM.from_pretrained(model.path, dtype=dtype)
        self._lm.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        self._lm.generation_config = _generation_config(self._lm, self.tokenizer, sampling)
        if seed is None:
            torch.seed()
        else:
            torch.manual_seed(seed)

    def answer(self, tokens: Sequence[int], say: Callable[[str], None]) -> str:
        """The answer, also said piece by piece while it comes; Ctrl-C ends it where it is."""
        import torch

        read = torch.tensor([list(tokens)], device=self._lm.device)
        letters = _Letters(self.tokenizer, say)
        try:
            self._lm.generate(
                read, attention_mask=torch.ones_like(read), streamer=letters, tokenizer=self.tokenizer
            )
        except KeyboardInterrupt:
            letters.end()
        return letters.said


class _Letters:
    """Tokens in, as transformers streams them (the prompt first); letters out, as soon as they are final."""

    def __init__(self, tokenizer: Any, say: Callable[[str], None]) -> None:
        self._tokenizer, self._say = tokenizer, say
        self._tokens: list[int] = []
        self._has_prompt = False
        self.said = ""

    def put(self, tokens: Any) -> None:
        if not self._has_prompt:
            self._has_prompt = True
            return
        self._tokens += tokens.flatten().tolist()
        # A token may end within a letter, which is decoded as � until the rest of it is there.
        if not (text := self._text()).endswith("\ufffd"):
            self._say_rest_of(text)

    def end(self) -> None:
        self._say_rest_of(self._text())

    def _text(self) -> str:
        return str(self._tokenizer.decode(self._tokens, skip_special_tokens=True))

    def _say_rest_of(self, text: str) -> None:
        rest, self.said = text[len(self.said) :], text
        if rest:
            self._say(rest)


def converse(
    conversation: Conversation, speaker: Speaker, lines: Iterator[str], say: Callable[[str], None]
) -> None:
    """Answer each line until there are no more, or one is `quit`."""
    for line in lines:
        match line.strip():
            case "":
                continue
            case "quit":
                return
            case "reset":
                conversation.reset()
                continue
        conversation.add("user", line)
        try:
            tokens = conversation.tokens()
        except InputError as error:
            print(f"{error}. Say it in fewer words.", file=sys.stderr)
            conversation.turns.pop()
            continue
        conversation.add("assistant", speaker.answer(tokens, say))
        say("\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whetstone chat",
        description="Talk to a trained model.",
        epilog=f"{WELCOME} Lines may be piped in as well.",
    )
    parser.add_argument("model", **ARGUMENT)  # type: ignore[arg-type]
    parser.add_argument("--system", metavar="TEXT", help="what the model is told before everything else")
    add_sampling_options(parser, seed=None)
    return parser


def _with_longer_answers(model: RunModel) -> RunModel:
    """A run's answers have the length that it was trained at; others the length of a paragraph or two."""
    if model.of_run:
        return model
    most = MAX_TOKENS if model.files.window is None else min(MAX_TOKENS, model.files.window // 2)
    return replace(model, sampling=replace(model.sampling, max_tokens=most))


def _generation_config(lm: Any, tokenizer: Any, sampling: Sampling) -> Any:
    """`sampling` in transformers' words, and nothing else: what a model's own file says of it is left out."""
    from transformers import GenerationConfig

    ends = lm.generation_config.eos_token_id
    ends = tokenizer.eos_token_id if ends is None else ends
    padding = tokenizer.pad_token_id
    if padding is None:
        padding = ends[0] if isinstance(ends, list) else ends
    drawn = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    return GenerationConfig(
        max_new_tokens=sampling.max_tokens,
        min_new_tokens=sampling.min_tokens,
        stop_strings=list(sampling.stop) or None,
        eos_token_id=ends,
        pad_token_id=padding,
        do_sample=sampling.temperature > 0,
        **(drawn if sampling.temperature > 0 else {}),
    )


def _lines() -> Iterator[str]:
    """What is typed, with the keys of a shell, or what is piped in."""
    if not sys.stdin.isatty():
        yield from (line.rstrip("\r\n") for line in sys.stdin)
        return
    import readline  # noqa: F401  (importing it gives input() a history and an editor)

    print(WELCOME)
    while True:
        try:
            yield input("\n› ")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:  # at the prompt there is no answer to stop
            print(f"\n{WELCOME}")


def _say(text: str) -> None:
    print(text, end="", flush=True)
