"""Benchmark learning from data on LoL-RL's tasks (Baheti et al. 2024, arXiv 2305.14718)."""

from services.runs.folder import RunFolder
from services.studies.benchmarks.benchmark import Benchmark
from services.studies.benchmarks.table import metrics_at

ORDER = (("reward/mean",), ("reward/",), ("length/", "response_length/", "lexical/distinct-"))
OF_TEXTS = "reward/std"  # spread of one run's texts; the table shows the spread of seeds


def measure(folder: RunFolder, iteration: int) -> dict[str, float]:
    """Return a run's metrics: the test's (rewards, lengths, distinct n-grams, others), validation's, and
    the cost of training.

    Example: `validation/best/reward` 0.61 at `validation/best/iteration` 30 of 50, from 3,200 responses
    (`training/responses`, without responses that the algorithm omits) in 12 minutes.
    """
    metrics = metrics_at(folder, iteration)
    ordered = {key: metrics[key] for key in sorted(metrics, key=_rank) if key != OF_TEXTS}
    return ordered | (_on_the_way(folder) if metrics and iteration else {})


def _rank(key: str) -> int:
    places = (place for place, starts in enumerate(ORDER) if key.startswith(starts))
    return next(places, len(ORDER))


def _on_the_way(folder: RunFolder) -> dict[str, float]:
    rewards = {
        row["epoch"]: row["metrics"]["reward/mean"]
        for row in folder.evaluations("validation")
        if row["metrics"].get("reward/mean") is not None
    }
    validation = {}
    if rewards:
        best = max(rewards, key=lambda iteration: rewards[iteration])
        validation = {
            "validation/reward/mean": rewards[max(rewards)],
            "validation/best/reward": rewards[best],
            "validation/best/iteration": float(best),
        }
    rows = folder.rollout_info()
    return validation | {
        "training/responses": float(sum(row.get("rollouts/trained") or 0 for row in rows)),
        "training/minutes": sum(row.get("time/iteration_s") or 0.0 for row in rows) / 60,
    }


OFFLINE = Benchmark(
    name="offline",
    title="Learning from data alone",
    about="LoL-RL's six tasks",
    tasks=("helpful_harmless", "atomic", "reddit_comments", "wow", "faithdial", "faithdial_wow"),
    algorithms=(
        *("nll", "wbc", "r_gold", "r_lol", "a_lol_ref_free", "a_lol", "a_lol_seq", "a_lol_kl"),
        *("dpo", "dpo_ref_free", "pro"),
    ),
    measure=measure,
    rows="algorithms",
    note="Distinct n-grams depend on how many texts there are: compare runs of equal size.",
)
