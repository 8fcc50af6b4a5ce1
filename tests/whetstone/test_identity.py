"""An object keeps its name as long as it gives the same scores, and another object has another name."""

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from whetstone.identity import digest_of

HEAD = """
import collections, dataclasses, enum, functools, typing
"""
# Sources of an object `it`, in which the digit 1 tells it from another.
DIFFERENT = {
    "slots": """
@dataclasses.dataclass(slots=True)
class Grader:
    k: int
    def score(self, samples): return [self.k for _ in samples]
it = Grader(1)""",
    "frozen slots": """
@dataclasses.dataclass(slots=True, frozen=True)
class Grader:
    k: int
it = Grader(1)""",
    "slots of a base": """
class Base: __slots__ = ("k",)
class Grader(Base): __slots__ = ("rest",)
it = Grader(); it.k = 1""",
    "code of a named tuple": """
class Grader(typing.NamedTuple):
    k: int
    def score(self, samples): return [1.0 for _ in samples]
it = Grader(0)""",
    "code of a list": """
class Grader(list):
    def score(self, samples): return [1.0 for _ in samples]
it = Grader([0])""",
    "code of a dict": """
class Grader(dict):
    def score(self, samples): return [1.0 for _ in samples]
it = Grader(a=0)""",
    "code of a set": """
class Grader(set):
    def score(self, samples): return [1.0 for _ in samples]
it = Grader([0])""",
    "code of a text": """
class Grader(str):
    def score(self, samples): return [1.0 for _ in samples]
it = Grader("a")""",
    "code of a number": """
class Grader(float):
    def score(self, samples): return [1.0 for _ in samples]
it = Grader(0.5)""",
    "code of a partial": """
class Grader(functools.partial):
    def __call__(self, samples): return [1.0 for _ in samples]
it = Grader(len)""",
    "code of a metaclass": """
class Meta(type):
    def score(self, samples): return [1.0 for _ in samples]
class Grader(metaclass=Meta): pass
it = Grader""",
    "code of an Enum": """
class Grader(enum.Enum):
    A = 0
    def score(self, samples): return [1.0 for _ in samples]
it = Grader.A""",
    "member of an Enum": """
class Grader(enum.Enum):
    A = 0
    B = 5
    C = 6
it = list(Grader)[1]""",
    "static call": """
class Grader:
    __call__ = staticmethod(lambda samples: [1.0 for _ in samples])
it = Grader()""",
    "deque": "it = collections.deque([lambda samples: 1])",
    "default dict": "it = collections.defaultdict(lambda: 1)",
    "ordered dict": "it = collections.OrderedDict(a=lambda samples: 1)",
    "chain of maps": "it = collections.ChainMap({'a': lambda samples: 1})",
    "long key": "it = {'a' * 50 + '1': 0}",
    "key": "it = {(lambda: 1): 0}",
    "size of a cache": """
@functools.lru_cache(maxsize=1)
def it(text): return text""",
    "cached property": """
class Grader:
    @functools.cached_property
    def k(self): return 1
it = Grader()""",
    "method of a list": "it = [1].count",
    "mapping proxy": "import types; it = types.MappingProxyType({'a': 1})",
    "array": "import numpy; it = numpy.array([1.0])",
    "array of objects": "import numpy; it = numpy.array([lambda: 1], dtype=object)",
    "scalar": "import numpy; it = numpy.float64(1)",
    "tensor": "import torch; it = torch.tensor([0.0, 1.0]).half()",
    "weights": """
import torch
it = torch.nn.Linear(1, 1, bias=False)
it.weight.data.fill_(1)""",
    "frame": "import pandas; it = pandas.DataFrame({'a': [1]})",
    "pydantic": """
import pydantic
class Grader(pydantic.BaseModel):
    k: int = 1
it = Grader()""",
    "field of pydantic": """
import pydantic
class Grader(pydantic.BaseModel):
    k: int = 0
it = Grader(k=1)""",
    "pattern": "import re; it = re.compile('1')",
}


def made(source: str, name: str = "it") -> Any:
    """Return an object of a script's text."""
    place: dict[str, Any] = {"__name__": "__main__"}
    exec(HEAD + source, place)
    return place[name]


@pytest.mark.parametrize("source", DIFFERENT.values(), ids=DIFFERENT)
def test_what_scores_otherwise_has_another_identity(source: str) -> None:
    again = digest_of(made(source))
    assert digest_of(made(source)) == again, "two calls of one script differ"
    assert digest_of(made(source.replace("1", "2"))) != again


def test_a_logger_is_its_name() -> None:
    log = logging.getLogger("rewards.own")

    def reward(samples: Any) -> list[float]:
        log.info("%d texts", len(samples))
        return [1.0 for _ in samples]

    before = digest_of(reward)
    logging.getLogger("rewards.own.another").addHandler(logging.NullHandler())
    log.isEnabledFor(logging.DEBUG)  # remembered by the logger
    assert digest_of(reward) == before
    assert digest_of(log) != digest_of(logging.getLogger("rewards.other"))


def test_an_object_whose_pickle_leaves_something_out_is_what_it_keeps() -> None:
    class Counts:
        def __init__(self) -> None:
            self.num_calls = 0

        def __getstate__(self) -> dict[str, int]:
            return {}

    counts = Counts()
    before = digest_of(counts)
    counts.num_calls += 1
    assert digest_of(counts) == before


def test_what_a_function_has_cached_is_no_part_of_it() -> None:
    cached = made(DIFFERENT["size of a cache"])
    before = digest_of(cached)
    cached("a text")
    assert digest_of(cached) == before


@pytest.mark.parametrize(
    "tensor", [torch.tensor(1.0), torch.zeros(0), torch.ones(2, 2).T, torch.eye(2).to_sparse()]
)
def test_tensors_are_their_values(tensor: torch.Tensor) -> None:
    assert digest_of(tensor) == digest_of(tensor.clone()) != digest_of(tensor.double())


def test_the_identity_is_the_code_and_what_it_uses() -> None:
    def lines_apart(k: int) -> Any:
        return lambda samples: [k for _ in samples]

    assert digest_of(lines_apart(1)) == digest_of(lines_apart(1)) != digest_of(lines_apart(2))
    assert digest_of({"a", "b"}) == digest_of({"b", "a"})
    sources = ["def f(samples): return [K]", "\n\n\ndef f(samples):  # a comment\n    return [K]"]
    first, moved = (made(f"K = 1\n{source}", "f") for source in sources)
    other_global = made(f"K = 2\n{sources[0]}", "f")
    assert digest_of(first) == digest_of(moved) != digest_of(other_global)


def test_identities_are_the_same_in_another_process() -> None:
    script = (
        "import sys; from whetstone.identity import digest_of\n"
        "class Words(set): pass\n"
        "KNOWN, UNKNOWN = Words(['one', 'two', 'three']), object()\n"
        "def helper(text): return {'a', 'bc', 'd'} & set(text) - KNOWN - {UNKNOWN: 1, helper: 2}.keys()\n"
        "def f(samples, k=(1, 2.5)): return [helper(s.text) for s in samples]\n"
        "print(digest_of(f))"
    )
    command = [sys.executable, "-c", script]
    places = {"PYTHONPATH": str(Path(__file__).parents[2])}
    runs = [
        subprocess.run(command, capture_output=True, text=True, env={**places, "PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]
    (digest,) = {run.stdout.strip() for run in runs}
    assert len(digest) == 12
