"""What learning from data alone trains on: annotated responses as rollouts, in an order that resumes exactly.

    annotated.parquet ─▶ examples: a response, or a prompt's ranked ones ─▶ an epoch's order ─▶ rollouts

A row becomes a rollout as if its prompt had been leased: its tokens are those that the reference scored, and
the reference's log-probabilities are the behaviour policy's.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from contracts.errors import InputError, LearnerError
from contracts.rollout import FinishReason, Rollout, Turn
from learner.algorithms.base import SelectsExamples
from learner.functional.selection import Selection, select_epoch
from reward_servers.settings import Part
from services.annotated_rows import AnnotatedRows
from services.data_settings import RankBy
from services.response_tokens import Tokens

OFFLINE = 2**47  # lease ids and groups count from here: beside a run's own leases, they never meet
ToTokens = Callable[[str, str], Tokens]  # of a prompt and a response


class OfflineSource:
    """Hands out the rollouts of annotated rows, epoch by epoch; the same ones for the same seed.

    Example: of 1,000 responses, 640 of them with a positive advantage, `next(64)` gives ten batches an epoch.

    Args:
        algorithm: chooses an epoch's examples if it can; else every good one is taken once.
        to_tokens: for rows that were annotated without a reference, whose tokens are not kept.
        num_responses: of a prompt, ranked, the best first. 1: each response by itself.
        rank_by: order: the data set's own, where rewards are not to decide.
        only_good: False: rejected responses, too, each by itself.

    Raises:
        InputError: there is nothing to learn from: no advantage is positive, or no prompt has so many
            responses that differ.
    """

    def __init__(
        self,
        rows: AnnotatedRows,
        algorithm: object,
        *,
        seed: int,
        to_tokens: ToTokens | None = None,
        num_responses: int = 1,
        rank_by: RankBy = "reward",
        only_good: bool = True,
    ) -> None:
        self._rows, self._algorithm, self._seed = rows, algorithm, seed
        self._only_good = only_good
        self.left_out: Counter[str] = Counter(rows.left_out)
        self._made = None if rows.has_reference else _tokens_of(rows, to_tokens)
        usable = self._not_empty()
        self._is_ranked = num_responses > 1
        if self._is_ranked:
            self._examples = self._ranked(usable, num_responses, rank_by)
        else:
            self._examples = [(place,) for place in usable]
        self._epoch = self._position = 0
        self._selection = self._select(0)

    @property
    def num_kept(self) -> int:
        """Examples that an epoch has."""
        return len(self._selection.order_E)

    @property
    def share_dropped(self) -> float:
        """Of the examples that the algorithm looks at."""
        return self._selection.share_dropped

    @property
    def rewards(self) -> tuple[Part, ...]:
        """Those whose weighted sum a response's reward is."""
        return self._rows.rewards

    def longest(self, *, apart: bool) -> int:
        """Tokens of the longest example, with its prompt; `apart`: of the longer one of both."""
        whole = max if apart else sum
        if self._made is not None:
            lengths = [(len(found.prompt), len(found.response)) for found in self._made]
        else:
            columns = [pc.list_value_length(self._rows.table[name]) for name in ("prompt_tokens", "tokens")]
            lengths = list(zip(*(column.to_pylist() for column in columns), strict=True))
        return max(map(whole, lengths))

    @property
    def epoch(self) -> int:
        """The epoch that the next example is of, from 0."""
        return self._epoch

    def num_batches(self, num_epochs: int, num_examples: int) -> int:
        """How often `next(num_examples)` is called until so many epochs are over."""
        return num_epochs * math.ceil(self.num_kept / num_examples)

    def next(self, num_examples: int) -> list[Rollout]:
        """The next examples' rollouts, those of one prompt together; at most the rest of the epoch."""
        drawn = self._selection.order_E[self._position : self._position + num_examples].tolist()
        first = self._epoch * self.num_kept + self._position
        rollouts = [
            self._rollout(place, OFFLINE + first + number, rank, len(self._examples[example]))
            for number, example in enumerate(drawn)
            for rank, place in enumerate(self._examples[example])
        ]
        self._position += len(drawn)
        if self._position == self.num_kept:
            self._epoch, self._position = self._epoch + 1, 0
            self._selection = self._select(self._epoch)
        return rollouts

    def draw(self, num_examples: int) -> list[Rollout]:
        """As `next`, but as many as asked for: behind an epoch's last example comes the next epoch's."""
        rollouts: list[Rollout] = []
        while num_examples:
            count = min(num_examples, self.num_kept - self._position)
            rollouts += self.next(count)
            num_examples -= count
        return rollouts

    def state(self) -> dict[str, Any]:
        return {
            "epoch": self._epoch,
            "position": self._position,
            "num_examples": len(self._examples),
            "sha256": self._digest,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken; one of a version that took no digest is taken at its word.

        Raises:
            InputError: the data is not what it was.
        """
        if state["num_examples"] != len(self._examples):
            raise InputError(
                f"data: {len(self._examples)} examples are there, and this run began with "
                f"{state['num_examples']}; expected the data that it began with"
            )
        if state.get("sha256", self._digest) != self._digest:
            raise InputError(
                f"data: the {len(self._examples)} examples are others than those that this run began with: "
                f"texts, tokens, rewards or values were annotated anew; expected the data that it began with"
            )
        self._epoch, self._position = int(state["epoch"]), int(state["position"])
        self._selection = self._select(self._epoch)

    @cached_property
    def _digest(self) -> str:
        return self._rows.digest()

    def _select(self, epoch: int) -> Selection:
        rows, best = self._rows, [example[0] for example in self._examples]
        unknown_M = np.full(len(best), np.nan)  # whoever looks at it is refused
        rewards_M = unknown_M if rows.rewards_M is None else rows.rewards_M[best]
        values_M = unknown_M if rows.values_M is None else rows.values_M[best]
        # Of ranked responses the loss itself says which is good.
        good_M = None if self._is_ranked or not self._only_good else rows.good_M[best]
        try:
            if isinstance(self._algorithm, SelectsExamples):
                return self._algorithm.select_epoch(
                    rewards_M, values_M, seed=self._seed, epoch=epoch, good_M=good_M
                )
            return select_epoch(np.zeros(len(best)), None, seed=self._seed, epoch=epoch, good_M=good_M)
        except LearnerError as error:
            raise InputError(f"data: {error}") from None

    def _rollout(self, place: int, group: int, rank: int, num_ranked: int) -> Rollout:
        rows = self._rows
        prompt_tokens, tokens, logprobs, cut = self._tokens(place)
        # Where nobody scored them, the rank is the reward.
        reward = num_ranked - 1 - rank if rows.rewards_M is None else float(rows.rewards_M[place])
        text = rows.table["response"][place].as_py()
        turn = Turn(prompt_tokens, tokens, text, logprobs, (0,) * len(tokens), reward=float(reward))
        return Rollout(
            lease_id=OFFLINE + (group - OFFLINE) * num_ranked + rank,  # the best has the lowest
            group=group,
            prompt=rows.prompt(place),
            turns=(turn,),
            finish_reason=FinishReason.LENGTH if cut else FinishReason.STOP,
            reward_parts=rows.reward_parts(place),
            value=None if rows.values_M is None else float(rows.values_M[place]),
            from_data=True,
        )

    def _tokens(self, place: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], bool]:
        """(prompt, response, the reference's log-probabilities, whether it is cut)."""
        if self._made is not None:
            found = self._made[place]
            return found.prompt, found.response, (0.0,) * len(found.response), found.cut
        table = self._rows.table
        kept = [table[name][place].as_py() for name in ("prompt_tokens", "tokens", "ref_logprobs")]
        return tuple(kept[0]), tuple(kept[1]), tuple(kept[2]), table["cut"][place].as_py()

    def _not_empty(self) -> list[int]:
        """The rows with a token to learn; where a reference scored them, the others are left out already."""
        if self._made is None:
            return list(range(len(self._rows)))
        usable = [place for place, found in enumerate(self._made) if found.response]
        if num_empty := len(self._made) - len(usable):
            self.left_out["cut to nothing"] += num_empty
        if not usable:
            raise InputError(
                f"data: all {len(self._made)} responses are cut to nothing; raise rollout.max_tokens"
            )
        return usable

    def _ranked(self, usable: Sequence[int], num_responses: int, rank_by: RankBy) -> list[tuple[int, ...]]:
        """Of each prompt so many responses, the best first; prompts that have fewer are counted."""
        rewards_M = self._rows.rewards_M if rank_by == "reward" else None
        groups: dict[int, list[int]] = {}
        of_row = self._rows.column("group")
        for place in usable:
            groups.setdefault(of_row[place], []).append(place)
        order = self._rows.column("order")
        # As the learner has them: what differs in float64 alone is no ranking there.
        ranks = np.array(order) if rewards_M is None else -rewards_M.astype(np.float32)
        examples = []
        for places in groups.values():
            places.sort(key=lambda place: (ranks[place], order[place]))
            distinct = self._distinct(places, None if rewards_M is None else ranks)
            if len(distinct) >= num_responses:
                examples.append(tuple(spread(distinct, num_responses)))
            else:
                self.left_out[_why(places, num_responses)] += 1
        if not examples:
            told = ", ".join(f"{count} {reason}" for reason, count in self.left_out.items())
            raise InputError(
                f"data: none of {len(groups)} prompts has {num_responses} responses to be ranked: {told}"
            )
        return examples

    def _distinct(self, places: Sequence[int], ranks: NDArray[np.floating] | None) -> list[int]:
        """Without tokens that come again, and without a rank that the one before has.

        Texts that differ may have the same tokens: where they are cut, or in what a tokenizer does not keep.
        """
        kept: list[int] = []
        seen: set[tuple[int, ...]] = set()
        for place in places:
            tokens = self._tokens(place)[1]
            if tokens not in seen and (ranks is None or not kept or ranks[place] != ranks[kept[-1]]):
                kept.append(place)
                seen.add(tokens)
        return kept


def _tokens_of(rows: AnnotatedRows, to_tokens: ToTokens | None) -> list[Tokens]:
    if to_tokens is None:
        raise ValueError("rows that were annotated without a reference have no tokens: to_tokens is needed")
    pairs = zip(rows.column("prompt"), rows.column("response"), strict=True)
    return [to_tokens(prompt, response) for prompt, response in pairs]


def spread(ranked: Sequence[int], count: int) -> list[int]:
    """The best, the worst, and an even spread between them.

    >>> spread([7, 5, 3, 2, 1], 3), spread([7, 5, 3], 2)
    ([7, 3, 1], [7, 3])
    """
    last = len(ranked) - 1
    return [ranked[round(place * last / (count - 1))] for place in range(count)]


def _why(places: Sequence[int], num_responses: int) -> str:
    if len(places) < num_responses:
        return f"prompts with fewer than {num_responses} responses"
    return f"prompts with fewer than {num_responses} different responses or rewards"
