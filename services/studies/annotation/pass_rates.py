"""`whetstone annotate --pass-rate`: answer each training prompt several times, and keep useful prompts.

task ─▶ k answers a prompt ─▶ rewards ─▶ OUTPUT/rewards/part-….parquet ─▶ kept_prompts.py

Each part waits for the previous part's last answer. So after a kill a deterministic engine gets the same
batches, and writes the same texts.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from contracts.conversations.chat import Chat
from contracts.conversations.thoughts import opening_mark
from contracts.errors import InputError
from contracts.rollout import Lease, Prompt, Rollout, Sampling
from contracts.scores import Score
from reward_servers.local import LocalRewardClient
from reward_servers.part_checks import check_at_hand
from reward_servers.user_rewards.trial import trial_of
from services.config.evaluation_settings import DRAWN_AS
from services.config.reward_view import as_sample
from services.data.annotated.parts import (
    TOLD,
    Parts,
    claimed,
    fingerprint,
    reference_fingerprint,
    settle_manifest,
)
from services.data.annotated.rows import weights_of
from services.data.tasks.response_row import ResponseRow
from services.data.tokens.prompt_limit import PromptLimit
from services.data.tokens.prompt_tokens import PromptTokens, sides_of
from services.inference.generation.run_model import RunModel, room_for_prompt
from services.inference.generation.writing import engine_for, start_worker, written
from services.models.quiet import quiet_transformers
from services.runs.tracking.progress import Progress
from services.studies.annotation.annotate import as_read_here
from services.studies.annotation.kept_prompts import keep
from services.studies.annotation.pass_rate_settings import PassRateSettings
from services.terminal.doing import doing
from services.terminal.interrupts import on_interruption
from services.terminal.screens import Screen
from services.training.sources.leasing import evaluation_leases
from services.training.sources.reading import ASKED
from services.training.sources.row_rewards import check_some

ANSWERS = pa.schema(
    [("row", pa.int64()), ("rewards", pa.list_(pa.float64())), ("texts", pa.list_(pa.string()))]
)


def filter_by_pass_rate(settings: PassRateSettings) -> None:
    """Answer and score the missing prompts, write the kept ones, and report the number of dropped ones.

    Raises:
        InputError: model or task can't be used, the folder holds something else, or no prompt is kept.
        RunError: a reward scores nothing.
    """
    check_at_hand("reward", settings.reward)
    model = as_read_here(settings.model, settings)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    folder, progress = Path(settings.output), Progress(Screen())
    on_interruption(lambda: f"what was done is kept in {folder}; the same command continues from there")
    try:
        with doing("reading prompts"):
            prompts = list(settings.task.prompts("train"))
        with claimed(folder):
            settle_manifest(folder, _manifest(settings, model, prompts), overwrite=settings.overwrite)
            parts = Parts(folder / "rewards", len(prompts), settings.prompts_per_part)
            (folder / "train.jsonl").unlink(missing_ok=True)  # its limits may differ
            if parts.missing():
                _answer(settings, model, prompts, parts, progress)
            keep(settings, parts, progress.note)
    finally:
        progress.stop()


@dataclass(frozen=True, slots=True)
class Asking:
    """The worker's leases, and the layout of their prompts.

    Example: `Asking(leases, opened="<think>")`
    """

    leases: list[Lease]
    opened: str | None  # the mark with which the template opens each answer's thought


def _answer(
    settings: PassRateSettings, model: RunModel, prompts: Sequence[Prompt], parts: Parts, progress: Progress
) -> None:
    """Write, score and save the answers of the missing parts."""
    asking = _asking(settings, model, prompts)
    client = LocalRewardClient(settings.reward)
    for warning in client.try_out(trial_of(prompts)):
        progress.note(warning, "warning")
    missing = parts.missing()
    num_missing = sum(len(parts.rows(start)) for start in missing)
    if num_missing < len(prompts):
        progress.note(f"{len(prompts) - num_missing} of {len(prompts)} prompts are answered already")
    worker = start_worker(model, engine_for(settings.rollout.engine, len(asking.leases), model))
    progress.phase("prompts", num_missing)
    try:
        for start in missing:
            rows, k = parts.rows(start), settings.samples
            leases = asking.leases[rows.start * k : rows.stop * k]
            by_id = {r.lease_id: r for finished in written(worker, model, leases) for r in finished}
            rollouts = [by_id[lease.id] for lease in leases]
            samples = [as_sample(rollout, "train", asking.opened) for rollout in rollouts]
            scores = client.submit(samples).result()
            check_some(settings.reward, f"answers to the prompts from {start} on", scores)
            parts.write(start, _table(rows, rollouts, scores, k))
            progress.advance("prompts", len(rows))
    finally:
        worker.close()


def _table(rows: range, rollouts: Sequence[Rollout], scores: Sequence[Score], k: int) -> pa.Table:
    places = range(0, len(scores), k)
    texts = [rollout.text.encode("utf-8", "backslashreplace").decode() for rollout in rollouts]
    columns = {
        "row": list(rows),
        "rewards": [[score.total for score in scores[place : place + k]] for place in places],
        "texts": [texts[place : place + k] for place in places],
    }
    return pa.table(columns, schema=ANSWERS)


def _asking(settings: PassRateSettings, model: RunModel, prompts: Sequence[Prompt]) -> Asking:
    """Return the leases of all prompts, numbered from the first so that a continued run has the same seeds.

    Raises:
        InputError: a prompt is longer than the model can read.
    """
    from transformers import AutoTokenizer  # the import takes seconds

    quiet_transformers()
    tokenizer = AutoTokenizer.from_pretrained(model.path, trust_remote_code=False)
    chat = None if model.chat is None else Chat(tokenizer, model.chat)
    limit = PromptLimit(settings.rollout.max_prompt_tokens, sides_of(None, settings.task)["train"])
    to_tokens = PromptTokens(tokenizer, limit, chat)
    leases = evaluation_leases(
        prompts, to_tokens, _sampling(settings), samples=settings.samples, seed=settings.seed
    )
    room = room_for_prompt(model, settings.rollout.max_tokens, "rollout.max_tokens=")
    for lease in leases:
        if room is not None and len(lease.tokens) > room:
            raise InputError(
                f"prompt {lease.prompt.id} has {len(lease.tokens)} tokens, and the model has room for {room} "
                f"beside an answer of {settings.rollout.max_tokens}: expected shorter ones; "
                f"rollout.max_prompt_tokens={room} cuts them"
            )
    opened = None if chat is None else opening_mark(chat.text([ASKED])) or ""
    return Asking(leases, opened)


def _sampling(settings: PassRateSettings) -> Sampling:
    rollout = settings.rollout
    drawn = {name: getattr(rollout, name) for name in DRAWN_AS}
    return Sampling(**drawn, ignore_eos=rollout.ignore_eos)


def _manifest(settings: PassRateSettings, model: RunModel, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """Return the inputs of texts and rewards; limits of the rate may change."""
    rollout = settings.rollout
    return {
        "rows": {
            "sha256": fingerprint(ResponseRow(prompt, "", 0, True, 0) for prompt in prompts),
            "num_rows": len(prompts),
            "rows_per_part": settings.prompts_per_part,
            "samples": settings.samples,
            "seed": settings.seed,
            "model": reference_fingerprint(model.path, model.files.folder),
            "chat": None if model.chat is None else model.chat.plain(),
            "sampling": asdict(_sampling(settings)),
            "max_prompt_tokens": rollout.max_prompt_tokens,
            "engine": rollout.engine,
            "dtype": rollout.dtype,
            TOLD: model.path,
        },
        "rewards": {"parts": {row["label"]: row for row in weights_of(settings.reward)}},
    }
