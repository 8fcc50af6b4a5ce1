r"""Read the answer in a response or a reference, in the same way for all graders.

part of a response | read as its answer --- | --- a thought, `<think>…</think>` | never
(contracts/conversations/thoughts.py); without an end: no answer `<answer>…</answer>`, `<final_answer>`,
`<solution>`, `<response>` | the last pair, and the forms below inside it `\boxed{…}`, `\fbox{…}`, `\boxed 2`
| the last box, with the boxes that a list joins to it `\boxed{2}, \boxed{3}, and \boxed{5}` | `2, 3, 5`; a
reference's boxes all belong to its answer `#### 42` | the rest of the line `The answer is 42.`,
`**Answer:** 42`, `答案是42`, `Die Antwort lautet 42` | the last phrase's statement `42`, `(42)`, `$x = 42$`,
`42 apples` | a whole short text other texts | the last formula or number, without asides: `(in 3 years)`,
`out of 200`, `Let me know if …`
"""

import re
from dataclasses import dataclass

from contracts.conversations.thoughts import behind_thought
from reward_servers.answers.boxes import boxed, boxes
from reward_servers.answers.numerals import NUMBER
from reward_servers.answers.readable import CLOSES, OPENS, is_amount, is_expression, readable, undressed
from reward_servers.answers.statements import last_item, statements, value_of

TAG_OF = r"<(/?)({})>"
TAG = re.compile(TAG_OF.format("answer|final_answer|solution|response"), re.IGNORECASE)
GSM8K = "####"  # the mark before the answer in its solutions
TAIL = 300  # characters that verl searches for GSM8K's mark


@dataclass(frozen=True, slots=True)
class Answer:
    r"""An answer as written, and the words around it, for answers that are not mathematics.

    Example: in "The answer is 45 apples because …" the value is "45 apples", and the words are the sentence.
    """

    value: str
    words: str
    is_guess: bool = False  # no statement: the answer is the last number, or the whole text


def response_part(text: str) -> str | None:
    """Return the part of a response with the answer, in a reward's view; None without an answer.

    >>> texts = ("<think>7?</think> It is 8.", "<think>7?", "<think>7</think><answer>8</answer>!")
    >>> [response_part(text) for text in texts]
    ['It is 8.', None, '8']
    """
    prose = behind_thought(text)
    return None if prose is None else inside_tags(prose).strip()


def inside_tags(text: str, tags: re.Pattern[str] = TAG) -> str:
    """Return the text in the last pair of answer tags, or after an open tag, else the whole text.

    >>> [inside_tags(text) for text in ("<answer>1</answer>, <answer>2</answer>.", "so <answer>3", "4")]
    ['2', '3', '4']
    """
    opened, inside = None, None
    for tag in tags.finditer(text):
        if not tag[1]:
            opened = tag
        elif opened is not None and opened[2].lower() == tag[2].lower():
            inside, opened = text[opened.end() : tag.start()], None
    if inside is not None:
        return inside
    return text if opened is None else text[opened.end() :]


def behind_hashes(text: str) -> str | None:
    """Return the number after the last `####` among the text's last characters, or None.

    verl's strict rule accepts no dollar sign, and needs a blank.

    >>> behind_hashes("3 + 4 = 7\\n#### 7"), behind_hashes("It is #### $1,250."), behind_hashes("It is 7")
    ('7', '1250', None)
    """
    _, mark, rest = text[-TAIL:].rpartition(GSM8K)
    line = readable(rest.partition("\n")[0]).strip() if mark else ""
    number = re.match(rf"{OPENS}?\s*({NUMBER.pattern})", line)
    return number[1] if number else None


def last_number(text: str) -> str | None:
    """Return the text's last number.

    >>> last_number("The roots are 1,2"), last_number("It is $1,234.50."), last_number("none")
    ('2', '1234.50', None)
    """
    numbers = [
        number[0] for number in NUMBER.finditer(readable(text).replace(OPENS, " ").replace(CLOSES, " "))
    ]
    return numbers[-1] if numbers else None


def answer_in(text: str, count: int = 1) -> Answer | None:
    """Return the answer of a response's part in any of the forms above, or None.

    >>> [answer_in(text).value for text in ("It is 4, so the answer is 5.", "(45)", "45 out of 200.")]
    ['5', '(45)', '45']
    """
    inside = boxed(text, count)
    if inside is not None:
        return Answer(inside, inside)
    hashed = undressed(readable(text.rpartition(GSM8K)[2].partition("\n")[0])) if GSM8K in text else ""
    if is_expression(hashed) or is_amount(hashed):  # no heading, such as "#### 2. Solve it"
        return Answer(hashed, hashed)
    prose = readable(text).strip()
    stated = next(iter(statements(prose)), None)
    if stated is not None:
        return Answer(value_of(stated), undressed(stated))
    alone = undressed(prose)
    if "\n" not in alone and (is_expression(alone) or is_amount(alone)):
        return Answer(alone, alone)
    item = last_item(prose)
    return Answer(item if item is not None else alone, alone, is_guess=True) if alone else None


def reference_value(reference: str) -> str:
    r"""Return a reference's answer: all its boxes, the text after GSM8K's mark or in tags, or the whole text.

    >>> [reference_value(text) for text in ("3 + 4 = 7\n#### 7", r"so \boxed{2}, or $\boxed{3}$.", "B")]
    ['7', '2, 3', 'B']
    """
    text = response_part(reference) or reference
    inside_boxes = [inside for *_, inside in boxes(text)]
    if inside_boxes:
        return ", ".join(dict.fromkeys(inside_boxes))
    if GSM8K in text:
        return text.rpartition(GSM8K)[2].strip()
    if len(text.split()) > 3 and (stated := next(statements(readable(text)), None)) is not None:
        return value_of(stated)
    return text.strip()
