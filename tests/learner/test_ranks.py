"""Several processes learn what one learns: the same loss and parameters, from each other's checkpoints."""

import json
import multiprocessing
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.multiprocessing import start_processes

from contracts.errors import LearnerError
from learner.batches.batching import collate
from learner.batches.splitting import micro_batches, rank_micro_batches
from learner.distributed.ranks import Ranks
from learner.distributed.rendezvous import MeetingPoint
from learner.learner import Learner
from learner.models.merged_weights import merged_parameters
from learner.tensor_files import TensorFiles
from tests.learner.debates import BOTH, debates
from tests.learner.debates import make as make_roles
from tests.learner.ranked import (
    ADAPTED,
    ALGORITHMS,
    ENCODER_DECODERS,
    MEASURED,
    NUM_PROCESSES,
    make,
    make_noisy,
    parameters_of,
    rollouts_for,
    train,
    work,
)
from tests.learner.seq2seq import make_model as make_encoder_decoder
from tests.learner.tiny import games, make_model

pytestmark = pytest.mark.timeout(1200)  # a busy machine takes long to start processes

CLOSE = 1e-5
# What takes long to import is imported once, not four times.
multiprocessing.set_forkserver_preload(["tests.learner.ranked", "transformers.models.llama.modeling_llama"])


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Learner, list[dict[str, float]]]]:
    """Learners in one process after their updates, one an algorithm, with the metrics of these."""
    folder = tmp_path_factory.mktemp("alone")
    make_model(folder / "model", "llama_tied")
    for name in ENCODER_DECODERS:
        make_encoder_decoder(folder / name, name)
    learners = {name: make(folder, name) for name in ALGORITHMS}
    return {name: (learner, train(learner, name)) for name, learner in learners.items()}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of four processes that made up learners of two, three and four."""
    folder = tmp_path_factory.mktemp("ranks")
    make_model(folder / "model", "llama_tied")
    for name in ENCODER_DECODERS:
        make_encoder_decoder(folder / name, name)
    make_model(folder / "noisy", "llama")
    one = make(folder, "nlpo")
    train(one, "nlpo", [1, 2])
    (folder / "of_one").mkdir()
    one.save(str(folder / "of_one"))
    start_processes(work, (str(folder),), nprocs=NUM_PROCESSES, start_method="forkserver")
    return folder


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_updates_of_several_processes_are_those_of_one(
    alone: dict[str, tuple[Learner, list[dict[str, float]]]], outputs: Path, name: str, size: int
) -> None:
    learner, expected = alone[name]
    got = json.loads((outputs / f"{name}-{size}.json").read_text())
    for ours, theirs in zip(got, expected, strict=True):
        # The residual of conjugate gradients is a difference of nearly equal numbers.
        residuals = [metrics.pop("trust_region/cg_residual", 0.0) for metrics in (ours, dict(theirs))]
        assert residuals[0] == pytest.approx(residuals[1], abs=CLOSE, rel=100 * CLOSE)
        assert ours.keys() == theirs.keys() - {"trust_region/cg_residual"}
        # T5's attention is not scaled down, so its gradients enlarge rounding (see precision.py).
        near = {"abs": 10 * CLOSE, "rel": 100 * CLOSE} if name == "t5" else {"abs": CLOSE, "rel": CLOSE}
        assert ours == pytest.approx({key: theirs[key] for key in ours}, **near)
    parameters = load_file(outputs / f"{name}-{size}.safetensors")
    torch.testing.assert_close(parameters, parameters_of(learner), atol=CLOSE, rtol=CLOSE)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_those_updates_go_somewhere(
    alone: dict[str, tuple[Learner, list[dict[str, float]]]], outputs: Path, name: str
) -> None:
    before, (learner, _) = parameters_of(make(outputs, name)), alone[name]
    moved = [(after - before[key]).abs().max() for key, after in parameters_of(learner).items()]
    assert max(moved) > 100 * CLOSE


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", MEASURED)
def test_measures_and_log_probabilities_of_several_processes_are_those_of_one(
    outputs: Path, name: str, size: int
) -> None:
    learner, rollouts = make(outputs, name), rollouts_for(name, 9)
    measures, logprobs = json.loads((outputs / f"measures-{name}-{size}.json").read_text())
    assert measures == pytest.approx(learner.measure(rollouts), abs=CLOSE, rel=CLOSE)
    for ours, theirs in zip(logprobs, learner.logprobs(rollouts), strict=True):
        assert ours == pytest.approx(theirs, abs=CLOSE)


def test_in_bfloat16_they_are_as_close_to_one_process_as_its_digits(outputs: Path) -> None:
    learner = make(outputs, "ppo", autocast="bfloat16")
    [expected] = train(learner, "ppo", [0])
    [got] = json.loads((outputs / "bfloat16.json").read_text())
    for name in ("entropy", "loss/value", "ratio/mean", "gradient_norm/policy", "gradient_norm/critic"):
        assert got[name] == pytest.approx(expected[name], rel=0.03), name
    parameters = load_file(outputs / "bfloat16.safetensors")
    assert {tensor.dtype for tensor in parameters.values()} == {torch.float32}


def test_changes_of_weights_that_are_spread_over_processes_are_put_together(outputs: Path) -> None:
    pushed = load_file(outputs / "pushed.safetensors")
    parameters = {key: pushed.pop(key) for key in list(pushed) if key.startswith("lm.")}
    assert {f"lm.{name}" for name in pushed} == parameters.keys()
    for name, tensor in pushed.items():
        assert torch.equal(tensor, parameters[f"lm.{name}"].to(torch.bfloat16))


@pytest.mark.parametrize("wrote", ["of_one", "of_two"])
def test_a_checkpoint_is_read_by_any_number_of_processes(outputs: Path, wrote: str) -> None:
    """By three: they went on, and saved it once more as it was read."""
    learner = make(outputs, "nlpo")
    learner.load(str(outputs / wrote))
    before, expected = parameters_of(learner), train(learner, "nlpo", [7])
    again = make(outputs, "nlpo")
    again.load(str(outputs / f"{wrote}_by_three"))
    torch.testing.assert_close(parameters_of(again), before, atol=0, rtol=0)
    assert again.optimizer.state_dict()["state"].keys() == learner.optimizer.state_dict()["state"].keys()

    got = json.loads((outputs / f"{wrote}_by_three-next.json").read_text())
    assert got[0] == pytest.approx(expected[0], abs=CLOSE, rel=CLOSE)
    after = load_file(outputs / f"{wrote}_by_three-next.safetensors")
    torch.testing.assert_close(after, parameters_of(learner), atol=CLOSE, rtol=CLOSE)


def test_the_one_that_goes_on_without_a_break_is_where_they_are(outputs: Path) -> None:
    for kind in ("json", "safetensors"):
        assert (outputs / f"of_two-next.{kind}").exists()
    uninterrupted = load_file(outputs / "of_two-next.safetensors")
    resumed = load_file(outputs / "of_two_by_three-next.safetensors")
    torch.testing.assert_close(resumed, uninterrupted, atol=CLOSE, rtol=CLOSE)


def test_a_sharded_checkpoint_holds_no_pickle_and_each_row_once(outputs: Path) -> None:
    folder = outputs / "of_two"
    assert {path.suffix for path in folder.iterdir()} == {".safetensors", ".json"}
    for name in ("policy", "mask", "optimizer"):
        files = [load_file(file) for file in sorted(folder.glob(f"{name}-*.safetensors"))]
        assert len(files) == 2
        whole = TensorFiles.written(folder, name)
        for key, shape in whole.shapes.items():
            parts = [file[key] for file in files if key in file]
            assert sum(part.numel() for part in parts) == shape.numel()
            assert torch.equal(whole.whole(key), torch.cat(parts) if shape else parts[0])
    halves = [sum(t.numel() for t in load_file(f).values()) for f in sorted(folder.glob("optimizer-*"))]
    assert 0.9 < halves[0] / halves[1] < 1.2  # moments are shared out, too


@pytest.mark.parametrize("name", ADAPTED)
def test_an_adapter_of_two_processes_is_saved_pushed_and_exported_as_of_one(outputs: Path, name: str) -> None:
    """One process goes on from the checkpoint of two; its own first updates lead to the same place."""
    folder, single = outputs / f"adapted-{name}", make(outputs, name)
    resumed = make(outputs, name)
    train(single, name, [0, 1])
    resumed.load(str(folder))
    torch.testing.assert_close(parameters_of(resumed), parameters_of(single), atol=CLOSE, rtol=CLOSE)
    _, arrays = resumed.publish("float32")
    pushed = load_file(folder / "pushed")
    assert all("lora_" in key for key in pushed) is (name == "lora_served")
    for key, array in arrays.items():
        assert torch.equal(torch.from_numpy(array), pushed[key])
    assert arrays.keys() == pushed.keys()
    exported = load_file(folder / "model" / "model.safetensors")
    adapter = load_file(folder / "model" / "adapter" / "adapter_model.safetensors")
    assert not any("lora_" in key for key in exported) and all("lora_" in key for key in adapter)
    merged = dict(merged_parameters(resumed.pair.lm))
    assert all(torch.equal(exported[key], tensor) for key, tensor in merged.items())
    [ours], [theirs] = train(resumed, name, [2]), train(single, name, [2])
    assert ours == pytest.approx(theirs, abs=CLOSE, rel=CLOSE)


@pytest.mark.parametrize(("name", "copies"), [("lora", 1), ("lora_served", 1), ("lora_whole", 2)])
def test_two_processes_share_an_adapters_frozen_base(outputs: Path, name: str, copies: int) -> None:
    whole = sum(parameter.nbytes for parameter in make(outputs, name).pair.parameters())
    held = [int((outputs / f"adapted-{name}" / f"bytes-{rank}").read_text()) for rank in (0, 1)]
    assert sum(held) == copies * whole
    assert max(held) < 1.05 * copies * whole / 2  # the first one has the odd rows


def test_adapters_of_roles_learn_in_two_processes_what_they_learn_in_one(outputs: Path) -> None:
    learners = make_roles(outputs / "model", "ppo", *BOTH)
    for seed in (0, 1):
        learners.update(debates(seed))
    got = load_file(outputs / "roles.safetensors")
    for role in BOTH:
        state = {f"{role}/{key}": value for key, value in learners.adapters.state(role).items()}
        torch.testing.assert_close({key: got[key] for key in state}, state, atol=CLOSE, rtol=CLOSE)


def test_with_dropout_each_rank_draws_its_own_numbers_and_a_run_repeats(outputs: Path) -> None:
    noisy, again = (load_file(outputs / f"{file}.safetensors") for file in ("noisy", "noisy-again"))
    torch.testing.assert_close(noisy, again, atol=0, rtol=0)
    seeds = [
        [json.loads((outputs / f"{file}-seed-{rank}.json").read_text()) for rank in (0, 1)]
        for file in ("noisy", "noisy-again")
    ]
    assert seeds[0] == seeds[1] and len(set(seeds[0])) == 2
    alone = make_noisy(outputs)
    assert train(alone, "supervised", [0])[0]["loss/policy"] != pytest.approx(
        json.loads((outputs / "noisy.json").read_text())[0]["loss/policy"], abs=1e-6
    )


def test_a_checkpoint_with_a_part_missing_is_refused(outputs: Path, tmp_path: Path) -> None:
    for file in (outputs / "of_two").iterdir():
        if file.name != "policy-00002-of-00002.safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(LearnerError, match=r"expected policy\.safetensors.*1 of 2 are there"):
        make(outputs, "nlpo").load(str(tmp_path))


def hands(size: int, budget: int, **options: Any) -> Iterator[list[Any]]:
    batch = collate(games(7))
    for rank in range(size):
        rows_B = torch.arange(batch.num_rollouts)
        yield list(rank_micro_batches(batch, rows_B, budget, Ranks(rank, size), **options))


@pytest.mark.parametrize("size", [2, 3, 40])
@pytest.mark.parametrize("options", [{}, {"whole_rollouts": True}, {"whole_groups": True}])
def test_each_token_is_dealt_to_one_rank_and_all_have_as_many_passes(size: int, options: Any) -> None:
    seen: list[tuple[int, int]] = []
    dealt = list(hands(size, 60, **options))
    assert len({len(passes) for passes in dealt}) == 1
    for micro in (one_pass for passes in dealt for one_pass in passes if one_pass.weight):
        seen += zip(micro.rows_N.tolist(), micro.columns_N.tolist(), strict=True)
    batch = collate(games(7))
    assert len(seen) == len(set(seen)) == batch.num_tokens
    if size < 10:  # and no rank has much more than another
        counts = [sum(m.tokens_SL.numel() * m.weight for m in passes) for passes in dealt]
        assert max(counts) < 3 * min(counts)


def test_alone_it_is_dealt_as_it_was_split() -> None:
    batch = collate(games(7))
    [passes] = hands(1, 60)
    for ours, theirs in zip(passes, micro_batches(batch, torch.arange(7), 60), strict=True):
        assert torch.equal(ours.tokens_SL, theirs.tokens_SL) and ours.weight == 1


def test_the_meeting_point_listens_on_its_address_alone() -> None:
    meeting = MeetingPoint("127.0.0.1", 2)
    port = int(meeting.for_rank(1).address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        pass
    with pytest.raises(OSError), socket.create_connection(("127.0.0.2", port), timeout=5):
        pass
