"""Publish weights as arrays that cross process borders, with a probe that proves their arrival."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from contracts.weights import Probe, WeightManifest
from learner.distributed.ranks import ALONE, Ranks
from learner.distributed.sharding import computes_on, whole
from learner.models.adapters import Adapter
from learner.models.attention import rounding_attention
from learner.models.merged_weights import changed_parameters, is_adapted
from learner.models.policy import family
from learner.publishing.changed_elements import Array, Sent
from learner.publishing.last_published import LastPublished

PROBE_TOKENS = 24
LOGITS_BUDGET = 2**26  # enough for a probe
PROBE_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25}  # least tolerance; float32 engines agree to 1e-5
MEASURED_EVERY = 10  # versions
ROUNDINGS = 4.0  # an engine may differ this many times as much as bfloat16 changes the learner's probe


def publish(
    lm: nn.Module,
    version: int,
    engine_dtype: str,
    mask_version: int | None = None,
    served: Adapter | None = None,
    ranks: Ranks = ALONE,
    last: LastPublished | None = None,
    probing: AbstractContextManager[object] | None = None,
) -> tuple[WeightManifest, dict[str, Sent]]:
    """Return a manifest, and the language model's parameters by Hugging Face name; tied ones come once.

    With an adapter, publish only the parameters that differ from the model's files, merged, because workers
    have loaded the files. On a CPU the arrays may be views of the parameters, so they must be copied (as
    Ray's object store does) before the next update. Only the first rank gets the arrays, gathered one by one.

    Args:
        engine_dtype: the dtype of the engines. For bfloat16 engines, float32 parameters travel in bfloat16,
            to which they would be rounded anyway.
        served: the adapter, if workers apply it beside the model. Then only its matrices are published, in
            their dtype, because vLLM reads them from a file.
        last: the last publication, to publish only the changes since then.
        probing: the context of the probe's pass; see `proof`.
    """
    config, tensors = served.published() if served else (None, published_parameters(lm))
    kinds = {
        name: tensor.dtype if served else sent_as(tensor, engine_dtype) for name, tensor in tensors.items()
    }
    arrays = gathered(tensors, kinds, ranks, copies=last is not None)
    sent = dict[str, Sent](arrays) if last is None else last.exchange(arrays)
    dtypes = {name: str(kind).removeprefix("torch.") for name, kind in kinds.items()}
    num_bytes = sum(tensor.numel() * kinds[name].itemsize for name, tensor in tensors.items())
    made = proof(lm, engine_dtype, ranks, probing, version)
    manifest = WeightManifest(version, dtypes, num_bytes, made, mask_version, config)
    return manifest if last is None else last.sign(manifest, sent), sent


def announce(
    lm: nn.Module,
    version: int,
    engine_dtype: str,
    mask_version: int | None = None,
    ranks: Ranks = ALONE,
    probing: AbstractContextManager[object] | None = None,
) -> WeightManifest:
    """Return the manifest of weights that a group will broadcast: `wire_tensors`, in the same order."""
    tensors = published_parameters(lm)
    kinds = {name: sent_as(tensor, engine_dtype) for name, tensor in tensors.items()}
    return WeightManifest(
        version,
        {name: str(kind).removeprefix("torch.") for name, kind in kinds.items()},
        sum(tensor.numel() * kinds[name].itemsize for name, tensor in tensors.items()),
        proof(lm, engine_dtype, ranks, probing, version),
        mask_version,
        shapes={name: tuple(tensor.shape) for name, tensor in tensors.items()},
    )


def wire_tensors(lm: nn.Module, engine_dtype: str) -> Iterator[tuple[str, Tensor]]:
    """Yield each name and its whole tensor in the engine's dtype, on its device; all ranks take part."""
    for name, tensor in published_parameters(lm).items():
        yield name, whole(tensor.detach().to(sent_as(tensor, engine_dtype)))


def arrays_of(lm: nn.Module, engine_dtype: str, ranks: Ranks = ALONE) -> dict[str, Array]:
    """Return all arrays in the form that `publish` gives them, changed or not."""
    tensors = published_parameters(lm)
    kinds = {name: sent_as(tensor, engine_dtype) for name, tensor in tensors.items()}
    return dict(gathered(tensors, kinds, ranks))


def gathered(
    tensors: Mapping[str, Tensor], kinds: Mapping[str, torch.dtype], ranks: Ranks, *, copies: bool = False
) -> Iterator[tuple[str, Array]]:
    """Yield each name and its whole array, one by one; only the first rank yields any.

    Args:
        copies: True: give arrays new memory, even on a CPU.
    """
    for name, tensor in tensors.items():
        all_rows = whole(tensor.detach().to(kinds[name]))  # all ranks take part
        if not ranks.is_first:
            continue
        array, is_view = as_array(all_rows), tensor.device.type == "cpu" and tensor.dtype == kinds[name]
        yield name, array.copy() if copies and is_view else array


def published_parameters(lm: nn.Module) -> dict[str, Tensor]:
    return dict(changed_parameters(lm) if is_adapted(lm) else lm.named_parameters())


def sent_as(tensor: Tensor, engine_dtype: str) -> torch.dtype:
    """Return the dtype in which a parameter travels; the shape stays.

    >>> sent_as(torch.zeros(1), "bfloat16"), sent_as(torch.zeros(1), "float32")
    (torch.bfloat16, torch.float32)
    """
    halves = engine_dtype == "bfloat16" and tensor.dtype == torch.float32
    return torch.bfloat16 if halves else tensor.dtype


def as_array(tensor: Tensor) -> Array:
    tensor = tensor.detach().cpu().contiguous()
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


@dataclass(frozen=True, slots=True)
class Measured:
    """Difference that bfloat16 makes to a model's probe, and the last version that was proved with it.

    Example: measured at version 40, and used up to version 43: `Measured(0.02, first=40, last=43)`
    """

    worst: float
    first: int
    last: int

    def holds_for(self, version: int) -> bool:
        """Return whether a version is one of the next few; any other version came from a checkpoint."""
        return version == self.last + 1 and version < self.first + MEASURED_EVERY


_measured: WeakKeyDictionary[nn.Module, Measured] = WeakKeyDictionary()


def proof(
    lm: nn.Module,
    engine_dtype: str,
    ranks: Ranks,
    probing: AbstractContextManager[object] | None = None,
    version: int | None = None,
) -> Probe:
    """Return the probe by which engines of a dtype prove that they have these weights.

    How much bfloat16 changes a log-probability depends on the model: a logit of 30 is rounded to 0.125. So
    the learner measures the change by a pass in bfloat16 and one in float32. It does so at the first of ten
    successive versions, because a few updates hardly change the size of logits. With several ranks it
    computes only in bfloat16, so their tolerance is the least one.

    Args:
        probing: the context of the probe's pass: the learner's autocast.
        version: number of the weights; None: measure.
    """
    device = computes_on(next(lm.parameters()))
    with ranks.at_hand(), rounding_attention(), probing or nullcontext():
        is_rounded = torch.is_autocast_enabled(device)
        made = probe(lm, PROBE_TOLERANCE["bfloat16" if is_rounded else engine_dtype])
        if not is_rounded and engine_dtype != "bfloat16":
            return made
        before = _measured.get(lm)
        if before is not None and version is not None and before.holds_for(version):
            worst, first = before.worst, before.first
        else:
            with torch.autocast(device, dtype=torch.bfloat16, enabled=not is_rounded):
                other = probe(lm, made.tolerance)
            differences = (abs(a - b) for a, b in zip(made.logprobs, other.logprobs, strict=True))
            worst, first = max(differences, default=0.0), version or 0
    if version is not None:
        _measured[lm] = Measured(worst, first, version)
    return replace(made, tolerance=max(made.tolerance, ROUNDINGS * worst))


@torch.no_grad()
def probe(lm: nn.Module, tolerance: float) -> Probe:
    """Return a probe: a fixed text with tokens from the whole vocabulary, and its log-probabilities."""
    policy = family(lm)(lm, LOGITS_BUDGET)
    window = getattr(lm.config, "max_position_embeddings", None) or PROBE_TOKENS + 1
    # The engine that scores the text needs room for one more token.
    ids = [(7 + 7919 * i) % policy.vocab_size for i in range(min(PROBE_TOKENS, window - 1))]
    tokens = torch.tensor(ids, device=next(lm.parameters()).device)
    logits_LV = policy.logits(policy.probe_states(tokens)).float()
    logprobs = logits_LV.log_softmax(-1).gather(-1, tokens[1:, None]).squeeze(-1)
    return Probe(tuple(ids), tuple(logprobs.tolist()), tolerance)
