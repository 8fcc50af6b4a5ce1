"""Identity of a run in trackers that take an id or name from us: W&B, Trackio, TensorBoard.

    <output_dir>/<run_name>/trackers.json    {"id": "9f86d081884c7d65"}

The file is made when the run begins, and belongs to the run's folder and mirror. So a resumed run continues
its curves on any machine, and a new run in the same place begins new ones.
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

    Call it before the run writes results, because results identify an older run.
    """
    file = folder.trackers
    if file.exists():
        try:
            identity = read_object(file).get("id")
            if isinstance(identity, str) and ID.fullmatch(identity):
                return identity
            log.warning("%s: got id %r, expected 16 hex digits; trackers begin a new run", file, identity)
        except InputError as error:
            log.warning("%s; trackers begin a new run", error)
    elif folder.has_results():
        return None
    made = secrets.token_hex(NUM_BYTES)
    write_atomically(file, json.dumps({"id": made}))
    return made


def own_name(run_name: str, identity: str | None) -> str:
    """Return a unique name, for trackers that identify runs by name.

    >>> own_name("numbers", "9f86d081884c7d65"), own_name("numbers", None)
    ('numbers-9f86d081', 'numbers')
    """
    return f"{run_name}-{identity[:SHOWN]}" if identity else run_name
