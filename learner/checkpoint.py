"""Save and load the learner's whole state: safetensors for tensors, JSON for the rest; no pickles.

Each rank of a sharded model writes its rows, see `learner/tensor_files.py`; any number of ranks can read
them. Untrained weights (model.trainable_layers, model.adapter) come from `model.path`. The checkpoint has
only their fingerprint.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict, TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from contracts.errors import LearnerError
from contracts.rollout import Rollout
from learner.distributed.ranks import ALONE, Ranks
from learner.distributed.sharding import whole
from learner.models.actor_critic import ActorCritic
from learner.models.merged_weights import save_merged
from learner.models.policy import Policy
from learner.models.shared_trunk import fingerprint
from learner.settings import ModelSettings
from learner.tensor_files import TensorFiles, write

# JSON lacks infinite and NaN reward parts, and a type for a failed rollout's error, which is never kept.
KEPT = ConfigDict(ser_json_inf_nan="constants", arbitrary_types_allowed=True)
ROLLOUTS = TypeAdapter(list[Rollout], config=KEPT)

POLICY, OPTIMIZER = "policy", "optimizer"
RANDOM = "random.safetensors"
STATE, ELITE = "learner.json", "elite.json"
ADAPTER = "adapter"  # folder in an exported model
FROZEN = "frozen"  # name of the fingerprint among the policy's tensors


def save(
    folder: Path,
    pair: ActorCritic,
    copies: Mapping[str, Policy],
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    elite: Sequence[Rollout],
    ranks: Ranks = ALONE,
) -> None:
    """Write a checkpoint into an existing folder, which every rank can reach.

    The caller makes the whole checkpoint visible at once.

    Args:
        copies: models of the policy's shape with separate weights, by the names of their files.
    """
    write(_state(pair, pair), folder, POLICY, ranks)
    for name, mask in copies.items():
        write(_state(mask, pair), folder, name, ranks)
    moments = {
        f"{index}.{key}": value
        for index, entry in optimizer.state_dict()["state"].items()
        for key, value in entry.items()
    }
    write(moments, folder, OPTIMIZER, ranks)
    if not ranks.is_first:
        return
    random_states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        random_states |= {f"cuda.{i}": s for i, s in enumerate(torch.cuda.get_rng_state_all())}
    save_file(random_states, folder / RANDOM)
    # Leave out metadata for graders: tasks give them in any type, and the learner never reads them.
    plain = [replace(rollout, prompt=replace(rollout.prompt, meta={})) for rollout in elite]
    (folder / ELITE).write_bytes(ROLLOUTS.dump_json(plain))
    (folder / STATE).write_text(json.dumps(state))


def load(
    folder: Path, pair: ActorCritic, copies: Mapping[str, Policy], optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Any], list[Rollout]]:
    """Restore a saved state; return the saved `state` and `elite`.

    Raises:
        LearnerError: the checkpoint belongs to another model, to other trained layers or to an algorithm
            without these copies, or a file can't be read.
    """
    with _readable(folder):
        return _load(folder, pair, copies, optimizer)


@contextlib.contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Turn errors of reading into a LearnerError, because a restart could not read the file, either."""
    try:
        yield
    except (OSError, SafetensorError, ValueError, LookupError) as error:
        raise LearnerError(
            f"{folder}: this checkpoint can't be read: {type(error).__name__}: {error}. `whetstone doctor "
            f"{folder.parent.parent}` checks all files of the run"
        ) from error


def _load(
    folder: Path, pair: ActorCritic, copies: Mapping[str, Policy], optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Any], list[Rollout]]:
    for name in copies:
        if not any(folder.glob(f"{name}*.safetensors")):
            raise LearnerError(
                f"{folder}: it has no {name} model ({name}.safetensors), so another algorithm wrote it; "
                "resume with the algorithm that wrote it"
            )
    _restore(_state(pair, pair), folder, POLICY)
    for name, mask in copies.items():
        _restore(_state(mask, pair), folder, name)
    saved, moments = TensorFiles.written(folder, OPTIMIZER), dict[int, dict[str, Tensor]]()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for key, shape in saved.shapes.items():
        index, _, name = key.partition(".")
        of = parameters[int(index)]
        value = saved.like(key, of) if shape == of.shape else saved.whole(key)
        moments.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
    random_states = load_file(folder / RANDOM)
    torch.set_rng_state(random_states["cpu"])
    if torch.cuda.is_available() and "cuda.0" in random_states:
        torch.cuda.set_rng_state_all([s for key, s in sorted(random_states.items()) if key != "cpu"])
    state: dict[str, Any] = json.loads((folder / STATE).read_text())
    return state, ROLLOUTS.validate_json((folder / ELITE).read_bytes())


def _state(module: nn.Module, pair: ActorCritic) -> dict[str, torch.Tensor]:
    """Return a checkpoint's tensors: trained parameters (tied ones once), and the value norm's moments.

    If some parameters are frozen, add their fingerprint. Leave out matrices of other roles' adapters, which
    their learners save.
    """
    norm = {name: b for name, b in module.named_buffers() if name.startswith("value_norm.")}
    state = dict(module.named_parameters()) | norm
    frozen = pair.frozen
    if not frozen:
        return state
    others = pair.adapter.others() if pair.adapter is not None else set()
    left_out = {id(parameter) for parameter in frozen} | others
    trained = {name: tensor for name, tensor in state.items() if id(tensor) not in left_out}
    return trained | {FROZEN: fingerprint(frozen)}


def _restore(trained: dict[str, torch.Tensor], folder: Path, kind: str) -> None:
    saved = TensorFiles.written(folder, kind)
    shapes, own_shapes = saved.shapes, {name: p.shape for name, p in trained.items()}
    if shapes != own_shapes:
        differing = sorted({name for name, _ in shapes.items() ^ own_shapes.items()})
        raise LearnerError(
            f"{folder} is a checkpoint of another model; {len(differing)} parameters differ, such as "
            f"{differing[0]}. Expected the same model.trainable_layers= and model.adapter.kind=, because a "
            "checkpoint has only trained parameters"
        )
    if FROZEN in trained and not torch.allclose(saved.whole(FROZEN), trained[FROZEN], rtol=1e-9, atol=0):
        raise LearnerError(
            f"{folder} is a checkpoint of another model. It has only trained layers, and the frozen layers "
            "of model.path differ. Resume with the run's first model"
        )
    with torch.no_grad():
        for name, tensor in trained.items():
            tensor.copy_(saved.like(name, tensor))


def export(folder: Path, pair: ActorCritic, settings: ModelSettings, ranks: Ranks = ALONE) -> None:
    """Write the model and its tokenizer in Hugging Face format, for transformers and vLLM.

    An adapter is merged into the model, and also written to `adapter/` in peft's format.
    """
    from transformers import AutoConfig, AutoTokenizer

    lm = pair.lm
    weights = _whole_state(lm, ranks) if pair.adapter is None else None
    if pair.adapter is not None:
        save_merged(lm, folder, writes=ranks.is_first)
        pair.adapter.save(folder / ADAPTER, writes=ranks.is_first)
    if not ranks.is_first:
        return
    if pair.adapter is None:
        lm.save_pretrained(folder, state_dict=weights)
    else:
        lm.generation_config.save_pretrained(folder)
    # Training set the dropouts to 0. Export the model's original configuration.
    original = AutoConfig.from_pretrained(settings.path, revision=settings.revision, trust_remote_code=False)
    original.dtype, original.architectures = lm.config.dtype, [type(lm).__name__]
    original.save_pretrained(folder)
    revision = settings.revision if settings.tokenizer is None else None  # the revision of the model
    tokenizer = AutoTokenizer.from_pretrained(
        settings.tokenizer or settings.path, revision=revision, trust_remote_code=False
    )
    if (template := settings.chat.form().template) is not None:  # a template that the run sets
        tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)


def _whole_state(lm: nn.Module, ranks: Ranks) -> dict[str, Tensor] | None:
    """Gather the model's weights one by one on the first rank; None: gathering is unnecessary."""
    if not any(isinstance(parameter, DTensor) for parameter in lm.parameters()) and ranks.size == 1:
        return None
    gathered: dict[int, Tensor] = {}  # gather tied weights once
    state = {}
    for name, tensor in lm.state_dict(keep_vars=True).items():
        if id(tensor) not in gathered:
            rows = whole(tensor.detach())  # all ranks take part
            gathered[id(tensor)] = rows.cpu() if ranks.is_first else torch.empty(0)
        state[name] = gathered[id(tensor)]
    return state
