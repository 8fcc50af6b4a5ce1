"""Records that cross processes come out as they went in, and pickle as short calls."""

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import pytest

from contracts.errors import InputError
from contracts.rollout import FinishReason, Lease, Prompt, Rollout, Sampling, Turn
from contracts.scores import Sample, Score
from rollout_workers.worker import WorkerReport

PROMPT = Prompt("p/1", "3 5", ("6",), {"label": 0}, 2.0)
TURN = Turn((12,), (15, 2), "6", (-0.5, -0.1), (4, 4), 0.5)
ROLLOUT = Rollout(
    9,
    4,
    PROMPT,
    (TURN,),
    FinishReason.STOP,
    {"a": 1.0},
    {"won": 1.0},
    (12, 15),
    None,
    0.5,
    True,
    ({"a": 1.0},),
)
RECORDS = (
    PROMPT,
    Sampling(20, 1, 0.7, stop=("\n",), num_beams=4),
    Lease(9, PROMPT, (12, 14), 4, 771, Sampling(20)),
    ROLLOUT,
    Sample("6", "3 5", ("6",), {"label": 0}, "train/4", 1),
    Score(0.7, {"rouge": 0.4}, "late"),
    WorkerReport((ROLLOUT,), 5, 412, 7, 1, 2, 0.5, 3),
)


@dataclass(frozen=True, slots=True)
class Marked(Sample):
    """A user's own kind of sample."""

    mark: int = 0


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_out_as_it_went_in(record: Any) -> None:
    assert pickle.loads(pickle.dumps(record)) == record == copy.deepcopy(record)
    assert record.__reduce_ex__(5)[0] is type(record)


def test_a_rollouts_error_crosses_too() -> None:
    failed = Rollout(9, 4, PROMPT, (), FinishReason.FAILED, error=InputError("no such game"))
    error = pickle.loads(pickle.dumps(failed)).error
    assert type(error) is InputError and str(error) == "no such game"


def test_a_subclass_keeps_what_it_adds() -> None:
    marked = Marked("6", "3 5", mark=3)
    assert pickle.loads(pickle.dumps(marked)) == marked
