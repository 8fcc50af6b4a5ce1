"""Records that a worker gets and makes: prompts, leases, turns, rollouts.

Every rollout consists of turns: a text is one turn, a dialogue or a game has several. Token sequences are
tuples of ints, which a learner makes tensors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from contracts.errors import WhetstoneError
from contracts.records import by_position
from contracts.scores import Term
from contracts.turn import Turn as Turn

COOLEST = 0.01  # temperature above 0, as in vLLM: a division of logits by less may overflow
PART = "part"  # key of the meta data for the part's name in a mixture


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
    weight: float = 1.0  # relative rate of draws, if rollout.priority_scale is above 0

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """Return the prompt's conversation; () for a text."""
        return self.meta.get("messages") or ()

    @property
    def tools(self) -> Sequence[Any]:
        """Return JSON schemas of the functions that the model may call."""
        return self.meta.get("tools") or ()

    @property
    def part(self) -> str:
        """Return the prompt's part in a mixture of tasks; "" without one."""
        return str(self.meta.get(PART, ""))


@by_position
@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling of tokens. The defaults sample from the model's distribution itself, unwarped.

    Example: greedy decoding of at most 20 tokens is `Sampling(max_tokens=20, temperature=0.0)`. Beam search
    with four beams is `Sampling(max_tokens=20, temperature=0.0, num_beams=4)`.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0  # 0: greedy; between 0 and COOLEST, it becomes COOLEST
    top_k: int = 0  # 0: no limit
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    masked: bool = False  # draw only tokens that the mask model allows (NLPO)
    num_beams: int = 1  # more than one: beam search; the best finished beam is the response
    length_penalty: float = 1.0  # beams: a beam's log-probability is divided by its length to this power
    # Above 1, the model less likely repeats tokens that it read or wrote (Keskar et al. 2019, 1909.05858)
    repetition_penalty: float = 1.0
    ignore_eos: bool = False  # continue after an end token, up to `max_tokens`
    player: Literal["model", "expert", "random"] = "model"  # the actor in an environment
    example_rate: float = 0.0  # share of an environment's turns with a random valid action, untrained

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
    `MaskRule(top_p=0.9)`. Its five most likely tokens are `MaskRule(top_k=5)`. The tokens of `always` are
    always allowed. With `keep_special` a worker adds its special tokens to them, as RL4LMs does.
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

    The id counts up through the whole run and never repeats. If two workers return a rollout of one lease,
    the id shows that both are the same. The seed belongs to the lease, not to the worker, so any worker draws
    the same random numbers.

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
class TeacherScores:
    """Log-probabilities of a rollout's generated tokens, in order, by a teacher behind an address.

    A teacher with another tokenizer scores spans. A span ends where both tokenizers end a token.

    Example: three tokens, of which the last two are one span.

        TeacherScores(logprobs=(-0.2, 0.0, -1.1), ends=(True, False, True))
    """

    logprobs: tuple[float, ...]  # each span's, at its last token; elsewhere 0
    ends: tuple[bool, ...]  # whether a span ends with the token; tokens after the last end have no score
    # The teacher's likeliest tokens at each place, equally many, and their log-probabilities; (): unknown
    top_tokens: tuple[tuple[int, ...], ...] = ()
    top_logprobs: tuple[tuple[float, ...], ...] = ()


@by_position
@dataclass(frozen=True, slots=True)
class Rollout:
    """A finished lease, with everything that the learner needs.

    Example: one turn, prompt (12, 14), answer (15, 17, 2).

        rollout.tokens            == (12, 14, 15, 17, 2)
        rollout.loss_mask         == ( 0,  0,  1,  1, 1)     # 1: the model's token, 0: an observation's
        rollout.behavior_logprobs == (0., 0., -.7, -1.2, -.1)
        rollout.weight_versions   == (-1, -1,  4,  4, 5)     # -1: an observation's token has no version

    `truncated_context` is the model's next context if the episode was cut off; otherwise ().
    """

    lease_id: int
    group: int
    prompt: Prompt
    turns: tuple[Turn, ...]
    finish_reason: FinishReason
    reward_parts: Mapping[str, float] = field(default_factory=dict)  # each reward by name, unweighted
    info: Mapping[str, float] = field(default_factory=dict)  # the environment's measures, last values
    truncated_context: tuple[int, ...] = ()
    # Reason of a failure: an InputError if the user can correct it
    error: WhetstoneError | None = None
    baseline: float | None = None  # expected reward of the reference on this prompt, in a data set
    from_data: bool = False  # True: a row of a data set; its `behavior_logprobs` are the reference model's
    turn_parts: tuple[Mapping[str, float], ...] = ()  # `reward_parts` of each answer, if each has a score
    reward_values: Mapping[str, float] = field(default_factory=dict)  # named by rewards: "judge/format"
    comment: str = ""  # the rewards' comments
    # Shares of the single rewards in the total, summed over turns; {}: unknown, as in a data set's row
    reward_terms: Mapping[str, Term] = field(default_factory=dict)
    # Prompt of a policy that teaches itself, longer than the student's; (): this rollout has none
    teacher_context: tuple[int, ...] = ()
    teacher: TeacherScores | None = None  # None: no teacher behind an address has scored the rollout

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
        """Return the rewards of each judged text: of each answer, or of the whole rollout."""
        return self.turn_parts or (self.reward_parts,)

    @property
    def total_reward(self) -> float:
        """Return the sum of the turns' rewards; for several roles, the mean of their sums."""
        return sum(turn.reward or 0.0 for turn in self.turns) / max(1, len(self.roles))

    def _aligned(self, fill: Any, of_turn: Any) -> tuple[Any, ...]:
        """Return one entry for each token: `fill` for observations, `of_turn(turn)` for answers."""
        return tuple(
            entry for turn in self.turns for entry in ((fill,) * len(turn.observation) + tuple(of_turn(turn)))
        )
