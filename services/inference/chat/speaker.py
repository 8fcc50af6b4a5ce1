"""A model's answers, token by token. Letters are passed on once no later token can change them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.processes.loading import ONE_MODEL_AT_A_TIME
from contracts.rollout import FinishReason, Sampling
from contracts.vocabulary import end_tokens
from services.inference.generation.run_model import RunModel
from services.models.quiet import quiet_transformers
from services.terminal.interrupts import Terminated

HALF_A_LETTER = "\ufffd"  # decoded from a token that ends within a letter


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's answer. Example: `Answer("7 9", FinishReason.STOP)`; None: it was interrupted."""

    text: str
    finish_reason: FinishReason | None


class Speaker:
    """Model that answers with `sampling`; it ignores its own generation settings, except the end tokens."""

    def __init__(self, model: RunModel, tokenizer: Any, sampling: Sampling, seed: int | None) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

        from rollout_workers.engines.choice import choose_dtype

        quiet_transformers()
        self._tokenizer, self._sampling = tokenizer, sampling
        kind = AutoModelForSeq2SeqLM if model.files.is_encoder_decoder else AutoModelForCausalLM
        dtype = getattr(torch, choose_dtype(model.rollout.dtype, on_gpu=torch.cuda.is_available()))
        with ONE_MODEL_AT_A_TIME:
            self._lm: Any = kind.from_pretrained(model.path, dtype=dtype, trust_remote_code=False)
        self._lm.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        self._ends = end_tokens(self._lm.generation_config.eos_token_id, tokenizer.eos_token_id)
        self._ends += _special(tokenizer, sampling.stop)
        self._lm.generation_config = _generation_config(self._lm, tokenizer, sampling, self._ends)
        if seed is None:
            torch.seed()
        else:
            torch.manual_seed(seed)

    @property
    def never_ends(self) -> bool:
        """Return whether only the token limit ends an answer."""
        return not self._ends and not self._sampling.stop

    def answer(
        self,
        tokens: Sequence[int],
        say: Callable[[str], None],
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Answer:
        """Return the answer, and pass its pieces to `say` meanwhile; Ctrl-C or `is_stopped` interrupts it."""
        import torch

        read = torch.tensor([list(tokens)], device=self._lm.device)
        letters = Letters(self._tokenizer, self._sampling, say)

        def is_done(written: Any, scores: Any) -> Any:
            return torch.tensor([letters.at_stop or is_stopped()], device=written.device)

        try:
            self._lm.generate(
                read, attention_mask=torch.ones_like(read), streamer=letters, stopping_criteria=[is_done]
            )
        except Terminated:
            raise
        except KeyboardInterrupt:
            letters.end()
        return Answer(letters.said, self._finish_reason(letters))

    def _finish_reason(self, letters: "Letters") -> FinishReason | None:
        if letters.at_stop or (letters.tokens and letters.tokens[-1] in self._ends):
            return FinishReason.STOP
        return FinishReason.LENGTH if len(letters.tokens) >= self._sampling.max_tokens else None


class Letters:
    """Converter of transformers' token stream, prompt first, to letters without surrounding blanks.

    It holds back half a letter, blanks at the end, and a possible beginning of a stop string. It never
    passes stop strings on.
    """

    def __init__(self, tokenizer: Any, sampling: Sampling, say: Callable[[str], None]) -> None:
        self._tokenizer, self._sampling, self._say = tokenizer, sampling, say
        self._has_prompt = False
        self._text = ""  # the whole answer, up to a stop string
        self.tokens: list[int] = []
        self.said = ""
        self.at_stop = False

    def put(self, tokens: Any) -> None:
        if not self._has_prompt:
            self._has_prompt = True
            return
        if self.at_stop:
            return
        self.tokens += tokens.flatten().tolist()
        text, before = str(self._tokenizer.decode(self.tokens, skip_special_tokens=True)), len(self._text)
        cut = self._stop_in(text, before)
        self.at_stop = cut is not None
        self._text = text[:cut]
        if self.at_stop or not text.endswith(HALF_A_LETTER):
            self._say_rest_of(self._text if self.at_stop else text[: len(text) - self._undecided(text)])

    def end(self) -> None:
        self._say_rest_of(self._text)

    def _stop_in(self, text: str, before: int) -> int | None:
        """Return the position of a stop string that the newest token completed; None without one.

        As in training, a stop string that is complete within the first `min_tokens` does not count.
        """
        if len(self.tokens) <= self._sampling.min_tokens:
            return None
        places = [text.find(stop, max(0, before + 1 - len(stop))) for stop in self._sampling.stop]
        return min((place for place in places if place >= 0), default=None)

    def _undecided(self, text: str) -> int:
        """Return the length of the end that may begin a stop string."""
        beginnings = (stop[:size] for stop in self._sampling.stop for size in range(len(stop), 0, -1))
        return max((len(beginning) for beginning in beginnings if text.endswith(beginning)), default=0)

    def _say_rest_of(self, text: str) -> None:
        whole = text.strip()
        rest = whole[len(self.said) :]
        if rest:
            self.said = whole
            self._say(rest)


def load_tokenizer(model: RunModel) -> Any:
    from transformers import AutoTokenizer

    quiet_transformers()
    return AutoTokenizer.from_pretrained(model.path, trust_remote_code=False)


def _special(tokenizer: Any, stop: Sequence[str]) -> tuple[int, ...]:
    """Return the ids of stop strings that are special tokens, because decoded text omits them."""
    special = set(tokenizer.all_special_tokens)
    return tuple(tokenizer.convert_tokens_to_ids(text.strip()) for text in stop if text.strip() in special)


def _generation_config(lm: Any, tokenizer: Any, sampling: Sampling, ends: Sequence[int]) -> Any:
    """Convert `sampling` to transformers' settings without stop strings; `Letters` finds them sooner."""
    from transformers import GenerationConfig

    from rollout_workers.engines.decoding import start_token

    padding = tokenizer.pad_token_id
    drawn = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    return GenerationConfig(
        max_new_tokens=sampling.max_tokens,
        min_new_tokens=sampling.min_tokens,
        eos_token_id=list(ends) or None,
        pad_token_id=ends[0] if padding is None and ends else padding,
        decoder_start_token_id=start_token(lm) if lm.config.is_encoder_decoder else None,
        do_sample=sampling.temperature > 0,
        repetition_penalty=sampling.repetition_penalty,
        **(drawn if sampling.temperature > 0 else {}),
    )
