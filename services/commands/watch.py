"""`whetstone watch RUN`: follow a run's episodes in the terminal or in a browser."""

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from services.runs.claim import is_held
from services.runs.folder import RunFolder
from services.runs.nearby import run_at
from services.terminal.doing import doing
from services.terminal.options import add_address, token_in

PORT = 8011
LOOK_S = 0.5  # time between two reads of the file
ALL = 2**31


def run(argv: Sequence[str]) -> int:
    """Print the last episodes and each new one until the run ends; or serve their page.

    Raises:
        InputError: RUN is not a run's folder, or has no episodes; or the page's address can't or must not be
            used.
    """
    parser = argparse.ArgumentParser(prog="whetstone watch", description=__doc__)
    parser.add_argument("run", metavar="RUN", type=Path, help="the run's folder, such as runs/NAME")
    parser.add_argument("--last", type=int, default=1, metavar="N", help="episodes to begin with (1)")
    parser.add_argument("--split", choices=("train", "validation", "test"), help="only episodes of a split")
    parser.add_argument("--whole", action="store_true", help="all turns of a long episode")
    web = parser.add_argument_group("in a browser")
    web.add_argument("--web", action="store_true", help="serve a page with all episodes, until Ctrl-C")
    add_address(web, PORT)
    arguments = parser.parse_args(argv)
    if arguments.web:
        return _serve(run_at(arguments.run), arguments)
    if arguments.last < 0:
        raise InputError(f"--last={arguments.last}: expected a number of episodes, 0 or more")
    folder = run_at(arguments.run)
    if not folder.episodes.exists() and not is_held(folder.path):
        raise InputError(
            f"{arguments.run} has no episodes: it ran without an environment of several turns, or before its "
            f"episodes were kept; `whetstone watch {arguments.run} --web` shows a run of single answers, "
            f"`whetstone report {arguments.run}` its evaluations"
        )
    _print(folder, arguments)
    return 0


def _serve(folder: RunFolder, arguments: argparse.Namespace) -> int:
    with doing("loading the web server"):
        from services.runs.report.live_page import live_app
        from services.terminal.web_pages import listen, serve_pages

    with listen(arguments.host, arguments.port, token_in(arguments)) as door:
        serve_pages(door, live_app(folder, door.host, door.token))
    return 0


def _print(folder: RunFolder, arguments: argparse.Namespace) -> None:
    from services.runs.report.terminal import episode_view
    from services.terminal.screens import Screen

    console = Screen(highlight=False)
    if not folder.episodes.exists():
        console.print("waiting for the first episode of several turns; Ctrl-C ends it")
    for row in episodes(folder, arguments.last, arguments.split):
        console.print(episode_view(row, whole=arguments.whole))


def episodes(folder: RunFolder, last: int, split: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the last episodes, and then each new one until the run has ended."""
    lines = Lines(folder.episodes)
    while True:
        is_over = not is_held(folder.path)  # ask before reading, so that no late line is missed
        rows = [row for row in lines.new() if split in (None, row.get("split"))]
        yield from rows[max(0, len(rows) - last) :]
        last = ALL
        if is_over:
            return
        time.sleep(LOOK_S)


class Lines:
    """Reader of a growing JSON Lines file, which its newer half may replace."""

    def __init__(self, file: Path) -> None:
        self._file, self._place = file, 0
        self._node: int | None = None

    def new(self) -> list[dict[str, Any]]:
        """Return the whole lines since the last call, without lines that are not a JSON object."""
        try:
            with self._file.open("rb") as opened:
                node = os.fstat(opened.fileno()).st_ino
                if self._node not in (None, node):  # the old file already held these lines
                    self._place = opened.seek(0, os.SEEK_END)
                self._node = node
                opened.seek(self._place)
                whole, newline, _ = opened.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._place += len(whole) + len(newline)
        return [row for line in whole.split(b"\n") if isinstance(row := _read(line), dict)]


def _read(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
