"""Statements such as "the answer is 42", in several languages, and the value at their beginning."""

import re
from collections.abc import Iterator
from itertools import pairwise

from reward_servers.answers.boxes import joins
from reward_servers.answers.numerals import NUMBER
from reward_servers.answers.readable import (
    CLOSES,
    COMMAND,
    MATHS,
    OPENS,
    WORD,
    blank,
    is_amount,
    is_expression,
    undressed,
)

PHRASES = (
    r"\b(?:answers?|ans\.?)(?![a-zA-Z])",
    r"答案|答え|正解|答(?=[是:])",
    r"정답|답(?=[은:])",
    r"\b(?:ответ|antwort|respuesta|réponse|resposta|risposta|cevap|jawaban|odpowiedź|antwoord|svar)\b",
    r"đáp án|câu trả lời|الإجابة|الجواب|إجابة|उत्तर|উত্তর|คำตอบ",
)
DRESS = r"[\s*_\"'“”«»]"
STATES = (
    r"(?:is|are|was|be|(?:would|will|must|should) be|equals?|ist|lautet|es|est|é|è|là|adalah)(?![a-zA-Z])"
    r"|应该是|应为|是|为|為|は|은|는|هو|هي|है|:|=|—|->|→"
)
MORE = r"therefore|thus|then|hence|that|indeed|simply|just|clearly|actually|approximately|about|exactly|:|="
STATED = re.compile(
    rf"(?:{'|'.join(PHRASES)}){DRESS}*(?:\([^()\n]*\))?(?:\s+(?:to|of|for|in)\b[^\n.:=]{{1,100}}?)?"
    rf"{DRESS}*(?:{STATES})(?:\s*(?:{MORE}))*{DRESS}*:?{DRESS}*"
    rf"|^[#*\s]*(?:final\s+)?answer[\s*_]*\n\s*",
    re.IGNORECASE | re.MULTILINE,
)
NEGATED = re.compile(r"\s*(?:not|no|neither|不)(?![a-zA-Z])", re.IGNORECASE)
# A sentence ends at a full stop (no decimal point, no ellipsis), at "!" that no formula follows, at the
# line's end, or at words that restate it.
SENTENCE = re.compile(
    r"(?<!\.)\.(?=[\s*_\"'”»)]|\Z)|[。?;]|(?<=[a-zA-Z])!|!+(?=[*_\"'”»)]*(?:\s*\Z|\s+[A-Z]|\n))|\n"
    r"|,?\s\(?(?:i\.\s?e\.|e\.\s?g\.)"
)
BULLET = re.compile(r"\A[-•]\s+")
BOUNDS = re.compile(
    r"(?:less|fewer|more|greater|larger|smaller|higher|lower) than\b|between\b", re.IGNORECASE
)
ITEM = re.compile(
    rf"{OPENS}([^{OPENS}{CLOSES}]*){CLOSES}"
    r"|(-?(?:\d+\s*)?(?:\\[dt]?frac\s*\{[^{}]*\}\s*\{[^{}]*\}|\\sqrt(?:\[\d+\])?\s*\{[^{}]*\})(?:\s*\\pi)?)"
    r"|((?<![\w.:/-])(?:\d+(?::\d+)+(?:\s*[ap]\.?m\b\.?)?|\d+([-/.])\d+\4\d+|\d{3}-\d{4})(?![\w:/-]))"
    rf"|({NUMBER.pattern})",
    re.IGNORECASE,
)
BESIDE = re.compile(rf"[{CLOSES}\s]*,?\s*\b(?:and|or)\s+[{OPENS}\s]*")
SAME_AGAIN = re.compile(rf"(?<=[\d%}}{CLOSES}])\s+\((?:=|≈|or)?\s*[\d.,/%\s]+\)\s*\Z")  # 3/4 (0.75)
ASIDE = re.compile(
    r"\s\([^()]*[^\W\d_]{2}[^()]*\)"
    rf"|(?<=\d )of\s+(?:the|all|those|these)\s+{NUMBER.pattern}"
    r"|\b(?:out of|instead of|rather than|compared (?:to|with)|(?:more|less|fewer|greater) than)"
    rf"\s+(?:an?\s+|the\s+)?(?:total\s+(?:of\s+)?)?{NUMBER.pattern}",
    re.IGNORECASE,
)
CHATTER = re.compile(
    r"(?:let me know|i hope|hope th|feel free|if you|please|do you|would you|is there any|thank|good luck|"
    r"happy to|i'm happy|don't hesitate|如果|希望|请)",
    re.IGNORECASE,
)


def statements(prose: str) -> Iterator[str]:
    """Yield the statements after "the answer is" in a readable text, to their sentences' ends, last first.

    >>> list(statements("The answer is 4? No. Answer: 5 apples, not 6."))
    ['5 apples, not 6', '4']
    """
    for match in reversed(list(STATED.finditer(prose))):
        rest = prose[match.end() :].lstrip()
        if "\n" in match[0]:
            rest = BULLET.sub("", rest)
        if NEGATED.match(rest):
            continue
        end = SENTENCE.search(rest)
        stated = rest[: end.start()] if end else rest
        if stated.strip(" *_"):
            yield stated


def value_of(stated: str) -> str:
    """Return the value at a statement's beginning, else its last formula or number, else the statement.

    >>> [value_of(text) for text in ("45 apples", "45 because 3 fell", "x = 3, as 2 is", "the sum, 7", "red")]
    ['45 apples', '45', 'x = 3', '7', 'red']
    """
    stated = SAME_AGAIN.sub("", stated)
    whole = undressed(stated)
    if BOUNDS.match(whole):
        return whole
    if is_expression(whole) or is_amount(whole):
        return whole
    first = ITEM.match(stated.lstrip(" *_\"'“"))
    if first and first[1]:
        return _with_joined(stated, first[1])
    if first and first[3]:
        return first[3]
    begins = next(
        (word for word in WORD.finditer(COMMAND.sub(blank, whole)) if word[0].lower() not in MATHS), None
    )
    head = whole[: begins.start()] if begins else whole
    head = re.sub(r"\s+[aAI]?\s*$", "", head) if begins else head
    head = re.split(r",\s", head)[0].rstrip(" ,;:([-+=")
    if re.search(r"\d|\\", head) and is_expression(head):
        return head
    item = last_item(whole)
    return whole if item is None else item


def last_item(prose: str) -> str | None:
    """Return a readable text's last formula or number, without asides and closing words.

    >>> [last_item(text) for text in ("7 (in 3 years).", "2 is 7 or 8", "at 3:30 pm", "none")]
    ['7', '7 or 8', '3:30 pm', None]
    """
    for text in (ASIDE.sub(" ", _without_chatter(prose)), prose):
        items = list(ITEM.finditer(text))
        if items:
            first = len(items) - 1
            while first and BESIDE.fullmatch(text, items[first - 1].end(), items[first].start()):
                first -= 1
            return " or ".join(_content(item) for item in items[first:])
    return None


def _content(item: re.Match[str]) -> str:
    return next(part for part in (item[1], item[2], item[3], item[5]) if part is not None).strip()


def _without_chatter(prose: str) -> str:
    ends = [len(prose), *(match.end() for match in reversed(list(SENTENCE.finditer(prose)))), 0]
    for end, begin in pairwise(ends):
        sentence = prose[begin:end].strip()
        if sentence and not CHATTER.match(sentence):
            return prose[:end]
    return prose


def _with_joined(stated: str, first: str) -> str:
    """Return the formula at a statement's beginning, with the formulas of the same list."""
    joined = [first]
    for before, item in pairwise(ITEM.finditer(stated)):
        if not (item[1] and joins(stated[before.end() : item.start()])):
            break
        joined.append(item[1])
    return ", ".join(joined)
