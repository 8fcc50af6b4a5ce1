"""Marks between which models think, and a response without its thoughts.

form | models
--- | ---
`<think>…</think>`; also thinking, thought, reasoning, scratchpad | DeepSeek-R1, Qwen3, QwQ, GLM, MiniMax
`<seed:think>…</seed:think>`, `<longcat_think>…</longcat_think>` | Seed-OSS, LongCat
`[THINK]…[/THINK]` | Magistral, Ministral
`◁think▷…◁/think▷` | Kimi-VL
`<|inner_prefix|>…<|inner_suffix|>` | Apertus
`<|START_THINKING|>…<|END_THINKING|>` | Command A
`<|begin_of_thought|>…<|end_of_thought|>` | Sky-T1, OpenThinker
`<start_working_out>…<end_working_out>` | Unsloth's examples
`<|channel>thought…<channel|>`, `<unused94>thought…<unused95>` | Gemma, MedGemma
`<|channel|>analysis<|message|>…<|channel|>final<|message|>` | gpt-oss
`analysis…assistantfinal` | gpt-oss, decoded without special tokens
`Here are my reasoning steps:…[BEGIN FINAL RESPONSE]` | Apriel
`Here is my thought process:…Here is my response:` | Granite 3.2

If a chat template ends the prompt in an opening mark, a response begins inside the thought.
"""

import re

NAME = r"(?:[a-z]+[:_])?(?:think|thinking|thoughts?|reasoning|scratchpad)(?::[a-z]+)?"
TO_CHANNEL = r"<\|channel\|>(?:{})[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>"
PAIRS = (
    (rf"<{NAME}>", rf"</{NAME}>"),
    (rf"\[{NAME}\]", rf"\[/{NAME}\]"),
    (r"◁think▷", r"◁/think▷"),
    (r"<\|inner_prefix\|>", r"<\|inner_suffix\|>"),
    (r"<\|start_thinking\|>", r"<\|end_thinking\|>"),
    (r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>"),
    (r"<start_working_out>", r"<end_working_out>"),
    (r"<\|channel>thought\b", r"<channel\|>"),
    (r"<unused94>thought\b", r"<unused95>"),
    (TO_CHANNEL.format("analysis|commentary"), TO_CHANNEL.format("final")),
    (r"\AHere are my reasoning steps:", r"\[BEGIN FINAL RESPONSE\]"),
)
# Words close a thought only if words opened it, because a letter may hold them, too.
WORDS = (
    (r"\Aanalysis(?-i:(?=[A-Z]))", r"assistantfinal"),
    (r"\A\s*Here(?: is|'s) my thought process:", r"Here(?: is|'s) my response:"),
)
MARK = re.compile(
    "|".join(
        f"(?P<{kind}_{number}>{form})"
        for number, pair in enumerate((*PAIRS, *WORDS))
        for kind, form in zip(("opens", "closes"), pair, strict=True)
    ),
    re.IGNORECASE,
)
BLANKS = r"\s*"
EMPTY_AT_THE_END = re.compile(rf"(?:{'|'.join(BLANKS.join(pair) for pair in PAIRS)})\s*\Z", re.IGNORECASE)
AT_THE_BEGINNING = re.compile(rf"\A\s*(?:{'|'.join(opens for opens, _ in PAIRS)})", re.IGNORECASE)
AT_THE_END = re.compile(rf"(?:{'|'.join(opens for opens, _ in PAIRS)})\s*\Z", re.IGNORECASE)
QUOTES = "'\"`"
TEMPLATES_ENDS = re.compile(r"(?:<\|(?:end|return|call)\|>|\[END FINAL RESPONSE\])\s*\Z")


def behind_thought(text: str, opened: bool = False) -> str | None:
    """Return a response without its thoughts; None if it ends inside a thought, and so has no answer.

    >>> [behind_thought(text) for text in ("<think>3 or 4?</think> It is 4.", "<think>3 or 4", "4")]
    [' It is 4.', None, '4']
    >>> behind_thought("3 or 4?</think> It is 4."), behind_thought("3 or 4?", opened=True)
    (' It is 4.', None)

    Args:
        opened: whether the prompt ends in a mark that opens a thought.
    """
    answered: list[str] = []
    place, inside = 0, "any" if opened else ""
    for mark in MARK.finditer(text):
        if _is_quoted(text, mark):
            continue
        kind, _, form = str(mark.lastgroup).partition("_")
        if inside:
            if kind == "closes" and inside in ("any", form):
                place, inside = mark.end(), ""
        elif kind == "opens":
            answered.append(text[place : mark.start()])
            inside = form
        elif int(form) < len(PAIRS):  # the prompt opened the thought, or a thought speaks of another one
            answered, place = [], mark.end()
    if inside:
        return None
    return TEMPLATES_ENDS.sub("", "".join([*answered, text[place:]]))


def opening_mark(prompt: str) -> str | None:
    r"""Return the mark with which a prompt opens the thought; None without one.

    >>> opening_mark("What is 2 + 2?<|Assistant|><think>\n"), opening_mark("<think>\n\n</think>\n\n")
    ('<think>', None)
    """
    mark = AT_THE_END.search(prompt)
    return mark[0].strip() if mark else None


def without_opening(text: str) -> str:
    r"""Return a response without the mark that opens its thought, for a prompt that ends in this mark.

    >>> without_opening("<think>\n3 or 4?</think> It is 4."), without_opening("3 or 4?</think> It is 4.")
    ('\n3 or 4?</think> It is 4.', '3 or 4?</think> It is 4.')
    """
    return AT_THE_BEGINNING.sub("", text, count=1)


def with_thought(content: str, thought: str, mark: str = "<think>") -> str:
    """Return a content with the thought in front of it.

    >>> with_thought("It is 7.", "3 + 4", "[THINK]")
    '[THINK]\\n3 + 4\\n[/THINK]\\n\\nIt is 7.'
    """
    return f"{mark}\n{thought}\n{mark[0]}/{mark[1:]}\n\n{content}"


def _is_quoted(text: str, mark: re.Match[str]) -> bool:
    """Return whether a text mentions a mark, as in `text.split("</think>")`."""
    before, behind = text[max(0, mark.start() - 1) : mark.start()], text[mark.end() : mark.end() + 1]
    return before == behind and before in QUOTES and before != ""
