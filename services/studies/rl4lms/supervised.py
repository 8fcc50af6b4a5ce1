"""Translate `alg` of a supervised file: Hugging Face's training arguments, in iterations of 100 steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import gcd
from typing import Any

from contracts.errors import InputError
from services.studies.rl4lms.alg import DECAYS, FLOAT32
from services.studies.rl4lms.datapool import Pool
from services.studies.rl4lms.decoding import POST_PROCESSING, Decoding, Frame, decoding, evaluations
from services.studies.rl4lms.findings import Findings
from services.studies.rl4lms.reading import Section

STEPS = 100  # optimiser steps of an iteration, or a divisor that also divides the interval of evaluations
# Limits of the tokenizers: T5's for prompt and reference each, GPT-2's for both together.
T5_TOKENS, GPT2_TOKENS = 512, 1024
# Hugging Face's defaults that differ from our classes' own
BATCH_SIZE, LEARNING_RATE, EPOCHS, SCHEDULE = 8, 5e-5, 3.0, "linear"
LOGGING_STEPS = SAVE_STEPS = 500
THEIRS = "Hugging Face's"
SCHEDULES = {
    "constant": "constant",
    "constant_with_warmup": "constant",
    "linear": "linear",
    "cosine": "cosine",
    "cosine_with_restarts": "cosine",
    "polynomial": "linear",
}
KEPT = (
    ("max_grad_norm", "algorithm.max_grad_norm"),
    ("weight_decay", "algorithm.optimizer.weight_decay"),
    ("adam_beta1", "algorithm.optimizer.beta1"),
    ("adam_beta2", "algorithm.optimizer.beta2"),
    ("adam_epsilon", "algorithm.optimizer.eps"),
)
OF_THE_MACHINE = """
fp16 bf16 fp16_full_eval tf32 no_cuda use_cpu local_rank deepspeed sharded_ddp fsdp
dataloader_num_workers dataloader_pin_memory dataloader_drop_last group_by_length
half_precision_backend per_device_eval_batch_size eval_accumulation_steps remove_unused_columns
prediction_loss_only
"""
OF_THE_RUN = """
output_dir overwrite_output_dir seed data_seed run_name report_to logging_dir disable_tqdm do_train
do_eval do_predict evaluation_strategy eval_strategy eval_steps save_strategy logging_strategy
logging_first_step log_level load_best_model_at_end metric_for_best_model greater_is_better
push_to_hub resume_from_checkpoint ignore_data_skip optim label_names
"""


@dataclass(frozen=True, slots=True)
class Supervised:
    model: str
    seq2seq: bool


def alg(
    section: Section, pool: Pool, train_rows: int | None, longest: int | None, *, compat: bool
) -> tuple[Supervised, Findings]:
    """Translate the model, its training and the decoding of evaluations.

    Args:
        train_rows: number of training examples; None: the pool's number, if it is known.
        longest: `tokenizer.max_length`.
    """
    findings = Findings()
    findings.put("algorithm.name", "supervised", section.key("id"), section.text("id"))
    kind = section.text("model_type")
    if kind not in ("causal", "seq2seq"):
        raise section.refuse("model_type", "expected causal or seq2seq")
    model = section.text("model_name")
    findings.put("model.path", model, section.key("model_name"))
    _training(section.part("training_args"), train_rows or pool.train_rows, findings)
    if kind == "seq2seq" and findings.options.get("algorithm.optimizer.weight_decay"):
        findings.put(DECAYS, "all_but_biases", "always", "RL4LMs decays T5's norms")
    _lengths(section, kind == "seq2seq", longest, findings)
    for option, value in FLOAT32.items():
        findings.put(option, value, "always", "RL4LMs computes in float32")
    _drawn(section, Frame(kind == "seq2seq", longest, None, compat), findings)
    if kind == "causal":
        findings.warn(
            f"{section.key('model_type')}: causal: RL4LMs learns prompt and reference as one text, without "
            "the end token. "
            + (
                "The experiment does the same (algorithm.loss_on=text)"
                if compat
                else "Whetstone learns the reference and its end token (algorithm.loss_on)"
            )
        )
        if compat:
            findings.put("algorithm.loss_on", "text", "--compat", "the whole text")
    section.finish()
    return Supervised(model, kind == "seq2seq"), findings


def _lengths(section: Section, seq2seq: bool, longest: int | None, findings: Findings) -> None:
    """Translate limits: the tokenizer's for training texts, `tokenizer.max_length` for evaluation prompts."""
    if seq2seq:
        findings.put("rollout.max_prompt_tokens", T5_TOKENS, section.where, "T5's tokenizer")
        findings.put("rollout.max_tokens", T5_TOKENS, section.where, "T5's tokenizer")
    else:
        findings.put("rollout.max_tokens", GPT2_TOKENS, section.where, "GPT-2's tokenizer")
    if longest is not None:
        findings.put("evaluation.max_prompt_tokens", longest, "tokenizer.max_length")
    elif not seq2seq:
        findings.warn(
            "tokenizer.max_length is missing, so RL4LMs takes the longest prompt that the tokenizer allows. "
            "Whetstone refuses an evaluation prompt that does not fit; evaluation.max_prompt_tokens=NUMBER "
            "cuts it"
        )


def _drawn(section: Section, frame: Frame, findings: Findings) -> None:
    """Translate `generation_kwargs`, which concern only evaluations in supervised training."""
    kwargs = section.part("generation_kwargs", {})
    if POST_PROCESSING not in kwargs:
        findings.warn(
            f"{kwargs.key(POST_PROCESSING)} is missing, and RL4LMs' supervised training fails without it"
        )
    post = kwargs.take(POST_PROCESSING, None)
    if post is not None:
        _post_processing(kwargs.part(POST_PROCESSING), findings)
    drawn, notes = decoding(kwargs, frame)
    findings.add(notes)
    evaluations(drawn, Decoding(findings.options["rollout.max_tokens"]), kwargs, findings)


def _post_processing(section: Section, findings: Findings) -> None:
    name = section.text("id")
    if name != "three_sentence_summary":
        raise section.refuse("id", "expected three_sentence_summary, the only one in RL4LMs")
    findings.put("evaluation.post_processor", name, section.key("id"))
    section.part("args", {}).finish()
    section.finish()


def _training(arguments: Section, rows: int | None, findings: Findings) -> None:
    """Translate `training_args`."""
    batch = arguments.integer("per_device_train_batch_size", BATCH_SIZE, least=1)
    several = arguments.integer("gradient_accumulation_steps", 1, least=1)
    key = "per_device_train_batch_size"
    source_value = arguments.says(key, BATCH_SIZE, THEIRS)
    if several > 1:
        source_value += f" × {several} (gradient_accumulation_steps)"
    findings.put("algorithm.minibatch_size", batch * several, arguments.key(key), source_value)
    rate = float(arguments.number("learning_rate", LEARNING_RATE))
    source_value = arguments.says("learning_rate", LEARNING_RATE, THEIRS)
    findings.put("algorithm.learning_rate", rate, arguments.key("learning_rate"), source_value)
    for key, option in KEPT:
        if (value := arguments.number(key, None)) is not None:
            findings.put(option, float(value), arguments.key(key))
    if arguments.flag("gradient_checkpointing", False):
        findings.put("model.gradient_checkpointing", True, arguments.key("gradient_checkpointing"))
    if (kept := arguments.integer("save_total_limit", None)) is not None:
        findings.put("keep_checkpoints", max(1, kept), arguments.key("save_total_limit"), kept)
    _length(arguments, batch * several, rows, findings)
    for keys in (OF_THE_MACHINE, OF_THE_RUN):
        findings.leave_all(arguments, keys.split(), "Whetstone's own settings apply")
    arguments.finish()


def _length(arguments: Section, batch: int, rows: int | None, findings: Findings) -> None:
    """Translate epochs into iterations, and set the schedule and the evaluations' cadence."""
    log_every = arguments.integer("logging_steps", LOGGING_STEPS)
    steps = gcd(STEPS, log_every) if log_every > 0 else STEPS
    prompts = steps * batch
    findings.put("rollout.prompts_per_iteration", prompts, arguments.where, f"{steps} steps of {batch}")
    epochs = float(arguments.number("num_train_epochs", EPOCHS))
    total = arguments.integer("max_steps", None)
    if total is not None and total > 0:
        count = math.ceil(total / steps)
        findings.put("iterations", count, arguments.key("max_steps"), total)
    elif rows is None:
        raise InputError(
            f"{arguments.place('num_train_epochs')}: {epochs:g} epochs, but the size of the data is unknown. "
            "Give --train-rows NUMBER"
        )
    else:
        count = max(1, round(epochs * rows / prompts))
        source_value = f"{arguments.says('num_train_epochs', EPOCHS, THEIRS)} × about {rows} rows"
        findings.put("iterations", count, arguments.key("num_train_epochs"), source_value)
        findings.warn(
            f"{arguments.key('num_train_epochs')}: {epochs:g} epochs of about {rows} rows are {count} "
            f"iterations of {prompts} prompts. If your data have another size, give --train-rows NUMBER or "
            "iterations=NUMBER"
        )
    source_value = arguments.says("logging_steps", LOGGING_STEPS, THEIRS)
    findings.put("evaluate_every", max(1, log_every // steps), arguments.key("logging_steps"), source_value)
    save = arguments.integer("save_steps", SAVE_STEPS)
    source_value = arguments.says("save_steps", SAVE_STEPS, THEIRS)
    findings.put("save_every", max(1, round(save / steps)), arguments.key("save_steps"), source_value)
    _schedule(arguments, steps, count, findings)


def _schedule(arguments: Section, steps: int, iterations: int, findings: Findings) -> None:
    name: Any = arguments.text("lr_scheduler_type", SCHEDULE)
    if name not in SCHEDULES:
        raise arguments.refuse("lr_scheduler_type", f"expected one of {', '.join(SCHEDULES)}")
    source_value = arguments.says("lr_scheduler_type", SCHEDULE, THEIRS)
    findings.put("learner.lr_schedule", SCHEDULES[name], arguments.key("lr_scheduler_type"), source_value)
    if name in ("cosine_with_restarts", "polynomial"):
        findings.warn(
            f"{arguments.key('lr_scheduler_type')}: Whetstone has no schedule {name}, and takes "
            f"{SCHEDULES[name]}"
        )
    warm = arguments.integer("warmup_steps", 0) or 0
    share = arguments.number("warmup_ratio", 0.0) or 0.0
    warm_iterations = math.ceil(warm / steps) if warm else math.ceil(share * iterations)
    if warm_iterations:
        key = "warmup_steps" if warm else "warmup_ratio"
        source_value = arguments.says(key) if warm else f"{arguments.says(key)} of all"
        findings.put("learner.warmup_iterations", warm_iterations, arguments.key(key), source_value)
    elif name == "constant_with_warmup":
        findings.warn(
            f"{arguments.key('lr_scheduler_type')}: constant_with_warmup without warmup_steps is constant "
            "from the start"
        )
