"""Find the program in a response, in the same way for all rewards that run programs.

    response                                            program
    text that is Python, without fences                 the text, without remarks before or after it
    fenced blocks (CommonMark: ``` or ~~~, in lists,    the block that defines the tested names, the last
    quotes, longer fences; unclosed at the end)         of several; else the last that reads input and acts
    a block of output, usage, notes after it            the same
    some blocks name Python (`python3`, `{.python}`)    only these count
    no block names Python                               blocks that name no language
    a block in another language                         never
    a block that needs names of other blocks            these blocks run first
    a fence that the prompt opened                      the text before the first fence
    a fence after words, as in "So: ```python"          a fence, where no other block names Python
    `<answer>`, `<solution>` … around it                the text between the last tags
    `[BEGIN]`, `[DONE]` around it (MBPP's prompt)       the text between them
    a body, or a function that needs its prompt         the prompt's code, and then the text

A caller drops the thought first. All of this runs in the confined process, because a malicious text may take
forever.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from reward_servers.verifiers.source import Source, part_that_is_python, source_of

BEHIND_WORDS = re.compile(
    r"(?<=[^\s`])[ \t]*(```+[ \t]*(?:python|py)[\d.]*[ \t]*)$", re.MULTILINE | re.IGNORECASE
)
FENCE = re.compile(r"^ {0,3}(?:```|~~~)", re.MULTILINE)
ANSWER = re.compile(
    r"^[ \t]*<((?:final_)?answer|solution|response)>(.*?)(?:</\1>|\Z)",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
AROUND = re.compile(r"\A\s*\[BEGIN\][ \t]*\n|^\[DONE\].*", re.MULTILINE | re.DOTALL)  # in MBPP's prompt
LANGUAGE = re.compile(r"[{}\s,;:(]+")  # ends a language's name in an info string
IS_PYTHON = re.compile(r"\.?(?:i?python|py|cpython|pypy|sage)[\d.]*", re.IGNORECASE)
DIRECTIVES = frozenset(("code-block", "code", "code-cell", "sourcecode"))  # as in {code-block} python
NESTED = frozenset(("", "markdown", "md"))  # languages of blocks that may hold blocks
DEPTH = 3
Program = tuple[str, ...]  # pieces that run one after the other, in one module


@dataclass(frozen=True, slots=True)
class Block:
    """The text between fences; its language in lower case, "" for none."""

    language: str
    code: str

    @property
    def is_python(self) -> bool:
        return IS_PYTHON.fullmatch(self.language) is not None


def program_of(text: str, called: Sequence[str] = (), before: Sequence[str] = ()) -> Program:
    """Return the program in a response without its thought.

    Args:
        text: the response.
        called: names that the tests call, such as ("add",); () for a program that reads input.
        before: prompts whose code the text may continue, as in HumanEval.

    >>> program_of("So:\\n```python\\nprint(1)\\n```\\nOutput:\\n```\\n1\\n```"), program_of("print(2)")
    (('print(1)\\n',), ('print(2)',))
    >>> program_of("    return a", ["f"], ["def helper(): ...\\ndef f(a):\\n"])
    ('def helper(): ...\\ndef f(a):\\n    return a',)
    """
    program = _alone(text, called)
    if not called or not before:
        return program
    start = next((code for prompt in before if (code := code_before(prompt, called))), None)
    if start is None:
        return program
    helpers, stub = start
    if any(_defines(piece, called) for piece in program):
        return (helpers, *program) if helpers.strip() else program
    return _continued(text, program, helpers + stub, called) or program


def blocks_of(text: str, depth: int = DEPTH) -> list[Block]:
    """Return the fenced blocks in order; blocks inside Markdown replace their outer block.

    >>> blocks_of("~~~ {.python}\\na\\n~~~\\n````md\\n```py title='x'\\nb\\n```\\n````")
    [Block(language='.python', code='a\\n'), Block(language='py', code='b\\n')]
    """
    blocks: list[Block] = []
    for token in _markdown().parse(text):
        if token.type == "fence":
            block = Block(_language(token.info), token.content)
        elif token.type == "code_block" and FENCE.search(token.content):
            block = Block("", token.content)  # fences that are indented too far
        else:
            continue
        inner = blocks_of(block.code, depth - 1) if _may_nest(block) and depth else []
        blocks += inner or [block]
    return blocks


def code_before(prompt: str, called: Sequence[str]) -> tuple[str, str] | None:
    """Return the prompt's code before the first called function, and this function's beginning.

    The code is the whole prompt, or a block, or begins at the first import or definition.

    >>> code_before("Complete:\\nimport math\\n\\ndef f(x):\\n    '''Root.'''\\n", ["f"])
    ('import math\\n\\n', "def f(x):\\n    '''Root.'''\\n")
    """
    first = re.compile(rf"^(?:@.*\n)*(?:async )?(?:def|class) (?:{'|'.join(map(re.escape, called))})\b", re.M)
    for code in _codes_in(prompt):
        if (begin := first.search(code)) and source_of(code[: begin.start()]) is not None:
            return code[: begin.start()], code[begin.start() :]
    return None


def _alone(text: str, called: Sequence[str]) -> Program:
    """Return the program in a text; the whole text if it holds none."""
    text = AROUND.sub("", text.removeprefix("\ufeff"))
    if source_of(text) is not None:
        return (text,)
    if (tagged := [inside for _, inside in ANSWER.findall(text)]) and tagged[-1].strip():
        return _alone(tagged[-1], called)
    blocks = [block for block in blocks_of(text) if block.code.strip()]
    if not any(block.is_python for block in blocks) and BEHIND_WORDS.search(text):
        return _alone(BEHIND_WORDS.sub(r"\n\1", text), called)
    if opened := _up_to_the_first_fence(text, called):
        blocks.insert(0, Block("python", opened.code))
    candidates = [block for block in blocks if block.is_python] or [
        block for block in blocks if not block.language
    ]
    if program := _joined([_repaired(block.code) for block in candidates], called):
        return program
    if blocks:
        return ()
    indented = [token.content for token in _markdown().parse(text) if token.type == "code_block"]
    part = part_that_is_python(text, lambda source: bool(source.defines.intersection(called)) or source.acts)
    return (part.code,) if part else _joined(indented, called) or (text,)


def _joined(codes: Sequence[str], called: Sequence[str]) -> Program:
    """Return the program's block, after the blocks whose names it needs."""
    sources = [source_of(code) for code in codes]
    known = frozenset[str]().union(*(one.defines | one.imports for one in sources if one))

    def rank(place: int) -> tuple[int, ...]:
        one = sources[place]
        if one is None:
            return (0, 0, 0, 0, 0, place)
        defines, is_whole = not one.defines.isdisjoint(called), one.needs <= known
        return (1, defines, is_whole and one.acts and one.reads, is_whole and one.acts, is_whole, place)

    if not codes:
        return ()
    chosen = max(range(len(codes)), key=rank)
    first = _needed(chosen, sources, called)
    return tuple(codes[place] for place in (*first, chosen))


def _needed(chosen: int, sources: Sequence[Source | None], called: Sequence[str]) -> list[int]:
    """Return the places of the blocks that define names missing in the chosen block or the tests."""
    program = sources[chosen]
    if program is None:
        return []
    taken: dict[int, Source] = {}
    has = program.defines | program.imports
    wanted = program.needs | (frozenset(called) - has)
    order = [*range(chosen - 1, -1, -1), *range(chosen + 1, len(sources))]  # the nearest before, then after
    while wanted:
        name = min(wanted)
        wanted -= {name}
        for place in order:
            other = sources[place]
            if other is not None and name in other.defines | other.imports:
                if place not in taken:
                    taken[place] = other
                    has |= other.defines | other.imports
                    wanted = (wanted | other.needs) - has
                break
    return sorted(taken)


def _continued(text: str, program: Program, start: str, called: Sequence[str]) -> Program | None:
    """Return the prompt's code with the text as its end, a body with or without indentation."""
    bodies = [text, *program, *(textwrap.indent(textwrap.dedent(piece), "    ") for piece in program)]
    joints = ("", "\n") if not start.endswith("\n") else ("",)
    for whole in (start + joint + body for body in bodies for joint in joints):
        if source_of(whole) is not None:
            return (whole,)
    num_lines = len(start.splitlines())
    for body in bodies:  # the text may lack its end, or a remark may follow it
        part = part_that_is_python(start + body, lambda source: len(source.code.splitlines()) > num_lines)
        if part is not None and _defines(part.code, called):
            return (part.code,)
    return None


def _up_to_the_first_fence(text: str, called: Sequence[str]) -> Source | None:
    """Return the Python at the text's beginning, if any, because the prompt ended with the opening fence."""
    fence = FENCE.search(text)
    source = source_of(text[: fence.start()]) if fence else None
    if source is None:
        return None
    if called:
        return None if source.defines.isdisjoint(called) else source
    return source if source.acts and not source.needs else None


def _repaired(code: str) -> str:
    """Return the code up to a closing fence at a line's end, which CommonMark ignores."""
    cut, closed, _ = code.partition("```")
    return cut if closed and source_of(code) is None and source_of(cut) is not None else code


def _codes_in(prompt: str) -> Iterator[str]:
    yield prompt
    yield from (block.code for block in blocks_of(prompt))
    for begin in re.finditer(r"^(?:(?:from|import|def|async def|class)\b|@)", prompt, re.MULTILINE):
        yield prompt[begin.start() :]


def _defines(code: str, called: Sequence[str]) -> bool:
    source = source_of(code)
    return source is not None and not source.defines.isdisjoint(called)


def _language(info: str) -> str:
    """Return the language of an info string.

    >>> infos = ("Python3", 'py title="x"', "{.python .wide}", "{code-block} python", "")
    >>> [_language(info) for info in infos]
    ['python3', 'py', '.python', 'python', '']
    """
    words = [word.lower() for word in LANGUAGE.split(info) if word]
    return next((word for word in words if word not in DIRECTIVES), "")


def _may_nest(block: Block) -> bool:
    return block.language in NESTED and FENCE.search(block.code) is not None and source_of(block.code) is None


@cache
def _markdown() -> Any:
    """Return CommonMark's blocks without HTML, so that a tag on a line can't swallow the next fence."""
    from markdown_it import MarkdownIt

    made = MarkdownIt("commonmark").disable("html_block")
    made.core.ruler.enableOnly(["normalize", "block"])
    return made
