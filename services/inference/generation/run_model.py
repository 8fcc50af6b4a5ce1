"""A model and its sampling, for commands that use a model."""

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from contracts.adapters.folder import CONFIG, check_one_model
from contracts.adapters.merging import whole_model
from contracts.conversations.chat_settings import ChatForm, ChatSettings
from contracts.errors import InputError
from contracts.rollout import Sampling
from contracts.settings import build
from learner.settings import ModelSettings
from rollout_workers.settings import RolloutSettings
from services.config.evaluation_settings import DRAWN_AS, EvaluationSettings
from services.config.other_versions import naming_unknown_options
from services.data.tokens.prompt_limit import UNCUT, PromptLimit
from services.inference.generation.as_trained import drawn_by, reading_of
from services.models.chat_template import form_of
from services.models.files import ModelFiles, read_model
from services.runs.folder import RunFolder, is_run
from services.runs.nearby import runs_near
from services.terminal.options import at_least

SAMPLING_OPTIONS = ("max_tokens", "temperature", "top_p", "top_k")


@dataclass(frozen=True, slots=True)
class RunModel:
    """A model whose files passed the checks.

    Example: `RunModel(path="runs/numbers/model", files=…, rollout=RolloutSettings(max_tokens=20),
    sampling=Sampling(max_tokens=20), of_run=True, limit=PromptLimit(128, "right"))`
    """

    path: str  # a folder or a hub name
    files: ModelFiles
    rollout: RolloutSettings  # the run's settings; the defaults for a model without a run
    sampling: Sampling  # sampling of the run's evaluation
    of_run: bool
    limit: PromptLimit = UNCUT  # limit of prompts in the run's evaluation
    chat: ChatForm | None = None  # its chat template; None: it reads plain texts
    notes: tuple[str, ...] = ()  # how commands deviate from the run


def find_model(path: str, base: str | None = None) -> RunModel:
    """Find the model of the run in folder `path`, or the model `path` itself; an adapter is merged.

    Args:
        base: an adapter's base; None: the base that it names.

    Raises:
        InputError: no run or model was found (the message names runs nearby), the run is unfinished, or a
            file is broken.
    """
    if is_run(Path(path)):
        run = RunFolder(Path(path))
        model = str(model_of(run))
        files = _checked_files(model)
        with naming_unknown_options(run.config_file, run.config()):
            rollout, evaluation = drawn_by(run)
            longest = evaluation.max_prompt_tokens or rollout.max_prompt_tokens
            (limit, chat), note = reading_of(run, longest, files.tokenizer_folder)
        sampling = _merged(rollout, evaluation)
        notes = tuple(filter(None, [note, _without_beams(evaluation.num_beams)]))
        return RunModel(model, files, rollout, sampling, of_run=True, limit=limit, chat=chat, notes=notes)
    with _named_by_itself(path):
        path = whole_model(path, base=base)
    defaults, files = RolloutSettings(), _checked_files(path)
    sampling, chat = (
        _merged(defaults, EvaluationSettings()),
        form_of(ChatSettings(), "auto", files.tokenizer_folder),
    )
    return RunModel(path, files, defaults, sampling, of_run=False, chat=chat)


def model_of(run: RunFolder) -> Path:
    """Return the folder of the run's trained model.

    Raises:
        InputError: training is not finished (the message names its progress and a remedy), or the run
            trained an adapter for each role.
    """
    if (run.model / "config.json").is_file():
        check_one_model(run.model)
        return run.model
    saved = max(run.checkpoints(), default=0)
    ends = f"; with iterations={saved} it ends at the newest checkpoint" if saved else ""
    last = run.config().get("iterations", "not known")
    raise InputError(
        f"{run.path} has no model yet: training writes it after its last iteration ({last}). "
        f"The command that began the run continues it{ends}"
    )


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `find_model`."""
    what = "a run's folder, a model's or adapter's folder, or a hub name"
    parser.add_argument("model", metavar="RUN_OR_MODEL", help=what)
    parser.add_argument(
        "--base", metavar="MODEL", help="an adapter's base, in place of the one that it names"
    )


def add_sampling_options(parser: argparse.ArgumentParser, seed: int | None) -> None:
    """Add the options that `chosen_sampling` reads, and --seed."""
    group = parser.add_argument_group("sampling", "unless given, as the run's evaluation does it")
    group.add_argument("--max-tokens", type=int, metavar="N", help="the longest answer, in tokens")
    group.add_argument("--temperature", type=float, metavar="T", help="0 always takes the likeliest token")
    group.add_argument("--top-p", type=float, metavar="P", help="the likeliest tokens of this share only")
    group.add_argument("--top-k", type=int, metavar="K", help="the K likeliest tokens only; 0: all")
    group.add_argument("--seed", type=at_least(0), default=seed, metavar="S", help="the same one repeats")


def chosen_sampling(model: RunModel, arguments: argparse.Namespace) -> Sampling:
    """Return the model's sampling, with the command line's values in place of its own.

    Report deviations from the run on standard error.

    Raises:
        InputError: a value is out of its range.
    """
    options = {name: getattr(arguments, name) for name in SAMPLING_OPTIONS}
    chosen = build(EvaluationSettings, options, where="").model_dump(include=set(options), exclude_none=True)
    sampling = replace(model.sampling, **chosen)
    for note in model.notes:
        print(f"note: {note}", file=sys.stderr)
    # --max-tokens may be below the run's min_tokens.
    return replace(sampling, min_tokens=min(sampling.min_tokens, sampling.max_tokens))


def room_for_prompt(model: RunModel, max_tokens: int, option: str = "--max-tokens ") -> int | None:
    """Return a prompt's token limit beside an answer of `max_tokens`; None: no limit.

    Args:
        option: option that sets `max_tokens`, for the error.

    Raises:
        InputError: the answer leaves no room for a prompt.
    """
    window = model.files.window
    if window is not None and max_tokens >= window:
        raise InputError(
            f"max_tokens={max_tokens} leaves no room for a prompt: the model reads {window} tokens in all. "
            f"Give {option}{window // 2}, say"
        )
    if window is None or model.files.is_encoder_decoder:  # prompt and answer have a window each
        return window
    return window - max_tokens


def check_lengths(model: RunModel, texts: Sequence[str], max_tokens: int) -> None:
    """Refuse a too long plain text without transformers, whose import takes seconds.

    Raises:
        InputError: a prompt is too long; the message has the first such prompt's number, length and room.
    """
    room = room_for_prompt(model, max_tokens)
    file = model.files.tokenizer_folder / "tokenizer.json"
    if room is None or model.limit.max_tokens is not None or model.chat is not None or not file.exists():
        return  # no limit, long prompts are cut, a template adds tokens, or no fast tokenizer exists
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for number, encoding in enumerate(tokenizer.encode_batch(list(texts)), start=1):
        refuse_long(number, len(encoding), room, max_tokens)


def refuse_long(number: int, length: int, room: int | None, max_tokens: int) -> None:
    """Refuse a prompt of more than `room` tokens."""
    if room is not None and length > room:
        raise InputError(
            f"prompt {number} has {length} tokens, and the model's window leaves room for {room} "
            f"beside an answer of {max_tokens}: shorten it, or lower --max-tokens"
        )


def _checked_files(path: str) -> ModelFiles:
    with _named_by_itself(path):
        return read_model(ModelSettings(path=path))


@contextlib.contextmanager
def _named_by_itself(path: str) -> Iterator[None]:
    """Name the model in a refusal by the command line's words instead of training's option."""
    try:
        yield
    except InputError as error:
        message = str(error).removeprefix("model.path=").replace("model.base=", "--base ")
        is_model = any((Path(path) / name).exists() for name in ("config.json", CONFIG))
        raise InputError(message if is_model else message + runs_near(Path(path))) from None


def _without_beams(num_beams: int) -> str:
    if num_beams == 1:
        return ""
    return (
        f"the run's evaluations search with {num_beams} beams (evaluation.num_beams); this command draws "
        "without beams"
    )


def _merged(rollout: RolloutSettings, evaluation: EvaluationSettings) -> Sampling:
    # Without NLPO's mask, which an exported model lacks, and without beams, which some engines lack.
    chosen = evaluation.model_dump(include=set(DRAWN_AS), exclude_none=True)
    return Sampling(**{name: getattr(rollout, name) for name in DRAWN_AS} | chosen)
