"""Orders of training on a real vLLM engine and learner: one text in 64 is twenty times longer.

`python -m benchmarks.studies.real_tails` makes a model whose texts are chains of 12 tokens, or one time in 64 of 240.
All parts start once. Each round runs every order from the start's weights, so all orders see much the same load.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.again import Train, started
from benchmarks.models import made
from benchmarks.other_load import OtherLoad
from benchmarks.outcome import OUT, publish, with_error
from contracts.scores import Sample
from services.runs.folder import RunFolder

ROOT = OUT / "real-tails"
SHORT, LONG = 12, 240  # tokens of a text
RARE = 64  # one text in so many is long
NUMBERS = 100  # tokens that prompts draw from
WIDTH = 448  # tokens of the vocabulary, with a direction of the hidden state for each
WARM_UP = 8  # first iterations, which do not count
ITERATIONS = 32  # all iterations
KINDS = {
    "leased, 0": ["rollout.order=leased", "rollout.max_staleness=0"],
    "leased, 1": ["rollout.order=leased", "rollout.max_staleness=1"],
    "finished, 6": ["rollout.order=finished", "rollout.max_staleness=6"],
}
ALWAYS = [
    *("algorithm=grpo", "algorithm.minibatch_size=64", "rollout.engine=vllm", "rollout.kv_cache_gib=0.25"),
    *("rollout.num_threads=1", "learner.num_threads=1", "rollout.max_concurrent=128"),
    *("rollout.prompts_per_iteration=8", "rollout.group_size=8", "rollout.max_tokens=256"),
    *("algorithm.learning_rate=1e-12", f"iterations={ITERATIONS}", "task.num_prompts=1024"),  # lengths stay
    *("reward=benchmarks.studies.real_tails:Varied", "evaluate_every=never", "save_every=0"),
    *("metrics=[]", "tracking.enabled=false"),
]


class Varied:
    """Rewards of 0 and 1, whatever a text says."""

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [float(place % 2) for place, _ in enumerate(samples)]


def chains() -> Path:
    """Make a Llama in which a token alone decides the next one."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=WIDTH,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=7,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    folder = made("real-tails/chains", config)
    lm = AutoModelForCausalLM.from_pretrained(folder)
    short, long = NUMBERS + 1, NUMBERS + SHORT
    logits_VV = torch.full((WIDTH, WIDTH), -40.0)  # row: the token; column: the next one
    logits_VV[: NUMBERS + 1, short] = torch.tensor(1 - 1 / RARE).log()
    logits_VV[: NUMBERS + 1, long] = torch.tensor(1 / RARE).log()
    for first, count in ((short, SHORT), (long, LONG)):
        chain = [*range(first, first + count - 1), 0]
        logits_VV[chain[:-1], chain[1:]] = 0.0
    with torch.no_grad():
        for layer in lm.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        lm.model.embed_tokens.weight.copy_(torch.eye(WIDTH))
        lm.lm_head.weight.copy_(logits_VV.T / WIDTH**0.5)  # a normed direction is √WIDTH long
    lm.save_pretrained(folder)
    return folder


def measured(train: Train, options: Sequence[str], name: str) -> dict[str, float]:
    """Train from the start's weights; return the run's figures."""
    load = OtherLoad()
    load.start()
    folder = train(options, name)
    return figures(folder) | {"other load": load.share()}


def figures(folder: RunFolder) -> dict[str, float]:
    """Return a run's trained tokens a second, its waits for texts, and the ages of tokens."""
    rows = folder.rollout_info()[WARM_UP:]
    num_tokens = sum(row["rollouts/trained"] * row["response_length/mean"] for row in rows)
    iterations_s = sum(row["time/iteration_s"] for row in rows)
    return {
        "tokens a second": num_tokens / iterations_s,
        "wait for texts, share": sum(row["time/rollout_s"] for row in rows) / iterations_s,
        "age": statistics.fmean(row["staleness/mean"] for row in rows),
        "oldest": max(row["staleness/max"] for row in rows),
        "length ratio": rows[-1].get("order/length_ratio", 1.0),
        "overtaken share": statistics.fmean(row.get("order/overtaken_share", 0.0) for row in rows),
    }


def all_rounds(seeds: Sequence[int]) -> dict[str, list[dict[str, float]]]:
    """Start the parts; run every order with each seed, in turn."""
    options = [*ALWAYS, f"model.path={chains()}"]
    runs = {kind: list[dict[str, float]]() for kind in KINDS}
    with started([*options, *KINDS["finished, 6"]], ROOT) as train:
        for seed in seeds:
            for kind, values in runs.items():
                name = f"{kind.replace(', ', '-')}-seed{seed}"
                values.append(measured(train, [*options, *KINDS[kind], f"seed={seed}"], name))
                print(name, {key: round(value, 3) for key, value in values[-1].items()}, flush=True)
    return runs


def shown(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, Any]:
    base, rows = next(iter(runs.values())), dict[str, Any]()
    for kind, values in runs.items():
        pairs = list(zip(values, base, strict=True))
        ratios = [mine["tokens a second"] / theirs["tokens a second"] for mine, theirs in pairs]
        means = {key: with_error([value[key] for value in values]) for key in values[0]}
        rows[kind] = f"speed × {with_error(ratios)}; " + "; ".join(f"{k} {mean}" for k, mean in means.items())
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    runs = all_rounds(parser.parse_args().seeds)
    publish("real-tails", "Means and standard errors by order and bound", shown(runs), runs)


if __name__ == "__main__":
    main()
