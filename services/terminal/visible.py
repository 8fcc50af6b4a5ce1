"""Make untrusted texts safe on a terminal: they can't move the cursor, beep or reverse letters."""

import re

# C0 except tab and line end, C1, direction marks, halves of surrogate pairs.
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def visible(text: str) -> str:
    """Replace each character that commands a terminal.

    >>> visible("a\\x1b[2Jb\\r\\nc\\u202e"), visible("one\\ttwo")
    ('a�[2Jb\\nc�', 'one\\ttwo')
    """
    return UNSEEN.sub("�", text.replace("\r\n", "\n"))


def is_one_line(text: str) -> bool:
    """Return whether a text, such as a name, has no terminal commands, tabs or line ends."""
    return visible(text) == text and not set("\t\n") & set(text)


def visible_json(text: str) -> str:
    """Return JSON with the same values and escapes for terminal commands.

    >>> visible_json('["a\\x9b2J"]')
    '["a\\\\u009b2J"]'
    """
    return UNSEEN.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def visible_log(text: str) -> str:
    """Treat a log's lines like `visible`, but keep their colours.

    >>> visible_log("\\x1b[36mRay\\x1b[0m \\x1b]52;c;\\x07")
    '\\x1b[36mRay\\x1b[0m �]52;c;�'
    """
    between, colours = COLOURS.split(text), [*COLOURS.findall(text), ""]
    return "".join(visible(part) + colour for part, colour in zip(between, colours, strict=True))
