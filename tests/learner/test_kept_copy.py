"""Weights in one buffer, and the copy for late workers: bits, order, reuse, and failures that are raised."""

import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contracts.errors import LearnerError
from contracts.network.flat_buffer import ALIGNED, layout
from contracts.weights import Probe, WeightManifest
from learner.publishing.kept_copy import AHEAD, KeptCopy

DTYPES = ("float32", "bfloat16", "int64", "uint8", "float16")


def manifest_of(tensors: dict[str, Tensor], version: int = 1) -> WeightManifest:
    dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return WeightManifest(version, dtypes, 0, Probe((), (), 0.1), shapes=shapes)


def bits(tensor: Tensor) -> list[int]:
    """The tensor's bytes: NaN equals NaN, and the zeros differ."""
    flat: list[int] = tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()
    return flat


def kept(copy: KeptCopy, tensors: dict[str, Tensor], version: int = 1) -> dict[str, Any]:
    manifest = manifest_of(tensors, version)
    copy.begin(manifest)
    for name, tensor in tensors.items():
        copy.put(name, tensor)
    copy.finish(manifest)
    kept_manifest, arrays = copy.whole()
    assert kept_manifest == manifest
    return arrays


@given(
    st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)), min_size=1, max_size=6
    ),
    st.integers(0, 99),
)
def test_views_of_the_buffer_are_the_tensors_to_the_bit(
    kinds: list[tuple[str, list[int]]], seed: int
) -> None:
    """Any types side by side, odd shapes, none of a tensor at all, one number without a dimension."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for index, (dtype, shape) in enumerate(kinds):
        item = getattr(torch, dtype).itemsize
        size = int(np.prod(shape, dtype=int)) * item
        some = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
        tensors[f"t{index}"] = some.view(getattr(torch, dtype)).view(shape)
    manifest = manifest_of(tensors)
    laid = layout(manifest.dtypes, manifest.shapes or {})
    buffer = torch.full((laid.num_bytes,), 7, dtype=torch.uint8)
    views = laid.views(buffer)
    for name, view in views.items():
        view.copy_(tensors[name])
    assert all(bits(view) == bits(tensors[name]) for name, view in views.items())
    assert all(view.dtype == tensors[name].dtype for name, view in views.items())
    assert all(view.shape == tensors[name].shape for name, view in views.items())
    assert all(place.begin % ALIGNED == 0 for place in laid.places.values())
    ends = [place.begin + place.num_bytes for place in laid.places.values()]
    begins = [place.begin for place in laid.places.values()]
    assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=False))
    assert max(ends) == laid.num_bytes


def test_what_is_kept_is_what_was_put_and_stays_when_the_next_is_put() -> None:
    copy = KeptCopy()
    first = {"a": torch.randn(5, 3), "b": torch.randn(7).bfloat16(), "none": torch.ones(0, 2)}
    arrays = kept(copy, first)
    assert {name: array.tobytes() for name, array in arrays.items()} == {
        "a": first["a"].numpy().tobytes(),
        "b": first["b"].view(torch.uint16).numpy().tobytes(),
        "none": b"",
    }
    before, buffer = {name: array.copy() for name, array in arrays.items()}, copy._buffer.data_ptr()
    kept(copy, {name: tensor + 1 for name, tensor in first.items()}, version=2)
    assert copy._buffer.data_ptr() == buffer  # warm memory is used again
    assert all((arrays[name] == before[name]).all() for name in arrays)


def test_more_tensors_than_may_wait_all_come() -> None:
    many = {f"t{i}": torch.full((3,), float(i)) for i in range(5 * AHEAD)}
    arrays = kept(KeptCopy(), many)
    assert [array[0] for array in arrays.values()] == [float(i) for i in range(5 * AHEAD)]


def test_a_copy_that_was_not_finished_is_never_handed_out() -> None:
    copy, tensors = KeptCopy(), {"a": torch.ones(2), "b": torch.ones(2)}
    with pytest.raises(LearnerError, match="publish first"):
        copy.whole()
    kept(copy, tensors)
    copy.begin(manifest_of(tensors, version=2))
    with pytest.raises(LearnerError, match="publish first"):
        copy.whole()
    copy.put("a", tensors["a"])
    copy.finish(None)
    with pytest.raises(LearnerError, match="publish first"):
        copy.whole()
    assert kept(copy, tensors, version=3)


def test_a_tensor_that_cannot_be_copied_is_an_error_and_the_next_push_is_whole() -> None:
    copy, tensors = KeptCopy(), {"a": torch.ones(2)}
    manifest = manifest_of(tensors)
    copy.begin(manifest)
    for _ in range(3 * AHEAD):  # nobody may wait for a thread that has failed
        copy.put("a", torch.ones(3))
    copy.finish(manifest)
    with pytest.raises(LearnerError, match=r"could not be kept: .*size of tensor"):
        copy.settle()
    with pytest.raises(LearnerError, match="could not be kept"):
        copy.whole()
    assert kept(copy, tensors, version=2)["a"].tolist() == [1.0, 1.0]


def test_a_late_worker_reads_one_version_while_the_next_is_put() -> None:
    """Each array that is handed out is of its manifest's version in all of its numbers."""
    copy, seen = KeptCopy(), list[tuple[int, set[float]]]()
    kept(copy, {"a": torch.zeros(1000), "b": torch.zeros(1000)}, version=0)
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            try:
                manifest, arrays = copy.whole()
            except LearnerError:  # a push is under way
                continue
            seen.append((manifest.version, {float(v) for array in arrays.values() for v in np.unique(array)}))

    reader = threading.Thread(target=read)
    reader.start()
    for version in range(1, 60):
        tensors = {name: torch.full((1000,), float(version)) for name in "ab"}
        manifest = manifest_of(tensors, version)
        copy.begin(manifest)
        for name, tensor in tensors.items():
            copy.put(name, tensor)
        copy.finish(manifest)
        copy.settle()
    is_over.set()
    reader.join()
    seen.append((copy.whole()[0].version, {59.0}))
    assert all(values == {float(version)} for version, values in seen)
