"""Judge every pair of two sides' texts in a folder that keeps the replies."""

from collections.abc import Sequence
from pathlib import Path

from contracts.errors import InputError
from reward_servers.chat_models.chat_model import ChatModel
from services.runs import claim
from services.runs.tracking.progress import Progress
from services.studies.pairwise.asking import Asked, ask, from_elsewhere, kept_replies, questions
from services.studies.pairwise.outcome import Judged, judged
from services.studies.pairwise.question import Question
from services.studies.pairwise.texts import Pairs
from services.terminal.interrupts import on_interruption
from services.terminal.screens import Screen


def judge(
    matched: Pairs, about: Question, model: ChatModel, out: Path, num_in_flight: int
) -> tuple[list[Judged], dict[str, int]]:
    """Ask the questions without a kept reply; return the verdict on each pair.

    Also return the number of replies from other addresses, by address.

    Raises:
        InputError: the folder `out` is in use or can't be written, or the server refuses.
        RunError: the server has stopped answering.
    """
    _claim(out)
    on_interruption(lambda: f"the replies so far are saved in {out}; the same command continues")
    requests = questions(matched.pairs, about, model)
    file = out / "replies.jsonl"
    replies = _ask(requests, model, file, num_in_flight, matched)
    return judged(matched.pairs, requests, replies, about), from_elsewhere(file, requests, model)


def _ask(
    requests: Sequence[Asked], model: ChatModel, file: Path, num_in_flight: int, matched: Pairs
) -> dict[str, str]:
    """Return all replies; show progress on standard error, because standard output is for the result."""
    num_kept = sum(request.key in kept for request in requests) if (kept := kept_replies(file)) else 0
    message = (
        f"{len(matched.pairs)} pairs, {len(requests)} questions, of which {num_kept} have their reply already"
    )
    if matched.only_a or matched.only_b:
        message += f"; left out: {matched.only_a} texts that A alone has, {matched.only_b} that B alone has"
    progress = Progress(Screen(stderr=True))
    progress.note(message)
    progress.phase("questions", len(requests) - num_kept)
    try:
        return ask(requests, model, file, num_in_flight, lambda: progress.advance("questions"))
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
