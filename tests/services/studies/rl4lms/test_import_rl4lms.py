"""RL4LMs' configurations become experiments that compose, and every trap in them is told."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import InputError
from services import cli
from services.config import compose
from services.config.settings import RunSettings
from services.studies.rl4lms.datapool import POOLS
from services.studies.rl4lms.evaluation import METRICS
from services.studies.rl4lms.experiment import read_configuration, to_yaml
from services.studies.rl4lms.findings import Findings
from services.studies.rl4lms.reading import shown
from services.studies.rl4lms.reward import REWARDS
from tests.services.rl4lms_table import configurations, text_of

PPO, NLPO, A2C, SUPERVISED = (
    f"imdb_text_continuation/gpt2_{name}" for name in ("ppo", "nlpo", "a2c", "supervised")
)
Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def conf_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("conf")
    shutil.copytree(compose.CONF, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def run_of(
    findings: Findings, conf_copy: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str
) -> RunSettings:
    """As `whetstone train experiment=imported` has it."""
    (conf_copy / "experiment" / "imported.yaml").write_text(to_yaml(findings, "imported"))
    monkeypatch.setattr(compose, "CONF", conf_copy)
    return compose.run_settings(["experiment=imported", *overrides])


def imported(tmp_path: Path, name: str, change: Change = lambda tree: None, **options: Any) -> Findings:
    tree = yaml.safe_load(text_of(name))
    change(tree)
    return of_text(tmp_path, yaml.safe_dump(tree, sort_keys=False), **options)


def of_text(tmp_path: Path, text: str, **options: Any) -> Findings:
    file = tmp_path / "file.yml"
    file.write_text(text)
    return read_configuration(file, **options)


def missing(findings: Findings) -> list[str]:
    """Settings that the experiment leaves to be given."""
    reward = findings.options.get("reward")
    return (
        [f"reward.{key}" for key, value in reward.items() if value == "???"]
        if isinstance(reward, dict)
        else []
    )


def refusal(tmp_path: Path, name: str, change: Change) -> str:
    with pytest.raises(InputError) as caught:
        imported(tmp_path, name, change)
    return str(caught.value)


def put(path: str, value: Any) -> Change:
    """`put("alg.args.n_steps", 5)`; None takes the key away."""

    def change(tree: dict[str, Any]) -> None:
        *folders, leaf = path.split(".")
        for folder in folders:
            tree = tree[folder]
        if value is None:
            del tree[leaf]
        else:
            tree[leaf] = value

    return change


# All of them


def test_there_are_as_many_as_rl4lms_ships() -> None:
    kinds = [says["alg"]["id"] for says in configurations().values()]
    assert (len(kinds), kinds.count("supervised")) == (44, 6)


@pytest.mark.parametrize("compat", [False, True])
@pytest.mark.parametrize("name", configurations())
def test_every_configuration_is_a_run(
    name: str, compat: bool, tmp_path: Path, conf_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = imported(tmp_path, name, compat=compat)
    run = run_of(findings, conf_copy, monkeypatch, *(f"{key}=given" for key in missing(findings)))
    assert run.algorithm_name == configurations()[name]["alg"]["id"]


# Numbers by hand


def test_gpt2_on_imdb_by_hand(tmp_path: Path) -> None:
    """10 environments × 128 tokens are 1280 tokens, 26.7 reviews of 48."""
    tree = imported(tmp_path, PPO).tree()
    classifier = {
        "name": "learned_reward",
        "model": "lvwerra/distilbert-imdb",
        "label_ix": 1,
        "template": "{prompt}{text}",
    }
    assert tree["task"] == {"name": "imdb", "seed": 42, "truncation_side": "left"}
    assert tree["rollout"] == {
        "max_prompt_tokens": 64,
        "max_tokens": 48,
        "min_tokens": 48,
        "top_k": 50,
        "prompts_per_iteration": 27,
        "dtype": "float32",
    }
    assert tree["algorithm"] == {
        "name": "ppo",
        "learning_rate": 1e-6,
        "num_epochs": 5,
        "minibatch_tokens": 64,
        "kl": {"coefficient": 0.1, "target": 0.1},
        "optimizer": {"decays": "all_but_biases"},
        "gamma": 0.99,  # RL4LMs' default, which is not ours
        "reward_scale": 1.0,
        "normalize_values": False,
    }
    assert tree["reward"] == classifier
    assert tree["metrics"] == [classifier, "diversity"]
    assert tree["evaluation"] == {"num_prompts": None, "perplexity_stride": 512}
    assert tree["model"] == {"path": "lvwerra/gpt2-imdb", "value_trunk": "separate"}
    assert tree["learner"] == {"autocast": "none"}


def test_supervised_epochs_by_hand(tmp_path: Path) -> None:
    """10 passes over 10000 positive reviews in batches of 16 are 6250 steps; 100 of them an iteration."""
    tree = imported(tmp_path, SUPERVISED).tree()
    assert (tree["iterations"], tree["rollout"]["prompts_per_iteration"]) == (
        62,
        1600,
    )  # 62.5, to the even one
    assert (tree["evaluate_every"], tree["algorithm"]["minibatch_size"]) == (2, 16)
    expected = {
        "max_tokens": 48,
        "min_tokens": 48,
        "top_k": 50,
        "num_prompts": None,
        "perplexity_stride": 512,
        "perplexity_meta": "reference",
        "max_prompt_tokens": 64,
    }
    assert tree["evaluation"] == expected

    half = imported(tmp_path, SUPERVISED, train_rows=5_000).tree()
    assert half["iterations"] == 31  # 31.25


def test_supervised_texts_are_cut_where_the_tokenizer_ends(tmp_path: Path) -> None:
    """`tokenizer.max_length`, 128, cuts evaluation prompts alone; T5's own limit is 512, GPT-2's 1024."""
    gpt2 = imported(tmp_path, "dialog/gpt2_supervised").tree()
    assert (gpt2["rollout"]["max_tokens"], "max_prompt_tokens" in gpt2["rollout"]) == (1024, False)
    assert gpt2["evaluation"]["max_prompt_tokens"] == 128
    t5 = imported(tmp_path, "totto/t5_supervised").tree()
    assert (t5["rollout"]["max_tokens"], t5["rollout"]["max_prompt_tokens"]) == (512, 512)
    assert "max_prompt_tokens" not in t5["evaluation"]


def test_prompts_are_cut_on_the_side_that_each_argument_names(tmp_path: Path) -> None:
    sides = {"train": "right", "validation": "left", "test": "left"}
    expected = {
        "narrative_qa/t5_ppo": "right",
        "narrative_qa/t5_nlpo": sides,
        "totto/t5_ppo": "left",  # its tokenizer says right, and both arguments win over that
        "totto/t5_supervised": "right",
    }
    for name, side in expected.items():
        assert imported(tmp_path, name).tree()["task"]["truncation_side"] == side
    assert "trains on one end of a long prompt" in " ".join(
        imported(tmp_path, "narrative_qa/t5_nlpo").warnings
    )
    wrong = put("env.args.prompt_truncation_side", "middle")
    assert "got middle; expected left or right" in refusal(tmp_path, "totto/t5_ppo", wrong)


def test_warm_up_is_counted_in_iterations(tmp_path: Path) -> None:
    """128 examples a batch of 64 × 2, 50 steps an iteration: 120 steps of warm-up are 2.4 iterations."""

    def change(tree: dict[str, Any]) -> None:
        tree["alg"]["training_args"] |= {
            "gradient_accumulation_steps": 2,
            "logging_steps": 50,
            "warmup_steps": 120,
            "max_steps": 1000,
            "lr_scheduler_type": "linear",
        }

    tree = imported(tmp_path, "iwslt2017/t5_supervised", change).tree()
    assert tree["rollout"]["prompts_per_iteration"] == 6400
    assert (tree["iterations"], tree["evaluate_every"]) == (20, 1)
    assert tree["learner"] == {"autocast": "none", "lr_schedule": "linear", "warmup_iterations": 3}


@given(st.integers(1, 64), st.integers(1, 4096), st.integers(1, 512), st.integers(1, 512))
def test_an_iteration_holds_the_tokens_that_it_held_there(
    tmp_path_factory: pytest.TempPathFactory, envs: int, steps: int, batch: int, tokens: int
) -> None:
    def change(tree: dict[str, Any]) -> None:
        tree["env"]["n_envs"], tree["alg"]["args"]["n_steps"] = envs, steps
        tree["alg"]["args"]["batch_size"] = batch
        tree["env"]["args"]["max_episode_length"] = tokens
        tree["alg"]["policy"]["args"]["generation_kwargs"] = {"do_sample": True, "max_new_tokens": tokens}

    tree = imported(tmp_path_factory.getbasetemp(), PPO, change).tree()
    prompts = tree["rollout"]["prompts_per_iteration"]
    assert (prompts - 1) * tokens < envs * steps <= prompts * tokens
    assert tree["algorithm"]["minibatch_tokens"] == batch


def test_a_repetition_penalty_is_that_of_rollouts_and_of_evaluations(tmp_path: Path) -> None:
    of_rollouts = "alg.policy.args.generation_kwargs.repetition_penalty"
    tree = imported(tmp_path, PPO, put(of_rollouts, 1.3)).tree()
    assert tree["rollout"]["repetition_penalty"] == 1.3
    assert "repetition_penalty" not in tree["evaluation"]  # as rollouts'

    def change(tree: dict[str, Any]) -> None:
        put(of_rollouts, 1.3)(tree)
        tree["train_evaluation"]["generation_kwargs"] = {"num_beams": 2, "max_new_tokens": 48}

    tree = imported(tmp_path, PPO, change).tree()
    assert tree["evaluation"]["repetition_penalty"] == 1.0  # these keys replace the rollouts'


def test_a_text_goes_on_behind_its_end_unless_the_file_ends_it(tmp_path: Path) -> None:
    assert "ignore_eos" not in imported(tmp_path, PPO).tree()["rollout"]
    for value in (False, None):  # RL4LMs' default is False
        tree = imported(tmp_path, PPO, put("env.args.terminate_on_eos", value)).tree()
        assert tree["rollout"]["ignore_eos"] is True


def test_compat_is_rl4lms_with_its_faults(tmp_path: Path) -> None:
    tree = imported(tmp_path, "narrative_qa/t5_nlpo", compat=True).tree()
    assert tree["rollout"]["max_tokens"] == 19
    assert tree["algorithm"]["compatibility"] == "rl4lms"
    assert (tree["learner"]["behavior"], tree["model"]["value_trunk"]) == ("ignore", "separate")
    assert "meteor_rl4lms_compat" in tree["metrics"]
    sampled = imported(tmp_path, NLPO, compat=True).tree()
    assert sampled["evaluation"]["masked"] is True
    assert imported(tmp_path, "dialog/gpt2_supervised", compat=True).tree()["algorithm"]["loss_on"] == "text"


# Traps


TRAPS = [
    (PPO, "top_k is missing, so Hugging Face samples from the 50 likeliest"),
    ("narrative_qa/t5_ppo", "20 tokens, including the start token. RL4LMs then writes at most 19"),
    ("narrative_qa/t5_ppo", "generation_kwargs.max_new_tokens is missing"),
    ("totto/t5_ppo", "target_kl: 2 is nats per token"),
    ("totto/t5_ppo", "the coefficient will only fall"),
    ("narrative_qa/t5_nlpo", "metrics.4.args.apply_best: 'True,': a stray comma makes it a text"),
    ("iwslt2017/t5_ppo", "bleu is listed twice"),
    (NLPO, "applies the mask in evaluations"),
    (NLPO, "min_tokens_to_keep: the mask always keeps 100 tokens, and rollouts sample from the 50"),
    (NLPO, "sampler never sees a renewed mask"),
    ("totto/t5_ppo", "a text equal to its reference scores about 0.69"),
    (PPO, "1280 tokens an iteration. Whetstone writes 27 whole texts of 48 tokens"),
    (PPO, "batch_size is 64 tokens. RL4LMs' minibatch has exactly so many; Whetstone's has whole texts"),
    (A2C, "datapool.args.seed is missing, and RL4LMs' imdb fails"),
    (PPO, "apply_model_parallel: RL4LMs splits the layers"),
    (PPO, "pad_token_as_eos_token"),
    (PPO, "perplexity is measured on the references"),
    ("dialog/gpt2_ppo", "the mean METEOR of all texts so far"),
    ("dialog/gpt2_ppo", "<EOU> is plain text"),
    ("common_gen/t5_ppo", "becomes a second part of the reward, with weight 1"),
    ("common_gen/t5_ppo_on_supervised", "T5-11B"),
    ("totto/t5_supervised", "10 beams with do_sample: True"),
    ("totto/t5_supervised", "constant_with_warmup without warmup_steps"),
    (SUPERVISED, "without the end token"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "warning"), TRAPS)
def test_a_trap_is_told(name: str, warning: str, tmp_path: Path) -> None:
    assert any(warning in text for text in imported(tmp_path, name).warnings)


CHANGED = [
    (SUPERVISED, put("tokenizer.max_length", None), "tokenizer.max_length is missing"),
    (PPO, put("env.args.terminate_on_eos", None), "terminate_on_eos is not true"),
    (PPO, put("env.args.max_prompt_length", None), "max_prompt_length is missing"),
    (PPO, put("env.args.prompt_truncation_side", "right"), "one end of a long"),
    (PPO, put("env.args.priority_scale", 0.5), "does nothing in RL4LMs"),
    (PPO, put("alg.kl_div.target_kl", 0), "divides by zero in RL4LMs"),
    (PPO, put("alg.kl_div.coeff", 0), "has no effect"),
    (PPO, put("alg.args.learning_rate", "1e-6"), "YAML reads it as a text"),
    (PPO, put("alg.policy.args.generation_kwargs.do_sample", None), "greedy decoding and fail"),
    (NLPO, put("alg.policy.args.generation_kwargs", {"num_beams": 4}), "NLPO never ends"),
    (PPO, put("alg.policy.args.generation_kwargs.max_new_tokens", 99), "99 exceeds"),
    (NLPO, put("alg.policy.args.mask_type", "topk"), "the learner's own likeliest"),
    (SUPERVISED, put("alg.generation_kwargs.post_processing_fn", None), "is missing, and RL4LMs'"),
    (PPO, put("alg.args.seed", 3), "RL4LMs ignores the seed"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "warning"), CHANGED)
def test_a_trap_that_is_shipped_nowhere_is_told_as_well(
    name: str, change: Change, warning: str, tmp_path: Path
) -> None:
    findings = imported(tmp_path, name, change)
    assert any(warning in text for text in findings.warnings), findings.warnings


def test_nothing_is_told_twice(tmp_path: Path) -> None:
    for name in configurations():
        warnings = imported(tmp_path, name).warnings
        assert len(warnings) == len(set(warnings))


# Every id


@pytest.mark.parametrize("name", POOLS)
def test_every_datapool_is_a_task(
    name: str, tmp_path: Path, conf_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = {
        "dummy_pool": {"prompt": "count", "n_samples": 7},
        "totto": {"representation": "fulltable"},
        "wmt16": {
            "wmt_id": "wmt16",
            "source_language": "en",
            "target_language": "ro",
            "prompt_prefix": "x: ",
        },
        "crd3": {"max_context_size": 3},
        "daily_dialog": {"context_size": 3},
    }.get(name, {})
    findings = imported(tmp_path, PPO, put("datapool", {"id": name, "args": arguments}))
    run = run_of(findings, conf_copy, monkeypatch)
    assert run.task_name == POOLS[name].task
    assert {key: getattr(run.task, key) for key in arguments} == arguments


def test_what_rl4lms_takes_for_granted_is_written_down_where_it_differs(tmp_path: Path) -> None:
    """The task's own end token is a point, as the configurations have it; RL4LMs' class has a blank."""
    findings = imported(tmp_path, "common_gen/t5_ppo", put("datapool", {"id": "commongen"}))
    assert findings.tree()["task"] == {
        "name": "commongen",
        "concept_end_token": " ",
        "prefix": "summarize: ",
        "references": "target",
        "truncation_side": "right",
    }


@pytest.mark.parametrize("name", REWARDS)
def test_every_reward_is_one_here(
    name: str, tmp_path: Path, conf_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = {
        "increasing_numbers": {"min_tokens": 10},
        "learned_reward": {"model_name": "some/model", "label_ix": 1},
        "rouge": {"rouge_type": "rouge2", "use_single_ref": False},
        "bert_score": {"language": "de"},
        "sacre_bleu": {"tokenize": "intl"},
        "spider": {"spice_coeff": 0.5, "cider_coeff": 0.5},
        "intent_accuracy": {"shape": False, "intent_coeff": 0.5},
        "common_gen_preference_model": {"concept_penalty_coeff": 1.0, "device": "cpu"},
    }.get(name, {})
    findings = imported(tmp_path, "totto/t5_ppo", put("reward_fn", {"id": name, "args": arguments}))
    assert run_of(findings, conf_copy, monkeypatch, *(f"{key}=given" for key in missing(findings))).reward


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_is_one_here(
    name: str, tmp_path: Path, conf_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = {
        "increasing_numbers": {"min_tokens": 10},
        "learned_reward": {"model_name": "some/model", "label_ix": 1, "batch_size": 4},
        "bert_score": {"language": "de"},
        "sacre_bleu": {"tokenize": "intl"},
        "diversity": {"window_size": 50},
        "summaCConv": {"start_file": "weights.npz"},
        "causal_perplexity": {"stride": 64, "tokenizer_id": "gpt2", "model_type": "causal"},
    }
    metrics = [{"id": name, "args": arguments.get(name, {})}]
    findings = imported(tmp_path, "totto/t5_ppo", put("train_evaluation.metrics", metrics))
    run = run_of(findings, conf_copy, monkeypatch)
    if name == "causal_perplexity":  # of the policy, which a server of texts does not see
        assert (run.metrics, run.evaluation.perplexity_stride) == ((), 64)
    else:
        assert len(run.metrics) == 1


def test_parts_and_weights_of_a_reward(tmp_path: Path) -> None:
    dialog = imported(tmp_path, "dialog/gpt2_nlpo_on_supervised").tree()["reward"]
    intent = {"name": "intent_accuracy", "join": "last_utterance_unmarked"}
    assert dialog == [{**intent, "weight": 0.25}, {"name": "meteor", "weight": 0.75}]
    shaped = imported(tmp_path, "common_gen/t5_ppo").tree()["reward"]
    assert shaped == [{"name": "meteor"}, {"name": "common_gen_repeat_penalty"}]
    first = imported(tmp_path, "summarization/t5_ppo").tree()["reward"]
    assert first == {"name": "rouge", "rouge_type": "rouge1", "references": "first"}
    unshaped = put("reward_fn", {"id": "intent_accuracy", "args": {"shape": False}})
    assert imported(tmp_path, "dialog/gpt2_ppo", unshaped).tree()["reward"] == intent
    assert intent in imported(tmp_path, "dialog/gpt2_ppo").tree()["metrics"]
    arguments = {"model_name": "m", "label_ix": 1, "include_prompt_for_eval": False}
    alone = put("reward_fn", {"id": "learned_reward", "args": arguments})
    reward = imported(tmp_path, "imdb_text_continuation/gpt2_ppo", alone).tree()["reward"]
    assert reward == {"name": "learned_reward", "model": "m", "label_ix": 1, "include_prompt": False}


def test_a_metric_with_other_options_counts_on_its_own(tmp_path: Path) -> None:
    metrics = [{"id": "bert_score", "args": {"language": code}} for code in ("en", "de", "en")]
    findings = imported(tmp_path, "totto/t5_ppo", put("train_evaluation.metrics", metrics))
    assert findings.tree()["metrics"] == [
        {"name": "bert_score", "language": "en"},
        {"name": "bert_score", "language": "de", "label": "bert_score2"},
    ]


# Refusals


REFUSED = [
    (put("alg.args.n_step", 5), "alg.args.n_step: RL4LMs has no such key; did you mean 'n_steps'?"),
    (put("env.args.max_episode_len", 5), "did you mean 'max_episode_length'?"),
    (put("rewards", {}), "rewards: RL4LMs has no such key; did you mean 'reward_fn'?"),
    (put("datapool.args.sed", 1), "datapool.args.sed: RL4LMs has no such key; did you mean 'seed'?"),
    (put("datapool.id", "imbd"), "RL4LMs has no such datapool; did you mean 'imdb'?"),
    (put("reward_fn.id", "rogue"), "RL4LMs has no such reward; did you mean 'rouge'?"),
    (put("reward_fn.args.label", 1), "reward_fn.args.label: RL4LMs has no such key; did you mean 'label"),
    (put("alg.id", "pppo"), "RL4LMs has no such algorithm; did you mean 'ppo'?"),
    (put("alg.policy.id", "causal_lm"), "RL4LMs has no such policy"),
    (put("alg.policy.args.generation_kwargs.topk", 5), "did you mean 'top_k'?"),
    (put("train_evaluation.metrics", [{"id": "blue"}]), "RL4LMs has no such metric; did you mean 'bleu'?"),
    (put("train_evaluation.metrics", ["bleu"]), "train_evaluation.metrics.0: expected an id, got bleu"),
    (put("train_evaluation.n_iters", 0), "whetstone evaluate MODEL"),
    (put("train_evaluation.n_iters", "many"), "n_iters: got 'many'; expected a whole number"),
    (put("alg.args.n_epochs", 2.5), "alg.args.n_epochs: got '2.5'; expected a whole number"),
    (put("alg.args.n_epochs", True), "alg.args.n_epochs: got 'true'; expected a whole number"),
    (put("alg.kl_div", None), "alg.kl_div is required"),
    (put("env.n_envs", 0), "env.n_envs: got 0; expected 1 or more"),
    (put("alg.kl_div.coeff", float("inf")), "alg.kl_div.coeff: got .inf; expected a number"),
    (put("env", "ten"), "env: expected keys and values, got ten"),
    (put("alg.args", {"expand": True, "values": [1, 2]}), "whetstone train -m KEY=A,B"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_what_rl4lms_has_not_is_refused_by_name(change: Change, message: str, tmp_path: Path) -> None:
    assert message in refusal(tmp_path, PPO, change)


def test_every_key_of_every_section_is_checked(tmp_path: Path) -> None:
    """Whatever section gets an unknown key says so, with the line it stands in."""

    def sections(tree: Any, path: str = "") -> list[str]:
        if not isinstance(tree, dict):
            return []
        below = [f"{path}.{key}" if path else key for key in tree]
        return [
            path,
            *(
                below_it
                for key, name in zip(tree, below, strict=True)
                for below_it in sections(tree[key], name)
            ),
        ]

    for name in ("common_gen/t5_nlpo", "totto/t5_supervised"):
        whole = yaml.safe_load(text_of(name))
        for section in sections(whole):
            key = f"{section}.zzz" if section else "zzz"
            message = refusal(tmp_path, name, put(key, 1))
            assert f"{key}: RL4LMs has no such key" in message
            assert ", line " in message


def test_nlpo_without_a_mask_is_refused(tmp_path: Path) -> None:
    plain = put("alg.policy.id", "causal_lm_actor_critic_policy")
    assert "expected maskable_causal_lm_actor_critic_policy" in refusal(tmp_path, NLPO, plain)
    assert "top_mask" in refusal(tmp_path, NLPO, put("alg.policy.args.top_mask", None))


def test_epochs_over_data_of_unknown_size_ask_for_it(tmp_path: Path) -> None:
    crd3 = put("datapool", {"id": "crd3", "args": {"max_context_size": 3}})
    assert "Give --train-rows NUMBER" in refusal(tmp_path, "dialog/gpt2_supervised", crd3)
    findings = imported(tmp_path, "dialog/gpt2_supervised", crd3, train_rows=3200)
    assert findings.options["iterations"] == 20  # 20 passes of one iteration: 100 steps of 32


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alg:\n  id: ppo\n id: x\n", "line 3, column 2: not valid YAML"),
        ("alg:\n  id: ppo\n  id: nlpo\n", "line 3: alg.id is given twice, first in line 2"),
        ("alg: [1, 2\n", "not valid YAML"),
        ("- a\n- b\n", "expected sections such as tokenizer"),
        ("", "expected sections such as tokenizer"),
        ("env: {}\n", "alg is required"),
        ("alg:\n  id: ppo\nenv: {}\n", "alg.policy is required"),
        ("alg:\n  id: 2024-13-45\n", "not YAML that can be read"),
        ("alg: &a {b: *a}\n", "not YAML that can be read"),
    ],
)
def test_what_is_no_configuration_is_refused_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        of_text(tmp_path, text)
    assert message in str(caught.value) and "file.yml" in str(caught.value)


# What the table says


def in_file(tree: Any, key: str) -> Any:
    """The value at a dotted key; a KeyError where the file has none."""
    for part in key.split("."):
        tree = tree[int(part)] if isinstance(tree, list) else tree[part]
    return tree


@pytest.mark.parametrize("name", configurations())
def test_the_table_says_what_the_file_says_or_that_it_says_nothing(name: str, tmp_path: Path) -> None:
    tree = configurations()[name]
    for row in imported(tmp_path, name).rows:
        for key in row.source.replace(" × ", ", ").split(", "):
            if key.partition(".")[0] not in tree:  # always, or the second of two keys without its section
                continue
            try:
                value = in_file(tree, key)
            except (KeyError, TypeError):
                assert (
                    "not given" in row.source_value
                    or "'s default, " in row.source_value
                    or "s' default, " in row.source_value
                ), row
                continue
            if not isinstance(value, dict | list):
                assert shown(value) in row.source_value, row


def test_defaults_are_told_as_such_by_hand(tmp_path: Path) -> None:
    def said(name: str) -> dict[str, str]:
        return {row.source.rpartition(".")[2]: row.source_value for row in imported(tmp_path, name).rows}

    nlpo = said("narrative_qa/t5_nlpo")
    assert (nlpo["max_new_tokens"], nlpo["min_tokens_to_keep"]) == ("not given", "RL4LMs' default, 100")
    assert nlpo["apply_model_parallel"] == "true"
    assert said("iwslt2017/t5_supervised")["save_steps"] == "Hugging Face's default, 500"


# The command


def test_a_redirected_table_keeps_each_key_on_its_line_and_warnings_come_first(tmp_path: Path) -> None:
    (tmp_path / "t5_nlpo.yml").write_text(text_of("narrative_qa/t5_nlpo"))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    with (tmp_path / "told.txt").open("w") as file:
        command = [sys.executable, "-m", "services.cli", "import-rl4lms", "t5_nlpo.yml"]
        environment["PYTHONPATH"] = str(compose.CONF.parent)
        subprocess.run(command, cwd=tmp_path, env=environment, stdout=file, check=True, timeout=60)
    lines = (tmp_path / "told.txt").read_text().splitlines()
    findings = read_configuration(tmp_path / "t5_nlpo.yml")
    for number, (line, warning) in enumerate(zip(lines, findings.warnings, strict=False), start=1):
        assert line == f"{number}. {warning}"
    table = lines[len(findings.warnings) :]
    for row in findings.rows:
        assert any(row.source in line and (row.target or "left out") in line for line in table), row


def test_the_command_writes_the_experiment_and_says_what_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "gpt2_nlpo.yml").write_text(text_of(NLPO))

    assert cli.main(["import-rl4lms", "gpt2_nlpo.yml"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("1. ") and "warnings stand above the table" in shown
    assert "env.n_envs × alg.args.n_steps" in shown and "rollout.prompts_per_iteration" in shown
    assert "top_k is missing" in shown and "whetstone train experiment=gpt2_nlpo.yaml" in shown
    written = (tmp_path / "gpt2_nlpo.yaml").read_text()
    assert written.startswith("# @package _global_\n")
    assert yaml.safe_load(written)["defaults"] == [
        {"override /task": "imdb"},
        {"override /algorithm": "nlpo"},
    ]

    assert compose.run_settings(["experiment=gpt2_nlpo.yaml", "seed=3"]).seed == 3
    assert compose.run_settings(["+experiment=gpt2_nlpo.yaml"]).algorithm_name == "nlpo"
    with pytest.raises(InputError, match=r"experiment=none.yaml: there is no such file"):
        compose.run_settings(["experiment=none.yaml"])

    assert cli.main(["import-rl4lms", "gpt2_nlpo.yml"]) == 2
    assert "gpt2_nlpo.yaml exists" in capsys.readouterr().err
    assert cli.main(["import-rl4lms", "gpt2_nlpo.yml", "--force", "--compat"]) == 0
    assert "compatibility: rl4lms" in (tmp_path / "gpt2_nlpo.yaml").read_text()


@pytest.mark.parametrize("output", ["own.yaml", ".", "/proc/x.yaml"])
def test_neither_the_source_nor_a_folder_is_written_over(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(text_of(PPO))
    assert cli.main(["import-rl4lms", "own.yaml", "--force", "--output", output]) == 2
    assert "traceback" not in capsys.readouterr().err
    assert (tmp_path / "own.yaml").read_text() == text_of(PPO)


def test_bleu_of_short_texts_is_told_and_kept_with_compat(tmp_path: Path) -> None:
    change = put("reward_fn", {"id": "bleu", "args": None})
    plain = imported(tmp_path, "totto/t5_ppo", change)
    assert plain.tree()["reward"] == "bleu"
    assert any("0 to every text of fewer than four words" in warning for warning in plain.warnings)
    assert imported(tmp_path, "totto/t5_ppo", change, compat=True).tree()["reward"] == {
        "name": "bleu",
        "variant": "rl4lms",
    }


def test_with_compat_every_component_counts_as_rl4lms_does(tmp_path: Path) -> None:
    plain = imported(tmp_path, "common_gen/t5_ppo")
    assert {"cider", "spice", "bleu", "meteor"} <= {*map(str, plain.tree()["metrics"])}
    assert any(
        "spaCy's tokens, letter case and punctuation included" in warning for warning in plain.warnings
    )
    compatible = imported(tmp_path, "common_gen/t5_ppo", compat=True)
    theirs = compatible.tree()["metrics"]
    assert {"meteor_rl4lms_compat", "cider_rl4lms_compat"} <= {
        metric for metric in theirs if isinstance(metric, str)
    }
    assert {"name": "bleu", "variant": "rl4lms"} in theirs
    assert {"name": "spice", "tokenizer": "spacy"} in theirs
    assert not any("spaCy's tokens" in warning for warning in compatible.warnings)
    for name, option in (("parent", {"null_references": True}), ("bleurt", {"references": "printed"})):
        change = put("reward_fn", {"id": name, "args": None})
        tree = imported(tmp_path, "totto/t5_ppo", change, compat=True).tree()
        assert option.items() <= tree["reward"].items()


def test_a_file_that_is_wrong_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.yml").write_text("alg:\n\tid: ppo\n")
    assert cli.main(["import-rl4lms", str(tmp_path / "bad.yml"), "--output", str(tmp_path / "x.yaml")]) == 2
    assert "bad.yml, line 2" in capsys.readouterr().err
    assert not (tmp_path / "x.yaml").exists()
    assert cli.main(["import-rl4lms", str(tmp_path / "none.yml")]) == 2
    assert cli.main(["import-rl4lms", str(tmp_path / "bad.yml"), "--train-rows", "0"]) == 2


# Whatever else a file may hold


def paths(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(inner for key, below in items for inner in paths(below, (*path, key)))]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(configurations())), st.data())
def test_a_file_is_read_or_refused_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    tree = yaml.safe_load(text_of(name))
    path = data.draw(st.sampled_from(paths(tree)[1:]))
    branch = tree
    for key in path[:-1]:
        branch = branch[key]
    branch[path[-1]] = data.draw(ANYTHING)
    try:
        findings = of_text(tmp_path_factory.getbasetemp(), yaml.safe_dump(tree, sort_keys=False))
    except InputError:
        return
    assert yaml.safe_load(to_yaml(findings, "read"))["defaults"]
