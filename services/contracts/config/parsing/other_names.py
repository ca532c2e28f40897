"""What TRL, verl, OpenRLHF, torchtune, AReaL and prime-rl call the keys of a run config."""

_NAMES = {
    "algorithm.advantage.gamma": "discount discount_factor",
    "algorithm.advantage.lambda": "gae_lambda lam lambd lmbda",
    "algorithm.advantage.type": "adv_estimator advantage_estimator",
    "algorithm.aggregation.type": "loss_agg_mode",
    "algorithm.critic.loss.clip_range": "cliprange_value value_clip value_clip_range vf_clip",
    "algorithm.critic.loss_weight": "value_coeff vf_coef",
    "algorithm.critic.optimizer.lr": "critic_learning_rate critic_lr",
    "algorithm.critic.path": "critic_pretrain",
    "algorithm.dynamic_sampling": "dynamic_filtering filter_groups",
    "algorithm.entropy_bonus": "ent_coef entropy_coef entropy_coeff entropy_loss_coef",
    "algorithm.epochs_per_batch": "max_epochs num_iterations num_ppo_epochs ppo_epochs",
    "algorithm.kl.adaptive.target": "kl_target target_kl",
    "algorithm.kl.beta": "beta init_kl_coef kl_beta kl_coef kl_ctl kl_loss_coef kl_penalty_coef",
    "algorithm.loss.dual_clip": "clip_ratio_c",
    "algorithm.loss.epsilon_high": "clip_ratio_high eps_clip_high",
    "algorithm.loss.epsilon_low": "clip_eps clip_ratio clip_ratio_low cliprange eps_clip epsilon",
    "algorithm.loss.type": "loss_type policy_loss",
    "algorithm.minibatches": "mini_batch_size num_minibatches ppo_batch_size ppo_mini_batch_size",
    "algorithm.prompts_per_step": "batch_size generation_batch_size num_prompts prompts_per_batch "
    "per_device_train_batch_size rollout_batch_size train_batch_size",
    "algorithm.samples_per_prompt": "group_size grpo_samples n n_samples_per_prompt "
    "num_generations num_return_sequences rollout_n rollouts_per_example",
    "data.dataset": "dataset_name dataset_path prompt_data train_dataset train_file train_files",
    "data.system": "system_message system_prompt",
    "data.template": "input_template prompt_template",
    "evaluation.dataset": "eval_dataset val_dataset val_files",
    "evaluation.every": "eval_every eval_interval eval_steps test_freq",
    "model.dtype": "bf16 fp16 precision torch_dtype",
    "model.lora.alpha": "lora_alpha",
    "model.lora.rank": "lora_r lora_rank",
    "model.lora.targets": "lora_target_modules target_modules",
    "model.path": "base_model model_id model_name model_name_or_path pretrain",
    "optimizer.betas": "adam_beta1 adam_beta2 adam_betas",
    "optimizer.eps": "adam_eps adam_epsilon",
    "optimizer.lr": "actor_learning_rate learning_rate lr policy_lr",
    "optimizer.max_grad_norm": "clip_grad clip_grad_norm grad_clip gradient_clip max_norm",
    "optimizer.type": "optim",
    "rewards": "remote_rm_url reward_fn reward_funcs reward_function reward_functions reward_model",
    "rollout.max_staleness": "async_level max_async_level max_head_offpolicyness off_policy_steps",
    "rollout.vllm.max_model_len": "max_length max_prompt_length max_seq_len max_seq_length "
    "prompt_max_len seq_len",
    "rollout.vllm.tensor_parallel_size": "tensor_model_parallel_size tp tp_size",
    "sampling.max_tokens": "generate_max_len max_completion_length max_generated_tokens "
    "max_new_tokens max_response_length response_length",
    "sampling.temperature": "temperature",
    "schedule.type": "lr_scheduler lr_scheduler_type",
    "schedule.warmup_steps": "lr_warmup_ratio lr_warmup_steps num_warmup_steps warmup_ratio",
    "training.activation_checkpointing": "enable_activation_checkpointing "
    "enable_gradient_checkpointing gradient_checkpointing",
    "training.checkpoint_every": "save_freq save_interval save_steps",
    "training.context_parallel": "context_parallel_degree context_parallel_size cp cp_size "
    "sequence_parallel_size ulysses_sequence_parallel_size",
    "training.compile": "torch_compile use_torch_compile",
    "training.epochs": "num_episodes num_epochs num_train_epochs total_epochs",
    "training.keep_checkpoints": "max_ckpt_num save_total_limit",
    "training.max_steps": "max_train_steps num_steps total_steps total_training_steps",
    "training.seed": "seed",
    "training.tokens_per_microbatch": "gradient_accumulation_steps micro_batch_size "
    "micro_train_batch_size ppo_max_token_len_per_gpu ppo_micro_batch_size_per_gpu",
}
OTHER_NAMES = {name: key for key, names in _NAMES.items() for name in names.split()}
"""Key of a run config by the name that another system has for it."""
