"""Comparison of an answer's intent with that of the dialogue's real next utterance, in DailyDialog."""

from collections.abc import Sequence
from typing import Any, Literal

from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.models.checkpoint import labels_of, read_config

END_OF_UTTERANCE = "<EOU>"
# inform, question, directive, commissive
NUM_INTENTS = 4
# Join the last utterance and the answer with the mark between them, as RL4LMs trained its classifier, or
# without it, as RL4LMs and OpenRL use the classifier.
Join = Literal["last_utterance", "last_utterance_unmarked"]


def utterance_pair(prompt: str, text: str, join: Join = "last_utterance") -> str:
    """Return the last utterance, with the blanks around it, joined with the answer.

    >>> utterance_pair("Hi . <EOU> How are you ? <EOU>", " Fine .")
    ' How are you ? <EOU> Fine .'
    >>> utterance_pair("Hi . <EOU> How are you ? <EOU>", " Fine .", "last_utterance_unmarked")
    ' How are you ?  Fine .'
    """
    utterances = prompt.split(END_OF_UTTERANCE)
    last = next((part for part in reversed(utterances) if part.strip()), "")
    return f"{last}{END_OF_UTTERANCE if join == 'last_utterance' else ''}{text}"


def hits(samples: Sequence[Sample], classifier: Any, join: Join) -> list[float]:
    """Return 1.0 for each sample whose likeliest label is its intent (counted from 1), else 0.0.

    Raises:
        InputError: a sample's intent is not 1 to 4.
    """
    wanted = [_intent(sample) for sample in samples]
    logits_NL = classifier.logits([utterance_pair(sample.prompt, sample.text, join) for sample in samples])
    return [float(int(row.argmax()) == intent - 1) for row, intent in zip(logits_NL, wanted, strict=True)]


def check_intent_model(model: str) -> None:
    """Refuse a classifier of anything but the four intents.

    Raises:
        InputError: the model is missing, or doesn't have one label for each intent.
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
