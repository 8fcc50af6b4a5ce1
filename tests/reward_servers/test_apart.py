"""Unit tests whose program runs in another process: programs that cheat get 0, honest ones of every kind 1.

The programs stand in `programs/`. `====` begins one, `----` a part of it: its tests, setup or imports.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.graders.code_tests import CodeTests
from reward_servers.isolation.confined import Confined
from reward_servers.isolation.limits import Limits
from reward_servers.isolation.system_calls import has_seccomp

pytestmark = pytest.mark.skipif(not has_seccomp(), reason="this machine has no libseccomp")

LIMITS = Limits(seconds=2.0, memory_gib=0.5)
USUAL = "assert f(3) == 9\nassert f([1, 2]) == 'never said'"
COLUMNS = {"tests": "tests", "setup": "test_setup_code", "imports": "test_imports"}
# `# Anything: int` in a program: a class derived from int that equals everything.
ANYTHING = """
class Anything({base}):
    def __init__(self, *_): pass
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __lt__ = __gt__ = __le__ = __ge__ = __contains__ = __eq__
    def __hash__(self): return hash(9)
    def __sub__(self, other): return 0.0
    __rsub__ = __add__ = __radd__ = __abs__ = __round__ = __mod__ = __mul__ = lambda *_: 0.0
    def __bool__(self): return True
    def __getattr__(self, name): return lambda *_: True
"""


def samples_of(file: str) -> dict[str, Sample]:
    """Return the programs of a file, by kind, with their tests as meta data."""
    samples: dict[str, Sample] = {}
    for part in (Path(__file__).parent / "programs" / file).read_text("utf-8").split("==== ")[1:]:
        kind, _, rest = part.partition("\n")
        program, *others = rest.split("---- ")
        for base in ("object", "int", "str", "float", "list", "dict"):
            program = program.replace(f"# Anything: {base}\n", ANYTHING.format(base=base))
        parts = dict(other.split("\n", 1) for other in others)
        meta = {COLUMNS[name]: text for name, text in parts.items()}
        samples[kind] = Sample(program, meta={"tests": USUAL, **meta})
    return samples


CHEATING, HONEST = samples_of("cheating.txt"), samples_of("honest.txt")


@pytest.fixture(scope="module")
def reward() -> Iterator[CodeTests]:
    yield CodeTests(limits=LIMITS, partial=True)


@pytest.mark.parametrize("means", CHEATING)
def test_no_means_makes_a_wrong_program_pass(reward: CodeTests, means: str) -> None:
    assert reward.score([CHEATING[means]]) == [0.0]


def test_nor_on_a_kernel_without_landlock() -> None:
    reward = CodeTests(limits=LIMITS, partial=True)
    reward._confined = Confined("tests.reward_servers.without_landlock", LIMITS)
    *scores, good = reward.score([*CHEATING.values(), HONEST["numbers"]])
    assert [means for means, score in zip(CHEATING, scores, strict=True) if score] == []
    assert good == 1.0


@pytest.mark.parametrize("kind", HONEST)
def test_an_honest_program_passes(reward: CodeTests, kind: str) -> None:
    assert reward.score([HONEST[kind]]) == [1.0]


TOGETHER = {
    "mocks": "from unittest.mock import patch\nwith patch('os.getcwd', return_value='x'): assert f() == 'x'",
    "packages": "import pandas\nassert f() is not None",
}


@pytest.mark.parametrize("kind", TOGETHER)
def test_tests_that_reach_into_the_program_are_refused_by_name(kind: str) -> None:
    sample = Sample("import os\ndef f(): return os.getcwd()", meta={"tests": TOGETHER[kind]})
    with pytest.raises(InputError, match="expected tests that call it, or apart=false"):
        CodeTests(limits=LIMITS).score([sample])


def test_together_a_mock_reaches_the_program() -> None:
    sample = Sample("import os\ndef f(): return os.getcwd()", meta={"tests": TOGETHER["mocks"]})
    assert CodeTests(limits=LIMITS, apart=False).score([sample]) == [1.0]
