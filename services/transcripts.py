"""A few episodes as the report shows them: the first one before and after training, the best, the worst."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SHOWN_TURNS = 3  # at the beginning and at the end of a long episode; the others are folded
NUM_MEASURED = 5  # numbers shown of an episode
ENVIRONMENT = "environment/"
ENDS = ("environment/won", "environment/lost")  # told by how it ended


@dataclass(frozen=True, slots=True)
class ShownTurn:
    """What the world said, what the model answered, and what that brought."""

    number: int
    observation: str
    answer: str
    reward: float | None


@dataclass(frozen=True, slots=True)
class Transcript:
    """One episode. Of a long one the middle is `folded`."""

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
    """Of rows of predictions, the first evaluation's and the last's; nothing where no episodes were played.

    The first prompt's episode at both, then the last evaluation's best and worst, unless they are that one.
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
    """One row, ready to be shown."""
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
