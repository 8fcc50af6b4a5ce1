"""Annotate a run's own rows at its start, with the learner, the workers and the reward servers of the run.

    rows ─▶ rewards ─▶ the learner's log-probabilities before any update ─▶ values ─▶ RUN/data/SPLIT/

A stage saves its results part by part, so a resumed run computes nothing again. The manifest says by which
rows, model and limits they were made, so a run never mixes two sorts.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from contracts.rollout import FinishReason, Rollout, Turn
from reward_servers.user_rewards.own import wants_groups
from services.annotated.parts import (
    Parts,
    cuts_between,
    fingerprint,
    reference_fingerprint,
    settle_manifest,
)
from services.annotated.rows import merge, weights_of
from services.config.settings import RunSettings
from services.config.value_stage import ValueStage
from services.loop.controller import Clients
from services.models.files import read_model
from services.models.tokenizer import load_tokenizer
from services.sources.data_needs import Needs, needs_of
from services.sources.held_out_rows import held_out_rows
from services.sources.own_rows import is_annotated, kept_in, rows_of, tokens_of
from services.sources.prompt_values import (
    ValueFiles,
    distinct_prompts,
    generate,
    leases_for,
    read_values,
    train,
    value_all,
)
from services.sources.reference import as_table
from services.sources.row_rewards import score_here, score_missing
from services.tasks.base import Split
from services.tasks.responses import ResponseRow
from services.terminal.readable import duration
from services.tokens.response_tokens import ResponseTokens, Tokens, vocabulary_fingerprint
from services.tracking.console import Console

ROWS_PER_PART = 64
TOLD_EVERY_S = 10.0


def annotate_own_rows(
    settings: RunSettings, clients: Clients, console: Console, check_stop: Callable[[], None]
) -> None:
    """Compute what the algorithm needs of the run's own rows and what the run's folder lacks.

    Raises:
        InputError: the folder holds the annotation of other rows, of another model or by other limits.
        RunError: a reward scores nothing.
    """
    if settings.data is None or not settings.data.has_rows:
        return
    needs = needs_of(settings.algorithm, settings.reward, settings.data)
    if not needs.stages:
        return
    splits: dict[Split, Needs] = {"train": needs}
    if settings.algorithm.traits.prefers and needs.reference:  # held-out responses are compared, too
        only = replace(needs, scores=False, values=False, rewards=())
        splits |= {"validation": only, "test": only}
    for split, own in splits.items():
        if split == "train":
            rows = rows_of(settings.data, split).rows
        else:
            rows = held_out_rows(settings.data, split, settings.evaluation.num_prompts)
        if rows:
            _OfSplit(settings, clients, console, check_stop, split, own, rows).run()


@dataclass(frozen=True)
class _OfSplit:
    """The annotation of one split's rows."""

    settings: RunSettings
    clients: Clients
    console: Console
    check_stop: Callable[[], None]
    split: Split
    needs: Needs
    rows: Sequence[ResponseRow]

    def run(self) -> None:
        settings, folder = self.settings, kept_in(self.settings.run_folder, self.split)
        tokens = tokens_of(settings, load_tokenizer(settings.model))
        groups = [row.group for row in self.rows]
        scores_groups = self.needs.scores and wants_groups(settings.reward)
        cuts = cuts_between(groups, ROWS_PER_PART) if scores_groups else None
        rewards = Parts(folder / "rewards", len(self.rows), ROWS_PER_PART, cuts)
        reference = replace(rewards, folder=folder / "reference")
        self._settle(folder, tokens)
        if is_annotated(folder, self.rows):
            return
        self._score(rewards)
        if self.needs.reference or self.needs.values:
            self._reference(reference, tokens)
        values = self._values(folder, tokens) if self.needs.values else None
        merge(folder, rewards, reference if self.needs.reference else None, values)

    def _settle(self, folder: Path, tokens: ResponseTokens) -> None:
        """Refuse results of something else; write down what these are results of."""
        folder.mkdir(parents=True, exist_ok=True)
        try:
            settle_manifest(folder, self._manifest(tokens), overwrite=False)
        except InputError as error:
            told = [line for line in str(error).splitlines() if line.startswith("  ")]
            raise InputError(
                f"{folder} holds what this run computed of other data, or by another model:\n"
                + "\n".join(told)
                + "\nGive back what the run began with, or choose another run_name="
            ) from None

    def _manifest(self, tokens: ResponseTokens) -> dict[str, Any]:
        settings = self.settings
        asked: dict[str, Any] = {"rows": {"sha256": fingerprint(self.rows), "num_rows": len(self.rows)}}
        parts = {part.label: {"name": part.name, **part.options} for part in settings.reward}
        if self.needs.scores:
            asked["rewards"] = {"parts": parts, "told": weights_of(settings.reward)}
        if self.needs.reference:
            limit, files = tokens.of_prompt.limit, read_model(settings.model)
            chat = settings.chat_form(files)
            asked["reference"] = {
                "sha256": reference_fingerprint(settings.model.path, files.folder),
                "vocabulary": vocabulary_fingerprint(tokens.tokenizer),
                "max_prompt_tokens": limit.max_tokens,
                "truncation_side": limit.side,
                "max_tokens": settings.rollout.max_tokens,
                "autocast": settings.learner.autocast,
                "chat": None if chat is None else chat.plain(),
                "told": settings.model.path,
            }
        if self.needs.values:
            asked["generations"] = {"parts": parts, **self._stage.model_dump(mode="json")}
            asked["value"] = {"rewards": weights_of(settings.reward)}
        return asked

    @property
    def _stage(self) -> ValueStage:
        assert self.settings.data is not None
        return self.settings.data.value or ValueStage()

    def _score(self, parts: Parts) -> None:
        """Score the rows where a reward is needed, else keep them as they are."""
        settings = self.settings
        asked = settings.reward if self.needs.scores else ()
        execute = score_here(self.clients.rewards, settings.reward_patience_s)
        if not asked:
            score_missing(self.rows, (), parts, execute, lambda _: None)
            return
        with self._step(f"rewards of the {self.split} responses", parts) as advance:
            score_missing(self.rows, asked, parts, execute, advance)

    def _reference(self, parts: Parts, tokens: ResponseTokens) -> None:
        what = f"log-probabilities of the {self.split} responses under the start model"
        with self._step(what, parts) as advance:
            for start in parts.missing():
                numbers = parts.rows(start)
                texts = [tokens(self.rows[row].prompt, self.rows[row].response) for row in numbers]
                parts.write(start, as_table(numbers, texts, self._logprobs(texts)))
                advance(len(numbers))

    def _logprobs(self, texts: Sequence[Tokens]) -> list[list[float]]:
        filled = [place for place, text in enumerate(texts) if text.response]
        found: list[list[float]] = [[] for _ in texts]
        if filled:
            rollouts = [_as_rollout(self.rows[0], place, texts[place]) for place in filled]
            scored = self.clients.learner.logprobs(rollouts, lambda *_: self.check_stop())
            for place, values in zip(filled, scored, strict=True):
                found[place] = values
        return found

    def _values(self, folder: Path, tokens: ResponseTokens) -> dict[str, float]:
        """Learn which reward the start model's own responses earn with each prompt."""
        from services.sources.reference import Reference

        settings, files, stage = self.settings, ValueFiles(folder / "value"), self._stage
        prompts = distinct_prompts(rows_of(settings.data, "validation").rows)
        own = settings.learner.model_copy(
            update={"device": "cpu"}
        )  # the learner and the workers have the GPU
        if not files.generations.exists():
            leases = leases_for(prompts, tokens.of_prompt, settings.rollout, stage)
            what = f"{len(leases)} responses of the start model to validation prompts, for the values"
            execute = score_here(self.clients.rewards, settings.reward_patience_s)
            with self.console.doing(what):
                generate(leases, self.clients.workers.generate, settings.reward, execute, files)
        with self.console.doing("values of the prompts"):
            reference = Reference(settings.model.path, own)
            trained = train(settings.reward, tokens.of_prompt, reference, stage, files)
            value_all(self.rows, trained, tokens.of_prompt, reference, files, lambda _: self.check_stop())
        return read_values(files)

    def _step(self, what: str, parts: Parts) -> "_Step":
        return _Step(
            what, sum(len(parts.rows(start)) for start in parts.missing()), self.console, self.check_stop
        )


class _Step:
    """Progress of a stage: what is computed, how far it is, and how long it took."""

    def __init__(self, what: str, total: int, console: Console, check_stop: Callable[[], None]) -> None:
        self._what, self._total, self._console, self._check_stop = what, total, console, check_stop
        self._done = 0
        self._began = self._told = time.monotonic()

    def __enter__(self) -> Callable[[int], None]:
        if self._total:
            self._console.note(f"{self._what}: {self._total:,} to compute")
        return self._advance

    def __exit__(self, kind: Any, *_: Any) -> None:
        if self._total and kind is None:
            took = duration(time.monotonic() - self._began)
            self._console.note(f"{self._what} took {took}")

    def _advance(self, count: int) -> None:
        self._check_stop()
        self._done += count
        now = time.monotonic()
        if now - self._told > TOLD_EVERY_S and self._done < self._total:
            self._told = now
            left = duration(max(1, round((now - self._began) / self._done * (self._total - self._done))))
            self._console.note(f"{self._what}: {self._done:,} of {self._total:,}, about {left} left")


def _as_rollout(row: ResponseRow, place: int, text: Tokens) -> Rollout:
    nothing = (0.0,) * len(text.response)
    turn = Turn(text.prompt, text.response, "", nothing, (0,) * len(text.response))
    return Rollout(place, place, row.prompt, (turn,), FinishReason.STOP)
