"""A run whose judge is a chat model on vLLM's OpenAI-style server, as docs/judge-as-reward.md starts it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chat_templates import DEFAULT_SYSTEM, make_chat_model
from tests.kept_rollouts import kept_in, measure_into
from tests.models import make_tiny_model
from tests.runs import Run
from tests.vllm_server import served_by_vllm

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(900)]

NO_BLANKS = '{"backend": "xgrammar", "disable_any_whitespace": true}'
ITERATIONS, PROMPTS = 2, 8
# A model that was never trained gives a number where nothing else fits the form, not even blanks.
FORM = (
    "{type: object, properties: {score: {type: integer, minimum: 1, maximum: 10}}, required: [score], "
    "additionalProperties: false}"
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("judge")
    model = make_chat_model(folder / "model", DEFAULT_SYSTEM)
    options = "--max-model-len", "2048", "--structured-outputs-config", NO_BLANKS
    with served_by_vllm(model, "judge", folder / "server.out", *options) as address:
        yield address


def test_a_model_is_trained_by_the_judge(url: str, tmp_path: Path) -> None:
    body = "{max_tokens: 40, temperature: 1}"
    judge = f"{{name: judge, url: {url!r}, model: judge, answer_schema: {FORM}, body: {body}}}"
    run = Run(
        tmp_path,
        "judged",
        *(f"model.path={make_tiny_model(tmp_path / 'model')}", f"reward={judge}", "algorithm=grpo"),
        *(f"rollout.prompts_per_iteration={PROMPTS}", "rollout.group_size=4", "rollout.max_tokens=8"),
        *("metrics=[]", "evaluation.num_prompts=2", "evaluate_every=0", "save_every=0"),
        "rollout.engine=vllm",
        *("tracking.enabled=false", f"iterations={ITERATIONS}", measure_into(tmp_path / "kept.jsonl")),
    )
    try:
        assert run.start().finish() == 0, run.output
    finally:
        run.end()
    rows, kept = run.folder.rollout_info(), kept_in(tmp_path / "kept.jsonl")
    numbers = {key: [row.get(key, 0.0) for row in rows] for key in rows[0] if "judge" in key}
    print(numbers)
    assert [row["rollouts/trained"] for row in rows] == [PROMPTS * 4] * ITERATIONS
    assert sum(row["reward/failures"] for row in rows) == 0
    assert {round(row["reward"] * 9, 6) for row in kept} <= set(map(float, range(10)))
    assert len({row["reward"] for row in kept}) > 1  # it tells texts from each other
    assert all(row["reward/judge/requests"] > 0 and row["reward/judge/tokens"] > 0 for row in rows)
