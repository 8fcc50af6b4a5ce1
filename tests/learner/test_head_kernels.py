"""The head's kernels, interpreted on a CPU in a separate process; and a CPU that never uses them."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_plans import run_of
from benchmarks.qwen_shapes import CONFIGS, files_of
from learner.functional import head_on_gpu
from learner.functional.head_tiles import tile_size
from learner.functional.linear_logprobs import LinearHead, linear_logprobs
from services.models.shape import shape_of
from services.training.preflight.capacity.memory_model import MemoryNeeds, logits_bytes

CHECKS = Path(__file__).with_name("interpreted_head.py")


def test_interpreted_kernels_are_right() -> None:
    """Triton reads the variable when kernels are defined, so no other test's process may have it."""
    alone = ["--noconftest", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command = [sys.executable, "-m", "pytest", "-q", *alone, str(CHECKS)]
    done = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_cpu_does_not_import_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "learner.functional.head_kernels", raising=False)
    hidden_NH, weight_VH = torch.randn(3, 4, requires_grad=True), torch.randn(9, 4)
    targets_N = torch.tensor([0, 8, 3])
    head = LinearHead(weight_VH)
    linear_logprobs(hidden_NH, targets_N, head, logits_budget=99, with_entropy=False)[0].sum().backward()
    assert "learner.functional.head_kernels" not in sys.modules


def test_where_triton_cannot_run_the_head_says_so_once_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Triton compiles nothing for a CPU: what it raises is what a GPU without a compiler would see."""
    hidden_NH, targets_N = torch.randn(3, 4), torch.tensor([0, 8, 3])
    head = LinearHead(torch.randn(9, 4))
    expected_N, _ = linear_logprobs(hidden_NH, targets_N, head, logits_budget=99, with_entropy=False)
    monkeypatch.setattr(head_on_gpu, "DEVICES", ("cpu",))
    monkeypatch.setattr(head_on_gpu, "_broken", set())
    monkeypatch.setattr(head_on_gpu, "_is_right", functools.cache(head_on_gpu._is_right.__wrapped__))
    for _ in range(2):
        logprobs_N, _ = linear_logprobs(hidden_NH, targets_N, head, logits_budget=99, with_entropy=False)
        assert torch.equal(logprobs_N, expected_N)
    assert len(caplog.records) == 1
    assert "PyTorch's operators replace them" in caplog.records[0].getMessage()


@pytest.mark.parametrize(
    ("name", "rows", "instruction"), [("_add_sums", "sums", ""), ("_to_slope", "rows", "cvt.rn.bf16")]
)
def test_kernels_compile_for_a_gpu(
    name: str, rows: str, instruction: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Make machine code for compute capability 9.0: it reads 16 bytes at once and rounds what it writes."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from triton import compile as compiled
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from learner.functional import head_kernels

    kernel = getattr(head_kernels, name)
    flags = {flag: True for flag in kernel.arg_names if flag.startswith("HAS_")}
    types = {
        "tile": "*bf16",
        "bias": "*fp32",
        "targets": "*i64",
        rows: "*fp32",
        "num_words": "i32",
        "start": "i32",
    }
    aligned = {
        (kernel.arg_names.index(argument),): [["tt.divisibility", 16]] for argument in ("tile", "num_words")
    }
    constants = flags | {"BLOCK": 1024}
    source = ASTSource(kernel, types | dict.fromkeys(constants, "constexpr"), constants, aligned)
    made = compiled(source, target=GPUTarget("cuda", 90, 32))
    assert made.asm["cubin"]
    assert "ld.global.v4" in made.asm["ptx"] and instruction in made.asm["ptx"]


@pytest.mark.parametrize("kind", head_on_gpu.KINDS)
@pytest.mark.parametrize(("num_rows", "vocab_size"), [(12288, 151_936), (3, 1000), (100_000, 32_000)])
def test_a_tile_takes_no_more_bytes_than_a_memory_plan_counts(
    kind: torch.dtype, num_rows: int, vocab_size: int
) -> None:
    run = run_of(learner={"logits_budget": 2**24})
    needs = MemoryNeeds(run.model, run.algorithm, run.learner, run.rollout, 10**9)
    shape = shape_of(files_of("0.5B", CONFIGS["0.5B"] | {"vocab_size": vocab_size}))
    assert shape is not None
    size = tile_size("cuda", num_rows, vocab_size, 2**24 * head_on_gpu.HELD // kind.itemsize)
    numbers = min(size.rows, num_rows) * min(size.words, vocab_size)
    assert numbers * kind.itemsize <= logits_bytes(needs, shape, num_rows, on_cpu=False)
