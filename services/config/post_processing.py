"""Post-processing of texts before evaluation: RL4LMs', LoL-RL's, or a user's function.

Training scores the unchanged texts.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from contracts.clients import PublishedWeights, RolloutClient
from contracts.components import import_module
from contracts.errors import InputError, did_you_mean
from contracts.rollout import Lease, Rollout, Turn
from contracts.signatures import check_function
from reward_servers.text.sentences import sentences

PostProcess = Callable[[str], str]


def three_sentence_summary(text: str) -> str:
    """Return the first three sentences, one on each line.

    >>> three_sentence_summary("One. Two! Three? Four.")
    'One.\\nTwo!\\nThree?'
    """
    return "\n".join(sentences(text)[:3])


def lolrl_reply(text: str) -> str:
    """Return only the assistant's reply, as LoL-RL does for Helpful-Harmless.

    The token ` ###` ends a reply. If the remaining text ends with `###`, every `###` in it is removed.

    >>> lolrl_reply(" Sure.### Human: Thanks"), lolrl_reply(" Sure.\\n### Human: Thanks")
    ('Sure.### Human: Thanks', 'Sure.')
    >>> lolrl_reply("Write ###title. ### Human: Thanks")
    'Write'
    >>> lolrl_reply("Write a###title. ### Human: Thanks")
    'Write atitle.'
    """
    if end := REPLY_END.search(text):
        text = text[: end.end()]
    for speaker in ("\n Human:", "\nHuman:", "\n### Human"):
        text = text.partition(speaker)[0]
    text = text.strip()
    return text.replace("###", "").strip() if text.endswith("###") else text


REPLY_END = re.compile(r"(?:^| )###(?!#)")  # LLaMA's end token of a reply, after which generation stops
POST_PROCESSORS: Mapping[str, PostProcess] = {
    "three_sentence_summary": three_sentence_summary,
    "lolrl_reply": lolrl_reply,
}


def find_post_processor(name: str | None) -> PostProcess | None:
    """Return a function by its name: built-in, `module:function` or `FILE.py:function`; None for None.

    Raises:
        InputError: no function has that name, or it does not take one text.
    """
    if name is None:
        return None
    if name in POST_PROCESSORS:
        return POST_PROCESSORS[name]
    where = f"evaluation.post_processor={name}"
    if ":" not in name:
        raise InputError(
            f"{where}: there is no such post-processor{did_you_mean(name, POST_PROCESSORS)}"
            "\nA function of your own is written package.module:function, or FILE.py:function."
        )
    module_name, _, function_name = name.partition(":")
    module = import_module(module_name, where)
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value)]
        raise InputError(
            f"{where}: {module_name} has no function {function_name}{did_you_mean(function_name, known)}"
        )
    check_function(where, function, ("text",))
    return partial(_checked, where, function)


class PostProcessed:
    """Rollout workers whose texts are post-processed; tokens stay unchanged."""

    def __init__(self, workers: RolloutClient, post_process: PostProcess) -> None:
        self._workers, self._post_process = workers, post_process

    @property
    def environment_restarts(self) -> int:
        return self._workers.environment_restarts

    def generate(self, leases: Sequence[Lease]) -> Iterator[list[Rollout]]:
        for finished in self._workers.generate(leases):
            yield [replace(rollout, turns=tuple(map(self._turn, rollout.turns))) for rollout in finished]

    def logprobs(self, texts: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        return self._workers.logprobs(texts)

    def load_weights(self, weights: PublishedWeights) -> None:
        self._workers.load_weights(weights)

    def _turn(self, turn: Turn) -> Turn:
        return replace(turn, text=self._post_process(turn.text))


def _checked(where: str, function: Callable[[str], object], text: str) -> str:
    """Apply a user's function to a text; reject a result that is not a text."""
    try:
        processed = function(text)
    except Exception as error:  # a user's function may raise anything
        raise InputError(f"{where} raised {type(error).__name__}: {error}\ntext: {text!r:.300}") from error
    if not isinstance(processed, str):
        raise InputError(f"{where}: expected a text, got {processed!r:.80}\ntext: {text!r:.300}")
    return processed
