"""Does an answer carry the intent that the dialogue's own next utterance has? By DailyDialog's classes."""

from collections.abc import Sequence
from typing import Any, Literal

from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.models.checkpoint import labels_of, read_config

END_OF_UTTERANCE = "<EOU>"
# inform, question, directive, commissive
NUM_INTENTS = 4
# How the last utterance and the answer become one text: with the mark between them, as RL4LMs trained its
# classifier, or without, as RL4LMs and OpenRL feed it.
Join = Literal["last_utterance", "last_utterance_unmarked"]


def utterance_pair(prompt: str, text: str, join: Join = "last_utterance") -> str:
    """The last utterance, with the blanks around it, and the answer.

    >>> utterance_pair("Hi . <EOU> How are you ? <EOU>", " Fine .")
    ' How are you ? <EOU> Fine .'
    >>> utterance_pair("Hi . <EOU> How are you ? <EOU>", " Fine .", "last_utterance_unmarked")
    ' How are you ?  Fine .'
    """
    utterances = prompt.split(END_OF_UTTERANCE)
    last = next((part for part in reversed(utterances) if part.strip()), "")
    return f"{last}{END_OF_UTTERANCE if join == 'last_utterance' else ''}{text}"


def hits(samples: Sequence[Sample], classifier: Any, join: Join) -> list[float]:
    """1.0 where the likeliest label is the sample's intent (which counts from 1), else 0.0.

    Raises:
        InputError: a sample's intent is none of 1 to 4.
    """
    wanted = [_intent(sample) for sample in samples]
    logits_NL = classifier.logits([utterance_pair(sample.prompt, sample.text, join) for sample in samples])
    return [float(int(row.argmax()) == intent - 1) for row, intent in zip(logits_NL, wanted, strict=True)]


def check_intent_model(model: str) -> None:
    """Refuse a classifier of something else.

    Raises:
        InputError: the model is not there, or has not one label for each intent.
    """
    labels = labels_of(read_config(model))
    if len(labels) != NUM_INTENTS:
        raise InputError(
            f"model={model} has {len(labels)} labels: {', '.join(labels)}; expected 4: inform, question, "
            f"directive, commissive, in this order"
        )


def _intent(sample: Sample) -> int:
    intent = sample.meta.get("intent")
    if not isinstance(intent, int) or not 1 <= intent <= NUM_INTENTS:
        raise InputError(f"the meta data's intent is {intent!r}; expected 1, 2, 3 or 4")
    return intent
