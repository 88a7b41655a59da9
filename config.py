"""config.py: every setting of a run, its default, and the two ways to change it.

    Config            the settings; each comment begins with the origin of the default
    --config FILE     a TOML file with differences from the defaults; the last of several files wins
    --SETTING VALUE   wins over every file

Defaults are the recipe of ScaleRL (arXiv 2510.13786, sec. 4 and appendix A). The paper does not
give Adam's betas, the gradient clip, the temperature and `slots`. Its models and its verifier's
settings are not published. configs/scalerl.toml comes closest to its 8B run of section 4.

Read the head of scalerl.py first: it explains a step, an advantage and the ratio π/μ."""

from dataclasses import dataclass, field
from typing import Literal

# Written into a sample that thinks too long: `interrupt_phrase`.
PHRASE = "Okay, time is up. Let me stop thinking and formulate a final answer now. </think>"


class ConfigError(ValueError):
    """Wrong input: one sentence with the field, the value, and what would be right. Exit code 2."""


@dataclass
class Config:
    """All settings, in groups. The comment beside a setting is also its text in `--help`. "paper":
    the default is the paper's; "ours": we chose it."""

    # -- model and problems
    model: str = ""                     # ours; Hugging Face folder or name; the paper has its own
    task: str = "toy"                   # ours; the paper has "polaris-53k"; a mix: "a+b"
    task_options: dict = field(default_factory=dict)    # ours; JSON; of a mix {part: options}
    eval_tasks: str = ""                # ours; more problems, only evaluated: "aime-24+math-500"
    heldout_prompts: int = 1000         # paper; never trained on, all of them evaluated
    max_unusable: float = 0.02          # ours; a run is refused if a larger share of problems has
                                        # no readable answer, a long prompt, or no number as reward
    instruction: str = ""               # ours; system message; without one, before the question
    template_options: dict = field(default_factory=dict)    # ours; switches of the chat template
    think_open: str = ""                # ours; ends every prompt, as "<think>\n"
    think_close: str = "</think>"       # paper; the verifier reads what follows the last (else all)

    # -- run
    name: str = ""                      # ours; the folder runs/NAME; "": from model, task, seed
    seed: int = 0                       # ours; of sampling and of the order of prompts
    steps: int = 1000                   # ours; of the loop; the paper has thousands
    eval_every: int = 100               # paper; steps; a checkpoint before each but step 0's (ours)
    save_minutes: float = 15.0          # ours; how old the last checkpoint may be, about
    eval_samples: int = 16              # paper; for each held-out prompt; the curve is their mean

    # -- batch and asynchrony
    prompts_per_step: int = 48          # paper; P in the code
    samples_per_prompt: int = 16        # paper; G; a group: the samples of one prompt
    # Lag of a token: the number of optimizer steps between the weights that sampled it and those
    # that its step updates. On-policy: every lag is 0.
    off_policy: str = "pipeline-8"      # paper; "pipeline-K": weights change mid-sample, lag <= K;
                                        # "ppo-K": K steps' samples by the same weights, lag < K
    slots: int = 256                    # ours; the most sequences that a sampler, or each server,
                                        # decodes at once; more is faster, with a larger mean lag
                                        # (256: .4 to 1.5 steps; bench/lag.py)

    # -- length, in tokens
    prompt_tokens: int = 2048           # paper; a longer prompt is left out, not cut (ours)
    # Each sample draws its own thinking budget from think_min .. think_max, in evaluations too. If
    # it still thinks at the end, the phrase interrupts it, and answer_tokens are left.
    think_min: int = 10240              # paper; we read its 10k as 10 x 1024
    think_max: int = 12288              # paper
    answer_tokens: int = 2048           # paper
    interrupt_phrase: str = PHRASE      # paper; it holds think_close; "": no interruption
    length_penalty: int = 0             # paper; 0: off; 2048 (an ablation): a right reward falls to
                                        # 0 over the last 2048 of think_max + answer_tokens
    overlong_filter: bool = True        # paper; truncated samples are left out (A.15). How is ours:
                                        # they have no gradient; their -1 counts in mean and std

    # -- rewards and loss
    temperature: float = 1.0            # ours; of sampling, evaluations too, and of every log-prob
    retire_at: float = 0.9              # paper; when an epoch begins, prompts leave if their pass
                                        # rate over all samples so far (ours) is this or higher
    zero_variance_filter: bool = True   # paper; leaves out groups with equal rewards
    advantage_norm: Literal["batch", "prompt", "mean", "none"] = "batch"    # paper; what divides
                                        # advantages. batch: the batch's std; prompt: the group's
                                        # (GRPO); mean: 2 x the group's pass rate (MaxRL); none: 1
    aggregation: Literal["prompt", "sample", "token"] = "prompt"    # paper; mean over the trained
                                        # tokens of a prompt's samples, then over prompts; sample:
                                        # over a sample's, then over samples (GRPO); token: over all
    # π: the trainer's probability of a token, μ: the sampler's. "cispo" caps the ratio π/μ at
    # eps_max; "grpo" and "dapo" clip it to 1 - eps_low .. 1 + eps_high; "gspo" clips one ratio of a
    # whole sequence: eps_low 3e-3, eps_high 5e-3. `policy_loss` in loss.py explains all of them.
    loss: Literal[                      # paper; the formula alone; whole recipes: configs/rivals
        "cispo", "cispo_masked", "dppo", "grpo", "dapo", "gspo", "reinforce"] = "cispo"
    behavior: Literal["sampler", "recomputed"] = "sampler"  # paper; μ as the sampler recorded it,
                                        # or as the trainer has it now: every ratio is 1
    eps_max: float = 5.0                # ours; CISPO's cap; the paper found 4, 5 and 8 alike
    eps_low: float = 0.2                # paper, for grpo and dapo; clips the ratio at 1 - this
    eps_high: float = 0.2               # paper, for grpo; at 1 + this; for dapo set 0.26. For dppo
                                        # and cispo_masked see `policy_loss`
    head_fp32: bool = True              # paper; logits in fp32, in trainer and sampler; the head's
                                        # inputs may still be bf16 (ours)

    # -- optimizer (AdamW)
    lr: float = 5e-7                    # paper, constant after warm-up
    warmup_steps: int = 100             # paper, linear
    beta1: float = 0.9                  # ours, the usual one
    beta2: float = 0.95                 # ours, as usual for language models
    adam_eps: float = 1e-15             # paper
    weight_decay: float = 0.01          # paper; of all weights (ours); at lr 5e-7 lost in rounding
    grad_clip: float = 1.0              # ours, of the global norm

    # -- placement: memory and speed
    micro_batch_tokens: int = 8192      # ours; of one forward pass (a longer sample: alone); the
                                        # result is the same, but for rounding
    recompute_layers: bool = False      # ours; recompute in backward: slower, far less memory
    compile_layers: Literal["auto", "on", "off"] = "auto"   # ours; torch.compile; auto: on a GPU
    gpus: int = -1                      # ours; 0: the CPU; -1: all in a run of several processes,
                                        # else one, if there is one
    engine: Literal["auto", "vllm", "transformers"] = "auto"    # ours; auto: vllm if installed
    allow_mismatch: bool = False        # ours; begin even if sampler and trainer disagree
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"      # ours; to compute in; auto:
                                        # bfloat16 on a GPU, float32 on a CPU

    # -- placement: several processes or machines; the launcher's rule: scaleout/placement.py
    servers: int = 0                    # ours; vLLM servers to start; 0: by the launcher's rule
    trainers: int = 0                   # ours; trainer processes; 0: by the launcher's rule
    tensor_parallel: int = 0            # ours; GPUs that share every layer of a server's model; 0:
                                        # by the launcher's rule; unused without servers
    vllm_args: str = ""                 # ours; for each server, as "--max-num-batched-tokens 4096";
                                        # in the trainer's own process only --enforce-eager counts
    vllm_url: str = ""                  # ours; servers that others started, "http://a:8000,...",
                                        # or "@FILE,..." with the addresses of --serve-only
    deadline_s: float = 600.0           # ours; longest silence of a process; 3 times that to start

    def schedule(self):
        """(scheme, k) of `off_policy`, as ("pipeline", 8). Raises ConfigError for another text."""
        scheme, _, k = self.off_policy.partition("-")
        if scheme not in ("pipeline", "ppo") or not k.isdecimal() or scheme == "ppo" and not int(k):
            raise ConfigError(f'off_policy = {self.off_policy!r}: use "pipeline-K" (K = 0: '
                              'on-policy) or "ppo-K" with K >= 1')
        return scheme, int(k)
