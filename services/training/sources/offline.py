"""Turn annotated responses into rollouts, in an order that a resumed run continues exactly.

annotated.parquet ─▶ examples: a response, or a prompt's ranked responses ─▶ an epoch's order ─▶ rollouts

A row becomes a rollout as if a worker had written it. The reference model scored its tokens, and the
reference's log-probabilities replace the behaviour policy's.
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
from contracts.rollout import FinishReason, Prompt, Rollout, Turn
from learner.algorithms.base import Algorithm
from learner.functional.selection import Selection
from reward_servers.settings import Part
from services.config.data_settings import RankBy
from services.data.annotated.rows import RANKED, AnnotatedRows
from services.data.tokens.response_tokens import Tokens

OFFLINE = 2**47  # first id of leases and groups, above those of a run's own leases
OF_TOKENS = ("prompt_tokens", "tokens")  # columns
ToTokens = Callable[[Prompt, str], Tokens]  # from a prompt and a response


class OfflineSource:
    """Serve annotated rows as rollouts, epoch after epoch; the same seed gives the same order.

    Example: if 640 of 1,000 responses have a positive advantage, `next(64)` gives ten batches an epoch.

    Args:
        algorithm: chooses an epoch's examples with `select_epoch`.
        to_tokens: tokenizes rows that were annotated without a reference model, and so without tokens.
        num_responses: number of ranked responses in an example, the best first. 1: each response alone.
        rank_by: "order" ranks by the data set's order instead of rewards. For PRO, a response's reward is
            then the number of worse responses.
        only_good: leave out responses that are marked as bad; False: keep every response as an example.

    Raises:
        InputError: there is nothing to learn from: no advantage is positive, or no prompt has
            `num_responses` different responses.
    """

    def __init__(
        self,
        rows: AnnotatedRows,
        algorithm: Algorithm,
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
        # PRO's temperatures would be negative if rewards did not fall in the data's order.
        ranks_are_rewards = rank_by == "order" and algorithm.traits.whole_groups and algorithm.needs_rewards
        self._rewards_M = None if ranks_are_rewards else rows.rewards_M
        if self._is_ranked:
            self._examples = self._ranked(usable, num_responses, rank_by)
        else:
            self._examples = [(place,) for place in usable]
        self._epoch = self._position = 0
        self._selection = self._select(0)

    @property
    def num_kept(self) -> int:
        """The number of examples in an epoch."""
        return len(self._selection.order_E)

    @property
    def share_dropped(self) -> float:
        """The share of examples that the algorithm dropped from this epoch."""
        return self._selection.share_dropped

    @property
    def num_cut(self) -> int:
        """The number of responses that lost their end."""
        if self._made is not None:
            return sum(example.cut for example in self._made)
        return int(pc.sum(self._rows.table["cut"]).as_py() or 0)

    @property
    def only_label(self) -> str | None:
        """The label of all responses, "good" or "not good"; None if there are both."""
        labels = set(self._rows.good_M.tolist())
        return ("good" if labels.pop() else "not good") if len(labels) == 1 else None

    @property
    def num_tokens(self) -> int:
        """The number of tokens that the model reads in an epoch: prompts and responses."""
        places = [place for example in self._selection.order_E for place in self._examples[example]]
        if self._made is not None:
            return sum(len(self._made[place].prompt) + len(self._made[place].response) for place in places)
        lengths = [pc.list_value_length(self._rows.table[name]).to_numpy() for name in OF_TOKENS]
        return int(sum(column[places].sum() for column in lengths))

    @property
    def num_rows(self) -> int:
        """The number of responses that can be used."""
        return len(self._rows)

    @property
    def rewards(self) -> tuple[Part, ...]:
        """The rewards whose weighted sum is a response's reward."""
        return self._rows.rewards

    def longest(self, *, apart: bool) -> int:
        """Return the most tokens of prompt and response together, or of the longer if they are `apart`."""
        whole = max if apart else sum
        if self._made is not None:
            lengths = [(len(example.prompt), len(example.response)) for example in self._made]
        else:
            columns = [pc.list_value_length(self._rows.table[name]) for name in OF_TOKENS]
            lengths = list(zip(*(column.to_pylist() for column in columns), strict=True))
        return max(map(whole, lengths))

    @property
    def epoch(self) -> int:
        """The next example's epoch, from 0."""
        return self._epoch

    def num_batches(self, num_epochs: int, num_examples: int) -> int:
        """Return the number of calls of `next(num_examples)` that `num_epochs` epochs take."""
        return num_epochs * math.ceil(self.num_kept / num_examples)

    def next(self, num_examples: int) -> list[Rollout]:
        """Return the next examples' rollouts, those of one prompt together; stop at the end of the epoch."""
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
        """Return exactly `num_examples` examples' rollouts; at an epoch's end continue into the next."""
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
        """Continue from `state`. With an older version's state compare only the number of examples.

        Raises:
            InputError: the data has changed.
        """
        if state["num_examples"] != len(self._examples):
            raise InputError(
                f"data: got {len(self._examples)} examples, but this run began with "
                f"{state['num_examples']}; expected the data of its start"
            )
        if state.get("sha256", self._digest) != self._digest:
            raise InputError(
                f"data: the {len(self._examples)} examples differ from those that this run began with: "
                f"texts, tokens, rewards or values were annotated again; expected the data of its start"
            )
        self._epoch, self._position = int(state["epoch"]), int(state["position"])
        self._selection = self._select(self._epoch)

    @cached_property
    def _digest(self) -> str:
        return self._rows.digest()

    def _select(self, epoch: int) -> Selection:
        rows, best = self._rows, [example[0] for example in self._examples]
        unknown_M = np.full(len(best), np.nan)  # an algorithm that needs them raises an error
        rewards_M = unknown_M if rows.rewards_M is None else rows.rewards_M[best]
        values_M = unknown_M if rows.values_M is None else rows.values_M[best]
        # The loss compares an example's responses itself.
        good_M = None if self._is_ranked or not self._only_good else rows.good_M[best]
        try:
            return self._algorithm.select_epoch(
                rewards_M, values_M, seed=self._seed, epoch=epoch, good_M=good_M
            )
        except LearnerError as error:
            raise InputError(f"data: {error}") from None

    def _rollout(self, place: int, group: int, rank: int, num_ranked: int) -> Rollout:
        rows = self._rows
        prompt_tokens, tokens, logprobs, cut = self._tokens(place)
        # Without rewards, the rank is the reward. For algorithms of labels, the label is.
        reward = num_ranked - 1 - rank if self._rewards_M is None else float(self._rewards_M[place])
        if self._algorithm.traits.labels:
            reward = float(rows.good_M[place])
        text = rows.table["response"][place].as_py()
        turn = Turn(prompt_tokens, tokens, text, logprobs, (0,) * len(tokens), reward=float(reward))
        return Rollout(
            lease_id=OFFLINE + (group - OFFLINE) * num_ranked + rank,  # the best response has the lowest id
            group=group,
            prompt=rows.prompt(place),
            turns=(turn,),
            finish_reason=FinishReason.LENGTH if cut else FinishReason.STOP,
            reward_parts=rows.reward_parts(place),
            baseline=None if rows.values_M is None else float(rows.values_M[place]),
            from_data=True,
        )

    def _tokens(self, place: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], bool]:
        """Return prompt, response, the reference's log-probabilities, and whether the response is cut."""
        if self._made is not None:
            example = self._made[place]
            return example.prompt, example.response, (0.0,) * len(example.response), example.cut
        table = self._rows.table
        kept = [table[name][place].as_py() for name in ("prompt_tokens", "tokens", "ref_logprobs")]
        return tuple(kept[0]), tuple(kept[1]), tuple(kept[2]), table["cut"][place].as_py()

    def _not_empty(self) -> list[int]:
        """Return the rows that have a token to learn. Every row that a reference model scored has one."""
        if self._made is None:
            return list(range(len(self._rows)))
        usable = [place for place, example in enumerate(self._made) if example.response]
        if num_empty := len(self._made) - len(usable):
            self.left_out["cut to nothing"] += num_empty
        if not usable:
            raise InputError(
                f"data: all {len(self._made)} responses are cut to nothing; raise rollout.max_tokens"
            )
        return usable

    def _ranked(self, usable: Sequence[int], num_responses: int, rank_by: RankBy) -> list[tuple[int, ...]]:
        """Return `num_responses` responses of each prompt, the best first; count prompts with fewer."""
        rewards_M = self._rows.rewards_M if rank_by == "reward" else None
        groups: dict[tuple[int, str | None], list[int]] = {}
        names = ("group", "prompt_id", RANKED, "order")
        of_row, ids, is_ranked, order = (self._rows.column(name) for name in names)
        for place in usable:
            # A row's ranked responses were not compared with other rows of the prompt.
            response = ids[place] if rewards_M is None and is_ranked[place] else None
            groups.setdefault((of_row[place], response), []).append(place)
        # float32 as in the learner, because rewards that differ only in float64 are equal there.
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
            reasons = ", ".join(f"{count} {reason}" for reason, count in self.left_out.items())
            raise InputError(
                f"data: none of {len(groups)} prompts has {num_responses} responses to be ranked: {reasons}"
            )
        return examples

    def _distinct(self, places: Sequence[int], ranks: NDArray[np.floating] | None) -> list[int]:
        """Leave out responses with the tokens of an earlier one, or with the rank of the one before.

        Different texts can have the same tokens, if they are cut or if the tokenizer drops characters.
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
    return [to_tokens(rows.prompt(place), text) for place, text in enumerate(rows.column("response"))]


def spread(ranked: Sequence[int], count: int) -> list[int]:
    """Return the best, the worst, and an even spread between them.

    >>> spread([7, 5, 3, 2, 1], 3), spread([7, 5, 3], 2)
    ([7, 3, 1], [7, 3])
    """
    last = len(ranked) - 1
    return [ranked[round(place * last / (count - 1))] for place in range(count)]


def _why(places: Sequence[int], num_responses: int) -> str:
    if len(places) < num_responses:
        return f"prompts with fewer than {num_responses} responses"
    return f"prompts with fewer than {num_responses} different responses or rewards"
