"""`whetstone train rollout.order=finished` with every part real: refills ahead, a kill, each prompt once."""

import signal
from collections.abc import Iterator

import pytest

from tests.kept_rollouts import kept_in, measure_into
from tests.models import make_tiny_model
from tests.runs import Run

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(900)]

ITERATIONS, PROMPTS, GROUP, STALENESS = 8, 6, 3, 3


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, int]]:
    """A run with refills that was killed between two checkpoints, and the one from which it went on."""
    folder = tmp_path_factory.mktemp("stream")
    model = make_tiny_model(folder / "model")
    made = Run(
        folder,
        "run",
        *(f"model.path={model}", "algorithm=dapo", "algorithm.max_refills=20", "rollout.engine=vllm"),
        *("rollout.deterministic=false", "rollout.order=finished", f"rollout.max_staleness={STALENESS}"),
        *("reward=tests.services.training.loop.test_dapo_run:Rare", "metrics=[]", "tracking.enabled=false"),
        *(f"rollout.prompts_per_iteration={PROMPTS}", f"rollout.group_size={GROUP}"),
        *("rollout.max_tokens=6", "evaluate_every=never", "save_every=2", "task.num_prompts=400"),
        *(f"iterations={ITERATIONS}", measure_into(folder / "kept.jsonl")),
    )
    try:
        made.start()
        made.wait_for("a checkpoint", made.folder.checkpoints)
        made.wait_for_iteration(max(made.folder.checkpoints()) + 1)
        made.signal(signal.SIGKILL)  # the driver alone
        assert made.finish() == -signal.SIGKILL
        assert made.left_over() == []
        checkpoint = max(made.folder.checkpoints())
        assert made.start().finish() == 0, made.output
        yield made, checkpoint
    finally:
        made.end()


def test_each_prompt_is_trained_on_once_and_no_token_is_too_old(resumed: tuple[Run, int]) -> None:
    run, checkpoint = resumed
    assert "resumed from" in run.output
    rows = run.folder.rollout_info()
    assert [row["iteration"] for row in rows] == list(range(1, ITERATIONS + 1))
    for row in rows:
        assert row["refill/kept"] == PROMPTS and row["rollouts/trained"] == PROMPTS * GROUP
        parts = [row[f"refill/{name}"] for name in ("kept", "constant", "surplus", "lost")]
        assert sum(parts) == row["refill/leased"]
        assert row["staleness/max"] <= STALENESS
        assert row["order/length_ratio"] > 0
    assert sum(row["refill/constant"] for row in rows) > ITERATIONS  # so something was replaced
    kept = kept_in(run.folder.path.parent / "kept.jsonl")
    prompts: dict[int, set[str]] = {}
    for row in kept:  # a lease has one prompt, before the kill and after it
        prompts.setdefault(row["lease"], set()).add(str(row["contexts"][0]))
    assert all(len(texts) == 1 for texts in prompts.values())
    size = PROMPTS * GROUP
    batches = [[row["lease"] for row in kept[at : at + size]] for at in range(0, len(kept), size)]
    undone = len(batches) - ITERATIONS  # batches after the checkpoint, which the second start trained anew
    assert undone > 0
    final = [lease for batch in batches[:checkpoint] + batches[checkpoint + undone :] for lease in batch]
    assert len(final) == len(set(final)) == ITERATIONS * size
