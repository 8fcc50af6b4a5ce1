"""Score of 1 if the Python program in the text passes its tests, else 0; or the share of tests passed."""

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field, PrivateAttr

from contracts.conversations.thoughts import behind_thought
from contracts.errors import InputError
from contracts.scores import Sample
from contracts.settings import Settings
from reward_servers.isolation.confined import Confined, Outcome, Run
from reward_servers.isolation.limits import Limits
from reward_servers.verifiers.outputs import Compare, same_output, same_value
from reward_servers.verifiers.row_tests import COLUMNS, LIVE, Calls, Pairs, Tests, cases_of

PROMPTS = ("prompt", "starter_code")  # meta data with code that the text may continue
Job = list[Run]


class CodeTests(Settings):
    """Tests of the text's program in a confined process. `verifiers/program.py` finds the program.

    The meta data hold the tests in the forms of `verifiers/row_tests.py`: unit tests, which call the program
    from another process; or inputs and expected outputs, or arguments and values of a function. Unit tests,
    outputs and values never reach the program. A program that takes too long or dies fails the other tests.
    Chen et al., "Evaluating Large Language Models Trained on Code" (2021, 2107.03374); Hendrycks et al.,
    "Measuring Coding Challenge Competence With APPS" (2021, 2105.09938).
    """

    needs_meta: ClassVar[tuple[str, ...]] = ("|".join((*COLUMNS, *LIVE)),)
    requires: ClassVar[tuple[str, ...]] = ("seccomp",)
    deterministic: ClassVar[bool] = False  # a time-out's 0 may be the machine's fault, so it is not cached

    partial: bool = False  # score the share of passed tests instead of 1 or 0
    compare: Compare = "lines"  # how a program's output is compared: exact, lines, tokens or numbers
    apart: bool = True  # run unit tests in a separate process; else the program can cheat them
    with_prompt: bool = False  # the program is prompt and text, even if the text alone is a program
    limits: Limits = Field(default=Limits())
    _confined: Confined = PrivateAttr()

    def model_post_init(self, _: Any) -> None:
        self._confined = Confined("reward_servers.verifiers.code", self.limits)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        tests = [cases_of(sample.meta) for sample in samples]
        key = secrets.token_hex(16)
        jobs = [self._job(sample, test, key) for sample, test in zip(samples, tests, strict=True)]
        return [
            self._score(self._passed(outcomes, key, test))
            for outcomes, test in zip(self._confined.run(jobs), tests, strict=True)
        ]

    def _job(self, sample: Sample, tests: Tests, key: str) -> Job:
        """Return what the processes get: a run for each input, or one for all unit tests or calls."""
        program = self._program(sample, tests)
        if isinstance(tests, Pairs):
            return [{**program, "stdin": stdin} for stdin in tests.inputs]
        if isinstance(tests, Calls):
            return [{**program, "function": tests.function, "arguments": tests.arguments, "key": key}]
        program["imports"] = tests.imports
        more = {"tests": tests.tests, "setup": tests.setup, "key": key}
        if not self.apart:
            return [{**program, **more}]
        if tests.reaches_into:
            raise InputError(
                f"code_tests: the tests {tests.reaches_into}; expected tests that call it, or apart=false, "
                "which runs both in one process, where a text can cheat"
            )
        asking = {**more, "called": program["called"], "imports": tests.imports}
        return [(asking, program)]

    def _program(self, sample: Sample, tests: Tests) -> dict[str, Any]:
        text = behind_thought(sample.response) or ""
        called = _called(tests)
        if self.with_prompt:
            return {"code": sample.prompt + text, "called": called}
        before = [sample.meta.get(name) for name in PROMPTS]
        prompts = [prompt for prompt in (*before, sample.prompt) if isinstance(prompt, str) and prompt]
        return {"text": text, "called": called, "before": prompts}

    def _passed(self, outcomes: Sequence[Outcome], key: str, tests: Tests) -> list[bool]:
        """Return whether each test was passed; an unreached test counts as failed."""
        if isinstance(tests, Pairs):
            passed = [
                not outcome.why and same_output(outcome.output, expected, self.compare)
                for outcome, expected in zip(outcomes, tests.outputs, strict=False)
            ]
            return passed + [False] * (len(tests.outputs) - len(passed))
        answers = _said(outcomes[0], key)
        if isinstance(tests, Calls):
            passed = [
                "value" in one and _is_right(one["value"], expected, tests.may_be_wrapped)
                for one, expected in zip(answers, tests.values, strict=False)
            ]
            return passed + [False] * (len(tests.values) - len(passed))
        passed = [one.get("passed") is True for one in answers[: len(tests.tests)]]
        return passed + [False] * (len(tests.tests) - len(passed))

    def _score(self, results: Sequence[bool]) -> float:
        return sum(results) / len(results) if self.partial else float(all(results))


def _called(tests: Tests) -> tuple[str, ...]:
    if isinstance(tests, Pairs):
        return ()
    return (tests.function, "Solution") if isinstance(tests, Calls) else tests.called


def _is_right(value: Any, expected: Any, may_be_wrapped: bool) -> bool:
    return same_value(value, expected) or (may_be_wrapped and same_value(value, expected[0]))


def _said(outcome: Outcome, key: str) -> list[Mapping[str, Any]]:
    """Return the lines of JSON that have the key, up to the first that has not."""
    answers: list[Mapping[str, Any]] = []
    for line in outcome.output.split("\n"):
        try:
            one = json.loads(line)
        except ValueError:
            break
        if not isinstance(one, dict) or one.get("key") != key:
            break
        answers.append(one)
    return answers
