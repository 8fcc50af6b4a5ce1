"""Judge every pair of two sides' texts in a folder that keeps the replies."""

from collections.abc import Sequence
from pathlib import Path

from contracts.errors import InputError
from reward_servers.chat_models.chat_model import ChatModel
from services.pairwise.asking import Asked, ask, from_elsewhere, kept_replies, questions
from services.pairwise.outcome import Judged, judged
from services.pairwise.question import Question
from services.pairwise.texts import Pairs
from services.runs import claim
from services.terminal.interrupts import on_interruption
from services.terminal.screens import Screen
from services.tracking.progress import Progress


def judge(
    found: Pairs, about: Question, model: ChatModel, out: Path, num_in_flight: int
) -> tuple[list[Judged], dict[str, int]]:
    """Ask what has no kept reply yet; return the verdict on each pair.

    Return also how many of the replies came from other addresses, by address.

    Raises:
        InputError: the folder `out` is in use or can't be written, or the server refuses.
        RunError: the server answers no more.
    """
    _claim(out)
    on_interruption(lambda: f"the replies so far are saved in {out}; the same command continues")
    asked = questions(found.pairs, about, model)
    file = out / "replies.jsonl"
    replies = _ask(asked, model, file, num_in_flight, found)
    return judged(found.pairs, asked, replies, about), from_elsewhere(file, asked, model)


def _ask(
    asked: Sequence[Asked], model: ChatModel, file: Path, num_in_flight: int, found: Pairs
) -> dict[str, str]:
    """Return all replies; show progress on standard error, since standard output is for the result."""
    num_kept = sum(each.key in kept for each in asked) if (kept := kept_replies(file)) else 0
    told = f"{len(found.pairs)} pairs, {len(asked)} questions, of which {num_kept} have their reply already"
    if found.only_a or found.only_b:
        told += f"; left out: {found.only_a} texts that A alone has, {found.only_b} that B alone has"
    progress = Progress(Screen(stderr=True))
    progress.note(told)
    progress.phase("questions", len(asked) - num_kept)
    try:
        return ask(asked, model, file, num_in_flight, lambda: progress.advance("questions"))
    finally:
        progress.stop()


def _claim(out: Path) -> None:
    """Claim the folder for this command."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        claim.lock(out)
    except InputError:
        raise InputError(f"--out {out}: another `whetstone judge` uses this folder; wait for it") from None
    except OSError as error:
        raise InputError(f"--out {out}: can't be written: {error.strerror}") from None
