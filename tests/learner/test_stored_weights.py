"""A sharded model is filled from its files: each rank reads its own rows, and no rank holds a whole model."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig, AutoModelForCausalLM

from learner.distributed.sharding import own_rows, sharded
from learner.distributed.stored_weights import empty_model
from learner.models.actor_critic import ActorCritic, load_actor_critic, read_stored
from learner.models.adapter_settings import AdapterSettings
from learner.models.language_models import load_for_ranks, load_language_model
from learner.models.merged_weights import matrices_of
from learner.settings import ModelSettings
from learner.tensor_files import TensorFiles
from tests.contracts.adapters.peft_made import make_adapter

CPU = torch.device("cpu")
SIZE = 4


@contextmanager
def rank_of(size: int, rank: int) -> Iterator[None]:
    """One rank, alone: torch's fake group answers for the others."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.fixture
def num_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many numbers each read has taken from a file."""
    counts: list[int] = []
    plain = TensorFiles.rows

    def rows(self: TensorFiles, key: str, first: int, count: int) -> torch.Tensor:
        stored = plain(self, key, first, count)
        counts.append(stored.numel())
        return stored

    monkeypatch.setattr(TensorFiles, "rows", rows)
    return counts


def one_rank(path: Path, rank: int, **settings: str) -> ActorCritic:
    pair = load_actor_critic(ModelSettings(path=str(path), **settings), 2**20, CPU, shards=True)  # type: ignore[arg-type]
    assert all(parameter.is_meta for parameter in pair.policy.parameters())
    sharded(pair, SIZE, CPU, in_bfloat16=False)
    read_stored(pair)
    return pair


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama_tied", "opt", "t5", "bart"])
def test_the_ranks_rows_are_the_whole_model_and_each_reads_its_own(
    models: dict[str, Path], seq2seq: dict[str, Path], name: str, num_read: list[int]
) -> None:
    path = (models | seq2seq)[name]
    whole = dict(load_language_model(ModelSettings(path=str(path))).named_parameters())
    rows_of: dict[str, list[torch.Tensor]] = {}
    taken = []
    for rank in range(SIZE):
        num_read.clear()
        with rank_of(SIZE, rank):
            pair = one_rank(path, rank)
            for key, parameter in pair.lm.named_parameters():
                rows_of.setdefault(key, []).append(own_rows(parameter.detach())[0].clone())
        taken.append(sum(num_read))
    assert rows_of.keys() == whole.keys()  # tied ones are one
    for key, parameter in whole.items():
        assert torch.equal(torch.cat(rows_of[key]), parameter)
    total = sum(parameter.numel() for parameter in whole.values())
    assert sum(taken) - total in (0, SIZE * getattr(pair.lm, "final_logits_bias", torch.empty(0)).numel())
    assert max(taken) < 1.3 * total / SIZE  # of few rows the first ranks have one more


@pytest.mark.parametrize("goes_on", [False, True])
def test_under_an_adapter_they_are_those_of_the_whole_base(tmp_path: Path, goes_on: bool) -> None:
    """The matrices, which no file of the model has, are drawn, or read from the adapter's own file."""
    adapter = make_adapter(tmp_path)
    chosen = AdapterSettings(kind="lora", r=4, path=str(adapter) if goes_on else None)
    settings = ModelSettings(path=str(tmp_path / "llama"), adapter=chosen)
    torch.manual_seed(0)
    whole = load_actor_critic(settings, 2**20, CPU)
    with rank_of(SIZE, 1):
        torch.manual_seed(0)
        pair = load_actor_critic(settings, 2**20, CPU, shards=True)
        matrices = matrices_of(pair.lm)
        assert all(p.is_meta is (id(p) not in matrices) for p in pair.policy.parameters())
        sharded(pair, SIZE, CPU, in_bfloat16=False)
        read_stored(pair)
        rows = {name: (*own_rows(p.detach()), p.requires_grad) for name, p in pair.named_parameters()}
    assert rows.keys() == dict(whole.named_parameters()).keys()
    for name, parameter in whole.named_parameters():
        held, first, trains = rows[name]
        assert torch.equal(held, parameter[first : first + len(held)]) and trains is parameter.requires_grad


def test_a_critics_own_trunk_begins_as_the_policys(models: dict[str, Path], num_read: list[int]) -> None:
    with rank_of(SIZE, 1):
        pair = one_rank(models["llama"], 1, value_trunk="separate")
        trunk = pair.critic.trunk
        assert isinstance(trunk, torch.nn.Module)
        for ours, theirs in zip(trunk.parameters(), pair.policy.trunk.parameters(), strict=True):
            assert torch.equal(own_rows(ours.detach())[0], own_rows(theirs.detach())[0])
        head = pair.critic.head
        assert isinstance(head, torch.nn.Linear) and not own_rows(head.weight.detach())[0].any()


def test_files_in_parts_and_in_half_precision_without_a_prefix_are_read(
    models: dict[str, Path], tmp_path: Path
) -> None:
    """So are GPT-2's on the hub."""
    for file in models["gpt2"].iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(models["gpt2"] / "model.safetensors")
    short = {key.removeprefix("transformer."): tensor.bfloat16() for key, tensor in tensors.items()}
    places = {key: f"model-0000{i % 2 + 1}-of-00002.safetensors" for i, key in enumerate(short)}
    for name in set(places.values()):
        save_file(
            {key: short[key] for key in short if places[key] == name}, tmp_path / name, {"format": "pt"}
        )
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with rank_of(SIZE, 2):
        pair = one_rank(tmp_path, 2)
        for key, parameter in pair.lm.named_parameters():
            rows, first = own_rows(parameter.detach())
            expected = tensors[key].bfloat16().float()[first : first + len(rows)]
            assert rows.dtype == torch.float32 and torch.equal(rows, expected)


def test_a_head_that_is_tied_by_name_and_not_by_value_is_loaded_whole(seq2seq: dict[str, Path]) -> None:
    """transformers unties it: the published T5 1.1 says that it is tied, and brings a head of its own."""
    lm, stored = load_for_ranks(ModelSettings(path=str(seq2seq["t5_gated"])))
    assert stored is None and lm.lm_head.weight is not lm.shared.weight


def test_a_model_whose_files_lack_a_weight_is_loaded_whole(models: dict[str, Path], tmp_path: Path) -> None:
    for file in models["llama"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    lm, stored = load_for_ranks(ModelSettings(path=str(tmp_path)))
    assert stored is None and not any(parameter.is_meta for parameter in lm.parameters())


def test_an_empty_model_has_the_buffers_and_generation_settings_of_a_loaded_one(
    models: dict[str, Path], seq2seq: dict[str, Path]
) -> None:
    for path in (models["llama"], seq2seq["bart"]):
        settings = ModelSettings(path=str(path))
        (empty, stored), loaded = load_for_ranks(settings), load_language_model(settings)
        assert stored is not None and all(parameter.is_meta for parameter in empty.parameters())
        torch.testing.assert_close(dict(empty.named_buffers()), dict(loaded.named_buffers()), atol=0, rtol=0)
        assert empty.generation_config.to_dict() == loaded.generation_config.to_dict()
        assert empty.config.to_dict() == loaded.config.to_dict()


def test_modules_made_afterwards_have_values(models: dict[str, Path]) -> None:
    load_for_ranks(ModelSettings(path=str(models["llama"])))
    assert not torch.nn.Linear(2, 2).weight.is_meta


def test_files_of_codes_are_left_to_the_library(models: dict[str, Path]) -> None:
    """Their shapes are the parameters' own, and their numbers are not."""
    config = AutoConfig.from_pretrained(models["llama"])
    settings = ModelSettings(path=str(models["llama"]))
    assert empty_model(AutoModelForCausalLM, config, settings) is not None
    config.quantization_config = {"quant_method": "fp8"}
    assert empty_model(AutoModelForCausalLM, config, settings) is None
