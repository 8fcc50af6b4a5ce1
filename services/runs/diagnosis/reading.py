"""Read a run's history from its folder."""

from services.runs.claim import flatten
from services.runs.diagnosis.history import History
from services.runs.folder import RunFolder
from services.runs.json_lines import merged


def history_of(folder: RunFolder) -> History:
    """Return a run's history so far from its files.

    Raises:
        InputError: config.yaml can't be read.
    """
    rows = merged(folder.rollout_info(), folder.training_info())
    return History(rows, folder.evaluations("val"), flatten(folder.config()))
