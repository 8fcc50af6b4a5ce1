"""Clean the texts that TextWorld prints, and make one safe command of a model's text.

The rules come from playing TextWorld 1.7.0, whose state tracker follows only one action of one command.
"""

import re
from collections.abc import Collection, Sequence

# Every game opens with a title in dollar signs.
TITLE_LINE = "$$$$"
# Every output ends with a prompt line: the room, the score and the game's count of turns.
PROMPT_LINE = re.compile(r"\s*>\s*(?:-= .*? =-\s*-?\d*/?\d*)?\s*$", re.DOTALL)
MENU = re.compile(r"Would you like to RESTART,.*$", re.DOTALL)
HEADING = re.compile(r"-= (.*?) =-")

MAX_COMMAND = 80  # characters
PUNCTUATION = re.compile(r"[.,;:!?]")  # after it, the game's parser begins another command
NEXT_COMMAND = ("then", "and")  # "take knife and go east" takes, but the tracker does not see it
MANY_THINGS = ("all", "each", "every", "everything", "both")  # a command for several things is several
# The interpreter's commands end or restart a game behind the tracker's back, or write files.
META_VERB = re.compile(
    "again|g|oops|o|quit|q|restart|restore|save|script|transcript|unscript|noscript|undo|score|notify|pronouns|"
    "nouns|verbose|brief|superbrief|verify|version"
)


def cleaned(feedback: str) -> str:
    """Remove title, prompt line and blank lines from a game's output; put a room's heading in brackets.

    >>> cleaned("\\n\\n-= Attic =-\\nA dusty  one.\\n\\n\\n\\nThere is an exit.\\n\\n>     -= Attic =-0/2")
    '[Attic]\\nA dusty one.\\nThere is an exit.'
    """
    text = MENU.sub("", PROMPT_LINE.sub("", feedback))
    lines = text.split("\n")
    title = max((row for row, line in enumerate(lines) if TITLE_LINE in line), default=-1)
    words = (" ".join(line.split()) for line in lines[title + 1 :])
    return HEADING.sub(r"[\1]", "\n".join(line for line in words if line))


def first_room(feedback: str) -> str:
    """Return a game's first output, cleaned, from the first room's heading, without the objective.

    >>> first_room("$$$$$$$$\\n\\nFind the coin!\\n\\n-= Attic =-\\nDusty.")
    '[Attic]\\nDusty.'
    """
    text = PROMPT_LINE.sub("", feedback)
    heading = HEADING.search(text)
    return cleaned(text[heading.start() :] if heading else text)


def command_of(text: str, verbs: Collection[str]) -> str | None:
    """Return the one command in a model's answer; None: it has no command that is safe for the game.

    The command is the first non-blank line up to punctuation or the word "then" or "and", in lower case. It
    keeps only letters, digits, blanks, apostrophes and hyphens. Its first word must be one of the game's
    `verbs`, which excludes commands to the interpreter.

    >>> command_of(" Go east, then take the lamp.\\nYou are", {"go", "take"})
    'go east'
    >>> command_of("quit", {"go", "take"}) is None
    True
    """
    line = next(iter(text.strip().splitlines()), "").lower()
    line = re.sub(r"^[^a-z0-9]+", "", line)
    line = " ".join(PUNCTUATION.split(line)[0].split())
    words = re.sub(r"[^a-z0-9 '\-]", "", line).split()
    end = next((place for place, word in enumerate(words) if word in NEXT_COMMAND), len(words))
    words = words[:end]
    command = " ".join(words)
    is_safe = (
        bool(words)
        and words[0] in verbs
        and not META_VERB.fullmatch(words[0])
        and not any(word.startswith("everythin") or word in MANY_THINGS for word in words)  # 9 letters count
        and len(command) <= MAX_COMMAND
    )
    return command if is_safe else None


def listed(items: Sequence[str]) -> str:
    """Join items as in a sentence.

    >>> listed(["look", "go east", "take key"])
    'look, go east, or take key'
    >>> listed(["look", "go east"])
    'look or go east'
    """
    if len(items) < 3:
        return " or ".join(items)
    return f"{', '.join(items[:-1])}, or {items[-1]}"
