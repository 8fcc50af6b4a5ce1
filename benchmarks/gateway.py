"""Generated tokens per second behind the gateway, and of the bare engine with the same requests.

64 agents make four calls each; every call contains the earlier answers. The bare side steps the engine in a
loop, adds an answer's successor at once, and knows its tokens without tokenizing. The other side has the same
engine behind the gateway, and its agents in another process. Both sample the same number of tokens.
"""

import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

from benchmarks.models import made
from benchmarks.outcome import in_turns, publish, ratio
from contracts.conversations.chat_settings import ChatForm
from contracts.rollout import Lease, Prompt, Sampling
from rollout_workers.engines.base import Engine, Request
from rollout_workers.engines.vllm_engine import VLLMEngine
from rollout_workers.environments.program import Program
from rollout_workers.gateway.engine_calls import EngineCalls
from rollout_workers.gateway.episode_door import EpisodeDoor
from rollout_workers.gateway.reading import Reader
from rollout_workers.gateway.server import Gateway
from rollout_workers.gateway.serving import EngineThread
from rollout_workers.settings import RolloutSettings
from services.models.new_tokenizer import byte_tokenizer

AGENTS, CALLS, NEW, ROUNDS = 64, 4, 64, 5
PROMPT, BETWEEN = 43, 24  # tokens of the first context, and of each message after an answer
SAMPLING = Sampling(max_tokens=NEW, min_tokens=NEW)
SHAPES = {"4 layers, 128 wide": (4, 128), "6 layers, 512 wide": (6, 512)}
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # as a worker with rollout.num_threads=1 has it
    rows: dict[str, float] = {}
    details: dict[str, list[float]] = {}
    for name in sys.argv[1:] or SHAPES:
        speeds = measured(str(model(*SHAPES[name])))
        for side, values in speeds.items():
            rows[f"{name}: {side}, tokens/s"] = sorted(values)[ROUNDS // 2]
            details[f"{name}: {side}"] = values
        rows[f"{name}: gateway / bare engine (at least 0.95)"] = ratio(
            speeds["gateway"], speeds["bare engine"]
        )
    publish("gateway", f"gateway: {AGENTS} agents, {CALLS} calls each, {NEW} tokens a call", rows, details)


def measured(folder: str) -> dict[str, list[float]]:
    """Return the tokens per second of both sides."""
    from transformers import AutoTokenizer

    calls, gateway = EngineCalls(), Gateway()
    settings = RolloutSettings(max_concurrent=AGENTS, num_threads=1)
    engine: Engine = VLLMEngine(folder, folder, None, settings)
    reader = Reader(AutoTokenizer.from_pretrained(folder), ChatForm())
    program = Program(command="none", max_turns=CALLS)
    address, numbers = gateway.start(), itertools.count(10**6)
    agents = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("gateway_client.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert agents.stdin is not None and agents.stdout is not None

    def bare() -> float:
        with ThreadPoolExecutor(1) as thread:  # as the other side: OpenMP's threads belong to a thread
            return thread.submit(stepped).result()

    def stepped() -> float:
        started, num_left = perf_counter(), {}
        contexts: dict[int, tuple[int, ...]] = {}

        def add(context: tuple[int, ...], left: int) -> None:
            number = next(numbers)
            contexts[number], num_left[number] = context, left
            engine.add(Request(number, context, SAMPLING, number))

        for agent in range(AGENTS):
            add(tuple((agent + place) % 200 for place in range(PROMPT)), CALLS - 1)
        while engine.num_unfinished:
            for generation in engine.step():
                context, left = contexts.pop(generation.request_id), num_left.pop(generation.request_id)
                if left:
                    add(context + generation.tokens + tuple(range(BETWEEN)), left - 1)
        return AGENTS * CALLS * NEW / (perf_counter() - started)

    def served() -> float:
        async def keys() -> list[str]:
            doors = [
                EpisodeDoor(
                    Lease(number, Prompt("p", ""), (1,), number, number, SAMPLING),  # new seeds each round
                    program,
                    reader,
                    calls,
                    None,
                    engine.window,
                )
                for number in itertools.islice(numbers, AGENTS)
            ]
            return [gateway.open(door) for door in doors]

        request = {"address": address, "keys": gateway.submit(keys()).result(), "calls": CALLS}
        thread = EngineThread(lambda: engine, calls)
        agents.stdin.write(json.dumps(request) + "\n")  # type: ignore[union-attr]
        agents.stdin.flush()  # type: ignore[union-attr]
        seconds = float(agents.stdout.readline())  # type: ignore[union-attr]
        thread.stop()
        return AGENTS * CALLS * NEW / seconds

    speeds = in_turns({"bare engine": bare, "gateway": served}, ROUNDS, warm_up=1)
    agents.stdin.close()
    agents.wait()
    gateway.stop()
    return speeds


def model(layers: int, width: int) -> Path:
    """Make a GPT that reads bytes, with a chat template."""
    from transformers import GPT2Config

    tokenizer = byte_tokenizer(("<eos>", "<|start|>", "<|end|>"), eos_token="<eos>", chat_template=TEMPLATE)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=1024, n_embd=width, n_layer=layers, n_head=width // 32
    )
    config.bos_token_id = config.eos_token_id = 0
    folder = made(f"gateway-{layers}-{width}", config)
    tokenizer.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    main()
