"""Compare an answer's intent with the intent of the dialogue's real next utterance, in DailyDialog."""

from collections.abc import Sequence
from typing import Any, Literal

from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.models.checkpoint import labels_of, read_config

END_OF_UTTERANCE = "<EOU>"
INTENTS = ("inform", "question", "directive", "commissive")
# Join the last utterance and the answer with the mark between them, as RL4LMs trained its classifier, or
# without it, as RL4LMs and OpenRL use the classifier.
Join = Literal["last_utterance", "last_utterance_unmarked"]


def utterance_pair(prompt: str, text: str, join: Join = "last_utterance") -> str:
    """Join the last utterance, with its surrounding blanks, with the answer.

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
    """Refuse a classifier without exactly the four intents.

    Raises:
        InputError: the model is missing, or doesn't have one label for each intent, in their order.
    """
    if fault := fault_of_labels(labels_of(read_config(model))):
        raise InputError(f"model={model} has {fault}")


def fault_of_labels(labels: Sequence[str]) -> str | None:
    """Return the fault of a classifier's labels, each of which must be an intent in its place; else None.

    Names without a meaning, such as LABEL_0 or 1, pass.

    >>> fault_of_labels(["1", "2", "3", "4"])
    >>> fault_of_labels(["commissive", "directive", "inform", "question"])[:40]
    '4 labels: commissive, directive, inform,'
    """
    named = [label.lower() for label in labels]
    if len(named) == len(INTENTS) and all(
        name == intent or name not in INTENTS for name, intent in zip(named, INTENTS, strict=True)
    ):
        return None
    return (
        f"{len(labels)} labels: {', '.join(labels)}; expected 4: {', '.join(INTENTS)}, in this order, which "
        f"`whetstone train-reward` gives with data.label_names=[{','.join(INTENTS)}]"
    )


def _intent(sample: Sample) -> int:
    intent = sample.meta.get("intent")
    if not isinstance(intent, int) or not 1 <= intent <= len(INTENTS):
        raise InputError(f"the meta data's intent is {intent!r}; expected 1, 2, 3 or 4")
    return intent
