"""Natural-language inference: probabilities that a premise entails or contradicts a hypothesis."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from contracts.errors import InputError
from reward_servers.models.checkpoint import labels_of, read_config

MAX_TOKENS = 500  # premise and hypothesis together, as in SummaC
TOKENS_PER_BATCH = 16_384


@dataclass(frozen=True, slots=True)
class NliModel:
    """A classifier's folder or hub name, with the indices of its labels."""

    name: str
    entailment_ix: int
    contradiction_ix: int

    @property
    def order(self) -> list[int]:
        """The indices of entailment, contradiction and neutral among the three labels."""
        neutral = 3 - self.entailment_ix - self.contradiction_ix
        return [self.entailment_ix, self.contradiction_ix, neutral]


# SummaC's short names and indices: some of these models name their labels LABEL_0 and so on.
SHORT_NAMES = {
    "snli-base": NliModel("boychaboy/SNLI_roberta-base", 0, 2),
    "snli-large": NliModel("boychaboy/SNLI_roberta-large", 0, 2),
    "mnli-base": NliModel("microsoft/deberta-base-mnli", 2, 0),
    "mnli": NliModel("roberta-large-mnli", 2, 0),
    "anli": NliModel("ynie/roberta-large-snli_mnli_fever_anli_R1_R2_R3-nli", 0, 2),
    "vitc-base": NliModel("tals/albert-base-vitaminc-mnli", 0, 1),
    "vitc": NliModel("tals/albert-xlarge-vitaminc-mnli", 0, 1),
    "vitc-only": NliModel("tals/albert-xlarge-vitaminc", 0, 1),
}


def nli_model(name: str) -> NliModel:
    """Return the model of one of SummaC's short names, or any model with three labels of clear names.

    Raises:
        InputError: the model is missing, lacks three labels, or their names are unclear.
    """
    if name in SHORT_NAMES:
        return SHORT_NAMES[name]
    labels = labels_of(read_config(name))
    entailment = _place_of(labels, ("entail", "support"))
    contradiction = _place_of(labels, ("contradict", "refute"))
    if len(labels) != 3 or entailment is None or contradiction is None:
        raise InputError(
            f"model={name} has the labels {', '.join(labels)}; expected three, of which one says entailment "
            f"and one contradiction (id2label in its config.json), or one of {', '.join(SHORT_NAMES)}"
        )
    return NliModel(name, entailment, contradiction)


def check_nli_model(name: str) -> None:
    """Refuse a model that is missing or of another kind.

    Raises:
        InputError: as for `nli_model`.
    """
    read_config(nli_model(name).name)


@cache
def judge(name: str, tokens_per_batch: int = TOKENS_PER_BATCH) -> "Judge":
    """Return the judge, loaded once for each process."""
    return Judge(nli_model(name), tokens_per_batch)


class Judge:
    """A classifier of pairs of premise and hypothesis.

    Example: `judge("mnli").judge([("It rains.", "It is wet.")])` gives `[(0.9, 0.01, 0.09)]` or so.
    """

    def __init__(self, model: NliModel, tokens_per_batch: int) -> None:
        from reward_servers.models.classifier import classifier  # imports torch and transformers: seconds

        self._order = model.order
        self._classifier = classifier(model.name, MAX_TOKENS, "begin", tokens_per_batch)

    def judge(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[float, ...]]:
        """Return probabilities of entailment, contradiction and neutral for each (premise, hypothesis)."""
        # equal pairs are judged once
        places = {pair: place for place, pair in enumerate(dict.fromkeys(pairs))}
        if not places:
            return []
        found_N3 = self._classifier.probabilities([p for p, _ in places], [h for _, h in places])
        rows = found_N3[:, self._order].tolist()
        return [tuple(rows[places[pair]]) for pair in pairs]


def _place_of(labels: Sequence[str], words: Sequence[str]) -> int | None:
    places = [place for place, label in enumerate(labels) if any(word in label.lower() for word in words)]
    return places[0] if len(places) == 1 else None
