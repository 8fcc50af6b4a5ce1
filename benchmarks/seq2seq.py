"""(g) Tokens per second on a T5 by our engine and by transformers' `generate`: same prompts and lengths."""

import random
from time import perf_counter
from typing import Any

import torch

from benchmarks.models import t5_tiny
from benchmarks.outcome import in_turns, publish, ratio
from contracts.rollout import Sampling
from rollout_workers.engines.base import Request
from rollout_workers.engines.transformers_engine import TransformersEngine
from rollout_workers.settings import RolloutSettings

NUM_PROMPTS, ROUNDS = 64, 9
PROMPT_TOKENS = range(8, 33)
# Responses end at lengths spread evenly from 4 to 64, the same on both sides.
LENGTHS = [4 + (60 * i) // (NUM_PROMPTS - 1) for i in range(NUM_PROMPTS)]


def main() -> None:
    from transformers import AutoModelForSeq2SeqLM

    folder = str(t5_tiny())
    engine = TransformersEngine(folder, folder, None, RolloutSettings(max_concurrent=NUM_PROMPTS))
    lm = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    draw = random.Random(0)

    def prompts() -> list[tuple[int, ...]]:
        return [
            tuple(draw.randrange(1, 8000) for _ in range(draw.choice(PROMPT_TOKENS)))
            for _ in range(NUM_PROMPTS)
        ]

    def theirs() -> float:
        """Run transformers in its best case: no end token, only tokens returned, only needed ones counted."""
        encoder_input = padded(prompts())
        started = perf_counter()
        with torch.inference_mode():
            tokens = lm.generate(
                **encoder_input,
                do_sample=True,
                top_k=0,
                max_new_tokens=max(LENGTHS),
                eos_token_id=None,
                stopping_criteria=[_ends_at_its_length],
            )
        assert tokens.shape == (NUM_PROMPTS, 1 + max(LENGTHS))
        return sum(LENGTHS) / (perf_counter() - started)

    def ours() -> float:
        """Run our engine, which returns tokens, their log-probabilities and the text."""
        samplings = [Sampling(max_tokens=length, min_tokens=length) for length in LENGTHS]
        requests = [
            Request(i, tokens, sampling, i)
            for i, (tokens, sampling) in enumerate(zip(prompts(), samplings, strict=True))
        ]
        started = perf_counter()
        for request in requests:
            engine.add(request)
        generations = []
        while engine.num_unfinished:
            generations += engine.step()
        assert sorted(len(generation.tokens) for generation in generations) == LENGTHS
        return sum(LENGTHS) / (perf_counter() - started)

    speeds = in_turns({"transformers generate": theirs, "our engine": ours}, ROUNDS, warm_up=2)
    medians = {f"{name}, tokens/s": sorted(values)[ROUNDS // 2] for name, values in speeds.items()}
    share = ratio(speeds["our engine"], speeds["transformers generate"])
    publish(
        "seq2seq",
        f"encoder-decoder: {NUM_PROMPTS} prompts, responses of {min(LENGTHS)} to {max(LENGTHS)} tokens",
        {**medians, "engine / generate (at least 1.5)": share},
        speeds,
    )


def _ends_at_its_length(input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
    return input_ids.shape[1] - 1 >= torch.tensor(LENGTHS)


def padded(prompts: list[tuple[int, ...]]) -> dict[str, torch.Tensor]:
    width = max(len(tokens) for tokens in prompts)
    return {
        "input_ids": torch.tensor([[*tokens, *[0] * (width - len(tokens))] for tokens in prompts]),
        "attention_mask": torch.tensor(
            [[1] * len(tokens) + [0] * (width - len(tokens)) for tokens in prompts]
        ),
    }


if __name__ == "__main__":
    main()
