"""The program in a response, by hand: fences, languages, several blocks, prompts that begin the program."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward_servers.verifiers.program import blocks_of, program_of

ADD = "def add(a, b):\n    return a + b\n"
READS = "n = int(input())\nprint(n + 1)\n"
USAGE = "print(add(1, 2))\n"


def block(code: str, info: str = "", fence: str = "```") -> str:
    return f"{fence}{info}\n{code}{fence}\n"


@pytest.mark.parametrize(
    "info",
    (
        *("python", "Python", "py", "python3", "python3.11", " python ", "{python}"),
        *("{.python}", "{.python .numberLines}", "{code-block} python"),
        *('python title="add.py"', "python:add.py", "python,editable"),
    ),
)
@pytest.mark.parametrize("fence", ["```", "~~~", "`````"])
def test_a_block_that_names_python_is_the_program(info: str, fence: str) -> None:
    output = block("3\n", fence=fence)
    assert program_of(f"So:\n{block(ADD, info, fence)}Output:\n{output}Done.", ["add"]) == (ADD,)


@pytest.mark.parametrize("info", ["text", "bash", "cpp", "pycon", "python-repl", "json", "console", "pyx"])
def test_a_block_in_another_language_is_never_the_program(info: str) -> None:
    assert program_of(block(ADD, info), ["add"]) == ()
    assert program_of(block(ADD, info) + block(READS, "python")) == (READS,)
    assert program_of(block(ADD, info) + block(ADD), ["add"]) == (ADD,)


def test_fences_are_commonmarks() -> None:
    shown = f"1. First:\n   {block('a', 'py').replace(chr(10), chr(10) + '   ')}"
    # No fence closes in the middle of a line.
    assert [fenced.code for fenced in blocks_of(shown)] == ["a```\n"]
    listed = "1. First:\n   ```py\n   a\n     b\n   ```\n"
    assert [fenced.code for fenced in blocks_of(listed)] == ["a\n  b\n"]
    assert [fenced.code for fenced in blocks_of("> ```py\n> a\n> ```\n")] == ["a\n"]
    assert [fenced.code for fenced in blocks_of("````py\n```\na\n```\n````")] == ["```\na\n```\n"]
    assert [fenced.code for fenced in blocks_of("```py\na\n~~~\nb\n```")] == ["a\n~~~\nb\n"]
    assert [fenced.code for fenced in blocks_of("```py\na\n")] == ["a\n"]  # cut off
    assert [fenced.code for fenced in blocks_of("```py\r\na\r\n```\r\n")] == ["a\n"]
    docstring = 'def add(a, b):\n    """\n    ```\n    add(1, 2)\n    ```\n    """\n    return a + b\n'
    assert program_of(block(docstring, "python"), ["add"]) == (docstring,)
    assert program_of(docstring, ["add"]) == (docstring,)


def test_a_fence_behind_words_is_one_if_no_other_names_python() -> None:
    assert program_of(f"Here you go: ```python\n{ADD}```\nIt prints:\n```\n3\n```", ["add"]) == (ADD,)
    assert program_of(f"Not ```python\n{block(ADD, 'python')}", ["add"]) == (ADD,)
    assert program_of(f"\ufeff{ADD}", ["add"]) == (ADD,)


def test_blocks_inside_of_markdown_count() -> None:
    inside = f"# Solution\n{block(ADD, 'python')}"
    assert program_of(block(inside, "markdown", "````"), ["add"]) == (ADD,)
    assert program_of(block(inside, "markdown", "```"), ["add"]) == (ADD,)  # as models write it
    assert program_of(f"So:\n\n    {block(ADD, 'python').replace(chr(10), chr(10) + '    ')}", ["add"]) == (
        ADD,
    )


def test_of_several_blocks_the_one_that_defines_what_is_called() -> None:
    wrong = "def add(a, b):\n    return a - b\n"
    usage = block(USAGE, "python") + block("from solution import add\nprint(add(1, 2))\n", "python")
    assert program_of(block(ADD, "python") + usage, ["add"]) == (ADD,)
    assert program_of(block(wrong, "python") + "Better:\n" + block(ADD, "python") + usage, ["add"]) == (ADD,)
    assert program_of(
        block(ADD) + "Output:\n" + block("3\n") + "Complexity:\n" + block("O(1)\n"), ["add"]
    ) == (ADD,)
    assert program_of(block(wrong, "python") + block(ADD), ["add"]) == (wrong,)  # only blocks that say so


def test_blocks_that_need_each_other_are_joined() -> None:
    imports, helper = "import math\n", "def half(x):\n    return math.floor(x / 2)\n"
    main = "def mean(a, b):\n    return half(a + b)\n"
    parts = [block(code, "python") for code in (imports, helper, main)]
    assert program_of("".join(parts), ["mean"]) == (imports, helper, main)
    assert program_of("".join(reversed(parts)), ["mean"]) == (helper, imports, main)  # the order of the text
    assert program_of("".join([*parts, block("print(mean(1, 3))\n", "python")]), ["mean"])[-1] == main
    assert program_of("".join(parts[1:]), ["mean", "half"]) == (helper, main)


def test_a_program_reads_its_input() -> None:
    other = "print(add(1, 2))\n"
    assert program_of(block(READS, "python") + block("1\n") + block(other, "python")) == (READS,)
    solve = "def solve():\n    print(int(input()) + 1)\n"
    assert program_of(block(solve, "python") + "Call it:\n" + block("solve()\n", "python")) == (
        solve,
        "solve()\n",
    )
    better = READS.replace("n + 1", "1 + n")
    assert program_of(block(READS, "python") + block(better, "python")) == (better,)
    assert program_of(block("print('hello')\n") + "Output:\n" + block("hello\n")) == ("print('hello')\n",)


def test_a_text_without_fences() -> None:
    assert program_of(ADD, ["add"]) == (ADD,)
    assert program_of(f"Sure:\n{ADD}\nThis adds two numbers.", ["add"]) == (ADD,)
    assert program_of(f"{ADD}\n\ndef sub(a, b):\n    '''Subtr", ["add"]) == (f"{ADD}\n",)  # cut off
    assert program_of("So:\n\n    def add(a, b):\n        return a + b\n\nDone.", ["add"]) == (ADD,)
    assert program_of("I can't.", ["add"]) == ("I can't.",)


def test_a_fence_that_the_prompt_opened_closes_the_program() -> None:
    assert program_of(f"{ADD}```", ["add"]) == (ADD,)
    assert program_of(f"{ADD}```\nUsage:\n{block(USAGE, 'python')}", ["add"]) == (ADD,)
    assert program_of(f"{READS}```\nIt prints 2.") == (READS,)
    assert program_of(f"Answer: add\n{block(ADD)}", ["add"]) == (ADD,)  # this is Python, too, and no program


@pytest.mark.parametrize("text", [ADD, block(ADD), block(ADD, "python") + "Output:\n" + block("3\n")])
def test_tags_around_the_answer(text: str) -> None:
    draft = block("def add(a, b):\n    return 0\n", "python")
    assert program_of(f"{draft}\n<answer>\n{text}\n</answer>\n", ["add"])[0].strip() == ADD.strip()
    assert program_of(f"<answer>{text}", ["add"])[0].strip() == ADD.strip()
    assert program_of(f"[BEGIN]\n{text}\n[DONE]\n\nNext", ["add"])[0].strip() == ADD.strip()
    assert program_of(f"{text}\n[DONE]", ["add"])[0].strip() == ADD.strip()  # [DONE] is Python, too
    says = "print('<answer>')\n"
    assert program_of(block(says, "python")) == (says,)


HELPED = "import math\n\ndef half(x):\n    return x / 2\n\ndef mean(a, b):\n    '''Mean.\n    '''\n"
BODY = "    return half(a + b)\n"


@pytest.mark.parametrize(
    "prompt", [HELPED, f"Complete this:\n\n{HELPED}", f"Complete:\n{block(HELPED, 'python')}"]
)
def test_a_text_goes_on_with_its_prompt(prompt: str) -> None:
    whole = HELPED + BODY
    assert program_of(BODY, ["mean"], [prompt]) == (whole,)
    assert program_of(block(BODY, "python"), ["mean"], [prompt]) == (whole,)
    assert program_of("return half(a + b)\n", ["mean"], [prompt]) == (whole,)  # nobody indented it
    assert program_of(f"{BODY}\n\ndef other(x):\n    '''cut o", ["mean"], [prompt])[0].startswith(whole)
    helpers = HELPED[: HELPED.index("def mean")]
    function = "def mean(a, b):\n    return half(a + b)\n"
    assert program_of(block(function, "python"), ["mean"], [prompt]) == (helpers, function)
    assert program_of(block(function, "python"), ["mean"], ["Write mean(a, b)."]) == (function,)


@given(st.text(alphabet="`~ \n\tdefprint():=1a<>/answer.'\"python\r\x00é", max_size=80))
def test_any_text_gives_some_program(text: str) -> None:
    assert all(isinstance(piece, str) for piece in program_of(text, ["a"], [text]))
    assert all(isinstance(piece, str) for piece in program_of(text))
