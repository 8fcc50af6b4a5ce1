"""The reward code_tests: unit tests and pairs of input and output, by hand; programs that cheat or die."""

import pytest

from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.isolation.confined import Limits
from reward_servers.isolation.confinement import has_seccomp
from reward_servers.rewards.code_tests import CodeTests, Pairs, cases_of, code_of
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
    assert none[1] is not None and "needs meta data tests" in none[1]


def test_tests_are_read_in_the_forms_of_common_data_sets() -> None:
    pairs = Pairs(("1", "2"), ("3", "4"))
    for given in (
        {"inputs": ["1", "2"], "outputs": ["3", "4"]},
        '{"inputs": ["1", "2"], "outputs": ["3", "4"]}',
        [{"input": "1", "output": "3"}, {"input": "2", "output": "4"}],
    ):
        assert cases_of(Sample("", meta={"tests": given})) == pairs
    assert cases_of(Sample("", meta={"tests": {"inputs": [["1", "2"]], "outputs": [["3"]]}})) == Pairs(
        ("1\n2",), ("3",)
    )
    blank = ("", " ", ["assert f()", ""])  # any program passes these
    for wrong in (
        [],
        {},
        {"inputs": ["1"], "outputs": []},
        [1],
        "[",
        {"inputs": [1], "outputs": [2]},
        *blank,
    ):
        with pytest.raises(InputError, match="code_tests: meta data tests"):
            cases_of(Sample("", meta={"tests": wrong}))


def test_the_last_block_is_the_program() -> None:
    assert code_of("```\na\n```\n```py\nb\n```") == "b\n"
    assert code_of("```python\nprint(1)") == "print(1)"  # cut off
    installs = "```bash\npip install x\n```\nThen:\n```python\nc\n```\nIt prints:\n```text\n3\n```\nSee?"
    assert code_of(installs) == "c\n"


def test_tests_that_no_program_could_fail_or_pass_are_refused() -> None:
    check = "def check(candidate):\n    assert candidate(1) == 2\n"
    with pytest.raises(InputError, match="define check and never call it"):
        cases_of(Sample("", meta={"tests": check}))
    assert cases_of(Sample("", meta={"tests": check, "entry_point": "f"})) == (f"{check}\ncheck(f)",)
    assert cases_of(Sample("", meta={"tests": f"{check}check(f)"})) == (f"{check}check(f)",)
    with pytest.raises(InputError, match="function 'f'"):
        cases_of(Sample("", meta={"tests": {"fn_name": "f", "inputs": [[1, 2]], "outputs": [[3]]}}))
