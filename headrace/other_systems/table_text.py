"""The names that other systems have for the keys of a run config, as a text.

Names = the keys here that take the value. Indented: how it is converted, with the user's value as
{value}.
"""

TABLE = """
# batches
rollout_batch_size num_prompts prompts_per_batch batch_size train_bs_n_seqs
= algorithm.prompts_per_step training.rows_per_step
  It counts rows of all devices. A row of RL is a prompt, with samples_per_prompt answers;
  prime-rl's batch_size counts answers.
train_batch_size = algorithm.prompts_per_step training.rows_per_step
  It counts rows of all devices. A row of RL is a prompt, as verl's is. OpenRLHF's RL counts the
  answers of one update: algorithm.minibatches is the answers of a step divided by {value}.
per_device_train_batch_size generation_batch_size
= algorithm.prompts_per_step training.rows_per_step
  It counts rows of all devices and of all accumulated passes; for RL divide by samples_per_prompt.
mini_batch_size ppo_batch_size ppo_mini_batch_size = algorithm.minibatches
  It is a count, not a size: prompts_per_step divided by {value} (by the prompts that {value}
  answers belong to, if the size counts answers).
num_minibatches n_minibatches ppo_n_minibatches = algorithm.minibatches
steps_per_generation = algorithm.minibatches
  It counts optimizer steps of a batch: {value} divided by gradient_accumulation_steps.
gradient_accumulation_steps micro_batch_size micro_train_batch_size ppo_micro_batch_size
ppo_micro_batch_size_per_gpu micro_batch_size_per_gpu log_prob_micro_batch_size
log_prob_micro_batch_size_per_gpu
= training.tokens_per_microbatch
  It counts tokens, not samples, and changes memory and speed alone: gradients are the same.
ppo_max_token_len_per_gpu train_max_tokens_per_gpu max_tokens_per_mb
= training.tokens_per_microbatch
group_size grpo_samples n n_samples_per_prompt num_generations num_return_sequences rollout_n
rollouts_per_example = algorithm.samples_per_prompt
max_epochs num_iterations num_ppo_epochs ppo_epochs actor_sample_reuse = algorithm.epochs_per_batch
# advantages
discount discount_factor = algorithm.advantage.gamma
gae_lambda lam lambd lmbda = algorithm.advantage.lambda
# rewards
remote_rm_url reward_fn reward_fn_key reward_funcs reward_function reward_functions reward_manager
reward_model reward_pretrain custom_reward_function = rewards
  It is a list of verifiers of the reward service: `headrace verifiers` lists them.
reward_weights = rewards.0.weight
  Each reward has its own.
dynamic_filtering_reward_range = algorithm.dynamic_sampling.low algorithm.dynamic_sampling.high
  Each takes one end of {value}.
mask_truncated_completions overlong_filtering mask_too_long = algorithm.shaping.mask_truncated
max_num_gen_batches = algorithm.dynamic_sampling.max_filtered
  The run fails when more than this many times prompts_per_step groups are filtered.
overlong_buffer_len overlong_buffer.len = algorithm.shaping.overlong_buffer
overlong_buffer.enable =
  leave it out: algorithm.shaping.overlong_buffer is enough
overlong_penalty_factor penalty_factor = algorithm.shaping.overlong_factor
reward_output_scaling = algorithm.shaping.scale
reward_output_bias = algorithm.shaping.bias
reward_clip_range = algorithm.shaping.max_reward_clip
  It is one number c, and clips to ±c; rewards.0.clip takes a range.
success_rate_lb = data.filter.low
success_rate_ub = data.filter.high
# loss
clip_eps clip_ratio cliprange eps_clip epsilon
= algorithm.loss.epsilon_low algorithm.loss.epsilon_high
  Set both, to the same value.
eps_clip_low_high = algorithm.loss.epsilon_low algorithm.loss.epsilon_high
  Each takes one end of {value}.
clip_ratio_low = algorithm.loss.epsilon_low
clip_ratio_high clip_higher eps_clip_high = algorithm.loss.epsilon_high
clip_ratio_c c_clip delta = algorithm.loss.dual_clip
sapo_temperature_pos tau_pos = algorithm.loss.tau_positive
sapo_temperature_neg tau_neg = algorithm.loss.tau_negative
ent_coef entropy_coef entropy_coeff entropy_loss_coef = algorithm.entropy_bonus
top_entropy_quantile clip_cov_ratio kl_cov_ratio ptx_coef multi_objective_aggregation
normalize_reward use_pf_ppo enable_ema neftune_noise_alpha num_cycles use_bias_correction_kl
vllm_guided_decoding_regex vllm_structured_outputs_regex =
  nothing here does this: leave it out
early_stop_imp_ratio = algorithm.early_stop_ratio
aux_loss_coef router_aux_loss_coef = algorithm.router.aux_loss router.aux_loss
# off-policy
vllm_importance_sampling_cap vllm_is_truncated_threshold tis_imp_ratio_cap rollout_is_threshold
= algorithm.correction.cap
  Set algorithm.correction.type to truncate and algorithm.proximal.type to recompute, too.
behav_imp_weight_cap = algorithm.correction.high
  Set algorithm.correction.type to mask, its low to 0, and algorithm.proximal.type to recompute,
  too.
token_mask_high mask_ratio_high = algorithm.correction.high
  Set algorithm.correction.type to mask, too.
token_mask_low mask_ratio_low = algorithm.correction.low
  Set algorithm.correction.type to mask, too.
off_policy_mask_threshold = algorithm.correction.delta
  Set algorithm.correction.type to off_policy_sequence_mask, too.
async_level max_async_level max_head_offpolicyness max_off_policy_steps off_policy_steps
async_queue_size = rollout.max_staleness
# KL
beta kl.coef kl.coeff init_kl_coef kl_beta kl_coef kl_coeff kl_ctl kl_loss_coef kl_penalty_coef
= algorithm.kl.beta
  Set algorithm.kl.type, too: k3 is GRPO's KL in the loss, k1_in_reward is PPO's in the reward, and
  without a type there is none.
kl_target target_kl adaptive_kl_target = algorithm.kl.adaptive.target
kl_horizon adaptive_kl_horizon = algorithm.kl.adaptive.horizon
ref_ema_eta = algorithm.kl.reference.rate
  Set algorithm.kl.reference.type to ema, too.
ref_model_mixup_alpha = algorithm.kl.reference.rate
  Set algorithm.kl.reference.type to ema, too. It mixes after each step: 1 - (1 - {value})^(1 /
  ref_model_sync_steps) is as fast as TRL.
ref_model_sync_steps = algorithm.kl.reference.every
  Set algorithm.kl.reference.type to refresh, too: that is ref_model_mixup_alpha 1.
ref_model ref_path reference_model = algorithm.kl.reference.path
# critic
cliprange_value value_clip value_clip_range value_eps_clip vf_clip
= algorithm.critic.loss.clip_range
value_coeff vf_coef = algorithm.critic.loss_weight
critic_learning_rate critic_lr = algorithm.critic.optimizer.lr
critic_pretrain = algorithm.critic.path
critic_warmup freezing_actor_steps = algorithm.critic.warmup_steps
# data and models
dataset_name dataset_path prompt_data train_dataset train_file train_files data.path data.file
data.files data.data_files data_path = data.dataset
  It is the name of an uploaded dataset: headrace datasets add FILE.
dataset_text_field input_key label_key prompt_key messages_key answer_key response_key =
  leave it out: columns are named as a file is uploaded, headrace datasets add FILE --prompt COLUMN
  --answer COLUMN
dataset_split dataset_config prompt_split eval_split max_samples train_max_samples val_max_samples
=
  leave it out: a run has all rows of its datasets, so upload the rows that it needs
prompt_data_probs dataset_probs = data.mix.0.weight
  Each dataset has its own, and the first one data.weight.
assistant_only_loss completion_only_loss = data.train_on
  assistant trains all turns of the assistant, last the last one, all every token.
load_best_model_at_end metric_for_best_model = validation.best
  A run keeps the checkpoint of its best validation.
system_message system_prompt = data.system
input_template prompt_template = data.template
  The prompt's place in it is {{prompt}}.
actor.path model.partial_pretrain model.name model.id model_path finetune.config_name base_model
model_id model_name model_name_or_path pretrain = model.path
load_in_4bit load_in_8bit = rollout.vllm.quantization
  Only sampling can use quantised weights.
lora_alpha = model.lora.alpha
lora.r lora_r lora_rank = model.lora.rank
lora_target_modules target_modules = model.lora.targets
  It is a list; left out, it is all linear layers except the output head.
lora_dropout lora.dropout =
  leave it out: adapters have no dropout, since the log-probabilities of a step would not be those
  of the sampler
# sampling
generate_max_len max_completion_length max_completion_tokens max_generated_tokens max_new_tokens
max_response_length response_length = sampling.max_tokens
temperature = sampling.temperature
min_new_tokens min_tokens = algorithm.shaping.min_response_length
  No least length is forced: shorter answers get algorithm.shaping.reward_penalty.
greedy do_sample = evaluation.temperature
  Training always samples; an evaluation is greedy at temperature 0, its default.
min_p = sampling.top_k
  There is no min_p: the learner could not compute the sampler's probabilities. top_k cuts rare
  tokens.
repetition_penalty frequency_penalty presence_penalty =
  leave it out: the learner could not compute the sampler's probabilities
max_len max_length max_seq_len max_seq_length seq_len = rollout.vllm.max_model_len data.max_seq_len
  It counts prompt and answer together.
max_prompt_length prompt_length prompt_max_len max_prompt_len = rollout.vllm.max_model_len
  It counts prompt and answer together: {value} and sampling.max_tokens.
vllm_max_model_length context_length = rollout.vllm.max_model_len
tensor_model_parallel_size tensor_parallel tp tp_size vllm_tensor_parallel_size
= rollout.vllm.tensor_parallel_size
vllm_gpu_memory_utilization = rollout.vllm.gpu_memory_utilization
vllm_enable_sleep_mode vllm_enable_sleep = rollout.vllm.sleeps
max_assistant_turns max_user_turns max_tool_calling_iterations = rollout.episode.max_turns
  Set rollout.episode.type to tools, too.
max_inflight_rollouts oversampling_factor = rollout.groups_in_flight
  It counts groups of one worker; left out, it keeps vLLM busy.
enforce_eager enable_prefix_caching enable_chunked_prefill max_num_batched_tokens vllm_model_impl
= rollout.vllm.extra
  It has vLLM's own options by name, e.g. {{enforce-eager: true}}.
use_vllm vllm_mode rollout.name rollout.mode async_train vllm_server_base_url vllm_server_host
vllm_server_port vllm_server_timeout vllm_sync_backend free_cache_engine calculate_log_probs
load_format micro_rollout_batch_size vllm_generate_batch_size use_transformers_paged
cache_implementation =
  leave it out: vLLM samples every run, and Headrace starts and feeds it
agent_func_path = rollout.episode
  Agents are programs of their own: headrace agents RUN -- COMMAND.
# optimizer and schedule
actor_learning_rate learning_rate lr policy_lr = optimizer.lr
adam_betas = optimizer.betas
adam_beta1 adam_beta2 beta1 beta2 betas1 betas2 = optimizer.betas
  It is a pair: [beta1, beta2].
adam_eps adam_epsilon = optimizer.eps
l2 = optimizer.weight_decay
clip_grad clip_grad_norm grad_clip gradient_clip gradient_clipping max_norm
= optimizer.max_grad_norm
optimizer_in_bwd = optimizer.in_backward
adam_offload offload_optimizer optim_cpu_offload optimizer_offload = training.offload
  It is a list: [optimizer].
param_offload fsdp_cpu_offload ref_reward_offload = training.offload
  It is a list of copies and states: [optimizer, reference]. Weights that are trained stay.
lr_warmup_steps num_warmup_steps = schedule.warmup_steps
lr_warmup_ratio warmup_steps_ratio lr_warmup_steps_ratio warmup_ratio warmup_steps_proportion
= schedule.warmup_steps
  It counts steps: {value} times the steps of the run.
min_lr_ratio min_lr_rate = schedule.floor
min_lr = schedule.floor
  It is a share: {value} divided by optimizer.lr.
decay_steps lr_decay_steps = schedule.decay_share
  It is a share: {value} divided by the steps of the run.
# training
enable_activation_checkpointing enable_gradient_checkpointing gradient_checkpointing
= training.activation_checkpointing
ac.freq ac.mode = training.activation_checkpointing
  It is auto, true or false.
torch_compile use_torch_compile compile.fullgraph = training.compile
context_parallel_degree context_parallel_size cp cp_size ring_attn_size sequence_parallel_size
ulysses_sequence_parallel_size = training.context_parallel
fsdp zero_stage deepspeed actor.strategy critic.strategy = training.parallel
  It is auto, ddp or fsdp.
num_episodes num_epochs num_train_epochs total_epochs total_train_epochs = training.epochs
max_train_steps run.steps num_steps total_steps total_training_steps benchmark_steps
= training.max_steps
seed data_seed data_loader_seed = training.seed
save_freq save_interval save_steps save_freq_steps ckpt.interval = training.checkpoint_every
save_strategy = training.checkpoint_every training.checkpoint_seconds
  There are checkpoints every few steps; seconds add further ones.
save_freq_secs ckpt_freq_secs = training.checkpoint_seconds
save_freq_epochs ckpt_freq_epochs = training.checkpoint_every
  It counts steps: an epoch has the dataset's rows divided by prompts_per_step.
ckpt.keep_last max_actor_ckpt_to_keep max_ckpt_num save_total_limit = training.keep_checkpoints
resume_from_checkpoint resume_mode load_checkpoint =
  leave it out: a run goes on by itself after a crash, and headrace resume RUN continues one that
  is over
# evaluation and reports
eval_dataset val_dataset val_files = evaluation.dataset validation.datasets
eval_every eval_interval eval_steps test_freq eval_freq_steps eval.interval
= evaluation.every validation.every
eval_strategy evaluation_strategy = evaluation.every validation.every
  It counts steps; leave the section out for no evaluation.
eval_on_start val_before_train = evaluation.at_start
val_only = training.max_steps
  0 evaluates alone.
num_examples = evaluation.rows
val_batch_size per_device_eval_batch_size =
  leave it out: vLLM batches by itself
eval_freq_epochs = evaluation.every validation.every
  It counts steps: an epoch has the dataset's rows divided by those of a step.
eval_freq_secs = evaluation.every validation.every
  It counts steps, so that runs can be compared.
num_generations_eval eval_n_samples_per_prompt val_kwargs.n eval.group_size evaluation.n eval.n
evaluation.num_generations evaluation.n_samples = evaluation.samples
eval_temperature val_kwargs.temperature = evaluation.temperature
wandb_project project_name = tracking.wandb.project tracking.trackio.project
wandb_entity = tracking.wandb.entity
logger report_to use_tensorboard use_wandb = tracking.wandb.project
  Each tracker is a section of tracking: wandb, mlflow, tensorboard or trackio.
logging_steps
log_completions num_completions_to_print log_unique_prompts logging_dir log_val_generations =
  leave it out: every step is in metrics.jsonl of the run, with its answers, and on the page
output_dir save_path ckpt_path default_local_dir =
  leave it out: runs are in the data folder
push_to_hub hub_model_id save_hf_ckpt =
  leave it out: headrace export writes the model in Hugging Face layout
run_name experiment_name wandb_run_name run.name =
  leave it out: headrace submit --name names a run
run.pool =
  leave it out: headrace submit --pool chooses who works on a run
run.priority =
  leave it out: headrace submit --priority orders runs
enable_thinking = data.chat_template_kwargs
  It takes the variables of the chat template: {{enable_thinking: {value}}}
# machines and kernels
nnodes gpus num_gpus n_gpus world_size n_gpus_per_node actor_num_nodes actor_num_gpus_per_node
critic_num_nodes
critic_num_gpus_per_node ref_num_nodes ref_num_gpus_per_node reward_num_nodes
reward_num_gpus_per_node vllm_num_engines colocate_all_models colocate_actor_ref
colocate_critic_reward fsdp_size ddp_timeout =
  leave it out: headrace up divides GPUs among learner and workers, not the run
packing_samples use_remove_padding use_dynamic_bsz use_dynamic_batch log_prob_use_dynamic_bsz =
  leave it out: sequences are always packed without padding
attn_implementation balance_batch flash_attn use_liger use_liger_kernel use_liger_loss
use_fused_kernels dataloader_num_workers dataset_num_proc remove_unused_columns
ds3_gather_for_generation =
  leave it out: the learner sees to it by itself
actor.shuffle critic.shuffle =
  leave it out: it is about the minibatches of a batch, and data.order about prompts
# TRL, transformers and peft
label_smoothing_factor = objective.label_smoothing
  Only the objective dpo has it.
reference_free use_weighting f_divergence_type f_alpha_divergence_coef discopop_tau
rpo_alpha ld_alpha simpo_gamma cpo_alpha eval_delay generation_kwargs full_finetuning relora_steps
unfrozen_parameters optim_target_modules loss_watchdog_threshold importance_sampling torchao fp8
lora_bias use_rslora use_dora init_lora_weights loftq_config modules_to_save lora_modules_to_save
lora_target_parameters target_parameters layers_to_transform rank_pattern alpha_pattern
lora_fan_in_fan_out exclude_modules rope_scaling =
  nothing here does this: leave it out
disable_dropout =
  leave it out: models are trained without dropout
cast_lm_head_to_fp32 =
  leave it out: the weights of the output head have model.dtype
model_init_kwargs ref_model_init_kwargs override_config external_lib model_revision model_type
tokenizer_type is_llama_derived_model overrides_of_model_config adapter dataset_kwargs
base_model_attribute_name lora_task_type task_type peft_config max_lora_rank lora_name
tokenizer_path data.tokenizer actor.backend special_tokens eos_token pad_token eot_tokens
resize_token_embeddings_to_32x init_from_scratch disable_fast_tokenizer =
  leave it out: the files of the model's folder say it
lora_target_linear = model.lora.targets
  It is a list; left out, it is all linear layers except the output head.
chat_template_path custom_chat_template = data.chat_template
  It takes the PATH of a file with `headrace submit`.
padding_free sample_packing eval_packing eval_sample_packing packing_strategy seq_packing
pad_to_multiple_of pad_to_sequence_len padding_value label_pad_token_id group_by_length
length_column_name dataloader_drop_last =
  leave it out: sequences are always packed without padding
truncation_mode excess_length_strategy = data.long_prompts data.overlong
early_stopping_patience = validation.patience
adv_norm.mean_level adv_norm.std_level = algorithm.advantage.whiten
  It is batch, group or false.
val_set_size = validation.share
sequence_len seq_length = rollout.vllm.max_model_len data.max_seq_len
  It counts prompt and answer together.
random_state = training.seed
use_gradient_checkpointing enable_activation_offload activation_offloading
gradient_checkpointing_kwargs gradient_checkpointing_use_reentrant
= training.activation_checkpointing
  It is auto, true or false.
torch_compile_backend = training.compile_backend
cosine_min_lr_ratio = schedule.floor
lr_scheduler_kwargs = schedule.floor
  A schedule has warmup_steps, decay_share and floor.
roles_to_train train_on_eos = data.train_on
  assistant trains all turns of the assistant with their ends, last the last one, all every token.
evals_per_epoch saves_per_epoch = training.checkpoint_every evaluation.every validation.every
  Each counts steps: an epoch has the dataset's rows divided by those of a step.
gradient_accumulation_passes = training.tokens_per_microbatch
  It counts tokens, not samples, and changes memory and speed alone: gradients are the same.
bnb_4bit_quant_type bnb_4bit_compute_dtype use_bnb_nested_quant float8_kv_cache
= rollout.vllm.quantization
  Only sampling can use quantised weights.
precompute_ref_log_probs precompute_ref_batch_size force_use_ref_model torch_empty_cache_steps
save_safetensors save_only_model save_on_each_node save_value_network
restore_callback_states_from_checkpoint save_contents load_contents async_save
use_ds_universal_ckpt disable_ds_ckpt max_ckpt_mem del_local_ckpt_after_load =
  leave it out: a checkpoint has all that its run needs, and headrace export writes the model
log_level log_level_replica log_on_each_node logging_strategy logging_first_step
logging_nan_inf_filter disable_tqdm debug include_tokens_per_second
include_num_input_tokens_seen skip_memory_metrics wandb_name wandb_log_model wandb_org
wandb_group perf stats_logger rollout_data_dir validation_data_dir profiler global_profiler
trace.backend prometheus.enable enable_rollout_tracing log_agent_stats disable_log_stats
log_completions_hub_repo =
  leave it out: every step is in metrics.jsonl of the run, with its answers, and on the page
hub_strategy hub_token hub_private_repo hub_always_push hub_revision push_to_hub_model_id
hf_use_auth_token =
  leave it out: headrace export writes the model in Hugging Face layout
overwrite_output_dir do_train do_eval do_predict prediction_loss_only batch_eval_metrics
eval_do_concat_batches eval_use_gather_object label_names past_index greater_is_better
ignore_data_skip auto_resume_from_checkpoints strict plugins clean trial_name dataset_prepared_path
use_shm dataset_loader return_raw_input_ids return_raw_chat return_full_prompt custom_cls sampler
datagen validation_shuffle filter_overlong_prompts_workers value_head_prefix pop_old_data =
  leave it out: a run does not need it
use_cpu no_cuda jit_mode_eval fp16_opt_level half_precision_backend bf16_full_eval tf32 local_rank
ddp_backend ddp_bucket_cap_mb ddp_find_unused_parameters ddp_broadcast_buffers
dataloader_pin_memory dataloader_persistent_workers
dataloader_prefetch_factor fsdp_config accelerator_config parallelism_config auto_find_batch_size
full_determinism torchdynamo ray_scope torch_compile_mode average_tokens_across_devices
flash_attention sdp_attention xformers_attention lora_mlp_kernel lora_qkv_kernel lora_o_kernel
liger_rope unsloth_num_chunks unsloth_tiled_mlp embeddings_skip_upcast fast_inference
reshard_after_forward forward_prefetch wrap_policy offload_policy model_dtype mixed_precision
entropy_from_logits_with_chunking entropy_checkpointing hybrid_engine initial_loss_scale deepcompile
deepspeed_enable_sleep weight_update_interval seq_parallel auto_device_map zpg overlap_comm
grad_accum_dtype ds_tensor_parallel_size ring_head_stride actor_init_on_gpu
update_weights_bucket_megabytes layered_summon multi_stage_wake_up weight_update_mode
weight_broadcast rollout_transport transfer_queue enable_offload mb_spec.n_mbs mb_spec.granularity =
  leave it out: the learner sees to it by itself
dp_shard_size data_parallel_size expert_parallel_size pipeline_model_parallel_size parallel.dp
api_server_count inference_gpu_ids trainer_gpu_ids allocation_mode cluster launcher ray_init
ray_kwargs world agent.num_workers vllm_group_port vllm_sync_with_ray name_resolve
rollout.request_timeout rollout.request_retries rollout.setup_timeout rollout.pause_grace_period
sglang.mem_fraction_static max_running_requests sglang.disable_cuda_graph rollout.queue_size
consumer_batch_size result_queue_size throughput_window_size server.port
attempts interrupt_train_steps rollout.schedule_policy rollout.check_trajectory_format preprocess
streams =
  leave it out: headrace up divides GPUs among learner and workers, not the run
tools tool_config_path multi_turn.enable agent_loop_config_path multi_turn.format
interaction_config_path = rollout.episode
  Set rollout.episode.type to tools; its servers name the MCP servers that have the tools.
max_parallel_calls = rollout.episode.max_calls
  Set rollout.episode.type to tools, too.
max_tool_response_length = rollout.episode.result_tokens
  Set rollout.episode.type to tools, too.
tool_call_parser enable_auto_tool_choice = rollout.vllm.extra
  It has vLLM's own options by name: {{enable-auto-tool-choice: true, tool-call-parser: hermes}}.
engine_kwargs cudagraph_capture_sizes vllm_kwargs vllm_config vllm_sampling_params
= rollout.vllm.extra
  It has vLLM's own options by name, e.g. {{enforce-eager: true}}.
vllm_dtype = rollout.vllm.dtype
llm_max_rollouts max_concurrent_rollouts max_concurrent over_sample_rate = rollout.groups_in_flight
  It counts groups of one worker; left out, it keeps vLLM busy.
max_lag = rollout.max_staleness
  It counts batches: {value} divided by the samples of a batch.
reward_func_names = rewards.0.name
  Each reward has its own.
reward_scaling = algorithm.shaping.scale
reward_bias = algorithm.shaping.bias
reward_clip = algorithm.shaping.max_reward_clip
eps_clip_higher = algorithm.loss.epsilon_high
overlong_tokens = algorithm.shaping.overlong_buffer
overlong_reward_penalty =
  leave it out: algorithm.shaping.overlong_buffer is enough
zero_truncated_completions = algorithm.shaping.mask_no_eos_with_zero
behave_imp_weight_cap = algorithm.correction.high
  Set algorithm.correction.type to mask, its low to 0, and algorithm.proximal.type to recompute,
  too.
n_samples = algorithm.samples_per_prompt
loss_scale_factor = algorithm.aggregation.type
  constant divides by sampling.max_tokens.
value_loss_coef = algorithm.critic.loss_weight
easy_threshold = data.filter.high
hard_threshold = data.filter.low
online_difficulty_filtering filter_zero_advantage_groups = algorithm.dynamic_sampling
  It filters groups whose rewards are all equal: {{}} is enough.
gradient_clipping_threshold = optimizer.max_grad_norm
save_checkpoint_steps saver.freq_steps = training.checkpoint_every
saver.freq_epochs = training.checkpoint_every
  It counts steps: an epoch has the dataset's rows divided by prompts_per_step.
checkpointer.freq_secs = training.checkpoint_seconds
total_train_steps = training.max_steps
eval_every_n_versions = evaluation.every
valid_dataset test_dataset_names environment_ids = evaluation.dataset
orchestrator.env finetune.input train_dataset_names = data.dataset
  It is the name of an uploaded dataset: headrace datasets add FILE.
image_key video_key return_multi_modal_inputs finetune_vision_layers =
  leave it out: models here read text alone
recover.mode resume_from_path =
  leave it out: a run goes on by itself after a crash, and headrace resume RUN continues one that
  is over
stop stop_strings = sampling.stop_token_ids
  It takes ids of tokens, not texts.
ema_beta pretrain_data skip_rollout router_replay.mode filters trajectory_strategy
mask_env_responses use_prefetch pf_ppo weight_pow ppo_kl_coef clip_cov_lb rollout_is_threshold_lower
reward_norm behave_imp_weight_mode prox_logp_method clamp_log_ratio_ref_new_value use_advantages
relu_log_p_weights reward_minus_kl_coef easy_fraction task_template task_prompt rollout_policy
max_tool_response_truncate_side tool_response_truncate_side use_inference_chat_template
tokenization_sanity_check_mode total_train_n_seqs shuffle_merged_datasets rl =
  nothing here does this: leave it out
"""
