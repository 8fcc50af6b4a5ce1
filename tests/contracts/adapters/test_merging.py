"""A merged adapter has the log-probabilities of peft's merge; unmergeable adapters are refused by name."""

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from contracts.adapters import merging
from contracts.adapters.folder import adapter_at, why_not_trained
from contracts.adapters.merging import in_words, whole_model
from contracts.errors import InputError
from learner.settings import ModelSettings
from services.models.adapters import for_training
from tests.contracts.adapters.peft_made import base_of, kind_of, logprobs, make_adapter
from tests.models import make_tiny_model

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "lora": ("llama", {}),
    "rslora": ("llama", {"use_rslora": True}),
    "dora": ("gpt2", {"use_dora": True}),
    "ranks": ("llama", {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 3}}),
    "whole head": ("llama", {"modules_to_save": ["lm_head"]}),
    "whole tied head": ("gpt2", {"modules_to_save": ["lm_head"]}),
    "biases": ("gpt2", {"bias": "all"}),
    "some tokens": ("llama", {"trainable_token_indices": [3, 4]}),
    "t5": ("t5", {}),
    "bart": ("bart", {"use_rslora": True}),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("kind", KINDS)
def test_a_merged_adapter_is_pefts_own_merge(tmp_path: Path, kind: str) -> None:
    architecture, options = KINDS[kind]
    adapter, base = make_adapter(tmp_path, architecture, **options), tmp_path / architecture  # type: ignore[arg-type]
    lm = kind_of(base).from_pretrained(base)
    before = logprobs(lm)
    expected = logprobs(PeftModel.from_pretrained(lm, adapter).merge_and_unload())
    folder = whole_model(str(adapter))
    got = logprobs(kind_of(base).from_pretrained(folder))
    assert torch.allclose(got, expected, atol=1e-5) and not torch.allclose(got, before, atol=0.05)
    assert in_words(folder) == f"{adapter} merged into {base}"
    assert (Path(folder) / "tokenizer.json").exists()


def test_it_is_merged_once_and_anew_when_a_file_differs(tmp_path: Path, cache: Path) -> None:
    adapter = make_adapter(tmp_path)
    first = whole_model(str(adapter))
    made = Path(first, "model.safetensors").stat().st_mtime_ns
    assert whole_model(str(adapter)) == first and Path(first, "model.safetensors").stat().st_mtime_ns == made
    weights = load_file(adapter / "adapter_model.safetensors")
    save_file({name: tensor * 2 for name, tensor in weights.items()}, adapter / "adapter_model.safetensors")
    assert whole_model(str(adapter)) != first
    assert len(list((cache / "whetstone" / "merged").iterdir())) == 2  # and nothing half written


def test_a_finished_folder_stays_for_those_who_read_it(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let another process finish the same merge while this one waits for its turn."""
    adapter = make_adapter(tmp_path)
    first = Path(whole_model(str(adapter)))
    inode, merges = first.stat().st_ino, []
    monkeypatch.setattr(merging, "_merge", lambda *arguments: merges.append(arguments))
    away = first.rename(tmp_path / "away")

    class Later(contextlib.nullcontext[None]):
        def __enter__(self) -> None:
            away.rename(first)

    monkeypatch.setattr(merging, "_one_at_a_time", Later)
    assert whole_model(str(adapter)) == str(first)
    assert (first.stat().st_ino, merges) == (inode, [])


@pytest.mark.parametrize("name", ["chat_template.jinja", "spiece.model", "merges.txt"])
def test_a_template_or_tokenizer_that_differs_makes_another_folder(tmp_path: Path, name: str) -> None:
    adapter = make_adapter(tmp_path)
    first = whole_model(str(adapter))
    (adapter / name).write_text("A")
    assert whole_model(str(adapter)) != first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"r": "4"}, r"adapter_config.json: got r='4'; expected a whole number"),
        ({"r": True}, r"got r=True; expected a whole number"),
        ({"lora_alpha": "8"}, r"got lora_alpha='8'; expected a number"),
        ({"target_modules": 7}, r"got target_modules=7; expected names of modules, or a regular expression"),
        ({"base_model_name_or_path": 5}, r"got base_model_name_or_path=5; expected a folder or a hub name"),
    ],
)
def test_a_setting_of_another_type_is_named(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    adapter = make_adapter(tmp_path)
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | options))
    with pytest.raises(InputError, match=message):
        adapter_at(str(adapter))


def test_weights_that_are_cut_off_are_named(tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path)
    weights = adapter / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(InputError, match=r"adapter_model.safetensors is cut off, or no safetensors file"):
        adapter_at(str(adapter))


def test_the_revision_of_a_base_stays_beside_an_adapters_path(tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path)
    settings = ModelSettings(path="some/base", revision="abc", adapter={"kind": "lora", "path": str(adapter)})  # type: ignore[arg-type]
    opened = for_training(settings)
    assert (opened.path, opened.revision) == ("some/base", "abc")


def test_a_base_is_named_by_hand_beside_the_adapter_or_not_at_all(tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path)
    merged, config = whole_model(str(adapter)), json.loads((adapter / "adapter_config.json").read_text())

    def named(base: str | None) -> None:
        config["base_model_name_or_path"] = base
        (adapter / "adapter_config.json").write_text(json.dumps(config))

    named("../llama")  # seen from the adapter
    assert logprobs(kind_of(tmp_path).from_pretrained(whole_model(str(adapter)))).equal(
        logprobs(kind_of(tmp_path).from_pretrained(merged))
    )
    named(None)
    with pytest.raises(InputError, match=r"names no base model .*: set model\.base=FOLDER_OR_HUB_NAME"):
        whole_model(str(adapter))
    assert whole_model(str(adapter), base=str(tmp_path / "llama"))
    named("/not/there")
    with pytest.raises(InputError, match=r"its base /not/there is not there: set model\.base="):
        whole_model(str(adapter))


def test_an_adapter_of_another_base_is_refused(tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path)
    with pytest.raises(InputError, match=r"is an adapter of another base|does not fit its base"):
        whole_model(str(adapter), base=str(base_of(tmp_path, "gpt2")))
    with pytest.raises(InputError, match=r"model\.base=x is the base of an adapter, and model\.path="):
        adapter_at(str(tmp_path / "llama"), base="x")


def test_a_pickle_a_prompt_and_a_folder_of_both_are_refused_by_name(tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path)
    pickled = shutil.copytree(adapter, tmp_path / "pickled")
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    both = shutil.copytree(adapter, tmp_path / "both")
    shutil.copy(tmp_path / "llama" / "model.safetensors", both)
    config = json.loads((adapter / "adapter_config.json").read_text())

    for path, message in (
        (str(pickled), "a pickle can run code"),
        (str(both), "a whole model and an adapter"),
    ):
        with pytest.raises(InputError, match=message):
            whole_model(path)
    for options, message in (
        ({"peft_type": "PREFIX_TUNING"}, "peft_type=PREFIX_TUNING"),
        ({"task_type": "SEQ_CLS"}, "task_type=SEQ_CLS, which writes no text"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
    ):
        (adapter / "adapter_config.json").write_text(json.dumps(config | options))
        with pytest.raises(InputError, match=message):
            whole_model(str(adapter))


def test_tied_embeddings_that_do_not_merge_are_refused(tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path, "gpt2", target_modules=["wte", "c_attn"])
    with pytest.raises(InputError, match="not the adapted one"):
        whole_model(str(adapter))


def test_an_adapter_with_new_tokens_brings_its_tokenizer_and_their_embeddings(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    base = make_tiny_model(tmp_path / "llama")
    tokenizer, lm = AutoTokenizer.from_pretrained(base), kind_of(base).from_pretrained(base)
    rows = lm.get_input_embeddings().weight.shape[0]
    tokenizer.add_tokens(["<think>", "</think>"])
    adapter = make_adapter(tmp_path)
    tokenizer.save_pretrained(adapter)
    with pytest.raises(InputError, match=rf"has {len(tokenizer)} tokens, and .* have embeddings for {rows}"):
        whole_model(str(adapter))
    lm.resize_token_embeddings(len(tokenizer))
    lm.save_pretrained(tmp_path / "llama")  # for make_adapter, which saves the resized tables
    shutil.rmtree(adapter)
    adapter = make_adapter(tmp_path, modules_to_save=["embed_tokens", "lm_head"])
    tokenizer.save_pretrained(adapter)
    make_tiny_model(base)
    merged = whole_model(str(adapter))
    assert kind_of(base).from_pretrained(merged).get_input_embeddings().weight.shape[0] == rows + 2
    assert AutoTokenizer.from_pretrained(merged).convert_tokens_to_ids("<think>") == rows


def test_what_is_not_trained_further_is_named(tmp_path: Path) -> None:
    for options, reason in (
        ({}, ""),
        ({"use_rslora": True}, ""),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias=all"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights=pissa, which changes the base's own weights"),
    ):
        adapter = adapter_at(str(make_adapter(tmp_path, "gpt2", f"a{len(options)}{reason[:9]}", **options)))
        assert adapter is not None and why_not_trained(adapter) == reason


def test_an_adapter_on_the_hub_is_read_from_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layout of the hub's own client, read by that client."""
    adapter, commit = make_adapter(tmp_path), "0" * 40
    home = tmp_path / "hub"
    place = home / "models--me--adapter"
    shutil.copytree(adapter, place / "snapshots" / commit)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    cached = adapter_at("me/adapter")
    assert cached is not None and cached.base == str(tmp_path / "llama")
    assert adapter_at("me/nothing") is None
