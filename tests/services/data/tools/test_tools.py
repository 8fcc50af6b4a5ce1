"""The built-in tools: sums, confined programs, and passages of a folder."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InputError
from reward_servers.isolation.system_calls import has_seccomp
from rollout_workers.tools.timed_calls import TimedCalls
from services.data.tools.calculator import calculator
from services.data.tools.python import Python
from services.data.tools.search import Search


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("6 * 7", "42"),
        (" (3+4)*2", "14"),
        ("7 / 2", "3.5"),
        ("8 / 2", "4"),
        ("-2 ** 2 % 3", "2"),
        ("2**-1", "0.5"),
        ("(-2)**3.0", "-8"),
    ],
)
def test_sums_by_hand(expression: str, result: str) -> None:
    assert calculator(expression) == result


@given(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6), st.sampled_from("+-*"))
def test_sums_are_pythons(left: int, right: int, sign: str) -> None:
    assert calculator(f"{left} {sign} {right}") == str(eval(f"{left} {sign} {right}"))


@pytest.mark.parametrize(
    "expression",
    [
        *("__import__('os')", "9**9**9", "10**65", "x", "[1]*9", "'a'*9", "True", "1 +", "1" * 201),
        *("(-8)**0.5", "(-8)**0.5 % 2"),
    ],
)
def test_anything_else_is_refused(expression: str) -> None:
    with pytest.raises((ValueError, SyntaxError)):
        calculator(expression)


# Programs


@pytest.fixture(scope="module")
def python() -> Iterator[Python]:
    if not has_seccomp():
        pytest.skip("needs seccomp")
    yield Python()


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("x = 6\nprint('so')\nx * 7", "so\n42"),
        ("def f():\n    return 1 / 0\n\nf()", "line 2: ZeroDivisionError: division by zero"),
        ("print('a'\n", "SyntaxError"),
        ("x = 1", "The program printed nothing."),
        ("print('a'); raise SystemExit(3)", "a\nThe program was ended: exit code 3"),
        ("open('f', 'w').write('x'); open('f').read()", "'x'"),
        ("open('f').read()", "FileNotFoundError"),  # nothing is left of the program before
        ("import os; os.fork()", "PermissionError"),
        ("'x' * 10**10", "MemoryError"),
    ],
)
def test_programs_by_hand(python: Python, code: str, output: str) -> None:
    assert output in python.python(code)


def test_a_program_reaches_no_network_and_no_file_of_others(python: Python, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert "PermissionError" in python.python(
            f"import socket; socket.create_connection(('127.0.0.1', {port}))"
        )
    python.python(f"open('{tmp_path}/f', 'w')")
    assert not any(tmp_path.iterdir())


def test_a_program_that_goes_on_is_ended(python: Python) -> None:
    assert "The program was ended: time" in python.python("while True:\n    pass")


def test_a_call_that_was_interrupted_leaves_its_answer_to_no_later_one(python: Python) -> None:
    calls = TimedCalls()
    with pytest.raises(TimeoutError):
        calls.call(lambda: python.python("import time; time.sleep(1)\n'late'"), 0.2)
    assert calls.num_left(60) == 0
    assert python.python("'next'") == "'next'"


# Passages


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "colours.md").write_text(
        "The sky is blue.\n\nGrass is green. Green is calm.\n\nThe sea is deep."
    )
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "ann.txt").write_text("Ann likes the sea.")
    (tmp_path / "picture.png").write_bytes(b"green green green")
    return tmp_path


def test_the_passage_with_the_rarer_words_comes_first(folder: Path) -> None:
    search = Search(str(folder), num_passages=2)
    assert search.search("Which colour is GREEN?").startswith("[colours.md] Grass is green.")
    # "sea" is in two passages of equal length and "ann" in one
    first, second = search.search("ann sea").split("\n\n")
    assert (first, second) == ("[below/ann.txt] Ann likes the sea.", "[colours.md] The sea is deep.")
    assert search.search("purple") == "Nothing was found."


def test_a_folder_without_texts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no file that ends in \.md, \.txt"):
        Search(str(tmp_path))


def test_endings_are_a_list(folder: Path) -> None:
    """A text's letters would be found in it: files without an ending, too."""
    with pytest.raises(InputError, match=r"expected a list, \[\.md\]"):
        Search(str(folder), endings=".md")  # type: ignore[arg-type]
