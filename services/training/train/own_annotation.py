"""Annotate a run's own rows at its start, with the learner, the workers and the reward servers of the run.

    rows ─▶ rewards ─▶ the learner's log-probabilities before any update ─▶ values ─▶ RUN/data/SPLIT/

A stage saves its results part by part, so a resumed run computes nothing again. The manifest records the
rows, model and limits of the results, so that a run never mixes different ones.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from contracts.errors import InputError, LearnerLost
from contracts.rollout import Rollout
from reward_servers.user_rewards.own import wants_groups
from services.config.settings import RunSettings
from services.config.value_stage import ValueStage
from services.data.annotated.parts import (
    Parts,
    cuts_between,
    fingerprint,
    reference_fingerprint,
    settle_manifest,
)
from services.data.annotated.rows import merge, weights_of
from services.data.tasks.base import Split
from services.data.tasks.responses import ResponseRow
from services.data.tokens.response_tokens import ResponseTokens, Tokens, vocabulary_fingerprint
from services.models.adapters import for_use, model_in_words
from services.models.files import read_model
from services.models.tokenizer import load_tokenizer
from services.runs.tracking.console import Console
from services.terminal.readable import duration
from services.training.loop.controller import Clients
from services.training.loop.learner_restarts import LearnerRestarts
from services.training.sources.data_needs import Needs, needs_of
from services.training.sources.held_out_rows import held_out_rows
from services.training.sources.own_rows import is_annotated, kept_in, rows_of, tokens_of
from services.training.sources.prompt_values import (
    ValueFiles,
    distinct_prompts,
    generate,
    leases_for,
    read_values,
    train,
    value_all,
)
from services.training.sources.reference import as_rollout, as_table
from services.training.sources.row_rewards import Execute, score_here, score_missing

ROWS_PER_PART = 64
NOTE_EVERY_S = 10.0


def annotate_own_rows(
    settings: RunSettings, clients: Clients, console: Console, check_stop: Callable[[], None]
) -> None:
    """Compute the numbers that the algorithm needs and that the run's folder lacks.

    Raises:
        InputError: the folder has the annotation of other rows, of another model or with other limits.
        RunError: a reward scored nothing.
    """
    if settings.data is None or not settings.data.has_rows:
        return
    needs = needs_of(settings.algorithm, settings.reward, settings.data)
    if not needs.stages:
        return
    splits: dict[Split, Needs] = {"train": needs}
    if settings.algorithm.traits.prefers and needs.reference:  # held-out responses are compared, too
        only = replace(needs, scores=False, values=False, rewards=())
        splits |= dict.fromkeys(settings.evaluated_splits, only)
    common = _Common(settings, clients, console, check_stop)
    for split, needed in splits.items():
        if split == "train":
            rows = rows_of(settings.data, split).rows
        else:
            rows = held_out_rows(settings.data, split, settings.evaluation.num_prompts)
        if rows:
            _OfSplit(common, split, needed, rows).run()


@dataclass(frozen=True)
class _Common:
    """Clients, hash and budget that the annotations of all splits share."""

    settings: RunSettings
    clients: Clients
    console: Console
    check_stop: Callable[[], None]

    @cached_property
    def model_sha256(self) -> str:
        """Return the hash of the start model's files, which may take a minute."""
        model = self.settings.model
        with self.console.doing("hashing the start model's files"):
            whole = for_use(model)
            return reference_fingerprint(whole.path, read_model(whole).folder)

    @cached_property
    def restarts(self) -> LearnerRestarts:
        """Return the budget of replacements of a lost learner."""
        return LearnerRestarts(self.settings.learner.max_restarts)

    def logprobs(self, texts: Sequence[Tokens]) -> list[list[float]]:
        """Return each text's log-probabilities. If the learner is lost, replace it and repeat the part."""
        filled = [place for place, text in enumerate(texts) if text.response]
        logprobs: list[list[float]] = [[] for _ in texts]
        if filled:
            scored = self._scored([as_rollout(place, texts[place]) for place in filled])
            for place, values in zip(filled, scored, strict=True):
                logprobs[place] = values
        return logprobs

    def _scored(self, rollouts: Sequence[Rollout]) -> list[list[float]]:
        learner = self.clients.learner
        if self.settings.rollout.sleep:  # the workers share the learner's GPU; the next leases wake them
            self.clients.workers.sleep()
        while True:
            try:
                return learner.logprobs(rollouts, lambda *_: self.check_stop())
            except LearnerLost as error:
                self.console.warn(f"{error}; {self.restarts.spend(error, 0)} starts")
            learner.restart(lambda *_: self.check_stop())


@dataclass(frozen=True)
class _OfSplit:
    """Annotation of one split's rows."""

    common: _Common
    split: Split
    needs: Needs
    rows: Sequence[ResponseRow]

    @property
    def settings(self) -> RunSettings:
        return self.common.settings

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
        """Reject existing results of other inputs; record the inputs of new results."""
        folder.mkdir(parents=True, exist_ok=True)
        try:
            settle_manifest(folder, self._manifest(tokens), overwrite=False)
        except InputError as error:
            differences = [line for line in str(error).splitlines() if line.startswith("  ")]
            raise InputError(
                f"{folder} holds results of other data or of another model:\n"
                + "\n".join(differences)
                + "\nRestore the run's first data and model, or choose another run_name="
            ) from None

    def _manifest(self, tokens: ResponseTokens) -> dict[str, Any]:
        settings = self.settings
        manifest: dict[str, Any] = {"rows": {"sha256": fingerprint(self.rows), "num_rows": len(self.rows)}}
        parts = {part.label: {"name": part.name, **part.options} for part in settings.reward}
        if self.needs.scores:
            manifest["rewards"] = {"parts": parts, "told": weights_of(settings.reward)}
        if self.needs.reference:
            limit, chat = tokens.of_prompt.limit, settings.chat_form(read_model(settings.model))
            manifest["reference"] = {
                "sha256": self.common.model_sha256,
                "vocabulary": vocabulary_fingerprint(tokens.tokenizer),
                "max_prompt_tokens": limit.max_tokens,
                "truncation_side": limit.side,
                "max_tokens": settings.rollout.max_tokens,
                "autocast": settings.learner.autocast,
                "chat": None if chat is None else chat.plain(),
                "told": model_in_words(settings.model),
            }
        if self.needs.values:
            manifest["generations"] = {"parts": parts, **self._stage.model_dump(mode="json")}
            manifest["value"] = {"rewards": weights_of(settings.reward)}
        return manifest

    @property
    def _stage(self) -> ValueStage:
        assert self.settings.data is not None
        return self.settings.data.value or ValueStage()

    @property
    def _execute(self) -> Execute:
        return score_here(
            self.common.clients.rewards, self.settings.reward_patience_s, self.common.check_stop
        )

    def _score(self, parts: Parts) -> None:
        """Score the rows if the algorithm needs rewards, otherwise save them without scores."""
        if not self.needs.scores:
            score_missing(self.rows, (), parts, self._execute, lambda _: None)
            return
        with self._step(f"rewards of the {self.split} responses", parts) as advance:
            score_missing(self.rows, self.settings.reward, parts, self._execute, advance)

    def _reference(self, parts: Parts, tokens: ResponseTokens) -> None:
        what = f"log-probabilities of the {self.split} responses under the start model"
        with self._step(what, parts) as advance:
            for start in parts.missing():
                numbers = parts.rows(start)
                texts = [tokens(self.rows[row].prompt, self.rows[row].response) for row in numbers]
                parts.write(start, as_table(numbers, texts, self.common.logprobs(texts)))
                advance(len(numbers))

    def _values(self, folder: Path, tokens: ResponseTokens) -> dict[str, float]:
        """Learn to predict the reward of the start model's responses to each prompt."""
        from services.training.sources.reference import Reference

        settings, files, stage = self.settings, ValueFiles(folder / "value"), self._stage
        check_stop = self.common.check_stop
        prompts = distinct_prompts(rows_of(settings.data, "validation").rows)
        on_cpu = settings.learner.model_copy(update={"device": "cpu"})  # the GPU is in use
        if not files.generations.exists():
            leases = leases_for(prompts, tokens.of_prompt, settings.rollout, stage)
            what = f"{len(leases)} responses of the start model to validation prompts, for the values"
            with self.common.console.doing(what):
                generate(leases, self.common.clients.workers.generate, settings.reward, self._execute, files)
        with self.common.console.doing("values of the prompts"):
            reference = Reference(for_use(settings.model).path, on_cpu)
            trained = train(settings.reward, tokens.of_prompt, reference, stage, files)
            value_all(self.rows, trained, tokens.of_prompt, reference, files, lambda _: check_stop())
        return read_values(files)

    def _step(self, what: str, parts: Parts) -> "_Step":
        total = sum(len(parts.rows(start)) for start in parts.missing())
        return _Step(what, total, self.common.console, self.common.check_stop)


class _Step:
    """Progress of a stage: its name, its number of rows, and its time."""

    def __init__(self, what: str, total: int, console: Console, check_stop: Callable[[], None]) -> None:
        self._what, self._total, self._console, self._check_stop = what, total, console, check_stop
        self._done = 0
        self._began = self._noted = time.monotonic()

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
        if now - self._noted > NOTE_EVERY_S and self._done < self._total:
            self._noted = now
            left = duration(max(1, round((now - self._began) / self._done * (self._total - self._done))))
            self._console.note(f"{self._what}: {self._done:,} of {self._total:,}, about {left} left")
