"""Episodes for people: each turn's observation, answer, tool calls with results, and reward.

The report shows the first prompt's episode before and after training, and the best and the worst episode.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout_workers.tools.tool_calls import OPENS, Call, hermes

SHOWN_TURNS = 3  # turns shown at the beginning and the end of a long episode; others are folded
FOLD = 50  # turns of a fold: a long middle has several
DECIMALS = 6  # shown decimals of a reward, to hide the rounding error of a sum
NUM_MEASURED = 5  # numbers shown for an episode
ENVIRONMENT = "environment/"
NAMED_VALUE = re.compile(r"reward/[^/]+/")  # name of a reward's value: reward/judge/format
ENDS = ("environment/won", "environment/lost")  # shown as the episode's end
RESPONSE = re.compile(r"<tool_response>\n(.*?)\n</tool_response>\n?", re.DOTALL)
ERROR = "Error: "  # prefix of a failed call's result


@dataclass(frozen=True, slots=True)
class ShownCall:
    """Call of a tool. Example: `ShownCall('calculator(expression="6 * 7")', "42", failed=False)`"""

    text: str
    result: str | None  # None: the episode ended before the result
    failed: bool


@dataclass(frozen=True, slots=True)
class ShownTurn:
    """One turn. The loss masks `num_read` tokens; the model wrote `num_written` tokens.

    The context of a `fresh` turn begins anew, with no or only some earlier turns.
    """

    number: int
    observation: str  # observation without results, which are shown at their calls
    answer: str
    calls: tuple[ShownCall, ...]
    reward: float | None
    num_read: int | None  # None: not recorded
    num_written: int | None
    fresh: bool
    role: str = ""  # the policy's role, if an episode has several


@dataclass(frozen=True, slots=True)
class Fold:
    """Consecutive turns, folded, with their sums."""

    turns: tuple[ShownTurn, ...]

    @property
    def reward(self) -> float:
        return round(sum(turn.reward or 0.0 for turn in self.turns), DECIMALS)

    @property
    def num_calls(self) -> int:
        return sum(len(turn.calls) for turn in self.turns)

    @property
    def num_failed(self) -> int:
        return sum(call.failed for turn in self.turns for call in turn.calls)


@dataclass(frozen=True, slots=True)
class Transcript:
    """One episode. The middle turns of a long one are `folded`."""

    title: str
    prompt: str
    end: str  # won, lost, cut or ended
    reward: float | None
    measured: tuple[tuple[str, float], ...]
    comment: str  # the rewards' comment
    num_read: int | None
    num_written: int | None
    opening: tuple[ShownTurn, ...]
    folded: tuple[Fold, ...]
    closing: tuple[ShownTurn, ...]

    @property
    def num_folded(self) -> int:
        return sum(len(fold.turns) for fold in self.folded)


def transcripts(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], epochs: tuple[int, int]
) -> tuple[Transcript, ...]:
    """Choose episodes from the predictions of the first and the last evaluation; () without episodes.

    First come the first prompt's episodes of both, then the last evaluation's best and worst, each once.
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


def transcript(title: str, row: Mapping[str, Any], *, whole: bool = False) -> Transcript:
    """Convert a row of predictions, or of a run's live episodes, to a transcript.

    Args:
        whole: fold nothing.
    """
    turns = shown_turns(row["turns"])
    is_long = len(turns) > 2 * SHOWN_TURNS + 1 and not whole  # folding a single turn would save nothing
    split, rest = (SHOWN_TURNS, len(turns) - SHOWN_TURNS) if is_long else (len(turns), len(turns))
    numbers = {key: value for key, value in row.items() if isinstance(value, int | float)}
    measured = [
        (key.removeprefix(ENVIRONMENT), value)
        for key, value in numbers.items()
        if key.startswith(ENVIRONMENT) and key not in ENDS
    ]
    measured += [(key, value) for key, value in numbers.items() if NAMED_VALUE.match(key)]
    return Transcript(
        title=title,
        prompt=str(row.get("prompt_text", "")),
        end=str(row.get("end", "ended")),
        reward=row.get("reward"),
        measured=tuple(measured[:NUM_MEASURED]),
        comment=str(row.get("comment", "")),
        num_read=_sum(turn.num_read for turn in turns),
        num_written=_sum(turn.num_written for turn in turns),
        opening=turns[:split],
        folded=tuple(Fold(turns[start : min(start + FOLD, rest)]) for start in range(split, rest, FOLD)),
        closing=turns[rest:],
    )


def shown_turns(turns: Sequence[Mapping[str, Any]]) -> tuple[ShownTurn, ...]:
    """Return turns with the results of calls at the calls, taken from the next turn's observation."""
    observations = [str(turn["observation"]) for turn in turns]
    shown = []
    for index, turn in enumerate(turns):
        answer, calls = _calls(str(turn["answer"]))
        results = RESPONSE.findall(observations[index + 1]) if index + 1 < len(turns) else []
        if calls and len(results) == len(calls):
            observations[index + 1] = RESPONSE.sub("", observations[index + 1])
        paired = results if len(results) == len(calls) else [None] * len(calls)
        shown.append(
            ShownTurn(
                number=index + 1,
                observation=observations[index].strip(),
                answer=answer.strip(),
                calls=tuple(map(_shown_call, calls, paired)),
                reward=_rounded(turn.get("reward")),
                num_read=turn.get("read"),
                num_written=turn.get("written"),
                fresh=bool(turn.get("fresh")) and index > 0,
                role=str(turn.get("role", "")),
            )
        )
    return tuple(shown)


def _calls(answer: str) -> tuple[str, list[str]]:
    """Return an answer without calls, and the calls in Python's syntax."""
    if OPENS not in answer:
        return answer, []
    parsed = hermes(answer)
    return parsed.content, [_written(call) if isinstance(call, Call) else call.text for call in parsed.calls]


def _written(call: Call) -> str:
    """
    >>> _written(Call("add", {"a": 1, "text": "so"}))
    'add(a=1, text="so")'
    """
    arguments = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items())
    return f"{call.name}({', '.join(arguments)})"


def _shown_call(text: str, result: str | None) -> ShownCall:
    return ShownCall(text, result, failed=result is not None and result.startswith(ERROR))


def _rounded(reward: float | None) -> float | None:
    return None if reward is None else round(reward, DECIMALS)


def _sum(counts: Any) -> int | None:
    numbers = list(counts)
    return None if not numbers or None in numbers else sum(numbers)


def _reward(row: Mapping[str, Any]) -> float:
    return float(row.get("reward") or 0.0)
