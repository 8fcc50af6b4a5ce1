"""GRUE, RL4LMs' benchmark (Ramamurthy et al. 2023, arXiv 2210.01241)."""

from services.studies.benchmarks.benchmark import Benchmark
from services.studies.benchmarks.table import metrics_at

GRUE = Benchmark(
    name="grue",
    title="GRUE",
    about="RL4LMs' seven tasks",
    tasks=("imdb", "commongen", "cnn_daily_mail", "totto", "narrative_qa", "iwslt2017_en_de", "daily_dialog"),
    algorithms=("supervised", "ppo", "nlpo", "ppo_on_supervised", "nlpo_on_supervised"),
    measure=metrics_at,
)
