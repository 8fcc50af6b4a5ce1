"""Episodes in the report: the first prompt's before and after training, the best and the worst."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SHOWN_TURNS = 3  # at the beginning and at the end of a long episode; the others are folded
NUM_MEASURED = 5  # numbers shown for an episode
ENVIRONMENT = "environment/"
ENDS = ("environment/won", "environment/lost")  # shown as the episode's end


@dataclass(frozen=True, slots=True)
class ShownTurn:
    """One turn: observation, answer and reward."""

    number: int
    observation: str
    answer: str
    reward: float | None


@dataclass(frozen=True, slots=True)
class Transcript:
    """One episode; the middle turns of a long one are `folded`."""

    title: str
    prompt: str
    end: str  # won, lost, cut or ended
    reward: float | None
    measured: tuple[tuple[str, float], ...]
    opening: tuple[ShownTurn, ...]
    folded: tuple[ShownTurn, ...]
    closing: tuple[ShownTurn, ...]


def transcripts(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], epochs: tuple[int, int]
) -> tuple[Transcript, ...]:
    """Choose episodes from the predictions of the first and the last evaluation; none without episodes.

    First come the first prompt's episodes of both, then the last evaluation's best and worst; each only once.
    """
    played = [row for row in after if row.get("turns")]
    if not played:
        return ()
    first = played[0]
    chosen = [(f"First prompt, iteration {epochs[1]}", first)]
    earlier = next((row for row in before if row.get("turns")), None)
    if epochs[0] != epochs[1] and earlier is not None and earlier["sample_id"] == first["sample_id"]:
        chosen.insert(0, (f"First prompt, iteration {epochs[0]}", earlier))
    ranked = sorted(played, key=_reward, reverse=True)
    for title, row in (("Best", ranked[0]), ("Worst", ranked[-1])):
        if all(row is not other for _, other in chosen) and _reward(ranked[0]) != _reward(ranked[-1]):
            chosen.append((f"{title} of iteration {epochs[1]}", row))
    return tuple(transcript(title, row) for title, row in chosen)


def transcript(title: str, row: Mapping[str, Any]) -> Transcript:
    """Convert a row of predictions to a transcript."""
    turns = tuple(
        ShownTurn(number, str(turn["observation"]).strip(), str(turn["answer"]).strip(), turn.get("reward"))
        for number, turn in enumerate(row["turns"], 1)
    )
    is_long = len(turns) > 2 * SHOWN_TURNS + 1  # folding a single turn would save nothing
    split, rest = (SHOWN_TURNS, len(turns) - SHOWN_TURNS) if is_long else (len(turns), len(turns))
    measured = [
        (key.removeprefix(ENVIRONMENT), value)
        for key, value in row.items()
        if key.startswith(ENVIRONMENT) and isinstance(value, int | float) and key not in ENDS
    ]
    return Transcript(
        title=title,
        prompt=str(row.get("prompt_text", "")),
        end=str(row.get("end", "ended")),
        reward=row.get("reward"),
        measured=tuple(measured[:NUM_MEASURED]),
        opening=turns[:split],
        folded=turns[split:rest],
        closing=turns[rest:],
    )


def _reward(row: Mapping[str, Any]) -> float:
    return float(row.get("reward") or 0.0)
