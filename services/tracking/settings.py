"""Settings under `tracking.` of a training run."""

from contracts.settings import Settings


class TrackingSettings(Settings):
    """Place in MLflow where the run is tracked, besides its own folder."""

    enabled: bool = True  # False: the run is in its own folder only
    uri: str | None = None  # None: a SQLite file and artifacts in output_dir
    experiment: str = "whetstone"  # the name in MLflow under which runs are grouped
