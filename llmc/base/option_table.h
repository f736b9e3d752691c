// The single table of options. Each line is one option. The field of `Options`, the parser, --help, the config file,
// the saved config.json, what a checkpoint stores, the banner's list and the table of dev/docs/options.md are all
// generated from it. To add an option, add a line and run `make docs`.
//
//   X(group, kind, scope, name, default, limits, help[, needs])
//
// `scope` says what the option belongs to, and so how long its value lasts. A file that is not the user's own, such as
// a stranger's checkpoint, sets only those of a run: an option that writes a file, or that names one of the machine,
// must not be among them.
//
//   command   the command line: no file may set it
//   start     one start: where it writes and what it goes on from, or what it does instead of training. The config.json
//             that a run saves lacks it.
//   machine   the machine of one start. The saved config.json has it, and a checkpoint lacks it.
//   run       the run: a checkpoint has it. A run that goes on takes it over, and the command line may change it.
//   ranks     the same, but a run that goes on by another number of ranks does not take it over
//   order     as run, but no start may change it: the run would train on other sequences than it would have had
//
// `needs` lists the conditions without which the option changes nothing; using it then causes a remark. Each word is a
// condition of run/idle_options.cpp.
//
// The option is named after its field: micro_batch is --micro-batch. export_ is --export, because export is a C++
// keyword.
//
//   Count   int64    limits: an interval                  kAuto as the default: the user may write "auto",
//   Real    double   limits: an interval                  and the program chooses the value
//   Switch  bool     limits: ""                           --dry-run alone means on
//   Choice  string   limits: the words, "a|b|c"
//   Text    string   limits: what --help calls the value
#pragma once

// clang-format off
#define OPTION_TABLE(X) \
  X("Model", Text, run, model, "tiny", "NAME", "preset, directory of safetensors, a run that has an export, or a config.json alone: random weights") \
  X("Model", Text, run, tokenizer, "", "DIR", "where tokenizer.json is (none: in the folder of the weights, or of the shards)") \
  X("Model", Count, run, layers, kAuto, "[1, 100000]", "shorten or lengthen the model to N layers (auto: its own)") \
  X("Model", Count, run, vocab_size, kAuto, "[1, 1e9]", "give a model with random weights N tokens (auto: its own; of tiny the tokenizer's)", "random-weights") \
  X("Model", Choice, run, init, "normal", "normal|depth-scaled", "the config's std (0.02); or residual projections by 1/sqrt(2L)", "random-weights") \
  \
  X("Data", Text, run, train_data, "", "FILES", "a .bin or .txt file, a quoted pattern, or a folder, of which files named val, valid, validation or test are held out (none: the bundled text); several sources with their shares of the tokens: NAME=FILES@SHARE,…") \
  X("Data", Text, run, val_data, "", "FILES", "held-out data (none: such files of the folders; else the last 10% of each text, nothing of .bin files); several sources: NAME=FILES,…") \
  X("Data", Switch, run, packed_documents, false, "", "attention, positions and labels end at the documents' borders") \
  X("Data", Count, run, document_token, kAuto, "[0, inf)", "token that begins a document (auto: as dev/data says, or the model's)", "documents") \
  X("Data", Choice, order, special_tokens, "text", "text|parse", "special tokens that a text spells: letters like the rest, or the tokens themselves (of shards: dev/data/prepare decides)") \
  X("Data", Switch, machine, check_data, false, "", "read and check every token at the start, not only when its turn comes") \
  X("Data", Text, machine, cache, "", "DIR", "where the tokens of a text are kept (none: cache next to --out, else runs/cache)") \
  \
  X("Run", Text, command, config, "", "FILE", "read options from a JSON file; the command line wins over it") \
  X("Run", Text, start, out, "", "DIR", "where the run writes (none: runs/<date>-<model>)") \
  X("Run", Count, order, seed, 1337, "[0, inf)", "of the initial weights, the order of the data and the samples") \
  X("Run", Count, run, steps, kAuto, "[1, 1e15]", "length of the run in steps (at most one of the three lengths; auto: a pass over the data, less for a small model)", "trains") \
  X("Run", Count, run, train_tokens, kAuto, "[1, 1e18]", "length of the run in tokens", "trains") \
  X("Run", Real, run, epochs, kAuto, "(0, 1e9]", "length of the run in passes over the training data (of a mixture: in so many tokens as its sources have together)", "trains") \
  X("Run", Text, run, eval_choices, "", "FILE", "questions to answer at each validation: JSON lines with ctx, endings and label, as HellaSwag's") \
  X("Run", Choice, run, eval_format, "lm-eval", "lm-eval|llm.c", "how their text is built and cut into tokens", "choices") \
  X("Run", Text, run, eval_keys, "", "KEY=NAME,…", "what the file calls these keys: ctx=question,endings=choices,label=answer", "choices") \
  X("Run", Count, run, val_every, kAuto, "[0, inf)", "steps between validations (0: never)", "trains measures") \
  X("Run", Count, run, val_tokens, kAuto, "[0, inf)", "held-out tokens that a validation measures, of each source (auto: 16384 or 16 sequences, whichever is more, but of all sources at most a tenth of the run's; all with --eval-only; 0: all)", "measures") \
  X("Run", Count, run, sample_every, kAuto, "[0, inf)", "steps between samples (auto: half and end, of a run below 20 steps the end; 0: never)", "trains") \
  X("Run", Switch, start, eval_only, false, "", "train nothing: measure the held-out loss, answer --eval-choices, and end") \
  X("Run", Switch, start, sample_only, false, "", "train nothing: continue --prompt and end") \
  X("Run", Text, run, prompt, "", "TEXT", "how samples begin (none: with the token that divides the documents of the data, else the model's begin-of-text or end-of-text token, else a newline)", "samples") \
  X("Run", Switch, run, chat, false, "", "--prompt is what a user says: the model's chat template renders it", "samples") \
  X("Run", Text, run, system, "", "TEXT", "what the system message before it says (none: there is none)", "samples chat") \
  X("Run", Count, run, sample_tokens, 200, "[0, 1e9]", "length of a sample in tokens", "samples") \
  X("Run", Real, run, temperature, 0.8, "[0, inf)", "of samples (0: always the likeliest token)", "samples") \
  X("Run", Real, run, top_p, 1.0, "(0, 1]", "of samples: only the likeliest tokens that have this probability together", "samples temperature") \
  X("Run", Switch, run, export_, true, "", "write the weights as safetensors at the end", "trains") \
  X("Run", Switch, start, dry_run, false, "", "print the plan of memory and steps, train nothing") \
  X("Run", Count, start, nodes, 0, "[0, 65536]", "with --dry-run: of a cluster that is not here, with a replayed step (0: this machine)") \
  X("Run", Count, start, gpus_per_node, 8, "[1, 1024]", "of such a cluster", "nodes") \
  X("Run", Text, start, gpu, "auto", "NAME", "of such a cluster, or without --nodes one alone (auto: H100): A100, H100, H200, B200, A10G, A6000, L40S, RTX3090, RTX4080, RTX4090, RTX5060Ti, RTX5070Ti, RTX5080, RTX5090 or RTXPRO6000; --memory-limit for one with another memory", "nodes") \
  X("Run", Real, machine, network_bandwidth, kAuto, "(0, 1e6]", "GB/s that a GPU sends to other nodes, for predictions (auto: 40; A100: 20; without NVLink: 10; GeForce: 1)", "network") \
  X("Run", Real, machine, host_bandwidth, kAuto, "(0, 1e6]", "GB/s that a GPU copies to the host, and as many back, for predictions (auto: 87% of its data sheet's bus)", "predicts") \
  X("Run", Switch, machine, nvtx, false, "", "name steps, blocks and kernels for Nsight Systems", "gpu") \
  X("Run", Switch, machine, quiet, false, "", "prints only warnings, errors, and what --sample-only or --eval-only found") \
  X("Run", Switch, run, cuda_graphs, false, "", "capture a step once, and launch it as a whole from then on", "trains") \
  X("Run", Count, run, gpu_every, 50, "[0, inf)", "steps between looks at the GPUs: how long each rank computes, which one is slow, and its clock, power and temperature (0: never)", "trains looks") \
  X("Run", Text, start, trace, "", "FILE", "write the streams of the run's third step, or of --nodes' step, as a trace for Perfetto") \
  X("Run", Switch, command, help, false, "", "print this text, as -h does") \
  X("Run", Switch, command, version, false, "", "print version, commit, compiler and libraries") \
  \
  X("Checkpoints", Count, run, checkpoint_every, 0, "[0, inf)", "steps between checkpoints, and one at the end (0: only by --checkpoint-minutes)", "trains") \
  X("Checkpoints", Real, run, checkpoint_minutes, kAuto, "[0, 1e6]", "minutes after which the next checkpoint is due, and one at the end (auto: 30 on several ranks, else 0; 0: only by --checkpoint-every)", "trains") \
  X("Checkpoints", Switch, run, checkpoint_on_signal, true, "", "asked to stop (Ctrl-C, SIGTERM, SIGHUP, SIGUSR1), or at a step that is not finite: save one, then end", "trains") \
  X("Checkpoints", Real, start, stop_after, 0.0, "[0, 1e6]", "hours from the program's start after which the run ends as it does when it is asked to stop (0: never)", "trains") \
  X("Checkpoints", Switch, run, checkpoint_async, true, "", "write from a copy in the host's memory while training goes on (if it has room for one; on the command line: in any case)", "trains checkpoints") \
  X("Checkpoints", Switch, run, checkpoint_verify, false, "", "read each file of a checkpoint back from the disk, before an older checkpoint is removed", "trains checkpoints") \
  X("Checkpoints", Count, run, keep_checkpoints, 3, "[0, inf)", "how many stay, the newest ones (0: all)", "trains") \
  X("Checkpoints", Count, run, verify_every, 0, "[0, inf)", "steps between verifications: ranks compare what they hold twice, and compute a micro-batch of each other again; a wrong GPU ends the run (0: never)", "trains") \
  X("Checkpoints", Text, start, resume, "none", "none|auto|DIR", "go on from a checkpoint. auto: the newest of --out's run, else of runs/latest, in that run's folder. DIR: the newest of this run, or this checkpoint, in a new folder") \
  X("Checkpoints", Switch, start, skip_bad_samples, false, "", "with --resume auto: leave out the samples of the steps that ended the run before (not finite, or --bad-steps-limit spikes), as bad_samples.json in its folder lists them", "trains") \
  X("Checkpoints", Real, machine, lock_timeout, 180, "[0, 1e6]", "seconds for which a start waits while another process writes its run's folder (0: it ends at once)", "trains") \
  X("Checkpoints", Text, start, stage, "", "NAME", "with --resume DIR: begin a stage of the training there. Weights and moments go on; data, shares, batch, length of sequences and RoPE scaling may change; data and schedule count from its first step", "trains") \
  X("Checkpoints", Text, start, consolidate, "", "DIR", "train nothing: write --resume's checkpoint as a model directory; needs no GPU") \
  \
  X("Batch", Count, order, seq_len, kAuto, "[1, 1e9]", "tokens a sequence (T; auto: by the model's size); if given, also the longest sample or question") \
  X("Batch", Count, ranks, micro_batch, kAuto, "[1, 1e9]", "sequences a rank takes at once (B)") \
  X("Batch", Count, order, global_batch, kAuto, "[1, 1e9]", "sequences a step, over all ranks and micro-steps (auto: by the model's size; 8 steps or more an epoch)") \
  \
  X("Optimizer", Real, run, lr, kAuto, "(0, inf)", "peak learning rate (auto: by the model's size, 4e-3 for tiny to 3e-4 from 0.9B parameters on; a tenth of it where weights are loaded)", "trains") \
  X("Optimizer", Real, run, min_lr, kAuto, "[0, inf)", "learning rate at the end (auto: a tenth of --lr)", "trains falling after-warm-up") \
  X("Optimizer", Count, run, warmup_steps, kAuto, "[0, inf)", "steps of linear warm-up", "trains") \
  X("Optimizer", Choice, run, schedule, "cosine", "cosine|linear|wsd|constant", "how --lr falls to --min-lr (wsd: in a cooldown at the end)", "trains after-warm-up") \
  X("Optimizer", Real, run, cooldown_steps, kAuto, "[0, 1e15]", "last steps of --schedule wsd, in which the rate falls, or their share: 500, 20% (auto: 20%). With --resume DIR and no length of the run: it begins at the checkpoint and ends the run", "trains cools-down after-warm-up") \
  X("Optimizer", Choice, run, cooldown_shape, "linear", "linear|cosine|1-sqrt", "how it falls in them", "trains cools-down falling after-warm-up") \
  X("Optimizer", Choice, run, optimizer, "adamw", "adamw|muon", "muon: of the blocks' matrices; AdamW updates all other weights", "trains") \
  X("Optimizer", Real, run, muon_lr, kAuto, "(0, inf)", "Muon: peak learning rate, which follows the schedule of --lr (auto: --lr)", "trains muon") \
  X("Optimizer", Real, run, muon_momentum, 0.95, "[0, 0.999999]", "Muon: decay of the momentum", "trains muon") \
  X("Optimizer", Real, run, muon_weight_decay, kAuto, "[0, inf)", "Muon: decay of its matrices (auto: --weight-decay)", "trains muon") \
  X("Optimizer", Choice, run, muon_scale, "match-rms", "match-rms|original", "Muon: size of an update. match-rms: about as large as AdamW's; original: times sqrt(max(1, rows / columns))", "trains muon") \
  X("Optimizer", Real, run, beta1, 0.9, "[0, 0.999999]", "AdamW: decay of the first moment", "trains") \
  X("Optimizer", Real, run, beta2, 0.95, "[0, 0.999999]", "AdamW: decay of the second moment", "trains") \
  X("Optimizer", Real, run, adam_eps, 1e-8, "[1e-30, 1]", "AdamW: added to the root of the second moment", "trains") \
  X("Optimizer", Real, run, weight_decay, 0.1, "[0, inf)", "AdamW: decay of matrices (never of norms)", "trains") \
  X("Optimizer", Real, run, grad_clip, 1.0, "[0, inf)", "largest norm of all gradients together (0: off)", "trains") \
  X("Optimizer", Real, run, z_loss, 0.0, "[0, 1]", "coefficient of logsumexp(logits)^2, which a step adds to the loss of each label, such as 1e-4 (0: off)", "trains") \
  X("Optimizer", Real, run, skip_spikes, 0.0, "[0, 1e6]", "no update in a step whose loss or gradient norm is more than Z standard deviations above those of the last 128 steps, of which there must be 64 (0: off; 6 is a good Z)", "trains") \
  X("Optimizer", Count, run, bad_steps_limit, 10, "[1, 1e6]", "so many skipped steps in a row end the run", "trains spikes") \
  \
  X("Precision", Choice, run, dtype, "auto", "auto|bf16|fp32", "weights and activations (auto: bf16 on a GPU, else fp32)") \
  X("Precision", Choice, run, fp8, "off", "off|tensorwise|delayed|rowwise|rowwise-hp-wgrad|blockwise", "recipe of the blocks' products (with bf16)") \
  X("Precision", Choice, run, fp8_grad, "auto", "auto|e5m2|e4m3", "format of output gradients (auto: e5m2 where a tensor has one scale, else e4m3)") \
  X("Precision", Choice, run, fp8_pow2_scales, "auto", "auto|on|off", "round scales down to powers of two (auto: where a tensor has several)") \
  X("Precision", Text, run, fp8_skip, "", "NAMES", "products that stay in bf16: down_proj,first=2,last=1 or any part of a weight's name; *") \
  X("Precision", Choice, run, fp8_head, "off", "off|backward|on", "products of the head in FP8, with one scale for each operand: those of backward, or all", "fp8-head") \
  X("Precision", Choice, run, fp8_weights, "kept", "kept|on-use", "FP8 copies of the blocks' weights: kept beside the bf16 ones, or made where a block computes, each time: less memory, more time", "fp8 fp8-kept") \
  X("Precision", Count, run, fp8_history, 1024, "[1, 65536]", "delayed: steps whose largest numbers are remembered") \
  X("Precision", Choice, run, fp8_amax, "max", "max|latest", "delayed: which of them the scale follows") \
  X("Precision", Count, run, fp8_margin, 0, "[0, 32]", "delayed: powers of two that the scale stays below") \
  X("Precision", Switch, run, fp8_all_gather, false, "", "sharded weights are all-gathered in FP8 (tensorwise and delayed; the others gather bf16)") \
  X("Precision", Switch, run, fp8_precompute_scales, true, "", "with it: one comparison of the ranks a step for all weights' scales", "fp8 fp8-gather") \
  X("Precision", Count, run, fp8_stats, 0, "[0, inf)", "steps between lines of amax, scale, saturated and underflowed of the first rank in train.jsonl (0: none)", "trains") \
  X("Precision", Switch, run, tf32, false, "", "let a GPU round the operands of fp32 products to tf32", "tf32") \
  X("Precision", Switch, machine, tune_products, false, "", "before training, time algorithms for each product of a step and take the fastest: tuning.json in the run's folder", "computes trains") \
  X("Precision", Text, machine, tuning, "auto", "auto|none|FILE", "such a file of another run (auto: where a run goes on, what it was computed with)", "computes") \
  X("Precision", Choice, run, attention, "auto", "auto|plain|mma|hopper", "kernel of attention") \
  X("Precision", Count, run, head_chunk, kAuto, "[1, 1e9]", "tokens whose logits exist at once, rounded up to 128 (auto: 4096 or more, in equal chunks)") \
  \
  X("Memory", Choice, run, plan, "as-asked", "as-asked|auto|mesh", "auto: of recompute, offload and micro-batch what was not asked for, so that the run fits and its predicted speed is highest; mesh: also of degrees, ZeRO stages and --fp8-all-gather, with --dry-run --nodes", "trains") \
  X("Memory", Text, machine, memory_limit, "", "SIZE", "of a rank's device, as 70GiB (none: what it has free)") \
  X("Memory", Text, machine, host_memory_limit, "", "SIZE", "pinned, of all ranks of a node together (none: 90% of what the machine has, or of 256 GiB for each GPU of --nodes)") \
  X("Memory", Choice, run, recompute, "none", "none|norms|mlp|block", "what backward computes again: norms' and SwiGLU's outputs; the MLP; all but a block's input", "trains") \
  X("Memory", Count, run, recompute_every, 1, "[1, 100000]", "one block in so many does so", "trains recompute") \
  X("Memory", Choice, run, activation_offload, "none", "none|input|attention|all", "what waits for backward in the host's memory, of what is kept: blocks' inputs; and attention's tensors; all", "trains beyond-horizon") \
  X("Memory", Count, run, activation_loading_horizon, 2, "[1, 100000]", "blocks of which that is on the device at once", "trains offload") \
  X("Memory", Switch, run, offload_optimizer, false, "", "moments and fp32 master weights lie in the host's memory, and updates stream them", "trains") \
  X("Memory", Switch, run, offload_weights, false, "", "weights lie in the host's memory, and each block's are copied to the device where they are used") \
  X("Memory", Switch, run, offload_gradients, false, "", "gradients lie in the host's memory but while their block's backward computes", "trains") \
  X("Memory", Choice, run, moment_dtype, "fp32", "fp32|bf16", "of the optimizer's moments (bf16: rounded stochastically)", "trains") \
  X("Memory", Choice, run, master_dtype, "fp32", "fp32|bf16", "of master weights (bf16: those of the products, rounded stochastically)", "trains") \
  \
  X("Ranks", Count, run, zero_stage, 0, "[0, 3]", "what ranks shard: 1 master weights and moments, 2 also gradients, 3 also weights (ZeRO; 3: FSDP)", "sharing") \
  X("Ranks", Count, ranks, hybrid_shard_degree, 0, "[0, 1e6]", "data ranks over which one copy is sharded; the others are replicas (0: all data ranks)", "data-ranks") \
  X("Ranks", Count, run, prefetch, 1, "[1, 1e6]", "units whose weights are gathered ahead of their use (--zero-stage 3, --offload-weights)", "gathers") \
  X("Ranks", Count, ranks, tensor_parallel_degree, 1, "[1, 1e6]", "ranks that split heads, FFN and vocabulary, and the tokens between products (sequence parallelism)") \
  X("Ranks", Count, ranks, tensor_parallel_overlap, 4, "[1, 64]", "chunks of each all-gather and reduce-scatter of tensor parallelism, which overlap with products", "tensor") \
  X("Ranks", Choice, run, tensor_parallel_reduce_dtype, "auto", "auto|fp32|bf16", "type in which tensor parallelism sends and adds partial sums (auto: that of activations)", "tensor") \
  X("Ranks", Count, ranks, context_parallel_degree, 1, "[1, 1e6]", "ranks that split each sequence") \
  X("Ranks", Choice, run, reduce_dtype, "fp32", "fp32|bf16", "type in which gradients are summed within a shard group (NCCL adds in it, too)", "trains sharing") \
  X("Ranks", Real, machine, comm_timeout, 600, "(0, inf)", "seconds after which a collective that some rank does not come to ends the run", "ranks") \
  X("Ranks", Real, machine, silent_timeout, 60, "[0, inf)", "seconds without a sign of life of a rank and without a collective that is done, after which it is lost and the run ends (0: off, for debuggers)", "ranks heartbeat") \
  X("Ranks", Count, start, gpus, 0, "[0, 1024]", "starts so many ranks on this machine, one for each GPU, without MPI (0: one rank, or those of another launcher)") \
  X("Ranks", Text, start, rendezvous, "", "FILE", "through which ranks that started without MPI find each other")
// clang-format on
