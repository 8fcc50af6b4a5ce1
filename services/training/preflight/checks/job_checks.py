"""Checks before a run is submitted to a Ray cluster as a job."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from contracts.errors import InputError
from contracts.network.access import is_loopback
from contracts.processes.working_folder import clashes
from contracts.secrets.redaction import redact


def check_job(overrides: Sequence[str], address: str, working_dir: Path | None) -> Path:
    """Check a job before it is submitted; return the run's folder.

    A cluster on this machine gets all checks of `whetstone train`. For another cluster check only the
    configuration, because model, data and memory are on the cluster.

    Raises:
        InputError: the run would fail, or its command would show a secret.
    """
    from services.config.compose import run_settings
    from services.training.preflight import preflight

    for override in overrides:
        if (redacted := redact(override)) != override:
            raise InputError(
                f"{redacted}: everybody on the cluster can read a job's command. Set secrets as variables of "
                "the cluster's processes, such as MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )
    settings = run_settings(list(overrides))
    if working_dir is None:
        if is_loopback(urlsplit(address).hostname or ""):
            preflight.check(settings)
        return Path(settings.output_dir).absolute() / settings.run_name
    if not working_dir.is_dir():
        raise InputError(f"--working-dir {working_dir}: there is no such folder")
    if names := clashes(working_dir):
        raise InputError(
            f"--working-dir {working_dir} has {', '.join(names)}: Ray would import these instead of "
            "installed modules of the same name. Rename them, or upload a folder without them"
        )
    if not Path(settings.output_dir).is_absolute():
        raise InputError(
            f"output_dir={settings.output_dir}: the copy of --working-dir is deleted with the job. Expected "
            "an absolute path that the cluster keeps: output_dir=/shared/runs"
        )
    return Path(settings.output_dir) / settings.run_name
