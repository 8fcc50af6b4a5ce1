"""Names that options have in other trainers, and what Whetstone calls them, for errors about unknown keys.

Sources: the options of TRL (GRPOConfig, PPOConfig), verl (ppo_trainer.yaml), OpenRLHF (train_ppo_ray), and
Hugging Face's TrainingArguments.
"""

from collections.abc import Iterable

UNKNOWN = "there is no such option"  # in an error of `contracts.settings`

PROMPTS = "rollout.prompts_per_iteration, which counts prompts, not rollouts"
# The last part of a key, or a whole key: where several trainers agree, one entry serves all.
OURS = {
    # TRL and TrainingArguments
    "learning_rate": "algorithm.learning_rate",
    "beta": "algorithm.kl.coefficient",
    "num_generations": "rollout.group_size",
    "num_generations_eval": "evaluation.samples_per_prompt",
    "max_completion_length": "rollout.max_tokens",
    "max_new_tokens": "rollout.max_tokens",
    "max_prompt_length": "rollout.max_prompt_tokens",
    "per_device_train_batch_size": f"{PROMPTS}; micro-batches: learner.token_budget",
    "per_device_eval_batch_size": "evaluation.num_prompts",
    "train_batch_size": "rollout.prompts_per_iteration",
    "gradient_accumulation_steps": "algorithm.minibatch_size; micro-batches follow from learner.token_budget",
    "generation_batch_size": PROMPTS,
    "num_iterations": "algorithm.num_epochs",
    "epsilon": "algorithm.clip_range",
    "epsilon_high": "algorithm.clip_range_high",
    "loss_type": "algorithm=NAME and algorithm.aggregation",
    "scale_rewards": "algorithm.scale_by_deviation",
    "max_grad_norm": "algorithm.max_grad_norm",
    "weight_decay": "algorithm.optimizer.weight_decay",
    "lr_scheduler_type": "learner.lr_schedule",
    "warmup_steps": "learner.warmup_iterations",
    "warmup_ratio": "learner.warmup_iterations",
    "max_steps": "iterations",
    "num_train_epochs": "iterations, or data.num_epochs for a data set",
    "total_epochs": "iterations, or data.num_epochs for a data set",
    "eval_steps": "evaluate_every",
    "test_freq": "evaluate_every",
    "save_steps": "save_every",
    "save_freq": "save_every",
    "save_total_limit": "keep_checkpoints",
    "load_best_model_at_end": "keep_best=val/METRIC",
    "logging_steps": "nothing: every iteration is recorded",
    "report_to": "tracking.also=[wandb], tensorboard or trackio; MLflow: tracking.enabled",
    "model_name_or_path": "model.path",
    "model.path": "model.path",  # behind verl's prefixes
    "pretrain": "model.path",
    "reward_funcs": "reward",
    "reward_weights": "reward.LABEL.weight",
    "gradient_checkpointing": "model.gradient_checkpointing",
    "bf16": "rollout.dtype=bfloat16 and learner.autocast=bfloat16",
    "use_vllm": "rollout.engine=vllm",
    "vllm_gpu_memory_utilization": "rollout.gpu_memory_utilization",
    "vllm_tensor_parallel_size": "rollout.tensor_parallel_size",
    "temperature": "rollout.temperature",
    "top_p": "rollout.top_p",
    "top_k": "rollout.top_k",
    "repetition_penalty": "evaluation.repetition_penalty; rollouts have none",
    "kl_coef": "algorithm.kl.coefficient",
    "vf_coef": "algorithm.value_coef",
    "cliprange": "algorithm.clip_range",
    "gamma": "algorithm.gamma",
    "lam": "algorithm.gae_lambda",
    # verl and OpenRLHF
    "rollout.n": "rollout.group_size",
    "n_samples_per_prompt": "rollout.group_size",
    "rollout_batch_size": "rollout.prompts_per_iteration",
    "micro_train_batch_size": "learner.token_budget",
    "ppo_mini_batch_size": "algorithm.minibatch_size, which counts rollouts, not prompts",
    "ppo_micro_batch_size": "learner.token_budget",
    "ppo_micro_batch_size_per_gpu": "learner.token_budget",
    "ppo_max_token_len_per_gpu": "learner.token_budget",
    "ppo_epochs": "algorithm.num_epochs",
    "max_epochs": "algorithm.num_epochs",
    "clip_ratio": "algorithm.clip_range",
    "clip_ratio_low": "algorithm.clip_range",
    "clip_ratio_high": "algorithm.clip_range_high",
    "eps_clip": "algorithm.clip_range",
    "entropy_coeff": "algorithm.entropy_coef",
    "use_kl_loss": "algorithm.kl.placement=loss",
    "kl_loss_coef": "algorithm.kl.coefficient",
    "init_kl_coef": "algorithm.kl.coefficient",
    "kl_loss_type": "algorithm.kl.estimator",
    "kl_ctrl.kl_coef": "algorithm.kl.coefficient",
    "kl_target": "algorithm.kl.target",
    "adv_estimator": "algorithm=NAME",
    "advantage_estimator": "algorithm=NAME",
    "loss_agg_mode": "algorithm.aggregation",
    "grad_clip": "algorithm.max_grad_norm",
    "optim.lr": "algorithm.learning_rate",
    "actor_learning_rate": "algorithm.learning_rate",
    "critic_learning_rate": "algorithm.critic_learning_rate",
    "max_response_length": "rollout.max_tokens",
    "generate_max_len": "rollout.max_tokens",
    "prompt_max_len": "rollout.max_prompt_tokens",
    "tensor_model_parallel_size": "rollout.tensor_parallel_size",
    "gpu_memory_utilization": "rollout.gpu_memory_utilization",
    "train_files": "task=prompts and task.data_files",
    "val_files": "task=prompts and task.data_files",
    "train_dataset": "task=prompts and task.data_files",
    "dataset_name": "task=prompts and task.data_files",
    "prompt_data": "task=prompts and task.data_files",
    "nnodes": "cluster=nodes, on the Ray cluster at RAY_ADDRESS",
    "n_gpus_per_node": "rollout.num_workers and learner.num_processes",
    "custom_reward_function.path": "reward=package.module:Class",
    "reward_model.path": "reward=learned_reward and reward.model",
    "experiment_name": "run_name",
    "project_name": "tracking.experiment",
    "default_local_dir": "output_dir",
    "enable_gradient_checkpointing": "model.gradient_checkpointing",
    "algorithm.type": "algorithm=NAME",
}


def ours(key: str) -> str | None:
    """Return what Whetstone calls another trainer's option; None for a key that no trainer is known to have.

    The longest end of the key that is known decides, so that prefixes such as verl's do not matter.

    >>> ours("actor_rollout_ref.rollout.n"), ours("num_generations")
    ('rollout.group_size', 'rollout.group_size')
    >>> ours("actor_rollout_ref.actor.optim.lr"), ours("rollout.teperature")
    ('algorithm.learning_rate', None)
    """
    parts = key.split(".")
    return next((OURS[end] for start in range(len(parts)) if (end := ".".join(parts[start:])) in OURS), None)


def in_our_words(message: str, keys: Iterable[str]) -> str:
    """Rewrite the lines about unknown keys that are other trainers' names.

    Args:
        message: a line for each mistake, as `contracts.settings.explain` writes it.
        keys: all keys that were given, dotted.

    >>> in_our_words("rollout: there is no such option; …\\nseed: is required", ["rollout.n", "seed"])
    'rollout.n: there is no such option. Here it is rollout.group_size\\nseed: is required'
    """
    lines = []
    for line in message.split("\n"):
        unknown, found, _ = line.partition(f": {UNKNOWN}")
        meant = {
            key: name
            for key in keys
            if found and f"{key}.".startswith(f"{unknown}.") and (name := ours(key)) is not None
        }
        lines += [f"{key}: {UNKNOWN}. Here it is {name}" for key, name in meant.items()] or [line]
    return "\n".join(lines)
