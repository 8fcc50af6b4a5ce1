"""Play episodes of an environment of the package `verifiers`, each as the program of a lease.

    prompt's seed ─▶ task of this number ─▶ verifiers' episode ─▶ calls of the gateway ─▶ reward's file

`warm.py` prepares once, which takes seconds, and forks for each lease. A Python with verifiers runs this
file. So it imports nothing of Whetstone, and the two may have different versions of any package.
"""

import asyncio
import itertools
import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

PARTNER = "partner"
HERE = {"runtime": {"type": "subprocess"}}


def prepare(argument: str) -> Callable[[], None]:
    """Load the environment of verifiers' JSON configuration; return a function that plays an episode."""
    look_in(os.getcwd())
    import verifiers.v1 as vf

    options = json.loads(argument)
    roles = roles_of(options)
    env = vf.load_environment(vf.resolve_env_config({**options, **roles}))
    return lambda: play(env, {name: role["model"] for name, role in roles.items()})


def play(env: Any, models: Mapping[str, str]) -> None:
    """Play the episode of the prompt, and write its reward."""
    prompt = json.loads(Path(os.environ["WHETSTONE_PROMPT_FILE"]).read_text())
    episode = asyncio.run(played(env, task_of(env.taskset, prompt["meta"]["seed"])))
    if not env.complete(episode):
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        sys.exit("\n".join(f"{error.type}: {error.message}" for error in errors) or "the episode failed")
    Path(os.environ["WHETSTONE_REWARD_FILE"]).write_text(json.dumps(earned(episode.traces, models)))


def look_in(folder: str) -> None:
    """Let this process find a user's tasksets, as python -m does, and its children find toolsets and uv."""
    sys.path[0] = folder  # replaces this file's folder
    for name, first in (("PATH", str(Path(sys.executable).parent)), ("PYTHONPATH", folder)):
        os.environ[name] = os.pathsep.join(filter(None, (first, os.environ.get(name))))


def roles_of(options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the configuration of each role: the trained model, on this machine, and without a shell.

    A single role is the model `policy`. Each of several roles is `policy/NAME`, unless its options name
    another model.
    """
    import verifiers.v1 as vf

    taskset = options["taskset"]["id"]
    fields = vf.env_config_type(taskset, options.get("id", "")).model_fields
    agents = {name: field.default for name, field in fields.items()}
    agents = {name: agent for name, agent in agents.items() if isinstance(agent, vf.AgentConfig)}
    made: dict[str, dict[str, Any]] = {}
    for name, agent in agents.items():
        made[name] = {**HERE, "model": "policy" if len(agents) == 1 else f"policy/{name}"}
        if agent.harness is None and vf.default_harness_id(taskset) == "bash":
            made[name]["harness"] = {"id": "null"}
        made[name] |= options.get(name, {})
    return made


def task_of(taskset: Any, number: int) -> Any:
    """Return the task of this number."""
    tasks = list(itertools.islice(taskset, number, number + 1))
    if not tasks:
        count = sum(1 for _ in taskset)
        sys.exit(
            f"there is no task {number}: {taskset.config.id} has {count}, from 0 on. Expected fewer prompts: "
            "task.first_seed, task.num_prompts and twice task.num_eval_prompts add up to at most that"
        )
    return tasks[0]


async def played(env: Any, task: Any) -> Any:
    """Return the finished episode."""
    import verifiers.v1 as vf

    client = vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    (slot,) = env.slots(task)
    async with env.serving():
        return await env.run_slot(slot, vf.ModelContext(model="policy", client=client))


def earned(traces: Sequence[Any], models: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of the reward's file: each trained role's mean reward, and means of the metrics."""
    rewards: dict[str, list[float]] = {}
    numbers: dict[str, list[float]] = {}
    for trace in traces:
        for name, value in trace.metrics.items():
            if value is not None and math.isfinite(value):  # a metric is only logged
                numbers.setdefault(name, []).append(float(value))
        role = trace.agent.name
        if models[role] == PARTNER:
            continue
        if not trace.agent.trainable:
            sys.exit(
                f"the role {role} is not trainable: expected a frozen model for it, by "
                f"environment.options={{{role}: {{model: {PARTNER}}}}} and environment.partner_options"
            )
        rewards.setdefault(models[role], []).append(float(trace.reward))
    means = {model: statistics.fmean(values) for model, values in rewards.items()}
    measured = {name: statistics.fmean(values) for name, values in numbers.items()}
    return {**measured, "reward": means["policy"] if list(means) == ["policy"] else means}


if __name__ == "__main__":
    prepare(sys.argv[1])()
