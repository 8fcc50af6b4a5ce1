"""SummaC, the consistency of a summary with its document, by inference between their pieces.

Laban et al., "SummaC: Re-Visiting NLI-based Models for Inconsistency Detection in Summarization" (TACL 2022).
Both variants read a table of (piece of the document) × (piece of the summary) × (entailment, contradiction,
neutral). `zero_shot` is section 3.2.1, `ConvolutionHead` section 3.2.2; details follow the authors' code.
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from contracts.errors import InputError
from reward_servers.text.sentences import sentences

Granularity = Literal["document", "paragraph", "sentence", "2sents", "mixed"]
Operation = Literal["min", "mean", "max"]
Bins = Literal["even50", "percentile"]
Judged = Callable[[Sequence[tuple[str, str]]], list[tuple[float, ...]]]

MIN_CHARACTERS = 10  # shorter pieces are dropped
MAX_DOCUMENT_PIECES = 100
MAX_SUMMARY_PIECES = 10  # the trained head reads no more
LABELS = "ecn"
OPERATIONS: dict[str, Callable[..., Any]] = {"min": np.min, "mean": np.mean, "max": np.max}
EDGES: dict[str, list[float]] = {
    "even50": [*np.arange(0, 1, 1 / 50).tolist(), 1.0],
    # percentiles of many pairs' entailment, from the published code
    "percentile": [
        *(0.0, 0.01, 0.02, 0.03, 0.04, 0.07, 0.13, 0.37, 0.90, 0.91, 0.92, 0.93),
        *(0.94, 0.95, 0.955, 0.96, 0.965, 0.97, 0.975, 0.98, 0.985, 0.99, 0.995, 1.0),
    ],
}
WEIGHTS = ("mlp.weight", "mlp.bias", "layer_final.weight", "layer_final.bias")


def pieces(text: str, granularity: Granularity) -> list[str]:
    """Return the pieces of more than ten characters; if all are shorter, the whole text is one piece.

    >>> pieces("The first sentence. The second one is here. No.", "sentence")
    ['The first sentence.', 'The second one is here.']
    """
    long_sentences = [sentence for sentence in sentences(text) if len(sentence) > MIN_CHARACTERS]
    parts = text.split("\n\n" if "\n\n" in text else "\n")
    paragraphs = [part.strip() for part in parts if len(part.strip()) > MIN_CHARACTERS]
    pairs = [" ".join(long_sentences[start : start + 2]) for start in range(len(long_sentences))]
    whole = [text.strip()] if text.strip() else []
    chosen = {
        "document": whole,
        "paragraph": paragraphs,
        "sentence": long_sentences,
        "2sents": pairs,
        "mixed": long_sentences + paragraphs,
    }[granularity]
    return chosen or whole


def images(
    pairs: Sequence[tuple[str, str]], granularity: Granularity, judged: Judged
) -> list[np.ndarray[Any, Any]]:
    """Return for each (document, summary) an array of shape (3, document pieces, summary pieces).

    If one of them is empty, the array has a single zero for each label.
    """
    cut = [
        (pieces(doc, granularity)[:MAX_DOCUMENT_PIECES], pieces(summary, granularity))
        for doc, summary in pairs
    ]
    rows = iter(judged([(premise, claim) for doc, summary in cut for premise in doc for claim in summary]))
    arrays = []
    for doc, summary in cut:
        if not doc or not summary:
            arrays.append(np.zeros((3, 1, 1)))
            continue
        flat = np.array([next(rows) for _ in range(len(doc) * len(summary))])
        arrays.append(flat.reshape(len(doc), len(summary), 3).transpose(2, 0, 1))
    return arrays


def zero_shot(
    image: np.ndarray[Any, Any], op1: Operation, op2: Operation, use_ent: bool, use_con: bool
) -> float:
    """Apply `op1` over the document for each piece of the summary, then `op2` over the results.

    The value is entailment minus contradiction (-1 to 1), entailment alone, or 1 minus contradiction alone.
    An empty summary or document gets 0; in the last case SummaC itself gives 1.

    >>> entailment, contradiction = [[0.75, 0.25], [0.5, 0.0]], [[0.0, 0.25], [0.25, 0.75]]
    >>> image = np.array([entailment, contradiction, [[0.25, 0.5], [0.25, 0.25]]])
    >>> zero_shot(image, "max", "mean", True, True)  # the mean of 0.75 - 0.25 and 0.25 - 0.75
    0.0
    """
    if not image.any():
        return 0.0
    entailment, contradiction = (OPERATIONS[op1](image[label], axis=0) for label in (0, 1))
    scores = entailment * use_ent - contradiction * use_con if use_ent else 1.0 - contradiction
    return float(OPERATIONS[op2](scores))


class ConvolutionHead:
    """A linear map of each summary piece's histogram, aggregated, then a second map with a softmax.

    Example: `ConvolutionHead("head.safetensors", "percentile", "e", 1, "mean").score([image])`, 0 to 1. The
    file holds `mlp.weight` (1, bins · labels · models), `mlp.bias`, `layer_final.weight` (2, 3) and
    `layer_final.bias`, as the published weights name them.
    """

    def __init__(self, weights: str, bins: Bins, nli_labels: str, num_models: int, agg: Operation) -> None:
        self._edges = EDGES[bins]
        self._labels = [LABELS.index(label) for label in nli_labels]
        self._agg = agg
        self._weights = read_weights(weights)
        inputs = (len(self._edges) - 1) * len(self._labels) * num_models
        expected = {"mlp.weight": (1, inputs), "mlp.bias": (1,)}
        expected |= {"layer_final.weight": (2, 3), "layer_final.bias": (2,)}
        for name, shape in expected.items():
            if self._weights[name].shape != shape:
                raise InputError(
                    f"weights={weights}: {name} has the shape {self._weights[name].shape}; expected {shape} "
                    f"for bins={bins}, nli_labels={nli_labels} and {num_models} models"
                )

    def score(self, stack: Sequence[np.ndarray[Any, Any]]) -> float:
        """Return the score of one pair, 0 to 1, from each model's array of `images`.

        An array has the shape (sentences, sentences, labels).
        """
        values = np.zeros(3)
        if stack[0].any():
            count = min(stack[0].shape[2], MAX_SUMMARY_PIECES)
            rows = np.stack([self._histogram(stack, place) for place in range(count)])
            outputs = rows @ self._weights["mlp.weight"][0] + self._weights["mlp.bias"][0]
            values[:] = OPERATIONS[self._agg](outputs)
        logits = self._weights["layer_final.weight"] @ values + self._weights["layer_final.bias"]
        return float(1.0 / (1.0 + np.exp(logits[0] - logits[1])))

    def _histogram(self, stack: Sequence[np.ndarray[Any, Any]], place: int) -> np.ndarray[Any, Any]:
        return np.concatenate(
            [
                np.histogram(image[label, :, place], bins=self._edges)[0]
                for image in stack
                for label in self._labels
            ]
        ).astype(float)


@cache
def head(weights: str, bins: Bins, nli_labels: str, num_models: int, agg: Operation) -> ConvolutionHead:
    """Return the head, read once for each process."""
    return ConvolutionHead(weights, bins, nli_labels, num_models, agg)


def read_weights(file: str) -> dict[str, np.ndarray[Any, Any]]:
    """Read the head's arrays from a .safetensors or .npz file; pickles are refused.

    Raises:
        InputError: the file is missing, of another kind, or lacks an array.
    """
    kind = Path(file).suffix
    try:
        if kind == ".npz":
            with np.load(file, allow_pickle=False) as opened:
                arrays = dict(opened)
        elif kind == ".safetensors":
            from safetensors.numpy import load_file

            arrays = load_file(file)
        else:
            raise InputError(
                f"weights={file}: expected a .safetensors or .npz file; SummaC's own .bin is a pickle. "
                'To convert it: python -c "import torch, safetensors.torch as s; s.save_file(torch.load('
                "'summac_conv_vitc_sent_perc_e.bin', weights_only=True), 'summac_conv.safetensors')\""
            )
    except InputError:
        raise
    except Exception as error:  # a missing file, or one whose content doesn't match its name
        raise InputError(f"weights={file} can't be read: {type(error).__name__}: {error}") from None
    lacking = [name for name in WEIGHTS if name not in arrays]
    if lacking:
        raise InputError(
            f"weights={file} lacks {', '.join(lacking)}; there is: {', '.join(arrays) or 'nothing'}"
        )
    return {name: np.asarray(arrays[name], dtype=float) for name in WEIGHTS}
