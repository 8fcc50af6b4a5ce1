"""The tests of rows in the forms of common data sets, and the comparison of outputs and values, by hand."""

import base64
import json
import math
import pickle
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InputError
from reward_servers.verifiers.outputs import same_output, same_value
from reward_servers.verifiers.row_tests import Calls, Pairs, cases_of
from reward_servers.verifiers.unit_tests import UnitTests

CALLS = Calls("add", ([1, 2], [5, 6]), (3, 11))
LIVE = [
    {"input": "1\n2", "output": "3", "testtype": "functional"},
    {"input": "5\n6", "output": "11", "testtype": "functional"},
]
APPS = {"fn_name": "add", "inputs": [[1, 2], [5, 6]], "outputs": [3, 11]}
PRIME = [
    {"type": "function_call", "fn_name": "add", "input": [1, 2], "output": 3},
    {"type": "function_call", "fn_name": "add", "input": [5, 6], "output": 11},
]


def packed(tests: Any) -> str:
    """LiveCodeBench's private tests: base64 of zlib of a pickle of JSON."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


@pytest.mark.parametrize(
    "meta",
    [
        {"tests": LIVE, "metadata": '{"func_name": "add"}'},
        {"tests": json.dumps(LIVE), "metadata": {"func_name": "add"}},
        {"tests": [{**test, "metadata": {"func_name": "add"}} for test in LIVE]},
        {
            "tests": LIVE,
            "metadata": "{}",
            "starter_code": "class Solution:\n    def add(self, a, b):\n        ",
        },
        {"tests": LIVE, "fn_name": "add"},
        {"public_test_cases": json.dumps(LIVE), "metadata": '{"func_name": "add"}'},
        {
            "public_test_cases": json.dumps(LIVE[:1]),
            "private_test_cases": packed(LIVE[1:]),
            "metadata": '{"func_name": "add"}',
        },
        {"tests": APPS},
        {"input_output": json.dumps(APPS)},
        {"tests": PRIME},
        {"tests": str(PRIME)},  # Python's form, as in some copies of DeepCoder
        {"verification_info": {"language": "python", "test_cases": PRIME}},
        {"tests": {"inputs": ["1\n2", "5\n6"], "outputs": ["3", "11"], "fn_name": "add"}},
    ],
)
def test_calls_of_a_function(meta: dict[str, Any]) -> None:
    assert cases_of(meta) == CALLS


def test_arguments_and_values_are_values() -> None:
    tests = {"fn_name": "f", "inputs": [[[1, 2], "1", {"1": 2}, None]], "outputs": [["3", True]]}
    assert cases_of({"tests": tests}) == Calls("f", ([[1, 2], "1", {1: 2}, None],), (["3", True],))
    lines = [{"input": '[1, 2]\n"1 2"\n\ntrue\n(1, 2)', "output": '"a"', "testtype": "functional"}]
    assert cases_of({"tests": lines, "func_name": "f"}) == Calls(
        "f", ([[1, 2], "1 2", True, (1, 2)],), ("a",)
    )
    wrapped = {"fn_name": "f", "inputs": [[1], [2]], "outputs": [[3], [4]]}
    assert cases_of({"tests": wrapped}) == Calls("f", ([1], [2]), ([3], [4]), may_be_wrapped=True)
    wrapped["outputs"] = [[3], [4, 5]]  # lists are the values here
    assert cases_of({"tests": wrapped}) == Calls("f", ([1], [2]), ([3], [4, 5]))


def test_pairs_of_input_and_output() -> None:
    pairs = Pairs(("1", "2"), ("3", "4"))
    for given_ in (
        {"inputs": ["1", "2"], "outputs": ["3", "4"]},
        '{"inputs": ["1", "2"], "outputs": ["3", "4"]}',
        [{"input": "1", "output": "3"}, {"input": "2", "output": "4"}],
        [
            {"input": "1", "output": "3", "testtype": "stdin"},
            {"input": "2", "output": "4", "testtype": "stdin"},
        ],
        [
            {"type": "stdin_stdout", "fn_name": None, "input": a, "output": b}
            for a, b in (("1", "3"), ("2", "4"))
        ],
    ):
        assert cases_of({"tests": given_}) == pairs
        assert cases_of({"tests": given_, "metadata": "{}"}) == pairs
    assert cases_of({"tests": {"inputs": [["1", "2"]], "outputs": [["3"]]}}) == Pairs(("1\n2",), ("3",))
    assert cases_of({"input_output": '{"inputs": ["1"], "outputs": ["3"]}'}) == Pairs(("1",), ("3",))


def test_unit_tests() -> None:
    test = "assert add(1, 2) == 3"
    assert cases_of({"tests": test}) == cases_of({"tests": [test]}) == UnitTests((test,), ("add",))
    assert cases_of({"tests": {"functional": test}}) == cases_of({"tests": {"assert_case": [test]}})
    mbpp = {
        "test_list": ["assert add(math.inf, one) == Sum(one)"],
        "test_setup_code": "one = One(1)",
        "test_imports": ["import math", "import re"],
    }
    tests = cases_of(mbpp)
    assert tests == UnitTests(
        ("assert add(math.inf, one) == Sum(one)",),
        ("One", "Sum", "add"),
        "import math\nimport re",
        "one = One(1)",
    )
    assert cases_of({"reward_model": {"ground_truth": json.dumps({"functional": test})}}) == cases_of(
        {"test": test}
    )
    check = "def check(candidate):\n    assert candidate(1) == 2\n"
    assert cases_of({"test": check, "entry_point": "f"}) == UnitTests((f"{check}\ncheck(f)\n",), ("f",))
    assert cases_of({"test": f"{check}check(f)"}) == UnitTests((f"{check}check(f)",), ("f",))
    leet = cases_of({"test": check, "entry_point": "Solution().twoSum"})
    assert leet == UnitTests((f"{check}\ncheck(Solution().twoSum)\n",), ("Solution",))
    kod = "from solution import add\n\ndef test_add():\n    assert add(1, 2) == 3"
    assert cases_of({"test": kod}) == UnitTests((f"{kod}\ntest_add()\n",), ("add",))


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        *(
            ({"tests": wrong}, "got .*; expected unit tests")
            for wrong in ([], {}, [1], 7, "", " ", ["f()", ""])
        ),
        ({"tests": {"inputs": ["1"], "outputs": []}}, "expected unit tests"),
        ({"tests": {"inputs": [1], "outputs": [2]}}, "expected unit tests"),
        ({"tests": [{"stdin": "1", "stdout": "2"}]}, "expected unit tests"),
        ({"tests": "["}, "tests is no JSON"),
        ({"tests": LIVE}, r"nothing names the function; .*task.meta_columns=\[tests, metadata\]"),
        ({"tests": [{"input": "1", "output": "1", "testtype": "interactive"}]}, "got testtype 'interactive'"),
        (
            {"tests": [*LIVE, {"input": "1", "output": "1", "testtype": "stdin"}], "fn_name": "f"},
            "several kinds",
        ),
        (
            {"tests": [{"input": "a b", "output": "1", "testtype": "functional"}], "fn_name": "f"},
            "JSON such as",
        ),
        ({"tests": {"fn_name": "f", "inputs": [{"a": 1}], "outputs": [1]}}, "a list of arguments"),
        ({"private_test_cases": "no base64"}, "expected JSON, or LiveCodeBench's base64"),
        (
            {"private_test_cases": base64.b64encode(zlib.compress(pickle.dumps(print))).decode()},
            "LiveCodeBench",
        ),
        ({"test": "def check(f):\n    assert f(1)"}, "define check and never call it"),
        ({"test": "def test_add(fixture):\n    assert add(1, 2) == 3"}, "define test_add and never call it"),
        ({"tests": "import add"}, "define nothing and never call it"),
        ({"tests": "assert add(1, 2 == 3"}, "expected Python, and Python says: .* was never closed"),
        ({"tests": "assert f()", "entry_point": 7}, "entry_point: got 7"),
        ({"tests": "assert f()", "test_imports": 7}, "test_imports: got 7"),
    ],
)
def test_another_form_is_refused(meta: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"code_tests: .*{message}"):
        cases_of(meta)


# (printed, expected): equal by exact, lines, tokens, numbers
OUTPUTS = {
    ("3\n", "3"): "1111",
    ("3\r\n", "3\n"): "1111",
    ("1 2 \n3\n\n", "1 2\n3"): "0111",
    ("1\n\n2", "1\n2"): "0011",  # an empty line between lines
    (" 1  2", "1 2"): "0011",
    ("1\n2", "1 2"): "0011",
    ("0.50", "0.5"): "0001",
    ("0.3333333", "0.333333333333"): "0001",
    ("0.33333", "0.333333333333"): "0000",
    ("1e3", "1000"): "0001",
    ("3.0", "3"): "0001",
    ("123456789.5", "123456789.6"): "0001",  # 1e-9 of the number
    ("100000000000000000", "100000000000000001"): "0000",  # floats would be equal
    ("nan", "nan"): "1111",
    ("nan", "inf"): "0000",
    ("YES", "yes"): "0000",
    ("1_0", "10"): "0000",
    ("1 2", "1"): "0000",
    ("", "0"): "0000",
    ("", "\n"): "1111",
    ("9" * 5000, "8" * 5000): "0000",
    ("1e999999999", "2e999999999"): "0000",
}


@pytest.mark.parametrize(("printed", "expected"), OUTPUTS)
def test_outputs_by_hand(printed: str, expected: str) -> None:
    matches = [same_output(printed, expected, way) for way in ("exact", "lines", "tokens", "numbers")]
    assert matches == [digit == "1" for digit in OUTPUTS[printed, expected]]


@given(st.text(max_size=30), st.text(max_size=30))
def test_each_comparison_takes_what_the_stricter_one_takes(printed: str, expected: str) -> None:
    matches = [same_output(printed, expected, way) for way in ("exact", "lines", "tokens", "numbers")]
    assert matches == sorted(matches)
    assert all(same_output(printed, printed, way) for way in ("exact", "lines", "tokens", "numbers"))


def test_values_by_hand() -> None:
    equal = [
        (3, 3), (3.0, 3), (3, 3.0), (0.1 + 0.2, 0.3), ([1, [2]], [1, [2]]), ([1, [2]], (1, (2,))),
        ({"1": [1.0]}, {1: [1]}), (None, None), ("a", "a"), (True, True), (math.nan, math.nan),
        (math.inf, math.inf), (10**400, 10**400),
    ]  # fmt: skip
    unequal = [
        (3, 4), (3, "3"), (0.3, 0.3001), ([1, 2], [2, 1]), ([1], 1), (1, [1]), ([1], [1, 2]), ({"1": 1}, {}),
        ([1], {"0": 1}), (None, 0), ("", None), ("a", ["a"]), (math.nan, 1.0), (1.0, math.nan),
        (10**17, 10**17 + 1), (10**400, 1.0), (None, 0.0), ("1", 1.0), (math.inf, 1.0),
    ]  # fmt: skip
    assert [pair for pair in equal if not same_value(*pair)] == []
    assert [pair for pair in unequal if same_value(*pair)] == []
