"""`whetstone annotate`: add rewards, reference log-probabilities and values to a data set's responses.

responses ─▶ rewards ─▶ reference ─▶ value ─▶ OUTPUT/annotated.parquet

`services/training/sources/` has a file for each stage: row_rewards.py, reference.py and prompt_values.py.
`services/data/annotated/rows.py` merges them.

Each stage saves its results, so the same command continues after a kill.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.conversations.chat import Chat
from contracts.conversations.chat_settings import ChatSettings
from contracts.errors import InputError
from reward_servers.part_checks import check_at_hand
from reward_servers.user_rewards.own import wants_groups
from reward_servers.user_rewards.trial import Trial, trial_of
from services.config.post_processing import find_post_processor
from services.data.annotated.parts import (
    TOLD,
    Parts,
    claimed,
    cuts_between,
    fingerprint,
    read_manifest,
    reference_fingerprint,
    settle_manifest,
)
from services.data.annotated.responses import Responses, read_responses
from services.data.annotated.rows import merge, weights_of
from services.data.tasks.columns import not_read
from services.data.tasks.responses import ResponseRow
from services.data.tokens.cut_prompts import CutPrompts
from services.data.tokens.prompt_tokens import tools_warnings
from services.data.tokens.response_tokens import ResponseTokens, vocabulary_fingerprint
from services.inference.generation.run_model import RunModel, find_model, room_for_prompt
from services.models.chat_template import form_of
from services.models.quiet import quiet_transformers
from services.runs.tracking.progress import Progress
from services.studies.annotation.report import report
from services.studies.annotation.settings import AnnotateSettings
from services.terminal.doing import doing
from services.terminal.interrupts import on_interruption
from services.terminal.screens import Screen
from services.training.sources.prompt_values import (
    ValueFiles,
    Write,
    distinct_prompts,
    generate,
    leases_for,
    num_failed,
    read_values,
    score_failed,
    train,
    value_all,
)
from services.training.sources.row_rewards import (
    Execute,
    check_inputs,
    failed_parts,
    score_here,
    score_missing,
)

if TYPE_CHECKING:
    from services.studies.annotation.pass_rate_settings import PassRateSettings
    from services.training.sources.reference import Reference


def annotate(settings: AnnotateSettings) -> None:
    """Run the annotation's missing stages and parts, and print a report.

    Raises:
        InputError: the model is missing, rows can't be used, or the folder holds something else; raised
            before the first score.
        RunError: a reward server can't be reached, or scores nothing.
    """
    check_at_hand("reward", settings.reward)
    model = None if settings.reference is None else as_read_here(settings.reference, settings)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    progress = Progress(Screen())
    on_interruption(
        lambda: f"what was done is kept in {settings.output}; the same command continues from there"
    )
    try:
        with doing("reading responses and the reference's tokenizer"):
            annotation = Annotation(settings, model, progress)
        with claimed(annotation.folder):
            annotation.run()
    finally:
        progress.stop()


class Annotation:
    """One data set's annotation, stage by stage."""

    def __init__(self, settings: AnnotateSettings, model: RunModel | None, progress: Progress) -> None:
        self.settings, self.model, self.progress = settings, model, progress
        self.folder = Path(settings.output)
        self.responses = read_responses(settings.data, settings.task, settings.split)
        self.rows = self.responses.rows
        check_inputs(settings.reward, self.rows, "data" if settings.task is None else "task")
        self.validation = self._validation()
        self.tokens = None if model is None else _tokens(model, settings)
        self.num_cut = 0
        self.cut_prompts: list[CutPrompts] = []
        if self.tokens is not None:
            self.num_cut = self.tokens.check(self.rows)
            self.tokens.check_prompts(self.validation)
            prompts = {row.prompt.id: row.prompt for row in self.rows}.values()
            of_split = ((settings.split, list(prompts)), ("validation", self.validation))
            self.cut_prompts = [self.tokens.cut_prompts(*arguments) for arguments in of_split]
        self.whole_groups = self._wants_groups()
        groups = [row.group for row in self.rows]
        cuts = cuts_between(groups, settings.rows_per_part) if self.whole_groups else None
        self.rewards = Parts(self.folder / "rewards", len(self.rows), settings.rows_per_part, cuts)
        self.reference = replace(self.rewards, folder=self.folder / "reference")
        self.values = ValueFiles(self.folder / "value")

    def run(self) -> None:
        """Run all stages, and write the merged result and the report.

        Raises:
            InputError: the folder holds results of other settings.
        """
        manifest = self._manifest()
        self._check_kept_rewards(manifest)
        settle_manifest(self.folder, manifest, overwrite=self.settings.overwrite)
        self._say_what_was_left_out(self.responses)
        self._score_and_generate()
        self._ask_reference()
        # Columns of an earlier run stay.
        reference = None if self.reference.missing() else self.reference
        values = read_values(self.values) if self.values.values.exists() else None
        merge(self.folder, self.rewards, reference, values)
        report(self.folder, self.settings, self.progress, num_cut=self.num_cut)

    def _wants_groups(self) -> bool:
        """Return whether the new or kept rewards score whole groups."""
        if self.settings.reward:
            return wants_groups(self.settings.reward)
        return bool(read_manifest(self.folder).get("rows", {}).get("whole_groups"))

    def _check_kept_rewards(self, wanted: Mapping[str, Any]) -> None:
        """Check that an earlier command's other rewards are finished.

        Changed rows delete them, so nothing remains to check.
        """
        there = read_manifest(self.folder)
        kept, missing = there.get("rewards", {}).get("parts"), self.rewards.missing()
        had, has = ({**manifest.get("rows", {}), TOLD: None} for manifest in (there, wanted))
        if kept and missing and had == has and not self.settings.reward:
            raise InputError(
                f"output={self.folder}: {len(missing)} of {len(self.rewards.starts)} parts lack the scores "
                f"of {', '.join(kept)}; expected all: repeat the reward=… of the command that began them"
            )

    def _score_and_generate(self) -> None:
        """Run the stages that need the reward servers."""
        settings = self.settings
        again = failed_parts(self.rewards) if settings.retry_failed else []
        generates = settings.value is not None and not self.values.generations.exists()
        retries = settings.value is not None and settings.retry_failed and num_failed(self.values) > 0
        if not (self.rewards.missing() or again or generates or retries):
            return
        trial = trial_of((row.prompt for row in self.rows), generated=False)
        with _services(settings, trial, self.progress) as execute:
            self._begin("rewards", self.rewards, again)
            advance = self._advance("rewards")
            score_missing(self.rows, settings.reward, self.rewards, execute, advance, again)
            if retries:
                score_failed(self.validation, settings.reward, execute, self.values)
            if generates:
                assert self.model is not None and self.tokens is not None and settings.value is not None
                leases = leases_for(self.validation, self.tokens.of_prompt, settings.rollout, settings.value)
                self.progress.note(f"the reference writes {len(leases)} responses to validation prompts")
                with _writer(settings, self.model, self.progress) as write:
                    post_process = find_post_processor(settings.value.post_processor)
                    generate(leases, write, settings.reward, execute, self.values, post_process)

    def _ask_reference(self) -> None:
        """Run the stages that need the reference model in this process."""
        values = self.settings.value is not None and not self.values.values.exists()
        if self.model is None or self.tokens is None or not (self.reference.missing() or values):
            return
        with doing("loading the reference", self.progress.note):
            from services.training.sources.reference import Reference, score_missing

            reference = Reference(self.model.path, self.settings.learner)
        self._begin("reference", self.reference)
        score_missing(self.rows, self.tokens, reference, self.reference, self._advance("reference"))
        if values:
            self._learn_values(reference, self.tokens)

    def _learn_values(self, reference: "Reference", tokens: ResponseTokens) -> None:
        assert self.settings.value is not None
        trained = train(self.settings.reward, tokens.of_prompt, reference, self.settings.value, self.values)
        self.progress.phase("value", len(distinct_prompts(self.rows)))
        value_all(self.rows, trained, tokens.of_prompt, reference, self.values, self._advance("value"))

    def _validation(self) -> list[Any]:
        """Return the prompts for learning values."""
        settings = self.settings
        if settings.value is None:
            return []
        if settings.split == "validation":
            raise InputError(
                "value=true learns from the validation prompts, so they can't be annotated, too; expected "
                "split=train or test"
            )
        if settings.task is not None:
            return list(settings.task.prompts("validation"))
        return distinct_prompts(read_responses(settings.data, None, "validation").rows)

    def _manifest(self) -> dict[str, Any]:
        """Return each stage's inputs and settings."""
        settings, model = self.settings, self.model
        manifest: dict[str, Any] = {
            "rows": {
                "sha256": fingerprint(self.rows),
                "num_rows": len(self.rows),
                "rows_per_part": settings.rows_per_part,
                **({"whole_groups": True} if self.whole_groups else {}),
                TOLD: {"task": settings.held_out_task},
            },
        }
        if settings.reward:
            manifest["rewards"] = {
                "parts": {part.label: {"name": part.name, **part.options} for part in settings.reward},
                TOLD: weights_of(settings.reward),
            }
        if model is not None and self.tokens is not None:
            manifest["reference"] = {
                "sha256": reference_fingerprint(model.path, model.files.folder),
                "vocabulary": vocabulary_fingerprint(self.tokens.tokenizer),
                "max_prompt_tokens": settings.rollout.max_prompt_tokens,
                "truncation_side": settings.prompt_limit.side,
                "max_tokens": settings.rollout.max_tokens,
                "autocast": settings.learner.autocast,
                TOLD: model.path,
            }
            if model.chat is not None:
                manifest["reference"]["chat"] = model.chat.plain()
        if settings.value is not None:
            sampled = {"num_prompts", "samples_per_prompt", "temperature", "seed", "num_beams"}
            sampled |= {"repetition_penalty", "post_processor"}
            prompts = [ResponseRow(prompt, "", 0, True, 0) for prompt in self.validation]
            manifest["generations"] = {
                "prompts": fingerprint(prompts),
                "stop": list(settings.rollout.stop),
                **settings.value.model_dump(mode="json", include=sampled),
                "parts": manifest["rewards"]["parts"],
            }
            manifest["value"] = {
                **settings.value.model_dump(mode="json", exclude=sampled - {"seed"}),
                "rewards": weights_of(settings.reward),
            }
        return manifest

    def _begin(self, name: str, parts: Parts, again: Collection[int] = ()) -> None:
        num_missing = sum(len(parts.rows(start)) for start in {*parts.missing(), *again})
        if done := parts.num_rows - num_missing:
            self.progress.note(f"{name}: {done} of {parts.num_rows} rows are there already")
        self.progress.phase(name, num_missing)

    def _advance(self, name: str) -> Callable[[int], None]:
        return lambda count: self.progress.advance(name, count)

    def _say_what_was_left_out(self, responses: Responses) -> None:
        reasons = ", ".join(f"{count} {reason}" for reason, count in responses.skipped.items())
        self.progress.note(f"{len(self.rows)} responses" + (f"; left out: {reasons}" if reasons else ""))
        for line in not_read({"": responses.columns}):
            self.progress.note(line)
        if responses.without_prompts:
            self.progress.note(
                "every response began with its prompt: what stands behind the prompt is the response"
            )
        for cut in self.cut_prompts:
            if cut.num_cut:
                self.progress.note(f"warning: {cut}")
        if self.tokens is not None:
            for warning in tools_warnings(self.tokens.of_prompt.chat, (row.prompt for row in self.rows)):
                self.progress.note(f"warning: {warning}")


def as_read_here(path: str, settings: "AnnotateSettings | PassRateSettings") -> RunModel:
    """Return a model's files, with the settings' rollouts and chat template (default: the run's)."""
    model = find_model(path)
    if model.of_run and settings.chat == ChatSettings():
        return replace(model, rollout=settings.rollout)
    is_raw = getattr(settings.task, "raw_text", False) and not settings.chat.is_explicit
    chat = form_of(settings.chat, "plain" if is_raw else "auto", model.files.tokenizer_folder)
    return replace(model, rollout=settings.rollout, chat=chat)


def _tokens(model: RunModel, settings: AnnotateSettings) -> ResponseTokens:
    from transformers import AutoTokenizer  # the import takes seconds

    quiet_transformers()
    tokenizer = AutoTokenizer.from_pretrained(model.path, trust_remote_code=False)
    chat = None if model.chat is None else Chat(tokenizer, model.chat)
    max_tokens = settings.rollout.max_tokens
    room = room_for_prompt(model, max_tokens, "rollout.max_tokens=")
    return ResponseTokens(tokenizer, settings.prompt_limit, max_tokens, room, chat)


@contextlib.contextmanager
def _services(settings: AnnotateSettings, trial: Trial, progress: Progress) -> Iterator[Execute]:
    """Start the scorer, and stop it at the end.

    Raises:
        InputError: a user's reward gives a wrong answer in its trial.
    """
    if settings.executor == "here" or not settings.reward:
        from reward_servers.local import LocalRewardClient

        patience_s = settings.reward_servers.patience_s(part.label for part in settings.reward)
        client = LocalRewardClient(settings.reward, settings.reward_servers)
        for warning in client.try_out(trial):
            progress.note(warning, "warning")
        yield score_here(client, patience_s)
        return
    with doing("loading Ray", progress.note):
        from services.cluster.ray_cluster import cluster
        from services.studies.annotation.on_ray import scored_on_cluster

    def warn(text: str) -> None:
        progress.note(text, "warning")

    with contextlib.ExitStack() as ends:
        with doing("starting Ray", progress.note):
            ends.enter_context(cluster(warn))
        with doing("starting the reward servers", progress.note):
            execute = ends.enter_context(
                scored_on_cluster(
                    settings.reward, settings.reward_servers, settings.num_in_flight, trial, warn
                )
            )
        yield execute


@contextlib.contextmanager
def _writer(settings: AnnotateSettings, model: RunModel, progress: Progress) -> Iterator[Write]:
    """Yield a function that generates texts with the reference model; stop its workers at the end."""
    if settings.executor == "here":
        from services.inference.generation.writing import engine_for, write

        yield lambda leases: write(model, engine_for(settings.rollout.engine, len(leases), model), leases)
        return
    from services.studies.annotation.on_ray import workers

    with workers(model, progress.note) as write_on_cluster:
        yield write_on_cluster
