"""Score of 1 if the Python program in the text passes its tests, else 0; or the share of tests passed."""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field, PrivateAttr

from contracts.errors import InputError
from contracts.scores import Sample
from contracts.settings import Settings
from reward_servers.isolation.confined import Confined, Outcome
from reward_servers.isolation.limits import Limits

FENCED = re.compile(r"```[ \t]*([^\n`]*)\n(.*?)(?:```|\Z)", re.DOTALL)
OF_PYTHON = ("", "python", "py", "python3")
CALLS_CHECK = re.compile(r"^\s*check\(", re.MULTILINE)
EXPECTED = (
    "expected unit tests, a text or a list of texts such as 'assert add(1, 2) == 3', or pairs: "
    "[{'input': '1 2', 'output': '3'}, …] or {'inputs': […], 'outputs': […]}"
)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Input of a program, and the output that is expected."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class CodeTests(Settings):
    """Tests of the text's last block of code, or of the whole text without one, in a confined process.

    The meta data `tests` hold unit tests, which run after the program, or inputs and expected outputs, which
    never reach its process. A program that takes too long, dies or is stopped fails the tests that are left.
    Chen et al., "Evaluating Large Language Models Trained on Code" (2021, 2107.03374); Hendrycks et al.,
    "Measuring Coding Challenge Competence With APPS" (2021, 2105.09938).
    """

    needs_meta: ClassVar[tuple[str, ...]] = ("tests",)
    requires: ClassVar[tuple[str, ...]] = ("seccomp",)
    deterministic: ClassVar[bool] = False  # a 0 after too long a wait is not the text's, and must not be kept

    partial: bool = False  # the share of tests passed, in place of all or nothing
    with_prompt: bool = False  # the text goes on with the prompt's code, as in HumanEval
    limits: Limits = Field(default=Limits())
    _confined: Confined = PrivateAttr()

    def model_post_init(self, _: Any) -> None:
        self._confined = Confined("reward_servers.verifiers.code", self.limits)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        tests = [cases_of(sample) for sample in samples]
        jobs = [self._job(sample, test) for sample, test in zip(samples, tests, strict=True)]
        return [
            self._score(passed(outcomes, job, test))
            for outcomes, job, test in zip(self._confined.run(jobs), jobs, tests, strict=True)
        ]

    def _job(self, sample: Sample, tests: Pairs | tuple[str, ...]) -> list[dict[str, Any]]:
        code = (sample.prompt + sample.text) if self.with_prompt else code_of(sample.text)
        if isinstance(tests, Pairs):
            return [{"code": code, "stdin": each} for each in tests.inputs]
        return [{"code": code, "tests": tests, "key": secrets.token_hex(16)}]

    def _score(self, results: Sequence[bool]) -> float:
        return sum(results) / len(results) if self.partial else float(all(results))


def code_of(text: str) -> str:
    """Return the last block between fences that is Python's or names no language; the whole text without one.

    >>> code_of("So:\\n```python\\nprint(1)\\n```\\nThat is all."), code_of("print(2)")
    ('print(1)\\n', 'print(2)')
    """
    blocks = [body for name, body in FENCED.findall(text) if name.strip().lower() in OF_PYTHON]
    return blocks[-1] if blocks else text


def cases_of(sample: Sample) -> Pairs | tuple[str, ...]:
    """Return the tests of the sample's meta data, which may be JSON; a `check` is called with `entry_point`.

    Raises:
        InputError: they have another form, or there are none.
    """
    given = sample.meta.get("tests")
    if isinstance(given, str) and given.lstrip()[:1] in ("{", "["):
        try:
            given = json.loads(given)
        except ValueError:
            raise InputError(f"code_tests: meta data tests is no JSON: {given!r:.100}") from None
    given = [given] if isinstance(given, str) else given
    found = _pairs(given) or _unit_tests(given)
    if found is None:
        raise InputError(f"code_tests: meta data tests: got {given!r:.200}; {EXPECTED}")
    name = sample.meta.get("entry_point")
    if isinstance(found, Pairs):
        return found
    if not name and any("def check(" in test and not CALLS_CHECK.search(test) for test in found):
        raise InputError(
            "code_tests: the tests define check and never call it, so that any program would pass; expected "
            "the function's name in the meta data entry_point: task.meta_columns=[tests, entry_point]"
        )
    if name:
        return tuple(f"{test}\ncheck({name})" if "def check(" in test else test for test in found)
    return found


def passed(
    outcomes: Sequence[Outcome], job: Sequence[Mapping[str, Any]], tests: Pairs | tuple[str, ...]
) -> list[bool]:
    """Return which tests were passed; a test that was not reached is not."""
    if isinstance(tests, Pairs):
        found = [
            not outcome.why and lines(outcome.said) == lines(expected)
            for outcome, expected in zip(outcomes, tests.outputs, strict=False)
        ]
        return found + [False] * (len(tests.outputs) - len(found))
    value = outcomes[0].value
    if not isinstance(value, dict) or value.get("key") != job[0]["key"]:
        return [False] * len(tests)
    return [result is True for result in value["passed"]]


def lines(output: str) -> list[str]:
    """Return the lines, without blanks at their ends and empty lines at the end.

    >>> lines("1 2 \\n3\\n\\n")
    ['1 2', '3']
    """
    return [line.rstrip() for line in output.rstrip().splitlines()]


def _unit_tests(given: Any) -> tuple[str, ...] | None:
    """Return the texts of a list; None for anything else, and for blank ones, which any program passes."""
    is_list = isinstance(given, list | tuple) and bool(given)
    return tuple(given) if is_list and all(isinstance(one, str) and one.strip() for one in given) else None


def _pairs(given: Any) -> Pairs | None:
    """Return the pairs of a list of mappings, or of a mapping of lists; lines may be a list, as in APPS."""
    if isinstance(given, list | tuple) and all(isinstance(test, Mapping) for test in given):
        given = {side: [test.get(side[:-1]) for test in given] for side in ("inputs", "outputs")}
    if not isinstance(given, Mapping):
        return None
    if given.get("fn_name"):
        raise InputError(
            f"code_tests: meta data tests call the function {given['fn_name']!r} (fn_name), which is not "
            "supported: expected pairs of a program's input and output, or unit tests"
        )
    sides = [given.get("inputs"), given.get("outputs")]
    if not all(isinstance(side, list | tuple) and side for side in sides):
        return None
    inputs, outputs = (tuple(_text(one) for one in side) for side in sides if side)
    if len(inputs) != len(outputs) or not all(isinstance(text, str) for text in (*inputs, *outputs)):
        return None
    return Pairs(inputs, outputs)


def _text(given: Any) -> Any:
    return "\n".join(map(str, given)) if isinstance(given, list) else given
