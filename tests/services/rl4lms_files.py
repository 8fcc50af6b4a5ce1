# ruff: noqa: E501 (a line a file)
"""RL4LMs' 44 configurations, as YAML made from a table: one line a file, with what its task shares elsewhere.

The numbers are those of its task_configs/ at version 0.2.2.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

SFT = "rajkumarrrk/"
BEAMS5 = {"num_beams": 5}
EOS = {"terminate_on_eos": True}


def sample(
    top_k: int | None, min_length: int | None = None, new: int | None = None, **more: Any
) -> dict[str, Any]:
    """`generation_kwargs` of a draw; what is None is not in the file."""
    given = {"top_k": top_k, "min_length": min_length, "max_new_tokens": new}
    return {"do_sample": True, **{k: v for k, v in given.items() if v is not None}, **more}


def beams(count: int, min_length: int | None = None, new: int | None = None, **more: Any) -> dict[str, Any]:
    given = {"num_beams": count, "min_length": min_length, "max_new_tokens": new}
    return {**{k: v for k, v in given.items() if v is not None}, **more}


def metrics(*names: str, **arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"id": name, "args": dict(arguments.get(name, {}))} for name in names]


def reward(name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": name, "args": arguments}


METEOR = reward("meteor")
IMDB_REWARD = reward(
    "learned_reward", model_name="lvwerra/distilbert-imdb", label_ix=1, include_prompt_for_eval=True
)
NUMBERS = reward("increasing_numbers", min_tokens=20)
ROUGE_L_MAX = {
    "max_n": 4, "limit_length": True, "length_limit": 100, "length_limit_type": "words", "apply_avg": True,
    "apply_best": True, "alpha": 0.5, "weight_factor": 1.2, "stemming": True,
}  # fmt: skip
ENGLISH = {"bert_score": {"language": "en"}}
IMDB_METRICS = metrics(
    "learned_reward",
    "causal_perplexity",
    "diversity",
    learned_reward={"model_name": "lvwerra/distilbert-imdb", "label_ix": 1, "batch_size": 100},
    causal_perplexity={"tokenizer_id": "gpt2", "stride": 512, "model_type": "causal"},
)
IWSLT_NAMES = ("meteor", "rouge", "bleu", "bert_score", "bleu", "sacre_bleu", "ter", "chrf", "diversity")


@dataclass(frozen=True)
class Family:
    """What all files of a folder share."""

    pool: Mapping[str, Any]
    metrics: list[dict[str, Any]]
    lengths: tuple[int, int] = (512, 50)
    tokenizer: str = "t5-base"
    causal: bool = False
    start: int | None = 0  # context_start_token


def pool(name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": name, "args": arguments}


DIALOG = metrics(
    "intent_accuracy", "causal_perplexity", "diversity", "meteor", "rouge", "bleu", "bert_score", "sacre_bleu",
    causal_perplexity={"tokenizer_id": "gpt2", "stride": 128, "model_type": "causal"},
    sacre_bleu={"tokenize": "intl"}, **ENGLISH,
)  # fmt: skip
COMMON_GEN = ("meteor", "rouge", "bleu", "bert_score", "cider", "spice", "diversity")
FAMILIES = {
    "common_gen": Family(
        pool("commongen", concept_separator_token=".", concept_end_token=" ", prefix="generate a sentence with: "),
        metrics(*COMMON_GEN, **ENGLISH),
        (20, 20),
    ),
    "dialog": Family(pool("daily_dialog", context_size=5), DIALOG, (128, 20), "gpt2", causal=True),
    "imdb": Family(pool("imdb", seed=42), IMDB_METRICS, (64, 48), "gpt2", causal=True),
    "iwslt2017": Family(
        pool("iwslt2017en_de", prompt_prefix="translate English to German: "),
        metrics(*IWSLT_NAMES, bert_score={"language": "de"}, sacre_bleu={"tokenize": "intl"}),
        (128, 128),
    ),
    "narrative_qa": Family(
        pool("narrative_qa"),
        metrics(
            "meteor", "rouge", "bleu", "bert_score", "rouge_l_max", "diversity",
            rouge={"use_single_ref": False}, rouge_l_max=ROUGE_L_MAX, **ENGLISH,
        ),
    ),
    "summarization": Family(
        pool("cnn_daily_mail", prompt_prefix="Summarize: "),
        metrics("meteor", "rouge", "bleu", "bert_score", "diversity", **ENGLISH),
        (512, 100),
    ),
    "totto": Family(
        pool("totto", representation="subtable"),
        metrics(
            "meteor", "parent_totto", "rouge", "bleu_totto", "bert_score", "diversity",
            rouge={"use_single_ref": False}, **ENGLISH,
        ),
    ),
    "dates": Family(
        pool("dummy_pool", n_samples=50, prompt="<|endoftext|>"), metrics("dates"), (5, 30), "gpt2", causal=True
    ),
    "numbers": Family(
        pool("dummy_pool", n_samples=50, prompt="<|endoftext|>"),
        metrics("increasing_numbers", increasing_numbers={"min_tokens": 20}),
        (5, 20), "gpt2", causal=True,
    ),
    "numbers_seq2seq": Family(
        pool("dummy_pool", n_samples=50, prompt="Let us generate some numbers"),
        metrics("increasing_numbers", increasing_numbers={"min_tokens": 20}),
        (5, 20),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class RL:
    """One file: model, learning rate, n_steps, entropy, KL, mask (p, μ, minimum), decoding, reward, cadence."""

    family: str
    algorithm: str
    model: str
    rate: float
    steps: int
    kl: tuple[float, float]
    rollout: Mapping[str, Any]
    reward: Mapping[str, Any]
    cadence: tuple[int, int, int | None, int]  # iterations, evaluation, saving, evaluation's batch
    evaluation: Mapping[str, Any] | None = None  # None: as in rollouts
    mask: tuple[float, int, int] | None = None
    entropy: float | None = 0.0
    envs: int = 10
    more: Mapping[str, Any] = field(default_factory=dict)  # of alg.args
    metrics: list[dict[str, Any]] | None = None
    lengths: tuple[int, int] | None = None
    pool: Mapping[str, Any] | None = None
    tokenizer: str | None = None
    parallel: bool = True

    def configuration(self) -> dict[str, Any]:
        shared = FAMILIES[self.family]
        prompt, episode = self.lengths or shared.lengths
        start = {} if shared.causal else {"context_start_token": shared.start}
        iterations, evaluate, save, batch = self.cadence
        return {
            "tokenizer": {
                "model_name": self.tokenizer or shared.tokenizer,
                "padding_side": "left",
                "truncation_side": "left",
                "pad_token_as_eos_token": shared.causal,
            },
            "reward_fn": dict(self.reward),
            "datapool": dict(self.pool or shared.pool),
            "env": {
                "n_envs": self.envs,
                "args": {"max_prompt_length": prompt, "max_episode_length": episode, **EOS, **start},
            },
            "alg": {
                "id": self.algorithm,
                "args": {
                    "n_steps": self.steps,
                    "learning_rate": self.rate,
                    "verbose": 1,
                    **self._own(),
                    **self.more,
                },
                "kl_div": {"coeff": self.kl[0], "target_kl": self.kl[1]},
                "policy": self._policy(shared.causal),
            },
            "train_evaluation": {
                "eval_batch_size": batch,
                "n_iters": iterations,
                "eval_every": evaluate,
                **({"save_every": save} if save else {}),
                "metrics": self.metrics or shared.metrics,
                **({"generation_kwargs": dict(self.evaluation)} if self.evaluation else {}),
            },
        }

    def _own(self) -> dict[str, Any]:
        entropy = {} if self.entropy is None else {"ent_coef": self.entropy}
        if self.algorithm in ("ppo", "nlpo"):
            return {"batch_size": 64, "n_epochs": 5, **entropy}
        return entropy

    def _policy(self, causal: bool) -> dict[str, Any]:
        name = f"{'causal' if causal else 'seq2seq'}_lm_actor_critic_policy"
        mask: dict[str, Any] = {}
        if self.mask:
            top, every, kept = self.mask
            mask = {"mask_type": "learned_top_p", "top_mask": top}
            mask |= {"target_update_iterations": every, "min_tokens_to_keep": kept}
        arguments = {
            "model_name": self.model,
            "apply_model_parallel": self.parallel,
            **mask,
            "generation_kwargs": dict(self.rollout),
        }
        return {"id": f"maskable_{name}" if self.mask else name, "args": arguments}


@dataclass(frozen=True)
class Supervised:
    family: str
    model: str
    rate: float
    batch: int
    epochs: int
    decay: float
    schedule: str
    every: int
    decoding: Mapping[str, Any]
    metrics: list[dict[str, Any]] | None = None

    def configuration(self) -> dict[str, Any]:
        shared = FAMILIES[self.family]
        return {
            "tokenizer": {
                "model_name": shared.tokenizer,
                "padding_side": "left",
                "truncation_side": "left",
                "pad_token_as_eos_token": shared.causal,
                "max_length": shared.lengths[0],
            },
            "datapool": dict(shared.pool),
            "alg": {
                "id": "supervised",
                "training_args": {
                    "per_device_train_batch_size": self.batch,
                    "logging_steps": self.every,
                    "num_train_epochs": self.epochs,
                    "weight_decay": self.decay,
                    "lr_scheduler_type": self.schedule,
                    "learning_rate": self.rate,
                    "save_total_limit": 1,
                },
                "model_type": "causal" if shared.causal else "seq2seq",
                "model_name": self.model,
                "generation_kwargs": {**self.decoding, "post_processing_fn": None},
            },
            "train_evaluation": {"eval_batch_size": 100, "metrics": self.metrics or shared.metrics},
        }


MASK = (0.9, 20, 100)
GPT2_IMDB, POSITIVE = "lvwerra/gpt2-imdb", f"{SFT}gpt2-fine-tuned-on-imdb-positive-reviews"
T5_COMMON_GEN, GPT2_DIALOG = f"{SFT}t5-common-gen", f"{SFT}gpt2-fine-tuned-on-daily-dialog"
T5_IWSLT, T5_CNN = f"{SFT}t5-fine-tuned-on-iwslt2017en_de", f"{SFT}t5-base-fine-tuned-on-cnn-dm"
T5_TOTTO, UNIFIED_QA = f"{SFT}t5-base-fine-tuned-on-totto", "allenai/unifiedqa-t5-base"
PENALISED = reward("meteor", shaping_fn="common_gen_repeat_penalty")
PREFERENCE = reward("common_gen_preference_model", model_type="11b", device="cpu", batch_size=5)
ONE_MINUS_TER, LONGEST = reward("ter"), reward("rouge_l_max", **ROUGE_L_MAX)
WITH_A_COMMA = reward("rouge_l_max", **{**ROUGE_L_MAX, "apply_best": "True,"})
TALK, REVIEW = sample(20, 2, 20), sample(None, 48, 48)
SENTENCE, FACT = beams(5, 5, 20), beams(5, 10, 50)
TRANSLATION = beams(4, new=128, length_penalty=0.6)
SUMMARY = sample(0, 50, 100, temperature=0.7)
NUMBER_ROW = sample(200, 20, 20)


def intent(share: float) -> dict[str, Any]:
    return reward("intent_accuracy", shape=True, intent_coeff=share, auto_coeff=1 - share)


CONFIGURATIONS: dict[str, RL | Supervised] = {
    "common_gen/t5_ppo": RL("common_gen", "ppo", "t5-base", 2e-6, 256, (0.001, 2.0), sample(0, 5, 20), PENALISED, (200, 20, 1, 20), SENTENCE, entropy=0.01),
    "common_gen/t5_nlpo": RL("common_gen", "nlpo", "t5-base", 2e-6, 128, (0.001, 2.0), sample(50, 10, 20), PENALISED, (100, 10, 20, 100), sample(50, 10, 20), MASK, metrics=metrics("meteor", "rouge", "bleu", "bert_score", "diversity", **ENGLISH), lengths=(15, 20)),
    "common_gen/t5_ppo_on_supervised": RL("common_gen", "ppo", T5_COMMON_GEN, 2e-6, 128, (0.01, 1.0), sample(50, 5, 20), PREFERENCE, (100, 5, 20, 50), SENTENCE, entropy=0.01),
    "common_gen/t5_nlpo_on_supervised": RL("common_gen", "nlpo", T5_COMMON_GEN, 2e-6, 128, (0.01, 1.0), sample(50, 5, 20), METEOR, (100, 5, 20, 50), SENTENCE, MASK, entropy=0.01),
    "dialog/gpt2_ppo": RL("dialog", "ppo", "gpt2", 1e-6, 128, (0.2, 0.5), TALK, intent(0.75), (50, 5, 10, 32), TALK),
    "dialog/gpt2_nlpo": RL("dialog", "nlpo", "gpt2", 1e-6, 128, (0.2, 0.5), TALK, intent(0.75), (100, 5, 10, 32), TALK, MASK),
    "dialog/gpt2_ppo_on_supervised": RL("dialog", "ppo", GPT2_DIALOG, 1e-6, 128, (0.2, 0.05), TALK, intent(0.5), (50, 5, 10, 32), TALK),
    "dialog/gpt2_nlpo_on_supervised": RL("dialog", "nlpo", GPT2_DIALOG, 1e-6, 128, (0.2, 0.05), TALK, intent(0.25), (50, 5, 10, 32), TALK, MASK),
    "imdb/gpt2_ppo": RL("imdb", "ppo", GPT2_IMDB, 1e-6, 128, (0.1, 0.1), REVIEW, IMDB_REWARD, (50, 10, 10, 64)),
    "imdb/gpt2_nlpo": RL("imdb", "nlpo", GPT2_IMDB, 1e-6, 128, (0.1, 0.1), REVIEW, IMDB_REWARD, (50, 10, 10, 64), mask=(0.9, 5, 100)),
    "imdb/gpt2_ppo_on_supervised": RL("imdb", "ppo", POSITIVE, 1e-6, 128, (0.1, 0.1), REVIEW, IMDB_REWARD, (50, 10, 10, 256)),
    "imdb/gpt2_nlpo_on_supervised": RL("imdb", "nlpo", POSITIVE, 1e-6, 128, (0.1, 0.1), REVIEW, IMDB_REWARD, (50, 10, 10, 256), mask=(0.9, 5, 100)),
    "imdb/gpt2_a2c": RL("imdb", "a2c", GPT2_IMDB, 1e-6, 48, (0.1, 0.5), REVIEW, IMDB_REWARD, (100, 20, 1, 256), envs=2, pool=pool("imdb")),
    "iwslt2017/t5_ppo": RL("iwslt2017", "ppo", "t5-base", 1e-6, 512, (0.001, 0.2), sample(10, None, 128), ONE_MINUS_TER, (50, 10, 1, 50), TRANSLATION),
    "iwslt2017/t5_nlpo": RL("iwslt2017", "nlpo", "t5-base", 1e-6, 512, (0.001, 0.2), sample(10, None, 128), ONE_MINUS_TER, (50, 10, 1, 50), TRANSLATION, (0.5, 20, 100)),
    "iwslt2017/t5_ppo_on_supervised": RL("iwslt2017", "ppo", T5_IWSLT, 5e-7, 512, (0.001, 0.2), sample(5, None, 128), ONE_MINUS_TER, (50, 10, 1, 50), TRANSLATION),
    "iwslt2017/t5_nlpo_on_supervised": RL("iwslt2017", "nlpo", T5_IWSLT, 5e-7, 512, (0.001, 0.2), sample(10, None, 128), ONE_MINUS_TER, (50, 10, 1, 50), TRANSLATION, (0.5, 20, 100)),
    "narrative_qa/t5_ppo": RL("narrative_qa", "ppo", "t5-base", 2e-6, 256, (0.001, 1.0), sample(50), LONGEST, (100, 10, 1, 50), beams(4)),
    "narrative_qa/t5_nlpo": RL("narrative_qa", "nlpo", "t5-base", 2e-6, 256, (0.001, 1.0), sample(50), WITH_A_COMMA, (100, 10, 1, 50), beams(4), MASK),
    "narrative_qa/t5_ppo_on_supervised": RL("narrative_qa", "ppo", UNIFIED_QA, 5e-7, 512, (0.001, 0.2), sample(50, None, 50), LONGEST, (100, 10, 1, 50), beams(4, None, 50)),
    "narrative_qa/t5_nlpo_on_supervised": RL("narrative_qa", "nlpo", UNIFIED_QA, 5e-7, 256, (0.001, 0.2), sample(50), WITH_A_COMMA, (100, 10, 1, 50), beams(4, None, 50), MASK),
    "summarization/t5_ppo": RL("summarization", "ppo", "t5-base", 2e-6, 512, (0.001, 0.2), sample(50, 50, 100), reward("rouge", rouge_type="rouge1"), (100, 10, 1, 100), SUMMARY),
    "summarization/t5_nlpo": RL("summarization", "nlpo", "t5-base", 2e-6, 512, (0.001, 0.2), sample(100, 50, 100), METEOR, (100, 10, 1, 100), SUMMARY, MASK),
    "summarization/t5_ppo_on_supervised": RL("summarization", "ppo", T5_CNN, 2e-6, 512, (0.01, 0.2), sample(100, 50, 100), METEOR, (50, 10, 1, 100), SUMMARY),
    "summarization/t5_nlpo_on_supervised": RL("summarization", "nlpo", T5_CNN, 2e-6, 512, (0.01, 0.2), sample(100, 50, 100), METEOR, (50, 10, 1, 100), SUMMARY, (0.9, 30, 100)),
    "totto/t5_ppo": RL("totto", "ppo", "t5-base", 2e-6, 256, (0.001, 2.0), sample(0, 10, 50), METEOR, (100, 20, 1, 100), FACT),
    "totto/t5_nlpo": RL("totto", "nlpo", "t5-base", 2e-6, 256, (0.001, 2.0), sample(0, 10, 50), METEOR, (100, 20, 1, 100), FACT, MASK),
    "totto/t5_ppo_on_supervised": RL("totto", "ppo", T5_TOTTO, 5e-7, 256, (0.01, 0.2), sample(50, 10, 50), METEOR, (100, 20, 1, 100), FACT),
    "totto/t5_nlpo_on_supervised": RL("totto", "nlpo", T5_TOTTO, 5e-7, 256, (0.01, 0.2), sample(0, 10, 50), METEOR, (100, 20, 1, 100), FACT, MASK),
    "synthetic/dates_gpt2_ppo": RL("dates", "ppo", "gpt2", 1e-5, 128, (0.02, 2.0), sample(0, None, 30), reward("sentences_with_dates"), (100, 5, None, 256), entropy=0.001),
    "synthetic/numbers_gpt2_ppo": RL("numbers", "ppo", "gpt2", 1e-6, 128, (0.02, 2.0), sample(None, None, 20), NUMBERS, (100, 5, 20, 256), entropy=0.001),
    "synthetic/numbers_gpt2_nlpo": RL("numbers", "nlpo", "gpt2", 1e-5, 128, (0.02, 2.0), sample(0, 20, 20), NUMBERS, (200, 10, 10, 256), mask=(0.9, 100, 100), more={"gae_lambda": 0.9, "vf_coef": 0.1}),
    "synthetic/numbers_gpt2_a2c": RL("numbers", "a2c", "gpt2", 1e-5, 20, (0.02, 2.0), sample(None, None, 20), NUMBERS, (500, 20, 20, 256), entropy=0.001),
    "synthetic/numbers_gpt2_trpo": RL("numbers", "trpo", "gpt2", 1e-5, 20, (0.01, 2.0), sample(None, None, 20), NUMBERS, (1000, 5, 20, 256), entropy=None, envs=2),
    "synthetic/numbers_t5_ppo": RL("numbers_seq2seq", "ppo", "t5-base", 1e-6, 128, (1e-5, 3.0), NUMBER_ROW, NUMBERS, (100, 10, 10, 256), entropy=0.001),
    "synthetic/numbers_t5_nlpo": RL("numbers_seq2seq", "nlpo", "t5-base", 2e-6, 128, (0.001, 2.0), NUMBER_ROW, NUMBERS, (100, 10, 10, 256), mask=MASK),
    "synthetic/numbers_bart_ppo": RL("numbers_seq2seq", "ppo", "facebook/bart-base", 1e-7, 128, (1e-4, 3.0), sample(50, 20, 20), NUMBERS, (100, 10, 10, 256), more={"batch_size": 128}, tokenizer="facebook/bart-base", parallel=False),
    "synthetic/numbers_blenderbot_ppo": RL("numbers_seq2seq", "ppo", "facebook/blenderbot-400M-distill", 1e-6, 128, (1e-5, 3.0), NUMBER_ROW, NUMBERS, (100, 10, 10, 256), entropy=0.001, tokenizer="facebook/blenderbot-400M-distill", parallel=False),
    "common_gen/t5_supervised": Supervised("common_gen", "t5-base", 1e-5, 8, 4, 0.01, "cosine", 5000, SENTENCE),
    "dialog/gpt2_supervised": Supervised("dialog", "gpt2", 1e-5, 32, 20, 0.0, "constant", 300, TALK),
    "imdb/gpt2_supervised": Supervised("imdb", GPT2_IMDB, 1e-5, 16, 10, 0.0, "constant", 200, REVIEW),
    "iwslt2017/t5_supervised": Supervised("iwslt2017", "t5-base", 1e-5, 64, 5, 0.1, "constant", 1000, TRANSLATION, metrics(*IWSLT_NAMES, sacre_bleu={"tokenize": "intl"}, **ENGLISH)),
    "summarization/t5_supervised": Supervised("summarization", "t5-base", 1e-4, 16, 2, 0.1, "cosine", 5000, SUMMARY),
    "totto/t5_supervised": Supervised("totto", "t5-base", 1e-4, 8, 5, 0.1, "constant_with_warmup", 20000, sample(None, 10, 50, num_beams=10)),
}  # fmt: skip


def text_of(name: str) -> str:
    """The file, as RL4LMs' users have it."""
    return yaml.safe_dump(CONFIGURATIONS[name].configuration(), sort_keys=False)
