"""Records that a worker gets and makes: prompts, leases, turns, rollouts.

Every rollout consists of turns: text generation is one turn, a dialogue or a game several. Token sequences
are tuples of ints; a learner lays them into tensors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from contracts.errors import WhetstoneError
from contracts.records import by_position
from contracts.turn import Turn as Turn

COOLEST = 0.01  # temperature above 0, as in vLLM: a division of logits by less may overflow
PART = "part"  # key of the meta data under which a prompt of a mixture has the name of its part


class FinishReason(StrEnum):
    """Reason why the last turn ended."""

    STOP = "stop"  # the model generated its end-of-sequence token or a stop string
    LENGTH = "length"  # a limit of tokens was reached
    CUT = "cut"  # the episode was cut off after this turn, by its environment or `environment.max_turns`
    FAILED = "failed"  # the environment failed; the rollout is counted, but the learner doesn't train on it


UNFINISHED = (FinishReason.LENGTH, FinishReason.CUT)


@by_position
@dataclass(frozen=True, slots=True)
class Prompt:
    """One input to the model.
    Example: the first half of a film review, with the whole review as reference.

        Prompt(id="imdb/train/17", text="This film is", references=("This film is dull.",), meta={"label": 0})

    A conversation is in the meta data, `meta={"messages": [{"role": "user", "content": "Hi!"}]}`; `text` is
    then the same as plain text, for models without a chat template and for people.
    """

    id: str
    text: str
    references: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    weight: float = 1.0  # relative rate at which it is drawn where rollout.priority_scale is above 0

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """Return the conversation that the prompt is; () where it is a text."""
        return self.meta.get("messages") or ()

    @property
    def tools(self) -> Sequence[Any]:
        """Return JSON schemas of the functions that the model may call."""
        return self.meta.get("tools") or ()

    @property
    def part(self) -> str:
        """Return the part of a mixture of tasks that the prompt belongs to; "" where there is none."""
        return str(self.meta.get(PART, ""))


@by_position
@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling of tokens. The defaults sample from the model's own distribution, unwarped.

    Example: greedy decoding of at most 20 tokens is `Sampling(max_tokens=20, temperature=0.0)`; beam
    search with four beams is `Sampling(max_tokens=20, temperature=0.0, num_beams=4)`.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0  # 0: greedy; between 0 and COOLEST, it becomes COOLEST
    top_k: int = 0  # 0: no limit
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    masked: bool = False  # only tokens that the mask model allows (NLPO)
    num_beams: int = 1  # more than one: beam search; the best finished beam is the response
    length_penalty: float = 1.0  # beams: a beam's log-probability is divided by its length to this power
    # Above 1, tokens that the model has read or written become less likely (Keskar et al. 2019, 1909.05858)
    repetition_penalty: float = 1.0
    ignore_eos: bool = False  # write on behind an end token, up to `max_tokens`
    player: Literal["model", "expert", "random"] = "model"  # who acts in an environment
    example_rate: float = 0.0  # share of an environment's turns that a random valid action takes, untrained

    def __post_init__(self) -> None:
        if 0 < self.temperature < COOLEST:
            object.__setattr__(self, "temperature", COOLEST)

    @property
    def excludes_tokens(self) -> bool:
        """Return whether the model can't draw some tokens of its vocabulary."""
        return bool(self.min_tokens or self.top_k or self.top_p < 1.0)


@dataclass(frozen=True, slots=True)
class MaskRule:
    """Rule by which NLPO's mask model allows tokens: its top p or top k, at least `min_tokens_to_keep`.

    Example: the smallest set of tokens with nine tenths of the mask model's probability is
    `MaskRule(top_p=0.9)`; its five most likely tokens are `MaskRule(top_k=5)`. The tokens of `always` are
    always allowed; `keep_special` asks a worker to put its special tokens there, as RL4LMs does.
    """

    top_p: float | None = None
    top_k: int | None = None
    min_tokens_to_keep: int = 1
    keep_special: bool = False
    always: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if (self.top_p is None) == (self.top_k is None):
            raise ValueError(f"a mask needs top_p or top_k, one of them; got {self.top_p} and {self.top_k}")


@by_position
@dataclass(frozen=True, slots=True)
class Lease:
    """A task for a worker: a prompt, to be returned as one rollout before a deadline.

    The id counts up through the whole run and never repeats. If two workers get one lease and both return its
    rollout, the id tells that it is the same. The seed belongs to the lease, not to the worker: any worker
    draws the same random numbers.

    Example: the second of two samples of one prompt.

        Lease(id=9, prompt=Prompt(id="numbers/train/4", text="3 5"), tokens=(12, 14), group=4,
              seed=771, sampling=Sampling(max_tokens=20))
    """

    id: int
    prompt: Prompt
    tokens: tuple[int, ...]  # the prompt as the model reads it
    group: int  # leases of one group sample the same prompt
    seed: int
    sampling: Sampling


@by_position
@dataclass(frozen=True, slots=True)
class Rollout:
    """A finished lease, with everything that the learner needs.

    Example: one turn, prompt (12, 14), answer (15, 17, 2).

        rollout.tokens            == (12, 14, 15, 17, 2)
        rollout.loss_mask         == ( 0,  0,  1,  1, 1)     # 1: the model's token, 0: an observation's
        rollout.behavior_logprobs == (0., 0., -.7, -1.2, -.1)
        rollout.weight_versions   == (-1, -1,  4,  4, 5)     # -1: an observation's token has no version

    `truncated_context` is what the model would have seen at its next turn; () unless the episode was cut off.
    """

    lease_id: int
    group: int
    prompt: Prompt
    turns: tuple[Turn, ...]
    finish_reason: FinishReason
    reward_parts: Mapping[str, float] = field(default_factory=dict)  # each reward by name, unweighted
    info: Mapping[str, float] = field(default_factory=dict)  # the environment's measures, last values
    truncated_context: tuple[int, ...] = ()
    # Reason of a failure: an InputError if the user can mend it
    error: WhetstoneError | None = None
    baseline: float | None = None  # in a data set: expected reward of the reference on this prompt
    from_data: bool = False  # True: a data set's row, whose `behavior_logprobs` are a reference's
    turn_parts: tuple[Mapping[str, float], ...] = ()  # `reward_parts` of each answer, if each is judged
    reward_values: Mapping[str, float] = field(default_factory=dict)  # that rewards named: "judge/format"
    comment: str = ""  # of the rewards, in words

    @property
    def text(self) -> str:
        """Return the model's answers, joined by newlines."""
        return "\n".join(turn.text for turn in self.turns)

    @property
    def segments(self) -> tuple[tuple[Turn, ...], ...]:
        """Return the turns grouped into token sequences; a fresh turn begins a new sequence."""
        starts = [i for i, turn in enumerate(self.turns) if i == 0 or turn.fresh]
        ends = [*starts[1:], len(self.turns)][: len(starts)]  # none without turns
        return tuple(self.turns[start:end] for start, end in zip(starts, ends, strict=True))

    def context(self, index: int) -> tuple[int, ...]:
        """Return the whole context in which the model answered turn `index`."""
        start = max((i for i in range(index + 1) if self.turns[i].fresh), default=0)
        before = self.turns[start:index]
        seen = tuple(token for turn in before for token in (*turn.observation, *turn.tokens))
        return seen + self.turns[index].observation

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for turn in self.turns for token in (*turn.observation, *turn.tokens))

    @property
    def loss_mask(self) -> tuple[int, ...]:
        return self._aligned(0, lambda turn: (1,) * len(turn.tokens))

    @property
    def behavior_logprobs(self) -> tuple[float, ...]:
        return self._aligned(0.0, lambda turn: turn.behavior_logprobs)

    @property
    def weight_versions(self) -> tuple[int, ...]:
        return self._aligned(-1, lambda turn: turn.weight_versions)

    @property
    def num_generated(self) -> int:
        return sum(turn.num_tokens for turn in self.turns)

    @property
    def roles(self) -> tuple[str, ...]:
        """Return the policy's roles in the order of their first turns; most episodes have one."""
        return tuple(dict.fromkeys(turn.role for turn in self.turns))

    @property
    def judged_parts(self) -> tuple[Mapping[str, float], ...]:
        """Return the rewards of each text that was judged: of each answer, or of the whole rollout."""
        return self.turn_parts or (self.reward_parts,)

    @property
    def total_reward(self) -> float:
        """Return the sum of the turns' rewards; of several roles, the mean of their sums."""
        return sum(turn.reward or 0.0 for turn in self.turns) / max(1, len(self.roles))

    def _aligned(self, fill: Any, of_turn: Any) -> tuple[Any, ...]:
        """Return one entry for each token: `fill` for observations, `of_turn(turn)` for answers."""
        return tuple(
            entry for turn in self.turns for entry in ((fill,) * len(turn.observation) + tuple(of_turn(turn)))
        )
