"""(a) Generated tokens per second of a worker and of bare `vllm.LLM.generate`: same prompts and settings."""

import random
from time import perf_counter

from benchmarks.models import gpt2_tiny
from benchmarks.outcome import in_turns, publish, ratio
from contracts.rollout import Lease, Prompt, Sampling
from rollout_workers.engines.engine_arguments import prepare_environment
from rollout_workers.engines.vllm_engine import sampling_parameters
from rollout_workers.settings import RolloutSettings
from rollout_workers.worker import RolloutWorker

NUM_PROMPTS, PROMPT_TOKENS, NEW_TOKENS, ROUNDS = 64, 16, 64, 9
SETTINGS = RolloutSettings(max_concurrent=64)
# The minimum keeps responses from ending early, so that both sides generate the same number of tokens.
SAMPLING = Sampling(max_tokens=NEW_TOKENS, min_tokens=NEW_TOKENS)


def main() -> None:
    prepare_environment()
    from vllm import LLM

    model = str(gpt2_tiny())
    worker = RolloutWorker(model, model, None, "vllm", SETTINGS)
    worker.ready()
    llm = LLM(
        model=model,
        max_num_seqs=SETTINGS.max_concurrent,
        dtype="float32",
        enforce_eager=True,
        logprobs_mode="processed_logprobs",
        enable_prefix_caching=True,
        enable_chunked_prefill=False,
        disable_log_stats=True,
        generation_config="vllm",
        kv_cache_memory_bytes=round(SETTINGS.kv_cache_gib * 2**30),
        seed=0,
    )
    draw = random.Random(0)
    next_id = 0

    def prompts() -> list[tuple[int, ...]]:
        return [tuple(draw.randrange(1, 1000) for _ in range(PROMPT_TOKENS)) for _ in range(NUM_PROMPTS)]

    def bare() -> float:
        asked = [{"prompt_token_ids": list(tokens)} for tokens in prompts()]
        parameters = [sampling_parameters(SAMPLING, seed) for seed in range(NUM_PROMPTS)]
        for each in parameters:
            each.detokenize = True  # the default: both sides deliver tokens, log-probabilities and text
        started = perf_counter()
        outputs = llm.generate(asked, parameters, use_tqdm=False)
        return sum(len(o.outputs[0].token_ids) for o in outputs) / (perf_counter() - started)

    def ours() -> float:
        nonlocal next_id
        leases = [
            Lease(next_id + i, Prompt(str(i), ""), tokens, i, i, SAMPLING)
            for i, tokens in enumerate(prompts())
        ]
        next_id += NUM_PROMPTS
        started = perf_counter()
        worker.submit(leases)
        rollouts = []
        while len(rollouts) < NUM_PROMPTS:
            rollouts += worker.poll(1.0).rollouts
        return sum(rollout.num_generated for rollout in rollouts) / (perf_counter() - started)

    found = in_turns({"vllm.LLM.generate": bare, "rollout worker": ours}, ROUNDS, warm_up=2)
    share = ratio(found["rollout worker"], found["vllm.LLM.generate"])
    medians = {f"{name}, tokens/s": sorted(values)[ROUNDS // 2] for name, values in found.items()}
    publish(
        "generation",
        f"generation: {NUM_PROMPTS} prompts of {PROMPT_TOKENS} tokens, {NEW_TOKENS} new ones",
        {**medians, "worker / bare vLLM (at least 0.95)": share},
        found,
    )


if __name__ == "__main__":
    main()
