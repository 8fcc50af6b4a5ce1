"""Reward model: the trunk of a language model or encoder, with one output or one for each label.

It reads, cuts, pads and saves as the reward servers do. So a text gets the same score in a run as in
training.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contracts.errors import InputError
from contracts.processes.disk import room_for
from contracts.processes.loading import ONE_MODEL_AT_A_TIME
from contracts.windows import check_pooling, window_of
from learner.models.attention import attend_in_float32
from learner.reward_models.batches import Example, micro_batches
from learner.reward_models.settings import RewardTraining


class RewardModel:
    """`AutoModelForSequenceClassification` with its tokenizer.

    Args:
        path: a folder in Hugging Face format or a hub name: a classifier, an encoder, a language model.
        label_names: the outputs' names, in this order; a single output is a reward.

        Raises:
            InputError: the model does not load, or transformers has no classifier of its type.
    """

    def __init__(self, path: str, label_names: Sequence[str], settings: RewardTraining) -> None:
        self.settings = settings
        wanted = settings.device
        on_gpu = torch.cuda.is_available() if wanted == "auto" else wanted == "cuda"
        self.device = torch.device("cuda" if on_gpu else "cpu")
        torch.manual_seed(settings.seed)  # draws a new head
        self.tokenizer, lm, self.fresh = _load(path, label_names)
        if settings.gradient_checkpointing:
            lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.lm: Any = lm.to(self.device).eval()
        self.max_length = self._length(path)

    @property
    def num_outputs(self) -> int:
        return int(self.lm.config.num_labels)

    @property
    def filler(self) -> int:
        return int(self.tokenizer.pad_token_id or 0)

    def encode(self, texts: Sequence[str]) -> tuple[list[tuple[int, ...]], int]:
        """Return each text's token ids, 1 to `max_length`, and the number of texts cut to their end.

        Raises:
            InputError: the model is an encoder-decoder, and a text has no end mark or several.
        """
        if not texts:
            return [], 0
        rows: list[list[int]] = self.tokenizer(list(texts))["input_ids"]
        long = [place for place, row in enumerate(rows) if len(row) > self.max_length]
        if long:
            cut = self.tokenizer(
                [texts[place] for place in long], truncation=True, max_length=self.max_length
            )
            for place, row in zip(long, cut["input_ids"], strict=True):
                rows[place] = row
        if self.lm.config.is_encoder_decoder:
            self._check_ends(texts, rows)
        return [tuple(row) or (self.filler,) for row in rows], len(long)

    def _check_ends(self, texts: Sequence[str], rows: Sequence[Sequence[int]]) -> None:
        """Check that each text has one end mark, at which models such as T5 and BART judge it."""
        end = self.lm.config.eos_token_id
        for text, row in zip(texts, rows, strict=True):
            if (num_ends := list(row).count(end)) != 1:
                raise InputError(
                    f"a text has {num_ends} end marks (token {end}), where an encoder-decoder needs exactly "
                    f"1, which its tokenizer adds; take the mark out of the text, or take another model: "
                    f"{text[:80]!r}"
                )

    def logits(self, tokens_NL: Tensor, mask_NL: Tensor) -> Tensor:
        """Return the head's outputs, (N, outputs)."""
        logits_NK: Tensor = self.lm(input_ids=tokens_NL, attention_mask=mask_NL).logits
        return logits_NK

    def scores(self, examples: Sequence[Example], advance: Any = None) -> Tensor:
        """Return outputs (examples, labels), or the rewards of pairs (examples, 2), in order and on the CPU.

        Dropout is off, and the dtype is float32, as in the reward servers.
        """
        self.lm.eval()
        width = len(examples[0].sequences)
        scores_BK = torch.zeros(len(examples), self.num_outputs * width)
        with torch.inference_mode():
            for micro in self.micro_batches(examples):
                logits_NK = self.logits(micro.tokens_NL, micro.mask_NL).float().cpu()
                scores_BK[list(micro.places)] = logits_NK.reshape(len(micro.places), -1)
                if advance is not None:
                    advance(len(micro.places))
        return scores_BK

    def micro_batches(self, examples: Sequence[Example]) -> Any:
        return micro_batches(examples, self.settings.token_budget, filler=self.filler, device=self.device)

    def save(self, folder: Path) -> None:
        """Save weights and tokenizer with the limit of training, so that servers cut texts alike."""
        self.tokenizer.model_max_length = self.max_length
        if self.tokenizer.is_fast:
            self.tokenizer.backend_tokenizer.no_truncation()  # otherwise it keeps the last call's truncation
        with room_for(folder):
            self.lm.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

    def _length(self, path: str) -> int:
        window = window_of(self.tokenizer, self.lm.config)
        limit = self.settings.max_length
        if limit is not None and limit > window:
            raise InputError(f"max_length={limit}, but model={path} takes {window} tokens; lower it")
        return limit or window


def _load(path: str, label_names: Sequence[str]) -> tuple[Any, Any, list[str]]:
    """Load a tokenizer and a model; return both, and the names of weights that the checkpoint lacks."""
    from transformers import (
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
        AutoConfig,
        AutoModelForSequenceClassification,
        AutoTokenizer,
    )

    names = dict(enumerate(label_names))
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, truncation_side="left", trust_remote_code=False)
        if tokenizer.pad_token_id is None:  # any token will do, because padding is masked
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
        config = AutoConfig.from_pretrained(
            path,
            num_labels=len(names),
            id2label=names,
            label2id={name: place for place, name in names.items()},
            trust_remote_code=False,
        )
        config.problem_type = "single_label_classification" if len(names) > 1 else None
        config.get_text_config().pad_token_id = config.pad_token_id = int(tokenizer.pad_token_id or 0)
        if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
            raise InputError(f"transformers has no classifier of model_type {config.model_type!r}")
        config.use_cache = False  # only generation needs keys and values
        attend_in_float32()
        # A head with other labels is drawn anew; `fresh` names all missing weights.
        with ONE_MODEL_AT_A_TIME:
            lm, report = AutoModelForSequenceClassification.from_pretrained(
                path,
                config=config,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                trust_remote_code=False,
            )
    except Exception as error:  # transformers raises errors of any kind
        reason = str(error).strip().split("\n")[0]
        raise InputError(
            f"model={path} does not load as a classifier: {type(error).__name__}: {reason}"
        ) from error
    check_pooling(lm, path)
    fresh = [*report["missing_keys"], *(entry[0] for entry in report["mismatched_keys"])]
    return tokenizer, lm, sorted(fresh)
