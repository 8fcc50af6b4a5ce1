"""An adapter that is trained further: it starts as peft's own merge, and so does its reference."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor

from contracts.errors import InputError
from learner.batches.batching import collate
from learner.models.actor_critic import ActorCritic, reference_of
from learner.models.merged_weights import merged_parameters
from learner.settings import ModelSettings
from services.models.adapters import for_training, for_use
from tests.contracts.adapters.peft_made import kind_of, make_adapter
from tests.learner.adapted import move
from tests.learner.seq2seq import single_turns
from tests.learner.tiny import make_pair, whole

ROLLOUTS = single_turns(7)
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "rslora": ("llama", {"use_rslora": True}),
    "ranks": ("llama", {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 3}}),
    "gpt2": ("gpt2", {}),
    "t5": ("t5", {}),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@torch.no_grad()
def logprobs(policy: Any) -> Tensor:
    values: Tensor = policy(whole(collate(ROLLOUTS)))
    return values


def pair_of(model: ModelSettings) -> ActorCritic:
    return make_pair(Path(model.path), adapter=model.adapter)


@pytest.mark.parametrize("kind", KINDS)
def test_it_starts_as_pefts_merge_and_its_reference_stays_there(tmp_path: Path, kind: str) -> None:
    architecture, options = KINDS[kind]
    adapter = make_adapter(tmp_path, architecture, **options)  # type: ignore[arg-type]
    model = for_training(ModelSettings(path=str(adapter)))
    assert (model.path, model.adapter.kind, model.adapter.r) == (str(tmp_path / architecture), "lora", 4)
    pair = pair_of(model)
    reference, start = reference_of(pair), logprobs(pair.policy)
    merged = make_pair(Path(for_use(ModelSettings(path=str(adapter))).path))
    assert torch.allclose(start, logprobs(merged.policy), atol=1e-5)
    assert not torch.allclose(start, logprobs(make_pair(Path(model.path)).policy), atol=0.05)
    assert logprobs(reference).equal(start)
    move(pair)
    assert logprobs(reference).equal(start) and not torch.allclose(logprobs(pair.policy), start, atol=1e-2)
    assert pair.adapter is not None
    pair.adapter.save(tmp_path / "out")
    base = kind_of(Path(model.path)).from_pretrained(model.path)
    again = PeftModel.from_pretrained(base, tmp_path / "out").merge_and_unload().state_dict()
    assert all(torch.allclose(again[name], tensor, atol=1e-6) for name, tensor in merged_parameters(pair.lm))
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir()) == []


def test_only_the_matrices_train_and_the_start_is_frozen(tmp_path: Path) -> None:
    pair = pair_of(for_training(ModelSettings(path=str(make_adapter(tmp_path)))))
    trained = [name for name, parameter in pair.policy.named_parameters() if parameter.requires_grad]
    assert trained and all(".default." in name for name in trained)
    with pair.adapter.off():  # type: ignore[union-attr]
        pass
    assert trained == [name for name, p in pair.policy.named_parameters() if p.requires_grad]


def test_what_fits_no_adapter_that_goes_on_is_refused(tmp_path: Path) -> None:
    plain, dora = make_adapter(tmp_path), make_adapter(tmp_path, name="dora", use_dora=True)

    def asked(path: Path, **options: Any) -> ModelSettings:
        return for_training(ModelSettings.model_validate({"path": str(path), **options}))

    for path, options, message in (
        (dora, {}, r"an adapter with use_dora, which is not trained further\. model\.merge=true merges it"),
        (plain, {"adapter": {"kind": "lora", "r": 8}}, r"model\.adapter\.r=8: the adapter .* has 4"),
        (plain, {"trainable_layers": 1}, r"model\.trainable_layers=1: .* is an adapter"),
        (tmp_path / "llama", {"merge": True}, r"model\.merge=true merges an adapter"),
        (tmp_path / "llama", {"base": "x"}, r"model\.base=x is the base of an adapter"),
    ):
        with pytest.raises(InputError, match=message):
            asked(path, **options)
    on_top = asked(dora, merge=True, adapter={"kind": "lora", "r": 8})
    assert (on_top.adapter.path, on_top.adapter.r, on_top.merge) == (None, 8, False)
    assert for_training(on_top) == on_top  # opened once more, it stays as it is
    continued = asked(plain, adapter={"kind": "qlora"})
    assert for_training(continued) == continued and continued.adapter.kind == "qlora"
