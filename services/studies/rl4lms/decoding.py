"""Translate `generation_kwargs`, the sampling options, with Hugging Face's implicit defaults."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from services.studies.rl4lms.findings import Findings
from services.studies.rl4lms.reading import Section

HIDDEN_TOP_K = 50  # generate()'s default of top_k
HIDDEN_MAX_LENGTH = 20  # generate()'s limit without max_new_tokens, prompt included
NO_COUNTERPART = {  # keys of generate() that change texts, and their neutral values
    "no_repeat_ngram_size": 0,
    "typical_p": 1.0,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "num_return_sequences": 1,
}
WITHOUT_EFFECT = ("early_stopping", "use_cache", "pad_token_id", "eos_token_id", "decoder_start_token_id")
NAMES = {  # our setting, and its names in the file
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_length",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "repetition_penalty": "repetition_penalty",
}
POST_PROCESSING = "post_processing_fn"


@dataclass(frozen=True, slots=True)
class Frame:
    """Limits of a text's length outside `generation_kwargs`."""

    seq2seq: bool
    prompt_tokens: int | None  # max_prompt_length
    episode_tokens: int | None  # max_episode_length
    compat: bool = False  # repeat RL4LMs, its faults included


@dataclass(frozen=True, slots=True)
class Decoding:
    """Settings of decoding.

    Example: RL4LMs' `{do_sample: True, min_length: 48, max_new_tokens: 48}` is
    `Decoding(max_tokens=48, min_tokens=48, top_k=50)`.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0  # 0: greedy, or beams
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    num_beams: int = 1
    length_penalty: float = 1.0  # exponent of a beam's length


def decoding(section: Section, frame: Frame) -> tuple[Decoding, Findings]:
    """Return the section's decoding; put unsupported keys and warnings into the findings."""
    findings = Findings()
    sampled = section.flag("do_sample", False)
    beams = section.integer("num_beams", 1, least=1)
    max_tokens = _max_tokens(section, frame, findings)
    min_tokens = min(section.integer("min_length", 0) or 0, max_tokens)
    temperature, top_p = section.number("temperature", None), section.number("top_p", None)
    top_k = section.integer("top_k", None)
    penalty, repetition = section.number("length_penalty", None), _repetition(section)
    _note_the_rest(section, findings)
    section.finish()
    if beams > 1 and sampled:
        findings.warn(
            f"{section.key('num_beams')}: {beams} beams with do_sample: True mean sampling from beams. "
            "Whetstone has no such sampling, and RL4LMs scores such texts wrongly. Whetstone uses plain "
            f"beam search with {beams} beams"
        )
    if beams > 1:
        weight = 1.0 if penalty is None else float(penalty)
        beamed = Decoding(max_tokens, min_tokens, 0.0, num_beams=beams, length_penalty=weight)
        return replace(beamed, repetition_penalty=repetition), findings
    if penalty is not None:
        findings.leave(section.key("length_penalty"), penalty, "has no effect with one beam")
    if not sampled:
        return Decoding(max_tokens, min_tokens, 0.0, repetition_penalty=repetition), findings
    if top_k is None:
        top_k = HIDDEN_TOP_K
        findings.warn(
            f"{section.key('top_k')} is missing, so Hugging Face samples from the {HIDDEN_TOP_K} likeliest "
            f"tokens. The experiment has top_k={HIDDEN_TOP_K}; 0 means the whole vocabulary"
        )
    drawn = Decoding(
        max_tokens,
        min_tokens,
        1.0 if temperature is None else float(temperature),
        top_k,
        1.0 if top_p is None else float(top_p),
        repetition,
    )
    return drawn, findings


def rollouts(drawn: Decoding, section: Section, findings: Findings) -> Decoding:
    """Put the decoding of rollouts into the findings; rollouts are always sampled."""
    if drawn.temperature == 0:
        theirs = (
            f"RL4LMs' rollouts use {drawn.num_beams} beams, with which its NLPO never ends"
            if drawn.num_beams > 1
            else "do_sample is not True, so RL4LMs' rollouts use greedy decoding and fail"
        )
        findings.warn(
            f"{section.where}: {theirs}. Whetstone's rollouts sample from the whole distribution instead"
        )
        drawn = Decoding(drawn.max_tokens, drawn.min_tokens, repetition_penalty=drawn.repetition_penalty)
    for key in NAMES:
        value = getattr(drawn, key)
        if value != getattr(Decoding(0), key):
            findings.put(f"rollout.{key}", value, *_key_and_value(section, key))
    return drawn


def evaluations(drawn: Decoding, rollout: Decoding, section: Section, findings: Findings) -> None:
    """Put evaluations' differences from rollouts into the findings."""
    greedy = drawn.temperature == 0
    for key in NAMES:
        value = getattr(drawn, key)
        if value == getattr(rollout, key) or (greedy and key in ("top_k", "top_p")):
            continue
        if greedy and key == "temperature":
            name = "num_beams" if drawn.num_beams > 1 else "do_sample"
            findings.put(f"evaluation.{key}", value, section.key(name), section.says(name))
        else:
            findings.put(f"evaluation.{key}", value, *_key_and_value(section, key))
    if drawn.num_beams > 1:
        findings.put("evaluation.num_beams", drawn.num_beams, section.key("num_beams"))
    if drawn.length_penalty != 1:
        findings.put("evaluation.length_penalty", drawn.length_penalty, section.key("length_penalty"))


def _key_and_value(section: Section, drawn: str) -> tuple[str, str]:
    """Return the file's key for a setting, and the file's value."""
    name = NAMES[drawn]
    if drawn == "max_tokens" and name not in section and "max_length" in section:
        name = "max_length"
    default = HIDDEN_TOP_K if drawn == "top_k" else None
    return section.key(name), section.says(name, default, "Hugging Face's")


def _repetition(section: Section) -> float:
    penalty = section.number("repetition_penalty", None)
    return 1.0 if penalty is None else float(penalty)


def _max_tokens(section: Section, frame: Frame, findings: Findings) -> int:
    new_tokens = section.integer("max_new_tokens", None, least=1)
    total = section.integer("max_length", None, least=2)
    room = frame.episode_tokens or math.inf
    if new_tokens is not None:
        if new_tokens > room:
            findings.warn(
                f"{section.key('max_new_tokens')}: {new_tokens} exceeds env.args.max_episode_length={room}, "
                f"where RL4LMs ends a text. Whetstone takes {room}"
            )
        return int(min(new_tokens, room))
    limit = total or HIDDEN_MAX_LENGTH
    # a start token counts as the first; a causal model's prompt counts whole, padded to its longest
    written = limit - 1 if frame.seq2seq else max(1, limit - (frame.prompt_tokens or 0))
    if total is not None:
        return int(min(written, room))
    used = written if frame.compat or frame.episode_tokens is None else frame.episode_tokens
    included = "the start token" if frame.seq2seq else "the prompt"
    findings.warn(
        f"{section.key('max_new_tokens')} is missing, so Hugging Face stops at {HIDDEN_MAX_LENGTH} tokens, "
        f"including {included}. RL4LMs then writes at most {written}, and gives a cut text no reward. "
        f"Whetstone sets max_tokens={used}"
        + ("" if used == written else f", the episode's length; --compat sets {written}")
    )
    return int(used)


def _note_the_rest(section: Section, findings: Findings) -> None:
    for key, neutral in NO_COUNTERPART.items():
        value = section.take(key, None)
        if value is None:
            continue
        findings.leave(section.key(key), value, "no such option" if value != neutral else "has no effect")
        if value != neutral:
            findings.warn(f"{section.key(key)}={value}: Whetstone has no such option, so texts will differ")
    findings.leave_all(section, WITHOUT_EFFECT, "taken from the model")
