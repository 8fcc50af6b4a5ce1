"""A row's tests, in the forms of common data sets.

    data set                    meta data (the data set's columns, or all under `tests`)
    own, AceCode                tests: "assert add(1, 2) == 3", or a list of such texts
    MBPP, MBPP+                 test_list or test; test_setup_code, test_imports
    HumanEval, HumanEval+       test with check(candidate); entry_point; prompt
    LeetCodeDataset             test with check(candidate); entry_point: "Solution().twoSum"
    BigCodeBench                test with a unittest.TestCase
    KodCode                     test with functions test_…, which import from `solution`
    APPS, TACO                  input_output: {"inputs": […], "outputs": […], "fn_name": "add"}
    LiveCodeBench               public_test_cases, private_test_cases; metadata: {"func_name": "add"}
    DeepCoder                   tests: [{"input": "1\\n2", "output": "3", "testtype": "functional"}]; metadata
    SYNTHETIC-1, open-r1        verification_info: {"test_cases": [{"type", "fn_name", "input", "output"}]}
    Eurus-2                     reward_model: {"ground_truth": {"functional": "…"}}, or APPS' form inside

Each value may be JSON. `testtype` is stdin or functional; a function's name makes its tests functional. The
input of a functional test is a list of arguments, or a text with one JSON argument on each line.
"""

import ast
import base64
import binascii
import io
import json
import pickle
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.errors import InputError
from reward_servers.verifiers.unit_tests import UnitTests, unit_tests_of

COLUMNS = ("tests", "test", "test_list", "input_output", "verification_info", "reward_model")
LIVE = ("public_test_cases", "private_test_cases")
INNER = ("ground_truth", "test_cases", "tests", "assert_case", "functional")
NAMES = ("fn_name", "func_name", "function_name")
STDIN = ("stdin", "stdin_stdout", "standard_input")
FUNCTIONAL = ("functional", "function_call", "call_based")
EXPECTED = (
    "expected unit tests, a text or a list of texts such as 'assert add(1, 2) == 3', or pairs: "
    "[{'input': '1 2', 'output': '3'}, …] or {'inputs': […], 'outputs': […]}, with fn_name or "
    "'testtype': 'functional' and metadata {'func_name': 'add'} for calls of a function"
)


@dataclass(frozen=True, slots=True)
class Pairs:
    """A program's inputs and expected outputs."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Calls:
    """A function's arguments and expected values; APPS wraps some values in a list."""

    function: str
    arguments: tuple[list[Any], ...]
    values: tuple[Any, ...]
    may_be_wrapped: bool = False


Tests = Pairs | Calls | UnitTests


def cases_of(meta: Mapping[str, Any]) -> Tests:
    """Return the tests of a row's meta data.

    Raises:
        InputError: the tests are missing or have another form.

    >>> cases_of({"tests": [{"input": "1", "output": "3"}]})
    Pairs(inputs=('1',), outputs=('3',))
    >>> cases_of({"input_output": '{"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}'})
    Calls(function='add', arguments=([1, 2],), values=(3,), may_be_wrapped=False)
    """
    column = next((name for name in COLUMNS if meta.get(name) is not None), LIVE[0])
    if column in LIVE:
        tests = [test for name in LIVE if meta.get(name) is not None for test in _read(meta[name], name)]
    else:
        tests = _read(meta[column], column)
    cases = _cases(tests, meta, column)
    if cases is None:
        raise InputError(f"code_tests: meta data {column}: got {tests!r:.200}; {EXPECTED}")
    return cases


def _cases(tests: Any, meta: Mapping[str, Any], column: str) -> Tests | None:
    """Return the tests of one of the forms; None for another form."""
    if isinstance(tests, Mapping):
        if (inner := next((name for name in INNER if tests.get(name)), None)) is not None:
            return _cases(_read(tests[inner], column), {**meta, **tests}, column)
        inputs, outputs = tests.get("inputs"), tests.get("outputs")
        if not (isinstance(inputs, list | tuple) and isinstance(outputs, list | tuple) and inputs):
            return None
        if len(inputs) != len(outputs):
            return None
        pairs = zip(inputs, outputs, strict=True)
        return _of_pairs([{**tests, "input": one, "output": other} for one, other in pairs], meta, column)
    texts = [tests] if isinstance(tests, str) else tests
    if not isinstance(texts, list | tuple) or not texts:
        return None
    if all(isinstance(test, Mapping) for test in texts):
        return _of_pairs(texts, meta, column)
    if all(isinstance(test, str) and test.strip() for test in texts):
        return unit_tests_of(tuple(texts), meta)
    return None


def _of_pairs(
    tests: Sequence[Mapping[str, Any]], meta: Mapping[str, Any], column: str
) -> Pairs | Calls | None:
    """Return inputs with outputs, or calls of the function named by the row or its tests."""
    if not all("input" in test and "output" in test for test in tests):
        return None
    names = {_function(test) or _function(meta) for test in tests}
    kinds = {_kind(test, column) or ("functional" if _function(test) else "") for test in tests}
    if len(kinds) > 1 or len(names) > 1:
        raise InputError(
            f"code_tests: meta data {column}: got tests of several kinds or functions: {sorted(kinds)}, "
            f"{sorted(map(str, names))}; expected one kind and one function in a row"
        )
    (kind,), (name,) = kinds, names
    if kind == "stdin" or not (kind or name):
        inputs, outputs = ([_text(test[side]) for test in tests] for side in ("input", "output"))
        texts = all(isinstance(text, str) for text in (*inputs, *outputs))
        return Pairs(tuple(inputs), tuple(outputs)) if texts else None
    function = name or _last_function(meta.get("starter_code"))
    if function is None:
        raise InputError(
            f"code_tests: meta data {column}: the tests are functional, and nothing names the function; "
            "expected metadata {'func_name': 'add'}, fn_name or starter_code: "
            f"task.meta_columns=[{column}, metadata]"
        )
    calls = [_call(test["input"], test["output"], column) for test in tests]
    values = tuple(value for _, value in calls)
    wrapped = all(
        isinstance(test["input"], list) and isinstance(test["output"], list) and len(test["output"]) == 1
        for test in tests
    )
    return Calls(function, tuple(arguments for arguments, _ in calls), values, wrapped)


def _kind(test: Mapping[str, Any], column: str) -> str:
    """Return stdin, functional, or "" if the test names neither."""
    kind = test.get("testtype") or test.get("type")
    if kind is None or kind in FUNCTIONAL:
        return "functional" if kind else ""
    if kind in STDIN:
        return "stdin"
    raise InputError(
        f"code_tests: meta data {column}: got testtype {kind!r:.60}; expected one of "
        f"{', '.join((*STDIN, *FUNCTIONAL))}"
    )


def _function(test: Mapping[str, Any]) -> str | None:
    """Return the function's name from a test, its metadata, the row or the row's metadata."""
    metadata = test.get("metadata")
    if isinstance(metadata, str) and metadata.strip():
        metadata = _read(metadata, "metadata")
    for place in (test, metadata):
        if isinstance(place, Mapping):
            for key in NAMES:
                if isinstance(name := place.get(key), str) and name.strip():
                    return name.strip()
    return None


def _last_function(code: Any) -> str | None:
    """Return the last function that starter code begins; its body may be missing."""
    lines = code.splitlines() if isinstance(code, str) else []
    names = [line.strip()[4:].partition("(")[0].strip() for line in lines if line.strip().startswith("def ")]
    return names[-1] if names else None


def _call(inputs: Any, expected: Any, column: str) -> tuple[list[Any], Any]:
    """Return a call's arguments and expected value, which is JSON if the arguments are."""
    if isinstance(inputs, str):
        lines = inputs.strip().splitlines()
        value = _literal(expected, column) if isinstance(expected, str) else expected
        return [_literal(line, column) for line in lines if line.strip()], value
    if isinstance(inputs, Mapping) or inputs is None:
        raise InputError(
            f"code_tests: meta data {column}: got {inputs!r:.100} as the input of a functional test; "
            "expected a list of arguments, or a text with one on each line as JSON"
        )
    arguments = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    return [_with_whole_keys(one) for one in arguments], expected


def _with_whole_keys(argument: Any) -> Any:
    """Restore a mapping's whole-number keys, which JSON turned into texts; keep anything else."""
    if (
        isinstance(argument, Mapping)
        and argument
        and all(str(key).lstrip("-").isdecimal() for key in argument)
    ):
        return {int(key): value for key, value in argument.items()}
    return argument


def _literal(text: str, column: str) -> Any:
    """Return the value of JSON, or of a literal of Python."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise InputError(
            f"code_tests: meta data {column}: got {text!r:.100} in a functional test; expected JSON such as "
            '[1, 2] or "a" on each line'
        ) from None


def _read(cell: Any, column: str) -> Any:
    """Decode JSON or LiveCodeBench's compressed text; keep other texts and values."""
    if not isinstance(cell, str):
        return cell
    if cell.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(cell)
        except ValueError:
            pass
        try:
            return ast.literal_eval(cell.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            raise InputError(f"code_tests: meta data {column} is no JSON: {cell!r:.100}") from None
    return _read(_unpacked(cell), column) if column in LIVE else cell


def _unpacked(text: str) -> str:
    """Return LiveCodeBench's compressed text; refuse a pickle of anything else."""
    try:
        packed = zlib.decompress(base64.b64decode(text.encode(), validate=True))
        unpacked = _Texts(io.BytesIO(packed)).load()
    except (ValueError, binascii.Error, zlib.error, pickle.UnpicklingError, EOFError):
        unpacked = None
    if isinstance(unpacked, str) and unpacked.lstrip()[:1] == "[":
        return unpacked
    raise InputError(
        f"code_tests: meta data {LIVE[1]}: got {text!r:.60}; expected JSON, or LiveCodeBench's base64 of it"
    )


class _Texts(pickle.Unpickler):
    """An unpickler of plain values, which can't call anything."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is no text")


def _text(lines: Any) -> Any:
    return "\n".join(map(str, lines)) if isinstance(lines, list) else lines
