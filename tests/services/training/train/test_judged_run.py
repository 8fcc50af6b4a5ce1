"""A model learns a rule that only its judge knows, from a chat server that fails now and then."""

import re
from itertools import count
from pathlib import Path
from statistics import fmean, stdev

import pytest
from fastapi import Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from services.config.compose import run_settings
from tests.chat_server import reply, serving
from tests.local_run import train_here
from tests.models import make_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.long]

ITERATIONS = 20
REQUESTS = count(1)


def rule(text: str) -> float:
    """Return the share of words that are numbers below 50; of random numbers, one half."""
    words = text.split()
    return sum(word.isdigit() and int(word) < 50 for word in words) / max(len(words), 1)


async def judged(request: Request) -> Response:
    """Rank or rate by the rule; of 40 requests one meets each of three faults."""
    question = (await request.json())["messages"][0]["content"]
    number = next(REQUESTS)
    if number % 40 == 7:
        return JSONResponse({"error": {"message": "slow down"}}, 429, {"retry-after": "0.05"})
    if number % 40 == 17:
        return PlainTextResponse("overloaded", 503, {"retry-after": "0.05"})
    if number % 40 == 27:
        return reply("I like this one.", (200, 5))
    if texts := re.findall(r"^=== Answer \d+\n(.*)$", question, re.MULTILINE):
        order = sorted(range(len(texts)), key=lambda place: -rule(texts[place]))
        return reply({"reason": "", "ranking": [place + 1 for place in order]}, (200, 20))
    (text,) = re.findall(r"^=== The assistant's answer\n(.*)$", question, re.MULTILINE)
    return reply({"reason": "", "score": 1 + 9 * rule(text)}, (200, 20))


@pytest.mark.parametrize(("reward", "algorithm", "size"), [("judge", "ppo", 1), ("judge_group", "grpo", 8)])
def test_a_rule_behind_the_judge_is_learned(reward: str, algorithm: str, size: int, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    with serving(judged) as url:
        overrides = (
            *(f"model.path={model}", f"output_dir={tmp_path}", "run_name=judged", f"iterations={ITERATIONS}"),
            *(f"reward={reward}", f"reward.url={url}", "reward.model=rule", "reward.prices=[1.0, 2.0]"),
            *("task=increasing_numbers", "task.num_prompts=64", "task.num_eval_prompts=4", "metrics=[]"),
            *(f"algorithm={algorithm}", "algorithm.learning_rate=3e-3", f"rollout.group_size={size}"),
            *(f"rollout.prompts_per_iteration={64 // size}", "rollout.max_tokens=8"),
            *("rollout.engine=transformers", "rollout.num_threads=1", "rollout.kv_cache_gib=0.01"),
            *("learner.num_threads=1", "learner.device=cpu", "evaluate_every=0", "tracking.enabled=false"),
            "measures=[tests.services.training.train.test_judged_run:Rule]",
        )
        rows = train_here(run_settings(list(overrides))).rollout_info()
    curve = [row["rule/mean"] for row in rows]
    print("the rule:", *(f"{value:.2f}" for value in curve))
    first, last = curve[:4], curve[-4:]
    error = (stdev(first) ** 2 / 4 + stdev(last) ** 2 / 4) ** 0.5
    assert fmean(last) > fmean(first) + max(5 * error, 0.1), curve
    assert sum(row["reward/failures"] for row in rows) == 0
    assert all(row[f"reward/{reward}/tokens"] > 0 for row in rows)
    for fault in ("malformed", "faults"):
        assert sum(row.get(f"reward/{reward}/{fault}", 0.0) for row in rows) >= 3


class Rule:
    """The mean of the rule, which neither the model nor its reward is told."""

    def measure(self, rollouts: list) -> dict[str, float]:  # type: ignore[type-arg]
        return {"rule/mean": fmean(rule(rollout.text) for rollout in rollouts)}
