"""The learner's whole state on disk: safetensors for tensors, JSON for the rest; no pickles."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from contracts.errors import LearnerError
from learner.policy import ActorCritic
from learner.settings import ModelSettings

POLICY, OPTIMIZER, RANDOM, STATE = (
    "policy.safetensors",
    "optimizer.safetensors",
    "random.safetensors",
    "learner.json",
)


def save(
    folder: Path, policy: ActorCritic, optimizer: torch.optim.Optimizer, state: dict[str, float | int]
) -> None:
    """Write into an existing folder. Making the whole checkpoint appear at once is the caller's part."""
    save_file({name: p.detach().cpu().contiguous() for name, p in policy.named_parameters()}, folder / POLICY)
    moments = {
        f"{index}.{key}": value.detach().cpu().contiguous()
        for index, entry in optimizer.state_dict()["state"].items()
        for key, value in entry.items()
    }
    save_file(moments, folder / OPTIMIZER)
    random_states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        random_states |= {f"cuda.{i}": s for i, s in enumerate(torch.cuda.get_rng_state_all())}
    save_file(random_states, folder / RANDOM)
    (folder / STATE).write_text(json.dumps(state))


def load(folder: Path, policy: ActorCritic, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Put a saved state back in place.

    Raises:
        LearnerError: the checkpoint is of another model.
    """
    saved = load_file(folder / POLICY)
    own = dict(policy.named_parameters())
    shapes, own_shapes = ({name: p.shape for name, p in each.items()} for each in (saved, own))
    if shapes != own_shapes:
        differing = sorted({name for name, _ in shapes.items() ^ own_shapes.items()})
        raise LearnerError(
            f"{folder}: a checkpoint of another model; "
            f"{len(differing)} parameters differ, such as {differing[0]}"
        )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(saved[name])
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in load_file(folder / OPTIMIZER).items():
        index, _, name = key.partition(".")
        moments.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
    random_states = load_file(folder / RANDOM)
    torch.set_rng_state(random_states["cpu"])
    if torch.cuda.is_available() and "cuda.0" in random_states:
        torch.cuda.set_rng_state_all([s for key, s in sorted(random_states.items()) if key != "cpu"])
    state: dict[str, Any] = json.loads((folder / STATE).read_text())
    return state


def export(folder: Path, lm: Any, settings: ModelSettings) -> None:
    """Hugging Face format with its tokenizer: loads in transformers and in vLLM."""
    from transformers import AutoConfig, AutoTokenizer

    lm.save_pretrained(folder)
    # The dropouts were set to 0 for training; whoever loads the model gets the original configuration.
    original = AutoConfig.from_pretrained(settings.path, revision=settings.revision)
    original.dtype, original.architectures = lm.config.dtype, [type(lm).__name__]
    original.save_pretrained(folder)
    AutoTokenizer.from_pretrained(
        settings.tokenizer or settings.path, revision=settings.revision
    ).save_pretrained(folder)
