"""Names of options in other trainers and in Whetstone, for errors about unknown keys.

Sources: the options of TRL 1.16 (GRPOConfig, DPOConfig, KTOConfig, SFTConfig, ModelConfig), verl
(ppo_trainer.yaml, commit 01d4d76), OpenRLHF (train_ppo_ray), slime (its scripts), and Hugging Face's
TrainingArguments.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches

UNKNOWN = "there is no such option"  # stands in an error of `contracts.settings`

# Keys are the last part of an option, or the whole option. If several trainers agree, one entry serves all.
# The tables of docs/from-trl.md and docs/from-verl.md must agree with this one.
OURS = {
    # TRL and TrainingArguments: batches and lengths
    "num_generations": "rollout.group_size",
    "num_generations_eval": "evaluation.samples_per_prompt",
    "per_device_train_batch_size": "rollout.prompts_per_iteration; micro-batches: learner.token_budget",
    "per_device_eval_batch_size": "evaluation.num_prompts",
    "train_batch_size": "rollout.prompts_per_iteration",
    "gradient_accumulation_steps": "algorithm.minibatch_size; micro-batches follow from learner.token_budget",
    "generation_batch_size": "rollout.prompts_per_iteration",
    "steps_per_generation": "algorithm.minibatch_size",
    "max_completion_length": "rollout.max_tokens",
    "max_new_tokens": "rollout.max_tokens",
    "max_prompt_length": "rollout.max_prompt_tokens",
    "max_length": "rollout.max_prompt_tokens and rollout.max_tokens",
    "truncation_mode": "task.truncation_side",
    "temperature": "rollout.temperature",
    "top_p": "rollout.top_p",
    "top_k": "rollout.top_k",
    "repetition_penalty": "rollout.repetition_penalty",
    "use_vllm": "rollout.engine=vllm",
    "vllm_gpu_memory_utilization": "rollout.gpu_memory_utilization",
    "vllm_tensor_parallel_size": "rollout.tensor_parallel_size",
    "vllm_enable_sleep_mode": "rollout.sleep",
    "chat_template_kwargs": "model.chat.options",
    # the loss
    "learning_rate": "algorithm.learning_rate",
    "beta": "algorithm.kl.coefficient; of dpo, ipo, simpo, orpo and kto: algorithm.beta",
    "use_bias_correction_kl": "algorithm.kl.estimator: k3_exact, of grpo and its relatives",
    "num_iterations": "algorithm.num_epochs",
    "epsilon": "algorithm.clip_range",
    "epsilon_high": "algorithm.clip_range_high",
    "delta": "algorithm.dual_clip, of ppo alone",
    "loss_type": "algorithm=NAME and algorithm.aggregation; of dpo: algorithm.loss_type",
    "importance_sampling_level": "algorithm=gspo for sequence",
    "sapo_temperature_pos": "algorithm.temperature_positive, of sapo",
    "sapo_temperature_neg": "algorithm.temperature_negative, of sapo",
    "multi_objective_aggregation": "algorithm=gdpo for normalize_then_sum",
    "top_entropy_quantile": "algorithm.top_entropy_share, of groups",
    "use_adaptive_entropy": "algorithm.entropy_target, of groups",
    "entropy_target": "algorithm.entropy_target, of groups",
    "entropy_coef_max": "algorithm.entropy_coef_max, of groups",
    "entropy_coef_delta": "algorithm.entropy_step, of groups",
    "entropy_coef_min": "nothing: the coefficient falls to 0 at least",
    "vllm_importance_sampling_correction": "learner.mismatch.weights",
    "vllm_importance_sampling_mode": "learner.mismatch.weights",
    "vllm_importance_sampling_cap": "learner.importance_cap",
    "scale_rewards": "algorithm.scale_by_deviation",
    "mask_truncated_completions": "algorithm.filter_truncated",
    "entropy_coef": "algorithm.entropy_coef",
    "sync_ref_model": "nothing: the reference model stays as it is",
    "reward_funcs": "reward",
    "reward_weights": "reward.LABEL.weight",
    "label_smoothing": "algorithm.label_smoothing",
    "desirable_weight": "algorithm.desirable_weight",
    "undesirable_weight": "algorithm.undesirable_weight",
    "precompute_ref_log_probs": "nothing: whetstone annotate computes them",
    "disable_dropout": "model.dropout=false",
    "completion_only_loss": "algorithm.loss_on",
    "assistant_only_loss": "algorithm.loss_on",
    "simpo_gamma": "algorithm.gamma",
    "teacher_model_name_or_path": "algorithm=distillation and model.reference.path",
    "lmbda": "nothing: distillation learns from the model's own texts",
    # the optimiser and the length of a run
    "max_grad_norm": "algorithm.max_grad_norm",
    "weight_decay": "algorithm.optimizer.weight_decay",
    "adam_beta1": "algorithm.optimizer.beta1",
    "adam_beta2": "algorithm.optimizer.beta2",
    "beta1": "algorithm.optimizer.beta1",
    "beta2": "algorithm.optimizer.beta2",
    "adam_epsilon": "algorithm.optimizer.eps",
    "lr_scheduler_type": "learner.lr_schedule",
    "warmup_steps": "learner.warmup_iterations",
    "warmup_ratio": "learner.warmup_iterations",
    "max_steps": "iterations",
    "num_train_epochs": "iterations; offline: data.num_epochs",
    "total_epochs": "iterations; offline: data.num_epochs",
    "total_training_steps": "iterations",
    "eval_steps": "evaluate_every",
    "eval_strategy": "evaluate_every",
    "test_freq": "evaluate_every",
    "save_steps": "save_every",
    "save_freq": "save_every",
    "save_total_limit": "keep_checkpoints",
    "load_best_model_at_end": "keep_best=val/METRIC",
    "resume_from_checkpoint": "resume",
    "logging_steps": "nothing: every iteration is recorded",
    "report_to": "tracking.also",
    # the model
    "model_name_or_path": "model.path",
    "model_revision": "model.revision",
    "model.path": "model.path",  # after verl's prefixes
    "pretrain": "model.path",
    "gradient_checkpointing": "model.gradient_checkpointing",
    "bf16": "rollout.dtype=bfloat16 and learner.autocast=bfloat16",
    "use_peft": "model.adapter.kind=lora",
    "load_in_4bit": "model.adapter.kind=qlora",
    "lora_r": "model.adapter.r",
    "lora_rank": "model.adapter.r",
    "lora_alpha": "model.adapter.lora_alpha",
    "lora_dropout": "model.adapter.lora_dropout",
    "lora_target_modules": "model.adapter.target_modules",
    "target_modules": "model.adapter.target_modules",
    # PPO in several trainers
    "kl_coef": "algorithm.kl.coefficient",
    "vf_coef": "algorithm.value_coef",
    "cliprange": "algorithm.clip_range",
    "cliprange_value": "algorithm.value_clip_range",
    "gamma": "algorithm.gamma",
    "lam": "algorithm.gae_lambda",
    # verl and OpenRLHF
    "rollout.n": "rollout.group_size",
    "rollout.name": "rollout.engine",
    "val_kwargs.n": "evaluation.samples_per_prompt",
    "val_kwargs.temperature": "evaluation.temperature",
    "val_kwargs.top_p": "evaluation.top_p",
    "val_kwargs.top_k": "evaluation.top_k",
    "val_kwargs.do_sample": "evaluation.temperature, where 0 is greedy",
    "n_samples_per_prompt": "rollout.group_size",
    "rollout_batch_size": "rollout.prompts_per_iteration",
    "micro_train_batch_size": "learner.token_budget",
    "ppo_mini_batch_size": "algorithm.minibatch_size",
    "ppo_micro_batch_size": "learner.token_budget",
    "ppo_micro_batch_size_per_gpu": "learner.token_budget",
    "ppo_max_token_len_per_gpu": "learner.token_budget",
    "use_dynamic_bsz": "nothing: micro-batches follow from learner.token_budget",
    "ppo_epochs": "algorithm.num_epochs",
    "max_epochs": "algorithm.num_epochs",
    "clip_ratio": "algorithm.clip_range",
    "clip_ratio_low": "algorithm.clip_range",
    "clip_ratio_high": "algorithm.clip_range_high",
    "clip_ratio_c": "algorithm.dual_clip, of ppo alone",
    "eps_clip": "algorithm.clip_range",
    "entropy_coeff": "algorithm.entropy_coef",
    "use_kl_loss": "algorithm.kl.placement=loss",
    "use_kl_in_reward": "algorithm.kl.placement=reward",
    "kl_loss_coef": "algorithm.kl.coefficient",
    "init_kl_coef": "algorithm.kl.coefficient",
    "kl_loss_type": "algorithm.kl.estimator",
    "kl_penalty": "algorithm.kl.estimator",
    "kl_ctrl.kl_coef": "algorithm.kl.coefficient",
    "kl_ctrl.type": "algorithm.kl.controller=ziegler with algorithm.kl.target, for adaptive",
    "kl_ctrl.target_kl": "algorithm.kl.target",
    "kl_ctrl.horizon": "algorithm.kl.horizon",
    "kl_target": "algorithm.kl.target",
    "adv_estimator": "algorithm=NAME",
    "advantage_estimator": "algorithm=NAME",
    "loss_mode": "algorithm=NAME",
    "norm_adv_by_std_in_grpo": "algorithm.scale_by_deviation",
    "filter_groups.enable": "algorithm.drop_constant_groups",
    "filter_groups.max_num_gen_batches": "algorithm.max_refills",
    "rollout_is": "learner.mismatch.weights",
    "rollout_is_threshold": "learner.importance_cap",
    "loss_agg_mode": "algorithm.aggregation",
    "grad_clip": "algorithm.max_grad_norm",
    "optim.lr": "algorithm.learning_rate",
    "critic.optim.lr": "algorithm.critic_learning_rate",
    "lr_warmup_steps": "learner.warmup_iterations",
    "lr_warmup_steps_ratio": "learner.warmup_iterations",
    "min_lr_ratio": "learner.lr_end",
    "actor_learning_rate": "algorithm.learning_rate",
    "critic_learning_rate": "algorithm.critic_learning_rate",
    "max_response_length": "rollout.max_tokens",
    "generate_max_len": "rollout.max_tokens",
    "prompt_max_len": "rollout.max_prompt_tokens",
    "truncation": "task.truncation_side",
    "prompt_key": "task=prompts and task.prompt_column",
    "tensor_model_parallel_size": "rollout.tensor_parallel_size",
    "gpu_memory_utilization": "rollout.gpu_memory_utilization",
    "free_cache_engine": "rollout.sleep",
    "train_files": "task=prompts and task.data_files",
    "val_files": "task=prompts and task.data_files",
    "train_dataset": "task=prompts and task.data_files",
    "dataset_name": "task=prompts and task.data_files",
    "prompt_data": "task=prompts and task.data_files",
    "nnodes": "cluster=nodes, on the Ray cluster at RAY_ADDRESS",
    "n_gpus_per_node": "rollout.num_workers and learner.num_processes",
    "custom_reward_function.path": "reward=FILE.py:NAME",
    "custom_reward_function.name": "reward=FILE.py:NAME",
    "reward_model.path": "reward=learned_reward and reward.model",
    "reward_model.model.path": "reward=learned_reward and reward.model",
    "reward_model.model_path": "reward=learned_reward and reward.model",
    "teacher_model.model_path": "algorithm=distillation and model.reference.path",
    "experiment_name": "run_name",
    "project_name": "tracking.experiment",
    "logger": "tracking.also",
    "default_local_dir": "output_dir",
    "resume_mode": "resume",
    "max_actor_ckpt_to_keep": "keep_checkpoints",
    "val_before_train": "nothing: a run evaluates before the first iteration, or evaluate_every=never",
    "critic_warmup": "nothing: actor and critic begin together",
    "enable_gradient_checkpointing": "model.gradient_checkpointing",
    "algorithm.type": "algorithm=NAME",
    # slime
    "num_rollout": "iterations",
    "global_batch_size": "algorithm.minibatch_size",
    "rollout_max_response_len": "rollout.max_tokens",
    "rollout_temperature": "rollout.temperature",
    "eps_clip_high": "algorithm.clip_range_high",
    "custom_rm_path": "reward=FILE.py:NAME",
    "eval_interval": "evaluate_every",
    "save_interval": "save_every",
    "n_samples_per_eval_prompt": "evaluation.samples_per_prompt",
    "max_tokens_per_gpu": "learner.token_budget",
}


def ours(key: str) -> str | None:
    """Return Whetstone's name of another trainer's option; None if no trainer has the key.

    The longest known end of the key decides, so prefixes, such as verl's, do not matter.

    >>> ours("actor_rollout_ref.rollout.n"), ours("num_generations")
    ('rollout.group_size', 'rollout.group_size')
    >>> ours("actor_rollout_ref.actor.optim.lr"), ours("rollout.teperature")
    ('algorithm.learning_rate', None)
    """
    parts = key.split(".")
    return next((OURS[end] for start in range(len(parts)) if (end := ".".join(parts[start:])) in OURS), None)


def in_our_words(message: str, keys: Iterable[str]) -> str:
    """Rewrite the lines about unknown keys that other trainers use.

    Args:
        message: a line for each mistake, as `contracts.settings.explain` writes it.
        keys: all keys of the user, dotted.

    >>> in_our_words("rollout: there is no such option; …\\nseed: is required", ["rollout.n", "seed"])
    'rollout.n: there is no such option. Here it is rollout.group_size\\nseed: is required'
    >>> in_our_words("learnng_rate: there is no such option; …", ["learnng_rate"])
    'learnng_rate: there is no such option. Here it is algorithm.learning_rate'
    """
    keys = list(keys)
    lines = []
    for line in message.split("\n"):
        unknown, is_unknown, _ = line.partition(f": {UNKNOWN}")
        meant = {
            key: our_name
            for key in keys
            if is_unknown and _lies_in(key, unknown) and (our_name := _news(key))
        }
        lines += [f"{key}: {UNKNOWN}. Here it is {our_name}" for key, our_name in meant.items()] or [line]
    return "\n".join(lines)


def _lies_in(key: str, section: str) -> bool:
    return f"{key}.".startswith(f"{section}.")


def _news(key: str) -> str | None:
    """Return Whetstone's name of a key, or of a similar key.

    Return None if there is none, or if it is the same name, which then belongs to another algorithm.
    """
    our_name = ours(key)
    if our_name is None and "." not in key and (near := get_close_matches(key, OURS, n=1, cutoff=0.85)):
        our_name = OURS[near[0]]
    return None if our_name is None or re.split(r"[^\w.]", our_name)[0] == key else our_name
