"""Text for pages with marks: options as code, and places where a long name may break."""

import re
from itertools import pairwise

from markupsafe import Markup, escape

# algorithm.num_epochs, rollout.max_tokens=512, keep_best=val/reward/mean; without a full stop after it
_OPTION = re.compile(r"[a-z]\w*(?:\.\w+)+(?:=[\w/.:+-]*\w)?|[a-z]\w*=[\w/.:+-]*\w")


def with_code(text: str) -> Markup:
    """Mark the options in a sentence as code.

    >>> with_code("cut off at rollout.max_tokens=256. Lower x < 3")
    Markup('cut off at <code>rollout.max_tokens=256</code>. Lower x &lt; 3')
    """
    ends = [0, *(place for match in _OPTION.finditer(text) for place in match.span()), len(text)]
    parts = [escape(text[start:end]) for start, end in pairwise(ends)]
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else part for number, part in enumerate(parts)
    )


def breakable(name: str) -> Markup:
    """Let a name break after its slashes, dots and underscores, if a table is too narrow for it.

    >>> breakable("length/mean_words")
    Markup('length/<wbr>mean_<wbr>words')
    """
    return Markup("<wbr>").join(escape(part) for part in re.split(r"(?<=[/._])(?=.)", name))
