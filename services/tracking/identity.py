"""Identity of a run in trackers to which we give its id or name: W&B, Trackio, TensorBoard.

    <output_dir>/<run_name>/trackers.json    {"id": "9f86d081884c7d65"}

The file is made when the run begins, and goes with the run's folder and its mirror. So a resume continues the
run's own curves, on any machine; a new run in the same place begins new ones.
"""

import json
import logging
import re
import secrets

from contracts.errors import InputError
from services.runs.folder import RunFolder
from services.runs.json_lines import read_object, write_atomically

log = logging.getLogger(__name__)

NUM_BYTES = 8
ID = re.compile(rf"[0-9a-f]{{{2 * NUM_BYTES}}}")
SHOWN = 8  # digits after a name


def identity_of(folder: RunFolder) -> str | None:
    """Return the run's id, made at its first start; None for a run that an older version began.

    Call it before the run writes results: they tell an older run from a new one.
    """
    file = folder.trackers
    if file.exists():
        try:
            found = read_object(file).get("id")
            if isinstance(found, str) and ID.fullmatch(found):
                return found
            log.warning("%s: got id %r, expected 16 hex digits; trackers begin a new run", file, found)
        except InputError as error:
            log.warning("%s; trackers begin a new run", error)
    elif folder.has_results():
        return None
    made = secrets.token_hex(NUM_BYTES)
    write_atomically(file, json.dumps({"id": made}))
    return made


def own_name(run_name: str, identity: str | None) -> str:
    """Return a name that no other run has, for trackers that know runs by their names.

    >>> own_name("numbers", "9f86d081884c7d65"), own_name("numbers", None)
    ('numbers-9f86d081', 'numbers')
    """
    return f"{run_name}-{identity[:SHOWN]}" if identity else run_name
