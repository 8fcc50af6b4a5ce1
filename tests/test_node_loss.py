"""A node goes, with a rollout worker and whatever else was on it: the run goes on with what is left."""

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ray.cluster_utils import Cluster

from tests.fault_kit import PAGE, PROMPTS, go_on, record, writing_ahead
from tests.lease_log import expected
from tests.models import make_tiny_model
from tests.runs import Run

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(900)]

ITERATIONS = 10
MEMORY = 100 * 2**20  # of each node's object store


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 3, "object_store_memory": MEMORY},
        shutdown_at_exit=False,
    )
    monkeypatch.setenv("RAY_ADDRESS", made.address)
    yield made
    made.shutdown()


def test_a_lost_node_costs_no_prompt(cluster: Cluster, tmp_path: Path) -> None:
    second = cluster.add_node(num_cpus=3, object_store_memory=MEMORY)
    run = Run(
        tmp_path,
        "run",
        *writing_ahead(make_tiny_model(tmp_path / "model")),
        f"iterations={ITERATIONS}",
        "cluster.strategy=spread",  # a worker each
        "cluster.worker_cpus=1",
    )
    try:
        run.start().wait_for_iteration(2)
        lost = of_node(second)
        assert any(title.startswith("ray::RolloutWorker") for title in lost), lost

        before, started = len(run.folder.rollout_info()), time.monotonic()
        cluster.remove_node(second, allow_graceful=False)
        outcome = go_on(run, "node, lost", before, started)

        assert run.finish() == 0, run.output
    finally:
        run.end()
    rows = run.folder.rollout_info()
    assert [row["iteration"] for row in rows] == list(range(1, ITERATIONS + 1))
    for row in rows:
        leases = {key: row[key] for key in row if key.startswith("lease/")}
        assert leases == expected(row["iteration"], PROMPTS)
    if PAGE:
        record(Path(PAGE), [outcome])


def of_node(node: object) -> list[str]:
    """The titles of the actors that its raylet has started."""
    (raylet,) = node.all_processes["raylet"]  # type: ignore[attr-defined]
    children = psutil.Process(raylet.process.pid).children(recursive=True)
    return [process.cmdline()[0] for process in children if process.cmdline()]
