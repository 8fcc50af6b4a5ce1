"""A grader's model and tokenizer, loaded once, on the GPU if possible, and never trained."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import transformers

from contracts.adapters.folder import adapter_at
from contracts.adapters.merging import whole_model
from contracts.errors import InputError
from contracts.processes.loading import ONE_MODEL_AT_A_TIME
from contracts.windows import check_pooling, window_of
from reward_servers.models.token_batches import batches_by_length

# Models that read the two texts of a pair as of two types. Since transformers 5 their tokenizers give the
# types only when asked. (BigBird's never gave any, so its classifiers were trained without.)
GAVE_TYPES = ("albert",)


class Transformer:
    """A model of one of transformers' Auto classes that processes texts.

    Args:
        kind: "AutoModelForSequenceClassification", "AutoModelForCausalLM", "AutoModelForSeq2SeqLM".
        max_length: the number of a text's tokens to keep; None: the model's limit.
        keep: "end" or "begin", the part of a longer text to keep.
        tokens_per_batch: padded tokens that go through the model at once.

    Raises:
        InputError: the model does not load, or its weights lack a part, such as a classifier's head.
    """

    def __init__(
        self, model: str, kind: str, *, max_length: int | None, keep: str, tokens_per_batch: int
    ) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        dtype = "auto" if self.device.type == "cuda" else torch.float32
        if kind.endswith("ForSequenceClassification"):
            if adapter_at(model, where="model") is not None:
                raise InputError(f"model={model} is an adapter of a model that writes; expected a classifier")
        else:
            model = whole_model(model, where="model")
        try:
            self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
                model, truncation_side="left" if keep == "end" else "right", trust_remote_code=False
            )
            with ONE_MODEL_AT_A_TIME:
                loaded, report = getattr(transformers, kind).from_pretrained(
                    model, dtype=dtype, output_loading_info=True, trust_remote_code=False
                )
        except Exception as error:  # transformers may raise anything
            raise InputError(f"model={model} does not load: {type(error).__name__}: {error}") from error
        if absent := sorted(report["missing_keys"]):
            raise InputError(
                f"model={model}: its weights lack {', '.join(absent[:5])}, which would be random; "
                f"expected a model that was trained as {kind.removeprefix('AutoModelFor')}"
            )
        check_pooling(loaded, model)
        self.lm = loaded.to(self.device).eval().requires_grad_(False)
        self.window = window_of(self.tokenizer, self.lm.config)
        self._give_padding()
        self.max_length = min(max_length or self.window, self.window)
        self._tokens_per_batch = tokens_per_batch

    def encode(
        self, texts: Sequence[str], seconds: Sequence[str] | None = None
    ) -> list[dict[str, list[int]]]:
        """Return token ids (and types) of each text or pair of texts, never empty and never too long.

        If a pair is too long, each text keeps the other's rest, or half of the tokens if that is more.
        """
        if not texts:
            return []
        columns = [[encodable(text) for text in some] for some in (texts, seconds) if some is not None]
        asks_types = seconds is not None and self.lm.config.model_type in GAVE_TYPES
        encoding = self.tokenizer(
            *columns,
            truncation="longest_first",
            max_length=self.max_length,
            **({"return_token_type_ids": True} if asks_types else {}),
        )
        keys = [key for key in ("input_ids", "token_type_ids") if key in encoding]
        rows = [{key: list(encoding[key][place]) for key in keys} for place in range(len(texts))]
        for row in rows:
            if not row["input_ids"]:  # an empty text, and a tokenizer that adds no tokens
                row.update({key: [self._filler() if key == "input_ids" else 0] for key in keys})
        return rows

    def batches(
        self, rows: Sequence[dict[str, list[int]]]
    ) -> Iterator[tuple[list[int], dict[str, torch.Tensor]]]:
        """Yield batches padded on the right, on the device, with the indices of their rows."""
        lengths = [len(row["input_ids"]) for row in rows]
        for places in batches_by_length(lengths, self._tokens_per_batch):
            fillers = {"input_ids": self._filler(), "token_type_ids": 0}
            widest = max(lengths[place] for place in places)
            inputs = {
                key: _padded([rows[place][key] for place in places], widest, fillers[key])
                for key in rows[places[0]]
            }
            inputs["attention_mask"] = _padded([[1] * lengths[place] for place in places], widest, 0)
            yield places, {key: value.to(self.device) for key, value in inputs.items()}

    def _give_padding(self) -> None:
        """Add a missing padding token to the tokenizer, and set the model's padding token.

        Causal classifiers read a text at its last token that their config does not call padding.
        """
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token or self.tokenizer.unk_token
        config = self.lm.config
        config.get_text_config().pad_token_id = config.pad_token_id = self._filler()

    def _filler(self) -> int:
        """Return the token that pads rows: the config's, which a classifier skips, or the tokenizer's."""
        config = self.lm.config.get_text_config()
        for token in (config.pad_token_id, self.tokenizer.pad_token_id):
            if token is not None and 0 <= token < config.vocab_size:
                return int(token)
        return 0


def encodable(text: str) -> str:
    """Replace invalid Unicode with question marks, because tokenizers reject it.

    >>> encodable("a\\ud800b")
    'a?b'
    """
    return text.encode("utf-8", "replace").decode("utf-8")


def _padded(rows: Sequence[list[int]], width: int, filler: int) -> torch.Tensor:
    return torch.tensor([row + [filler] * (width - len(row)) for row in rows], dtype=torch.long)
