"""A run on a server of the Open Reward Standard to its end: say the word that the task asks for.

`python -m benchmarks.studies.open_reward PYTHON` serves the tests' game by ors-sdk, which PYTHON has, and trains by
`whetstone train`. At first a tiny model calls the tool with one of four words, or ends. Two tasks are trained on.
"""

import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import httpx

from benchmarks.outcome import OUT, publish
from rollout_workers.tools.tool_calls import Call, written
from services.runs.folder import RunFolder

ROOT = OUT / "open-reward"
SERVER = Path(__file__).parents[2] / "tests" / "rollout_workers" / "open_reward_server.py"
WORDS = ["sun", "moon", "star", "sea"]
OPTIONS = [
    *("task=episodes", "task.num_prompts=2", "task.num_eval_prompts=1", "environment=open_reward"),
    *("environment.max_turns=4", "environment.isolated=false", "model.chat.template=tokenizer"),
    *("algorithm=grpo", "algorithm.learning_rate=1e-2", "algorithm.minibatch_size=32"),
    *("rollout.prompts_per_iteration=2", "rollout.group_size=16", "rollout.max_tokens=4"),
    *("rollout.engine=transformers", "rollout.stall_timeout_s=900", "iterations=12"),
    *("rollout.num_threads=1", "learner.num_threads=1", "evaluate_every=0", "save_every=0"),
    *("metrics=[]", "tracking.enabled=false"),
]


def main(python: str) -> None:
    from tests.test_tools_on_ray import make_calling_model

    log = ROOT / "server.log"
    model = make_calling_model(ROOT / "model", [written([Call("say", {"text": word})]) for word in WORDS])
    log.unlink(missing_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen([python, str(SERVER), str(port), str(log), "ors"])
    command = [sys.executable, "-m", "services.cli", "train", f"environment.url=http://127.0.0.1:{port}"]
    command += [f"model.path={model}", f"output_dir={ROOT}", "run_name=run", "resume=never", *OPTIONS]
    try:
        wait_for(f"http://127.0.0.1:{port}/list_environments", server)
        print(" ".join(command), flush=True)
        subprocess.run(command, check=True)
    finally:
        server.terminate()
        server.wait()
    folder = RunFolder(ROOT / "run")
    rows = folder.rollout_info()
    evaluated = [(row["iteration"], row["metrics"]["reward/mean"]) for row in folder.evaluations("test")]
    shown = {
        "reward by iteration": " ".join(f"{row['reward/mean']:.2f}" for row in rows),
        "calls an episode": " ".join(f"{row['environment/calls/mean']:.2f}" for row in rows),
        "failed episodes": sum(row["environment/failed"] for row in rows),
        "test, a task that is not trained on": evaluated,
        "the server's log": dict(Counter(line.split()[0] for line in log.read_text().splitlines())),
    }
    publish("open-reward", "A run on a server of the Open Reward Standard", shown, {"rows": rows})


def wait_for(url: str, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            httpx.get(url, trust_env=False)
            return
        except httpx.TransportError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


if __name__ == "__main__":
    main(sys.argv[1])
