"""The reward code_tests: unit tests, pairs and calls, by hand; programs that cheat or die."""

import json

import pytest

from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.graders.code_tests import CodeTests
from reward_servers.isolation.confined import Limits
from reward_servers.isolation.system_calls import has_seccomp
from reward_servers.server import RewardServer
from reward_servers.settings import Part

needs_seccomp = pytest.mark.skipif(not has_seccomp(), reason="this machine has no libseccomp")
ADD = "def add(a, b):\n    return a + b\n"
UNIT = {"tests": ["assert add(1, 2) == 3", "assert add(2, 2) == 4"]}
SUMS = {"tests": {"inputs": ["1 2\n", "10 20\n"], "outputs": ["3\n", "30\n"]}}
QUICK = Limits(seconds=1.0)
PROGRAM = "print(sum(map(int, input().split())))"


def fenced(code: str) -> str:
    return f"Here it is:\n```python\n{code}\n```\nDone."


@needs_seccomp
def test_unit_tests_by_hand() -> None:
    samples = [
        Sample(fenced(ADD), meta=UNIT),
        Sample(ADD, meta=UNIT),
        Sample("def add(a, b):\n    return 3", meta=UNIT),  # 1 of 2
        Sample("no code at all", meta=UNIT),
        Sample("import os\nos._exit(0)", meta=UNIT),  # no test was passed
        Sample("while True: pass", meta=UNIT),
    ]
    assert CodeTests(limits=QUICK).score(samples) == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert CodeTests(partial=True, limits=QUICK).score(samples[:4]) == [1.0, 1.0, 0.5, 0.0]


@needs_seccomp
def test_a_programs_own_trial_is_not_run_before_its_unit_tests() -> None:
    trials = ["print(add(int(input()), 1))", "import unittest\n    unittest.main()", "raise SystemExit(0)"]
    samples = [Sample(f"{ADD}if __name__ == '__main__':\n    {trial}", meta=UNIT) for trial in trials]
    assert CodeTests(limits=QUICK).score(samples) == [1.0, 1.0, 1.0]
    guarded = {"tests": ["if __name__ == '__main__':\n    assert add(1, 2) == 4"]}  # a test's own guard holds
    kept = "import pickle\nclass A: pass\nassert isinstance(pickle.loads(pickle.dumps(A())), A)\n"
    assert CodeTests(limits=QUICK).score([Sample(ADD, meta=guarded), Sample(kept + ADD, meta=UNIT)]) == [0, 1]


@needs_seccomp
def test_pairs_by_hand() -> None:
    samples = [
        Sample(fenced(PROGRAM), meta=SUMS),
        Sample("print(3)", meta=SUMS),  # 1 of 2
        Sample("print('3')\nraise SystemExit(1)", meta=SUMS),
        Sample("a = input()\nif a == '1 2':\n    print(3)\nelse:\n    while True: pass", meta=SUMS),
    ]
    assert CodeTests(limits=QUICK).score(samples) == [1.0, 0.0, 0.0, 0.0]
    assert CodeTests(partial=True, limits=QUICK).score(samples) == [1.0, 0.5, 0.0, 0.5]


@needs_seccomp
def test_expected_outputs_are_out_of_a_programs_reach() -> None:
    spy = "import gc\nprint(next((o for o in gc.get_objects() if isinstance(o, dict) and 'outputs' in o), 0))"
    assert CodeTests(limits=QUICK).score(
        [Sample(spy, meta={"tests": [{"input": "", "output": "never said"}]})]
    ) == [0.0]


@needs_seccomp
def test_a_forged_result_counts_nothing_without_its_key() -> None:
    forged = "import os, json\nos.write(3, json.dumps({'passed': [True, True]}).encode())\nos._exit(0)"
    assert CodeTests(partial=True, limits=QUICK).score([Sample(forged, meta=UNIT)]) == [0.0]


@needs_seccomp
def test_a_completion_goes_on_with_its_prompt() -> None:
    meta = {"tests": "def check(candidate):\n    assert candidate(1, 2) == 3", "entry_point": "add"}
    sample = Sample("    return a + b\n", prompt="def add(a, b):\n", meta=meta)
    assert CodeTests(with_prompt=True).score([sample]) == [1.0]


@needs_seccomp
def test_wrong_tests_fail_their_sample_and_no_other() -> None:
    server = RewardServer(Part(name="code_tests"))
    good, bad, none = server.score([Sample(ADD, meta=UNIT), Sample(ADD, meta={"tests": 7}), Sample(ADD)])
    assert good == (1.0, None)
    assert bad[1] is not None and "got 7; expected unit tests" in bad[1]
    assert none[1] is not None and "needs meta data tests or test or test_list" in none[1]


# One reward for every form


FORMS = {
    "mbpp": {"test_list": UNIT["tests"], "test_setup_code": "", "test_imports": []},
    "mbpp+": {"test": "for a, b in [(1, 2), (-1, 1)]:\n    assert add(a, b) == a + b", "test_list": ["0"]},
    "humaneval": {"test": "def check(candidate):\n    assert candidate(1, 2) == 3", "entry_point": "add"},
    "bigcodebench": {
        "test": "import unittest\nclass T(unittest.TestCase):\n    def test_add(self):\n"
        "        self.assertEqual(add(1, 2), 3)\nif __name__ == '__main__':\n    unittest.main()",
        "entry_point": "add",
    },
    "kodcode": {"test": "from solution import add\n\ndef test_add():\n    assert add(1, 2) == 3"},
    "apps": {"input_output": '{"fn_name": "add", "inputs": [[1, 2], [5, 6]], "outputs": [[3], [11]]}'},
    "taco": {"tests": {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}},
    "livecodebench": {
        "public_test_cases": '[{"input": "1\\n2", "output": "3", "testtype": "functional"}]',
        "metadata": '{"func_name": "add"}',
    },
    "synthetic-1": {
        "verification_info": {
            "test_cases": [{"type": "function_call", "fn_name": "add", "input": [1, 2], "output": 3}]
        }
    },
}
METHOD = "class Solution:\n    def add(self, a: int, b: List[int]) -> int:\n        return a + b\n"


@needs_seccomp
@pytest.mark.parametrize("form", FORMS)
def test_one_reward_reads_every_form(form: str) -> None:
    right = [fenced(ADD), fenced(f"{ADD}\nprint(add(1, 2))") + "\nOutput:\n```\n3\n```", ADD]
    wrong = [fenced(ADD.replace("+", "-")), fenced("pass"), "```cpp\nint add(int a, int b);\n```", ""]
    samples = [Sample(text, meta=FORMS[form]) for text in (*right, *wrong)]
    assert CodeTests(limits=QUICK).score(samples) == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]


@needs_seccomp
def test_a_method_of_solution_is_called_with_leetcodes_names() -> None:
    samples = [Sample(METHOD, meta=FORMS[form]) for form in ("livecodebench", "apps", "synthetic-1")]
    leet = {"test": "def check(candidate):\n    assert candidate(1, 2) == 3", "entry_point": "Solution().add"}
    assert CodeTests().score([*samples, Sample(METHOD, meta=leet)]) == [1.0, 1.0, 1.0, 1.0]


@needs_seccomp
def test_returned_values_are_compared_as_values() -> None:
    right = [
        ("(x, [x + 0.1 + 0.2])", [1, [1.3]]), ("{x: (x,)}", {"1": [1]}), ("np.int64(x)", 1), ("None", None),
        ("np.array([x, 2.0])", [1, 2]), ("Decimal('1.5')", 1.5), ("Fraction(3, 1)", 3), ("str(x)", "1"),
    ]  # fmt: skip
    wrong = [
        ("str(x)", 1), ("{x}", [1]), ("iter([x])", [1]), ("x + 1", 1), ("[x, x]", [1]), ("f(x)", 1),
        ("object()", None), ("b'1'", "1"),
    ]  # fmt: skip
    imports = "from decimal import Decimal\nfrom fractions import Fraction\n"
    samples = [
        Sample(
            f"{'import numpy as np' if 'np.' in code else imports}\ndef f(x):\n    return {code}\n",
            meta={"tests": {"fn_name": "f", "inputs": [[1]], "outputs": [expected]}},
        )
        for code, expected in (*right, *wrong)
    ]
    assert CodeTests().score(samples) == [1.0] * len(right) + [0.0] * len(wrong)


@needs_seccomp
def test_calls_that_were_reached_count_in_part() -> None:
    meta = {"tests": {"fn_name": "f", "inputs": [[1], [2], [3], [4]], "outputs": [1, 2, 3, 4]}}
    texts = [
        "def f(x):\n    return x if x < 3 else 0",  # 1 and 2
        "def f(x):\n    while x == 3: pass\n    return x",  # 1 and 2; the fourth is not reached
        "def f(x):\n    return x if x != 3 else exit()",  # all but the third
        "def g(x):\n    return x",
    ]
    scores = CodeTests(partial=True, limits=QUICK).score([Sample(text, meta=meta) for text in texts])
    assert scores == [0.5, 0.5, 0.75, 0.0]


@needs_seccomp
def test_expected_values_are_out_of_a_functions_reach() -> None:
    spy = (
        "import gc\ndef f(x):\n"
        "    found = [o for o in gc.get_objects() if isinstance(o, dict) and 'key' in o]\n"
        "    return [v for o in found for v in o.values() if v == 'never ' + 'said'][0]"
    )
    forged = 'import os\nos.write(3, b\'{"key": "x", "value": "never said"}\')\nos._exit(0)'
    meta = {"tests": {"fn_name": "f", "inputs": [[1]], "outputs": ["never said"]}}
    assert CodeTests().score([Sample(spy, meta=meta), Sample(forged, meta=meta)]) == [0.0, 0.0]


@needs_seccomp
def test_outputs_may_be_compared_by_numbers() -> None:
    meta = {"tests": [{"input": "1 3\r\n", "output": "0.333333333 \r\n1"}]}
    sample = Sample("a, b = map(int, input().split())\nprint(a / b, a)", meta=meta)
    scores = {
        way: CodeTests(compare=way).score([sample])[0] for way in ("exact", "lines", "tokens", "numbers")
    }
    assert scores == {"exact": 0.0, "lines": 0.0, "tokens": 0.0, "numbers": 1.0}


@needs_seccomp
def test_helpers_of_the_prompt_are_there() -> None:
    prompt = (
        "from typing import List\n\ndef double(x: int) -> int:\n    return 2 * x\n\n\n"
        "def f(xs: List[int]):\n    '''Double all.'''\n"
    )
    meta = {"test": "def check(f):\n    assert f([1, 2]) == [2, 4]", "entry_point": "f"}
    body = "    return [double(x) for x in xs]\n"
    whole = f"def f(xs: List[int]):\n{body}"
    texts = [body, fenced(body), whole, fenced(whole), f"{body}\n\ndef other():\n    '''cut o"]
    for question, more in ((prompt, {}), (f"Complete this:\n{prompt}", {}), ("Do it.", {"prompt": prompt})):
        samples = [Sample(text, prompt=question, meta={**meta, **more}) for text in texts]
        assert CodeTests().score(samples) == [1.0] * len(texts)
    assert CodeTests().score([Sample(fenced(whole), prompt="Do it.", meta=meta)]) == [0.0]


@needs_seccomp
def test_a_program_in_the_thought_is_none() -> None:
    thought = f"<think>\n{fenced(ADD)}\n</think>\n"
    wrong = fenced(ADD.replace("+", "-"))
    texts = [thought, thought + wrong, thought + fenced(ADD), f"<think>\n{fenced(ADD)}"]
    assert CodeTests().score([Sample(text, meta=UNIT) for text in texts]) == [0.0, 0.0, 1.0, 0.0]
    opened = Sample(f"{fenced(ADD)}\n</think>\nI can't.", prompt="Add.<think>\n", meta=UNIT)
    assert CodeTests().score([opened]) == [0.0]


@needs_seccomp
def test_setup_and_imports_stand_around_the_program() -> None:
    meta = {
        "test_list": ["assert area(shape) == math.floor(6.5)"],
        "test_setup_code": "shape = Shape(2, 3)",
        "test_imports": ["import math"],
    }
    shape = "class Shape:\n    def __init__(self, a, b):\n        self.a, self.b = a, b\n\n"
    sample = Sample(f"{shape}def area(s):\n    return math.prod((s.a, s.b))", meta=meta)
    assert CodeTests().score([sample]) == [1.0]


def test_rows_of_unknown_forms_are_refused_before_any_program_runs() -> None:
    meta = {"tests": json.dumps([{"input": "1", "output": "2", "testtype": "functional"}])}
    with pytest.raises(InputError, match="nothing names the function"):
        CodeTests().score([Sample(ADD, meta=meta)])
