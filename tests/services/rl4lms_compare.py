"""RL4LMs' files beside the shipped experiments, field by field, with nothing of the importer's in between.

    python -m tests.services.rl4lms_compare [FOLDER]     FOLDER: RL4LMs' files; else the table made of them

Each key of a file is compared with the setting that it stands for, or has its reason in `NOT_COMPARED`. Where
RL4LMs gives a key a default, it is compared in files without the key, too.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from services.config.settings import RunSettings
from services.runs.claim import flatten
from tests.services.rl4lms_graders import metrics_of, rewards_of
from tests.services.rl4lms_table import configurations, read

TASKS = {"dummy_pool": "dummy", "iwslt2017en_de": "iwslt2017_en_de"}  # the others keep their names
HIDDEN_TOP_K = 50  # of Hugging Face's generate(), where a file gives none
NOT_COMPARED = {
    "tokenizer.padding_side": "nothing is padded where texts are written",
    "tokenizer.pad_token_as_eos_token": "padding reaches neither the model nor the loss",
    "env.args.terminate_on_eos": "True in all files, and always so",
    "env.args.context_start_token": "the model's own decoder start",
    "alg.args.verbose": "the console is another",
    "alg.policy.args.apply_model_parallel": "the learner is one process on one device",
    "alg.policy.args.mask_type": "learned_top_p in all files: top_mask is compared with top_p",
    "alg.training_args.save_total_limit": "keep_checkpoints is at least 1: compared by the importer's test",
    "alg.generation_kwargs.post_processing_fn": "null in all files",
    "train_evaluation.eval_batch_size": "workers take what fits",
}


@dataclass
class Comparison:
    """One file beside its experiment: `same` and `different` hold (key, in the file, here)."""

    name: str
    says: Mapping[str, Any]
    run: RunSettings
    same: list[tuple[str, Any, Any]] = field(default_factory=list)
    different: list[tuple[str, Any, Any]] = field(default_factory=list)
    read_keys: set[str] = field(default_factory=set)

    def published(self, key: str, default: Any = None) -> Any:
        self.read_keys.add(key)
        value: Any = self.says
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return default
            value = value[part]
        return value

    def equal(
        self, key: str, here: Any, default: Any = None, change: Callable[[Any], Any] = lambda v: v
    ) -> None:
        """Compare what `key` says, or RL4LMs' default, with the setting here."""
        there = change(self.published(key, default))
        (self.same if there == here else self.different).append((key, there, here))

    @property
    def left(self) -> set[str]:
        """Return the file's keys that nothing was compared with."""
        lists = ("train_evaluation.metrics", "reward_fn")
        keys = {key for key in flatten(self.says) if not key.startswith(lists)}
        return keys - self.read_keys - NOT_COMPARED.keys() - {"datapool.args"}


def compare(name: str, says: Mapping[str, Any], run: RunSettings) -> Comparison:
    """Compare one file, as YAML gives it, with a run."""
    comparison = Comparison(name, says, run)
    is_supervised = says["alg"]["id"] == "supervised"
    (_supervised if is_supervised else _on_policy)(comparison)
    comparison.equal("alg.id", run.algorithm_name)
    comparison.equal("datapool.id", run.task_name, change=lambda pool: TASKS.get(pool, pool))
    for option in says["datapool"].get("args") or {}:
        comparison.equal(f"datapool.args.{option}", getattr(run.task, option))
    if says["datapool"]["id"] == "commongen":
        comparison.equal("one reference", run.task.references == "target", True)
    comparison.equal("tokenizer.model_name", run.model.tokenizer or run.model.path)
    wanted, got = metrics_of(says["train_evaluation"]["metrics"], run)
    (comparison.same if wanted == got else comparison.different).append(
        ("train_evaluation.metrics", wanted, got)
    )
    comparison.equal("every held-out prompt", run.evaluation.num_prompts)
    return comparison


def _on_policy(comparison: Comparison) -> None:
    run, algorithm, longest = comparison.run, comparison.run.algorithm, comparison.run.rollout.max_tokens
    comparison.equal("alg.policy.args.model_name", run.model.path)
    comparison.equal("a model for values", run.model.value_trunk, "separate")
    _in_float32(comparison)
    for split in ("train", "validation", "test"):
        comparison.equal("env.args.max_prompt_length", run.prompt_limit(split).max_tokens)
    comparison.equal("env.args.prompt_truncation_side", run.prompt_limit("train").side, "left")
    comparison.equal("alg.policy.args.prompt_truncation_side", run.prompt_limit("validation").side, "left")
    comparison.equal("alg.policy.args.prompt_truncation_side", run.prompt_limit("test").side, "left")
    comparison.published("tokenizer.truncation_side")  # the two above win over it
    tokens = comparison.published("env.n_envs") * comparison.published("alg.args.n_steps")
    prompts = run.rollout.prompts_per_iteration
    comparison.equal("env.n_envs × alg.args.n_steps", prompts, tokens, lambda count: ceil(count / longest))
    _optimisation(comparison, prompts, longest)
    masked = "maskable" in comparison.published("alg.policy.id")
    comparison.equal("alg.policy.id: masked", masked and run.algorithm_name == "nlpo", masked)
    if masked:
        comparison.equal("alg.policy.args.top_mask", algorithm.top_p)
        every = algorithm.target_update_iterations
        comparison.equal("alg.policy.args.target_update_iterations", every)
        comparison.equal("alg.policy.args.min_tokens_to_keep", algorithm.min_tokens_to_keep, 100)
    rollouts = "alg.policy.args.generation_kwargs"
    _drawn(comparison, rollouts, evaluating=False)
    has_own = comparison.published("train_evaluation.generation_kwargs") is not None
    _drawn(comparison, "train_evaluation.generation_kwargs" if has_own else rollouts, evaluating=True)
    wanted, got = rewards_of(comparison.says["reward_fn"], run)
    (comparison.same if wanted == got else comparison.different).append(("reward_fn", wanted, got))
    comparison.equal("train_evaluation.n_iters", run.iterations)
    comparison.equal("train_evaluation.eval_every", run.evaluate_every)
    comparison.equal("train_evaluation.save_every", run.save_every, 20)


def _optimisation(comparison: Comparison, prompts: int, longest: int) -> None:
    """`alg.args` and `alg.kl_div`, with RL4LMs' defaults."""
    algorithm, name = comparison.run.algorithm, comparison.run.algorithm_name
    comparison.equal("alg.args.learning_rate", algorithm.learning_rate)
    comparison.equal("alg.args.gamma", algorithm.gamma, 0.99)
    comparison.equal("alg.args.gae_lambda", algorithm.gae_lambda, 1.0 if name == "a2c" else 0.95)
    comparison.equal("alg.kl_div.coeff", algorithm.kl.coefficient)
    comparison.equal("alg.kl_div.target_kl", algorithm.kl.target)
    comparison.equal("weight decay", algorithm.optimizer.weight_decay, 1e-6)
    comparison.equal("what decays", algorithm.optimizer.decays, "all_but_biases")
    comparison.equal("dropout", comparison.run.model.drops_out(algorithm), False)
    if name == "trpo":
        return
    comparison.equal("alg.args.ent_coef", algorithm.entropy_coef, 0.0)
    comparison.equal("alg.args.vf_coef", algorithm.value_coef, 0.5)
    comparison.equal("alg.args.max_grad_norm", algorithm.max_grad_norm, 0.5)
    if name == "a2c":
        return
    comparison.equal("alg.args.n_epochs", algorithm.num_epochs)
    comparison.equal("alg.args.clip_range", algorithm.clip_range, 0.2)
    size = algorithm.minibatch_size
    comparison.equal("alg.args.batch_size", size, 64, lambda count: min(prompts, ceil(count / longest)))


def _supervised(comparison: Comparison) -> None:
    run, algorithm, arguments = comparison.run, comparison.run.algorithm, "alg.training_args"
    is_seq2seq = comparison.published("alg.model_type") == "seq2seq"
    comparison.equal("alg.model_name", run.model.path)
    _in_float32(comparison)
    for split in ("train", "validation"):
        comparison.equal("tokenizer.truncation_side", run.prompt_limit(split).side, "left")
    # Training texts end where the tokenizer does: T5's at 512 each, GPT-2's at 1,024 in all.
    comparison.equal(
        "longest training prompt", run.prompt_limit("train").max_tokens, 512 if is_seq2seq else None
    )
    comparison.equal("longest reference", run.rollout.max_tokens, 512 if is_seq2seq else 1024)
    comparison.equal("tokenizer.max_length", run.prompt_limit("test").max_tokens, 512)
    comparison.equal(f"{arguments}.learning_rate", algorithm.learning_rate)
    comparison.equal(f"{arguments}.per_device_train_batch_size", algorithm.minibatch_size)
    comparison.equal(f"{arguments}.weight_decay", algorithm.optimizer.weight_decay, 0.0)
    if is_seq2seq and algorithm.optimizer.weight_decay:
        comparison.equal("what decays", algorithm.optimizer.decays, "all_but_biases")
    comparison.equal("dropout", run.model.drops_out(algorithm), True)
    schedule = {"constant_with_warmup": "constant"}  # without warm-up steps there is no warm-up
    comparison.equal(
        f"{arguments}.lr_scheduler_type", run.learner.lr_schedule, change=lambda s: schedule.get(s, s)
    )
    steps = (
        run.rollout.prompts_per_iteration
        // comparison.says["alg"]["training_args"]["per_device_train_batch_size"]
    )
    comparison.equal(f"{arguments}.logging_steps", run.evaluate_every * steps)
    rows = {"commongen": 67_389, "daily_dialog": 35_781, "imdb_seq2seq": 10_000, "iwslt2017en_de": 206_112}
    rows |= {"cnn_daily_mail": 287_113, "totto": 120_761}
    of_pool = rows[comparison.says["datapool"]["id"]] / run.rollout.prompts_per_iteration
    comparison.equal(
        f"{arguments}.num_train_epochs", run.iterations, change=lambda epochs: round(epochs * of_pool)
    )
    _drawn(comparison, "alg.generation_kwargs", evaluating=True)


def _in_float32(comparison: Comparison) -> None:
    comparison.equal("float32 in the learner", comparison.run.learner.autocast, "none")
    comparison.equal("float32 in the workers", comparison.run.rollout.dtype, "float32")


def _drawn(comparison: Comparison, where: str, *, evaluating: bool) -> None:
    """`generation_kwargs`, with Hugging Face's defaults."""
    sampling = comparison.run.sampling(evaluating=evaluating)
    episode = comparison.published("env.args.max_episode_length")
    comparison.equal(f"{where}.max_new_tokens", sampling.max_tokens, episode)
    comparison.equal(f"{where}.min_length", sampling.min_tokens, 0)
    beams = comparison.published(f"{where}.num_beams", 1)
    comparison.equal(f"{where}.num_beams", sampling.num_beams, 1)
    comparison.equal(f"{where}.length_penalty", sampling.length_penalty, 1.0)
    # Nothing is drawn from beams here: totto/t5_supervised, which asks for it, is plain beam search.
    draws = comparison.published(f"{where}.do_sample", False) and beams == 1
    comparison.equal(f"{where}.do_sample", sampling.temperature > 0, change=lambda _: draws)
    if draws:
        comparison.equal(f"{where}.temperature", sampling.temperature, 1.0)
        comparison.equal(f"{where}.top_k", sampling.top_k, HIDDEN_TOP_K)
    comparison.published(f"{where}.top_k"), comparison.published(f"{where}.temperature")


def main(folder: Path | None) -> int:
    """Print a line a file; the exit code tells whether all are equal."""
    from tests.test_experiments import PUBLISHED, as_data, imported_run, run_of

    there, bad = read(folder) if folder else configurations(), 0
    for experiment, name in PUBLISHED.items():
        if name not in there:
            continue
        run = run_of(experiment)
        comparison = compare(name, there[name], run)
        fields, imported = as_data(run), as_data(imported_run(experiment, there[name]))
        differ = [key for key in flatten(fields) if flatten(fields)[key] != flatten(imported).get(key)]
        bad += bool(comparison.different or comparison.left or differ)
        print(
            f"{name:<52} {experiment:<34} fields of the file: {len(comparison.same):>2} equal, "
            f"{len(comparison.different)} different   settings as imported: {len(flatten(fields)):>3}, "
            f"{len(differ)} different"
        )
        for key, published, here in comparison.different:
            print(f"    {key}: the file says {published!r}, the experiment has {here!r}")
        for key in [*sorted(comparison.left), *differ]:
            print(f"    not compared or not as imported: {key}")
    print(f"{sum(name in there for name in PUBLISHED.values())} files, {bad} with differences")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
