"""Hook of MkDocs: read lists as code hosts do.

Lines indented by two spaces belong to the item above. An item may follow a paragraph without a blank line.
"""

import re
from collections.abc import Iterator

from markdown import Extension, Markdown
from markdown.blockprocessors import build_block_parser
from mkdocs.config.defaults import MkDocsConfig

ITEM = re.compile(r"\s*([-*+]|\d+\.) ")
FENCE = re.compile(r"\s*(```|~~~)")


class TwoSpaces(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.tab_length = 2
        md.parser = build_block_parser(md)  # the former parser's rules hold the old length


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.markdown_extensions.insert(0, TwoSpaces())  # type: ignore[arg-type]  # before others add rules
    return config


def on_page_markdown(markdown: str, **_: object) -> str:
    return "\n".join(with_blank_lines(markdown))


def with_blank_lines(markdown: str) -> Iterator[str]:
    """Yield the lines of a page, with a blank line before a list that follows a paragraph.

    >>> list(with_blank_lines("Two:\\n- a\\n  b\\n- c"))
    ['Two:', '', '- a', '  b', '- c']
    """
    fenced = False
    of_list = True  # whether the lines since the last blank one began with an item
    after_blank = True
    for line in markdown.split("\n"):
        fenced ^= bool(FENCE.match(line))
        if not fenced and ITEM.match(line) and not of_list and not after_blank:
            yield ""
            after_blank = True
        if after_blank:
            of_list = bool(ITEM.match(line))
        after_blank = not line.strip()
        yield line
