"""Refusals before anything starts: models, tokenizers, prompts, memory."""

import importlib.util
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from contracts.errors import InputError
from contracts.rollout import Prompt, Sampling
from contracts.settings import Integers, Settings, build
from learner.algorithms import ALGORITHMS
from learner.algorithms.base import Algorithm, Traits
from learner.algorithms.classes import algorithm_class
from learner.settings import LearnerSettings, ModelSettings
from services.config.settings import RunSettings
from services.data.tasks.base import Split
from services.models.files import read_model
from services.training.preflight.capacity import memory_model
from services.training.preflight.capacity.memory import available_bytes
from services.training.preflight.capacity.memory_model import GIB, MemoryNeeds
from services.training.preflight.checks.adapter_checks import base_bytes, trained_share
from services.training.preflight.checks.sampling_checks import check_end, check_one_correction
from services.training.preflight.preflight import check
from tests.services.countdown import COUNTDOWN, Countdown

CONFIG = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_positions": 16,
    "vocab_size": 101,
}


class Words(Settings):
    """A task of a user's own: prompts of a given number of words."""

    default_reward: ClassVar[str] = "length"
    default_metrics: ClassVar[tuple[str, ...]] = ()

    lengths: Integers = (3,)

    def prompts(self, split: Split) -> list[Prompt]:
        return [Prompt(f"words/{split}/{row}", " ".join(["7"] * n)) for row, n in enumerate(self.lengths)]


class WithReferences(Words):
    def prompts(self, split: Split) -> list[Prompt]:
        return [replace(prompt, references=("7",)) for prompt in super().prompts(split)]


class Broken(Words):
    def prompts(self, split: Split) -> list[Prompt]:
        raise RuntimeError("no such luck")


class OnlyTraining(Words):
    def prompts(self, split: Split) -> list[Prompt]:
        if split != "train":
            raise InputError(f"there are no {split} prompts")
        return super().prompts(split)


class WrongText(Words):
    def prompts(self, split: Split) -> list[Any]:
        return [Prompt("words/0", 7)]  # type: ignore[arg-type]


class OnlyMethods(Algorithm):
    """No algorithm yet: the learner reads fields as well."""

    traits: ClassVar[Traits] = Traits(learns_from="rollouts")

    def credit(self, inputs: Any) -> None: ...

    def prepare_minibatch(self, advantages_N: Any) -> None: ...

    def loss(self, inputs: Any) -> None: ...


class WrongKind(Words):
    def prompts(self, split: Split) -> list[Any]:
        return ["just a text"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's files: 3 * 4 + 5 = 17 parameters, a tokenizer of the numbers 0 to 99, a window of 16."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tensors = {"a": np.zeros((3, 4), np.float32), "b": np.zeros(5, np.float32)}
    save_file(tensors, folder / "model.safetensors")
    tokenizer = Tokenizer(WordLevel({"?": 100, **{str(n): n for n in range(100)}}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def settings(path: Path | str, **changes: Any) -> RunSettings:
    whole = {
        "algorithm": "ppo",
        "task": "increasing_numbers",
        "model": {"path": str(path)},
        "rollout": {"max_tokens": 8, "kv_cache_gib": 0.01},
        **changes,
    }
    return build(RunSettings, whole, where="")


def refusal(model: Path | str, **changes: Any) -> str:
    with pytest.raises(InputError) as caught:
        check(settings(model, **changes))
    return str(caught.value)


def change(model: Path, **entries: Any) -> None:
    (model / "config.json").write_text(json.dumps({**CONFIG, **entries}))


def words(*lengths: int, kind: type[Words] = Words) -> dict[str, Any]:
    return {"name": f"{__name__}:{kind.__name__}", "lengths": list(lengths)}


def test_what_fits_passes_and_torch_is_not_needed_for_it(model: Path) -> None:
    before = set(sys.modules)
    check(settings(model))
    assert "torch" not in set(sys.modules) - before


def test_held_out_prompts_are_read_only_for_evaluations(model: Path) -> None:
    task = words(2, 3, kind=OnlyTraining)
    assert "there are no validation prompts" in refusal(model, task=task)
    checked = check(settings(model, task=task, evaluate_every="never"))
    assert checked.prompts.num_prompts == {"train": 2}


# The model


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "modest").touch()
    for name, meant in (("nothing", "folder. "), ("modell", f"folder; did you mean {tmp_path}/model? ")):
        expected = f"there is no such {meant}Expected the folder that holds config.json"
        assert expected in refusal(tmp_path / name)


def test_a_name_that_the_hub_can_not_give(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    assert "no such folder, and the hub can't be reached" in refusal("nobody/has-this-model")


def test_a_file_is_no_model(model: Path) -> None:
    assert "is a file; expected the folder" in refusal(model / "config.json")


def test_a_folder_without_a_configuration_names_what_it_holds(model: Path) -> None:
    (model / "config.json").unlink()
    message = refusal(model)
    assert "is not a model: it has no config.json; there is: model.safetensors, tokenizer.json" in message


def test_a_runs_folder_points_to_the_model_in_it(model: Path) -> None:
    assert f"Then its model is in {model}" in refusal(model.parent)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"model_type": "gtp2"}, "knows no model_type 'gtp2' (in config.json); did you mean 'gpt2'?"),
        ({"model_type": "own", "auto_map": {}}, "Code that a model brings along is never run"),
        ({"architectures": ["BertForMaskedLM"]}, "is a BertForMaskedLM; expected a model that writes text"),
    ],
)
def test_an_unfit_kind_of_model(model: Path, entries: dict[str, Any], message: str) -> None:
    change(model, **entries)
    assert message in refusal(model)


def test_a_configuration_that_is_not_json(model: Path) -> None:
    (model / "config.json").write_text("{")
    assert "config.json is not JSON" in refusal(model)


@pytest.mark.parametrize("content", ["{}", '{"weight_map": {}}', '{"weight_map": [1]}'])
def test_an_index_that_names_no_weights(model: Path, content: str) -> None:
    (model / "model.safetensors").unlink()
    (model / "model.safetensors.index.json").write_text(content)
    assert "index.json names no weights: expected a weight_map" in refusal(model)


def test_missing_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()
    assert "the weights are missing: expected model.safetensors" in refusal(model)


def test_weights_cut_short(model: Path) -> None:
    file = model / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-4])
    assert f"cut short: {len(whole) - 4} bytes, expected {len(whole)}" in refusal(model)


@pytest.mark.parametrize("content", [b"", b"nonsense, and long enough", b"\x02" + b"\x00" * 7 + b"[]"])
def test_weights_that_are_none(model: Path, content: bytes) -> None:
    (model / "model.safetensors").write_bytes(content)
    assert "model.safetensors is not a safetensors file" in refusal(model)


def test_parameters_are_counted_over_all_parts(model: Path) -> None:
    assert read_model(ModelSettings(path=str(model))).num_parameters == 17
    shutil.copy(model / "model.safetensors", model / "part1.safetensors")
    save_file({"c": np.zeros(10, np.float16)}, model / "part2.safetensors")
    index = {"weight_map": {"a": "part1.safetensors", "b": "part1.safetensors", "c": "part2.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_model(ModelSettings(path=str(model))).num_parameters == 27
    (model / "part2.safetensors").unlink()
    assert "part2.safetensors is missing" in refusal(model)


# The tokenizer


def test_a_missing_tokenizer_and_one_from_elsewhere(model: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "tokenizer"
    elsewhere.mkdir()
    (model / "tokenizer.json").rename(elsewhere / "tokenizer.json")
    assert "the tokenizer is missing: expected one of tokenizer.json" in refusal(model)
    check(settings(model, model={"path": str(model), "tokenizer": str(elsewhere)}))


def test_a_tokenizer_that_does_not_load(model: Path) -> None:
    (model / "tokenizer.json").write_text("{}")
    assert "does not load" in refusal(model)


def test_a_tokenizer_of_another_model(model: Path) -> None:
    change(model, vocab_size=50)
    assert "has 101 tokens, the model 50: it belongs to another model" in refusal(model)


# Prompts: a window of 16 and 8 for the response leave 8 for the prompt.


def test_the_longest_prompt_that_fits_passes(model: Path) -> None:
    check(settings(model, task=words(3, 8)))


def test_a_prompt_too_long_is_named_with_the_remedy(model: Path) -> None:
    message = refusal(model, task=words(3, 9))
    assert "prompt words/train/1 has 9 tokens" in message
    assert "rollout.max_prompt_tokens=8" in message
    cut = {"max_tokens": 8, "kv_cache_gib": 0.01, "max_prompt_tokens": 8}
    check(settings(model, task=words(3, 9), rollout=cut))


def test_evaluations_longer_responses_count_too(model: Path) -> None:
    assert "leaves room for 6" in refusal(model, task=words(8), evaluation={"max_tokens": 10})


def test_a_response_as_long_as_the_window(model: Path) -> None:
    message = refusal(model, rollout={"max_tokens": 16})
    assert "max_tokens=16 leaves no room for a prompt: the model's window is 16 tokens" in message


def test_a_model_without_a_window_takes_any_prompt(model: Path) -> None:
    (model / "config.json").write_text(json.dumps({**CONFIG, "n_positions": None}))
    check(settings(model, task=words(500)))


def test_a_reward_that_compares_needs_references(model: Path) -> None:
    assert "reward=rouge compares with references, but prompt words/train/0 has no reference" in refusal(
        model, task=words(3), reward="rouge"
    )
    assert "metrics=rouge compares with references" in refusal(model, task=words(3), metrics="rouge")


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (words(kind=Broken), "prompts('train') raised RuntimeError: no such luck"),
        (words(kind=WrongKind), "expected whetstone.Prompt, got str 'just a text'"),
        (words(kind=WrongText), "prompt words/0: expected a text, got int 7"),
        (words(), "expected a list of at least one prompt, got list []"),
    ],
)
def test_a_users_task_that_misbehaves(model: Path, task: dict[str, Any], message: str) -> None:
    assert message in refusal(model, task=task)


def test_a_users_algorithm_without_the_fields_of_one(model: Path) -> None:
    message = refusal(model, algorithm=f"{__name__}:OnlyMethods")
    assert "OnlyMethods is no algorithm: it lacks learning_rate, critic_learning_rate, num_epochs" in message


FROM_DATA = [name for name in ALGORITHMS if algorithm_class(name).traits.learns_from == "data"]


@pytest.mark.parametrize("name", FROM_DATA)
def test_an_algorithm_that_learns_from_data_needs_some(model: Path, name: str) -> None:
    message = refusal(model, algorithm=name)
    assert f"algorithm={name} learns from a data set: expected data=FOLDER with rows of prompt" in message


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - set(FROM_DATA)))
def test_every_built_in_algorithm_has_the_fields_of_one(model: Path, name: str) -> None:
    references = {**words(3), "name": f"{__name__}:WithReferences"}
    needed: dict[str, Any] = {}
    if name == "return_conditioned":
        needed = playing(target_return=3.0) | {"reward": []}
    if name == "distillation":
        needed = {"model": {"path": str(model), "reference": {"path": str(model)}}}
    check(settings(model, algorithm=name, task=references, **needed))


def test_bad_data_is_refused_without_importing_datasets(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    file.write_text('{"prompt": "1 2 3"}\n' * 9 + json.dumps({"prompt": "5 " * 20}) + "\n")
    before = set(sys.modules)
    message = refusal(model, task={"name": "prompts", "data_files": str(file)}, reward="length")
    assert "prompt prompts/test/0 has 20 tokens" in message  # the tenth row goes to the test
    assert "datasets" not in set(sys.modules) - before


# Memory


def needed_bytes(
    run: RunSettings, num_parameters: int, share: float = 1.0, base: float | None = None
) -> dict[str, float]:
    needs = MemoryNeeds(run.model, run.algorithm, run.learner, run.rollout, num_parameters, share, base)
    return needs.least()


def test_what_a_run_needs_by_hand(model: Path) -> None:
    # a million parameters: 16 MB to train, 4 MB of reference, and for each worker 4 MB and 10 MiB of cache
    needed = needed_bytes(settings(model, rollout={"num_workers": 2, "kv_cache_gib": 10 / 1024}), 10**6)
    learner, reference, workers = needed.values()
    assert learner - memory_model.LEARNER_PROCESS == pytest.approx(16e6)
    assert reference == 4e6
    assert workers - 2 * memory_model.WORKER_PROCESS == pytest.approx(2 * (4e6 + 10 * 2**20))
    separate = needed_bytes(settings(model, model={"path": "m", "value_trunk": "separate"}), 10**6)
    assert next(iter(separate.values())) - learner == pytest.approx(16e6)


def test_a_frozen_trunk_is_counted_once_and_without_gradients(model: Path) -> None:
    # a quarter of a million parameters train, 16 bytes each and 4 in the reference; the rest take 4 once
    needed = needed_bytes(settings(model), 10**6, share=0.25)
    learner, reference, _ = needed.values()
    assert learner - memory_model.LEARNER_PROCESS == pytest.approx(0.25 * 16e6 + 0.75 * 4e6)
    assert reference == pytest.approx(1e6)


def adapted(path: Path, **adapter: Any) -> RunSettings:
    return settings(path, model={"path": str(path), "adapter": adapter})


def test_what_a_run_with_an_adapter_needs_by_hand(model: Path) -> None:
    # of a million parameters of a model 1,000 wide, rank 10 adds 2 %: 16 bytes each, beside a base of 4 each;
    # no reference, but the merged weights on their way
    change(model, n_embd=1000, vocab_size=100)
    files, run = read_model(ModelSettings(path=str(model))), adapted(model, kind="lora", r=10)
    adapter = run.model.adapter
    share, base = trained_share(adapter, files), base_bytes(adapter, files, 10**6)
    assert (share, base) == (0.02, 4e6)
    needed = needed_bytes(run, 10**6, share, base)
    assert list(needed) == [
        "learner with gradients and Adam",
        "merged weights on their way",
        "1 rollout worker",
    ]
    learner, merged, _ = needed.values()
    assert (learner - memory_model.LEARNER_PROCESS, merged) == (pytest.approx(4e6 + 0.02 * 16e6), 4e6)
    # in 4 bits all but the embeddings, 100 rows of 1,000
    quantized = adapted(model, kind="qlora", r=10)
    assert base_bytes(quantized.model.adapter, files, 10**6) == pytest.approx(4e5 + 0.52 * 9e5)
    served = adapted(model, kind="lora", serve="adapter")
    assert "merged weights on their way" not in needed_bytes(served, 10**6, share, base)


@pytest.mark.parametrize(
    ("adapter", "changes", "message"),
    [
        ({"kind": "qlora"}, {"algorithm": "trpo"}, r"kind=qlora: algorithm=trpo needs forward-mode"),
        ({"serve": "adapter"}, {"algorithm": "nlpo"}, "generates with two models in one engine"),
        (
            {"serve": "adapter"},
            {"rollout": {"engine": "transformers", "max_tokens": 4}},
            r"serves no adapters; expected .*=merged",
        ),
    ],
)
def test_what_an_adapter_can_not_do_is_refused(
    model: Path, adapter: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with_adapter = {"path": str(model), "adapter": {"kind": "lora", **adapter}}
    with pytest.raises(InputError, match=message):
        check(settings(model, model=with_adapter, **changes))


def test_an_adapter_whose_package_is_missing_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "peft" else there(name))
    message = (
        r"^model\.adapter\.kind=lora needs peft, which is not installed: pip install 'whetstone\[adapters\]'$"
    )
    with pytest.raises(InputError, match=message):
        check(adapted(model, kind="lora"))


@pytest.mark.parametrize("key", ["n_layer", "num_hidden_layers", "num_layers"])
def test_trained_layers_are_fewer_than_the_model_has(model: Path, key: str) -> None:
    change(model, **{key: 4})
    check(settings(model, model={"path": str(model), "trainable_layers": 0.33}))
    with pytest.raises(InputError, match=r"^model\.trainable_layers=4: the model has 4 layers"):
        check(settings(model, model={"path": str(model), "trainable_layers": 4}))


def test_too_little_memory_says_how_much_is_needed_and_there(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    run = {"max_tokens": 8, "kv_cache_gib": 1e6}
    message = refusal(model, learner={"device": "cpu"}, rollout=run)
    assert "too little memory: this run needs about 1000001.5 GiB" in message
    assert "GiB are available" in message and "rollout.kv_cache_gib" in message


@pytest.mark.parametrize("version", [1, 2])
def test_a_containers_limit_counts(tmp_path: Path, version: int) -> None:
    files = {
        2: {"memory.max": GIB, "memory.current": GIB // 2, "memory.stat": f"anon 5\ninactive_file {2**20}"},
        1: {
            "memory/memory.limit_in_bytes": GIB,
            "memory/memory.usage_in_bytes": GIB // 2,
            "memory/memory.stat": f"cache 5\ntotal_inactive_file {2**20}",
        },
    }[version]
    (tmp_path / "memory").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(str(content))
    assert available_bytes(tmp_path) == GIB // 2 + 2**20


def test_without_a_limit_the_machine_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes(tmp_path) > 2**20


# Encoder-decoders

BART: dict[str, Any] = {
    "model_type": "bart",
    "architectures": ["BartForConditionalGeneration"],
    "is_encoder_decoder": True,
    "max_position_embeddings": 16,
}


def test_prompt_and_response_of_an_encoder_decoder_have_a_window_each(model: Path) -> None:
    change(model, **BART)
    check(settings(model, task=words(16), rollout={"max_tokens": 15}))
    assert "has 17 tokens, but the model's window leaves room for 16" in refusal(model, task=words(17))
    assert "more than the model's decoder can write" in refusal(model, rollout={"max_tokens": 16})


def test_relative_positions_have_no_end(model: Path) -> None:
    change(model, **{**BART, "model_type": "t5", "n_positions": 4})
    check(settings(model, task=words(100)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout": {"engine": "vllm"}}, "which vLLM can't run; expected rollout.engine=auto"),
        (
            {"algorithm": {"name": "supervised", "loss_on": "text"}, "task": words()},
            "expected algorithm.loss_on=response",
        ),
    ],
)
def test_what_an_encoder_decoder_can_not_do(model: Path, changes: dict[str, Any], message: str) -> None:
    change(model, **BART)
    assert message in refusal(model, **changes)


def test_beam_search_is_not_vllms(model: Path) -> None:
    beams = {"num_beams": 4, "temperature": 0.0}
    assert "vLLM has no beam search, and rollout.engine=auto" in refusal(model, evaluation=beams)
    rollout = {"engine": "transformers", "max_tokens": 8, "kv_cache_gib": 0.01}
    check(settings(model, evaluation=beams, rollout=rollout))


def test_no_text_goes_on_behind_the_end_of_a_chat_templates_answer() -> None:
    endless = Sampling(max_tokens=4, ignore_eos=True)
    check_end(endless, by_template=False)
    check_end(Sampling(max_tokens=4), by_template=True)
    with pytest.raises(InputError, match=r"ignore_eos=false, or model\.chat\.template=none"):
        check_end(endless, by_template=True)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"rollout": {"top_k": 5}}, "rollout.top_k"),
        ({"rollout": {"top_p": 0.9}}, "rollout.top_p"),
        ({"rollout": {"min_tokens": 2}}, "rollout.min_tokens"),
        ({"algorithm": "nlpo"}, "algorithm.name=nlpo"),
    ],
)
def test_importance_weights_are_refused_where_tokens_can_not_be_drawn(
    model: Path, changes: dict[str, Any], cause: str
) -> None:
    message = refusal(model, learner={"behavior": "importance"}, **changes)
    assert f"corrects only for a temperature, but {cause} excludes" in message


@pytest.mark.parametrize(
    ("ahead", "learner", "cause"),
    [
        (
            0,
            {"behavior": "importance", "mismatch": {"weights": "response"}},
            "learner.mismatch.weights=response",
        ),
        (0, {"behavior": "importance", "mismatch": {"weights": "none"}}, "learner.mismatch.weights=none"),
        (
            0,
            {"behavior": "importance", "staleness_correction": "response"},
            "learner.staleness_correction=response",
        ),
        (1, {"mismatch": {"weights": "response"}}, "learner.staleness_correction=token"),
        (
            1,
            {"mismatch": {"weights": "token"}, "staleness_correction": "none"},
            "learner.staleness_correction=none",
        ),
    ],
)
def test_a_correction_that_another_one_would_silence_is_refused(
    model: Path, ahead: int, learner: dict[str, Any], cause: str
) -> None:
    message = refusal(model, learner=learner, rollout={"max_staleness": ahead})
    assert cause in message and (
        "learner.behavior=importance" in message or "learner.mismatch.weights=" in message
    )


@pytest.mark.parametrize(
    ("ahead", "learner"),
    [
        (0, {"behavior": "importance"}),
        (0, {"mismatch": {"weights": "response"}}),
        (1, {"mismatch": {"weights": "response"}, "staleness_correction": "response"}),
        (1, {"mismatch": {"weights": "none"}}),
    ],
)
def test_corrections_that_agree_are_not(ahead: int, learner: dict[str, Any]) -> None:
    check_one_correction(LearnerSettings(**learner), ahead)


def test_attention_heads_are_shared_out_evenly(model: Path) -> None:
    change(model, n_head=2)
    small = {"max_tokens": 8, "kv_cache_gib": 0.01}
    message = refusal(model, rollout={**small, "tensor_parallel_size": 3})
    assert "tensor_parallel_size=3: the model has 2 attention heads" in message
    check(settings(model, rollout={**small, "tensor_parallel_size": 2}))


def test_a_temperature_beyond_vllms_is_refused_where_vllm_may_run(model: Path) -> None:
    hot = {"temperature": 2.5, "max_tokens": 8, "kv_cache_gib": 0.01}
    assert "temperature=2.5: vLLM takes at most 2" in refusal(model, rollout=hot)
    check(settings(model, rollout={**hot, "engine": "transformers"}))


def test_supervised_training_needs_references(model: Path) -> None:
    message = refusal(model, algorithm="supervised")
    assert "algorithm=supervised learns to write references" in message


def test_prompts_that_are_cut_are_counted_split_by_split(model: Path) -> None:
    """Prompts of 3, 9 and 12 tokens, and at most 8: of training all are asked, of an evaluation two."""
    rollout = {"max_tokens": 4, "kv_cache_gib": 0.01, "max_prompt_tokens": 8}
    task = {**words(3, 9, 12), "truncation_side": {"train": "right"}}
    checked = check(settings(model, task=task, rollout=rollout, evaluation={"num_prompts": 2}))
    assert [(cut.split, cut.num_cut, cut.num_prompts) for cut in checked.prompts.cut] == [
        ("train", 2, 3),
        ("validation", 1, 2),
        ("test", 1, 2),
    ]
    assert checked.warnings[0].startswith("train: 2 of 3 (67%) prompts are longer than 8 tokens")
    assert "their first 8, without their end (task.truncation_side=right)" in checked.warnings[0]
    assert "their last 8, without their beginning (task.truncation_side=left)" in checked.warnings[1]
    longer = {"num_prompts": 2, "max_prompt_tokens": 9}
    assert check(settings(model, task=task, rollout=rollout, evaluation=longer)).warnings[1:] == []


def test_supervised_training_cuts_to_the_window_and_says_so(model: Path) -> None:
    """A window of 16: a prompt of 20 tokens beside its reference of one is cut, and an evaluation's too."""
    task = words(3, 20, kind=WithReferences)
    rollout = {"max_tokens": 16, "kv_cache_gib": 0.01}
    evaluation = {"max_tokens": 4, "max_prompt_tokens": 8}
    checked = check(
        settings(
            model, algorithm="supervised", task=task, rollout=rollout, evaluation=evaluation, reward="length"
        )
    )
    assert (
        "train: 1 of 2 (50%) examples are longer than the model's window of 16 tokens" in checked.warnings[-1]
    )
    assert refusal(
        model,
        algorithm="supervised",
        task=task,
        rollout=rollout,
        evaluation={"max_tokens": 4},
        reward="length",
    ).startswith("prompt words/validation/1 has 20 tokens")


def test_a_perplexity_of_meta_data_needs_them(model: Path) -> None:
    evaluation = {"perplexity_stride": 4, "perplexity_meta": "reference"}
    assert "evaluation.perplexity_meta=reference: prompt words/validation/0 has no text" in refusal(
        model, task=words(3, kind=WithReferences), evaluation=evaluation
    )


# What rewards and metrics need of the prompts


class Labelled(Words):
    """The last prompt lacks something: a reference with words in it, or one of its meta data."""

    lacks: str = "nothing"

    def prompts(self, split: Split) -> list[Prompt]:
        *whole, last = [
            replace(prompt, references=("", "7"), meta={"intent": 1, "label": 0})
            for prompt in super().prompts(split)
        ]
        if self.lacks == "references":
            last = replace(last, references=("", " "))
        elif self.lacks == "intent":
            last = replace(last, meta={"label": 0, "length": 3})
        elif self.lacks == "value":
            last = replace(last, meta={"label": 0, "intent": None})
        return [*whole, last]


PICKY = "tests.reward_servers.graders:Picky"


@pytest.mark.parametrize(("key", "grader"), [("reward", PICKY), ("metrics", [PICKY])])
def test_what_a_grader_needs_is_looked_for_in_every_prompt(model: Path, key: str, grader: Any) -> None:
    task = words(3, 3, kind=Labelled)
    other = {"reward": "length", key: grader}
    check(settings(model, task=task, **other))
    assert (
        f"{key}={PICKY} needs meta data intent, but task={__name__}:Labelled gives: label, length "
        "(prompt words/train/1)" in refusal(model, task={**task, "lacks": "intent"}, **other)
    )
    assert (
        f"needs meta data intent, but task={__name__}:Labelled gives: label, intent (null) "
        "(prompt words/train/1). Leave this prompt out"
        in refusal(model, task={**task, "lacks": "value"}, **other)
    )
    message = refusal(model, task={**task, "lacks": "references"}, **other)
    assert f"{key}={PICKY} compares with references, but prompt words/train/1 has only empty" in message
    check(settings(model, task={**task, "lacks": "references"}, reward="length", metrics=["length"]))


def test_empty_references_teach_nothing(model: Path) -> None:
    task = {**words(3, 3, kind=Labelled), "lacks": "references"}
    message = refusal(model, algorithm="supervised", task=task, reward="length")
    assert "algorithm=supervised learns to write references, but prompt words/train/1 has only" in message


# Environments


class Maze(Countdown):
    """A game that lies in a file."""

    needs_meta: ClassVar[tuple[str, ...]] = ("game",)


def playing(**options: Any) -> dict[str, Any]:
    return {"environment": {"name": COUNTDOWN, "reply_end": "!", **options}}


def test_an_answer_needs_an_end(model: Path) -> None:
    message = refusal(model, environment=COUNTDOWN)
    assert "has an end token, so every answer would go on for rollout.max_tokens=8 tokens" in message
    check(settings(model, **playing()))
    stop = {"max_tokens": 8, "kv_cache_gib": 0.01, "stop": ["!"]}
    check(settings(model, environment=COUNTDOWN, rollout=stop))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("generation_config.json", {"eos_token_id": 1}),
        ("tokenizer_config.json", {"eos_token": "<eos>"}),
        ("special_tokens_map.json", {"eos_token": {"content": "<eos>"}}),
        ("config.json", {**CONFIG, "eos_token_id": 1}),
    ],
)
def test_an_end_token_is_enough_wherever_it_is_named(model: Path, file: str, content: Any) -> None:
    (model / file).write_text(json.dumps(content))
    check(settings(model, environment=COUNTDOWN))


def test_a_chat_template_has_to_be_there(model: Path) -> None:
    assert "has no chat template" in refusal(model, **playing(template="chat"))
    template = "{% for m in messages %}{{ m.role }} {{ m.content }} . {% endfor %}"
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    check(settings(model, **playing(template="chat")))
    (model / "tokenizer_config.json").unlink()
    (model / "chat_template.jinja").write_text(template)
    check(settings(model, **playing(template="chat")))
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert "can't be continued turn by turn" in refusal(model, **playing(template="chat"))


def test_an_encoder_decoder_begins_each_turn_afresh(model: Path) -> None:
    change(model, **BART)
    assert "expected environment.memory=N" in refusal(model, **playing())
    check(settings(model, **playing(memory=0)))


def test_a_task_that_does_not_belong_to_the_environment(model: Path) -> None:
    maze = {"environment": {"name": f"{__name__}:Maze", "reply_end": "!"}}
    message = refusal(model, task=words(3), **maze)
    assert "needs prompts with meta data game, but task=" in message and "(prompt words/train/0)" in message


def test_an_environments_first_words_may_be_longer_than_the_window(model: Path) -> None:
    check(settings(model, task=words(30), **playing()))


def test_experts_need_no_references(model: Path) -> None:
    check(settings(model, task=words(3), algorithm="supervised", **playing()))
    assert "algorithm=supervised learns to write references" in refusal(
        model, task=words(3), algorithm="supervised"
    )
