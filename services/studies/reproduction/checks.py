"""Check a reproduction before its start: settings of rows and annotations, and existing runs."""

from collections.abc import Iterator, Sequence

from contracts.errors import InputError
from contracts.secrets.redaction import without_secrets
from services.config.compose import run_settings
from services.config.other_versions import comparable
from services.runs import claim
from services.studies.annotation.settings import settings_from
from services.studies.reproduction.plan import Step


def check(steps: Sequence[Step]) -> None:
    """Read the settings of every row, annotation and existing run; start nothing.

    Raises:
        InputError: a row is wrong, or its folder holds a run with other settings, which the table would
            misattribute. The message names the first such row.
    """
    for step in _distinct(steps):
        try:
            if step.command == "train":
                _check_settings(step)
            else:
                settings_from(list(step.job.overrides))
        except InputError as error:
            name = step.row if step.command == "train" else f"the annotation {step.job.run_name}"
            raise InputError(f"{name}: {error}") from None


def _distinct(steps: Sequence[Step]) -> Iterator[Step]:
    """Yield the steps, without unstarted ones that differ from an earlier step only in their seed."""
    seen: set[tuple[str, str, bool]] = set()
    for step in steps:
        kind = (step.command, step.row, "value=true" in step.job.overrides)
        if kind not in seen or step.folder.config_file.exists():
            seen.add(kind)
            yield step


def _check_settings(step: Step) -> None:
    settings, folder = run_settings(list(step.job.overrides)), step.folder
    if not folder.config_file.exists():
        return
    config = without_secrets(claim.plain(settings.resolved()))
    there = comparable(folder.config(), config, settings.model, settings.environment)
    for key, old, new in claim.config_differences(there, config)[:1]:
        raise InputError(
            f"{folder.path} holds a run with other settings ({key}: {old} in the folder, {new} now). "
            "Type that run's options, or choose another --out"
        )
