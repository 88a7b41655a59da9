"""Which families of transformers' causal LMs are computed rightly here?   (results/families.md)

    python bench/families.py                       all of them, half a minute on a core
    python bench/families.py llama gemma2          some
    python bench/families.py --out table.md        the table, in Markdown

Each family of the installed transformers is built as a tiny random model from its config class. It
goes the way of a model of a run: in packed rows, slowly by its own forward pass, or refused; a dry
run, which has no weights, says the same but of three. Of accepted ones 102 fresh tokens
are scored in a batch and from the cache, and compared with the model's own logits.
"""

import argparse
import copy
import sys
import tempfile
from pathlib import Path
from statistics import median

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as FAMILIES

sys.path.insert(0, str(Path(__file__).parent.parent))

from config import Config  # noqa: E402
from engines import accept  # noqa: E402
from engines.compute import ModelFlops  # noqa: E402
from engines.kv_cache import make_cache  # noqa: E402
from engines.own_forward import Rows, cap, is_packed  # noqa: E402
from engines.packed import Pack  # noqa: E402
from loss import head_logits  # noqa: E402
from scaleout.memory import Estimate, device_here  # noqa: E402

LARGEST = 5_000_000         # parameters; what cannot be built smaller is left out
# Sizes by the names that config classes have for them.
SIZES = {name: size for size, names in {
    97: "vocab_size vocab_size_per_layer_input",
    64: "hidden_size d_model n_embd embed_dim dim emb_dim embedding_size",
    96: "intermediate_size ffn_dim n_inner ffn_hidden_size d_ff decoder_ffn_dim encoder_ffn_dim "
        "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size "
        "intermediate_size_mlp ffn_size expert_ffn_hidden_size dim_ff q_lora_rank kv_lora_rank",
    2: "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers "
       "num_decoder_layers num_experts_per_tok num_key_value_heads num_kv_heads n_head_kv top_k "
       "moe_topk moe_top_k zero_expert_num index_n_heads indexer_num_heads",
    4: "num_attention_heads n_head n_heads num_heads decoder_attention_heads num_experts "
       "encoder_attention_heads num_local_experts n_routed_experts linear_num_key_heads "
       "linear_num_value_heads",
    16: "mamba_chunk_size chunk_size head_dim qk_rope_head_dim qk_nope_head_dim v_head_dim d_kv "
        "d_head kv_channels attention_head_dim dim_head hidden_size_per_layer_input index_head_dim "
        "linear_key_head_dim linear_value_head_dim global_head_dim",
    8: "sliding_window window_size attention_window_size",
    512: "max_position_embeddings n_positions n_ctx max_seq_len",
}.items() for name in names.split()}
# What the class's own defaults would hide or not allow. Values as in published models.
MIXED = {"layer_types": ["linear_attention", "full_attention"]}
MLA = {"num_key_value_heads": 4}
# The last layers look at keys and values of earlier ones, and full attention has larger heads.
GEMMA4 = {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "global_head_dim": 32,
          "layer_types": ["sliding_attention", "full_attention"] * 2,
          "final_logit_softcapping": 30.0}
ALSO = {
    "granite": {"logits_scaling": 8.0}, "granitemoe": {"logits_scaling": 6.0},
    "granitemoeshared": {"logits_scaling": 6.0}, "cohere": {"logit_scale": 0.0625},
    "hyperclovax": {"logits_scaling": 0.4},
    # Without a window, as Mistral 0.3 and its relatives are.
    **dict.fromkeys(["mistral", "mixtral", "phi3", "phimoe", "ministral3"],
                    {"sliding_window": None}),
    **dict.fromkeys(["axk1", "deepseek_v2", "glm4_moe_lite", "longcat_flash",
                     "minicpm3", "youtu"], MLA),
    **dict.fromkeys(["qwen3_5", "qwen3_5_moe", "qwen4_exp"], {"text_config": MIXED}),
    **dict.fromkeys(["qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "qwen4_exp_text",
                     "olmo_hybrid", "granitemoehybrid", "minimax"], MIXED),
    "granitemoehybrid": MIXED | {"logits_scaling": 8.0, "mamba_n_heads": 8, "mamba_d_head": 16},
    "kimi_linear": MIXED | MLA,
    "deepseek_v3": MLA | {"first_k_dense_replace": 1, "n_group": 2, "topk_group": 1},
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    # transformers 5.19 would cut time steps below this; `accept.prepare` has it not.
    "nemotron_h": {"time_step_min": 1e-9, "mamba_num_heads": 8, "mamba_head_dim": 16,
                   "n_groups": 2},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse"]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1, "state_size": 8},
    "zaya": {"num_experts_per_tok": 1},
    "zamba": {"layer_types": ["linear_attention", "hybrid"]},
    "zamba2": {"layer_types": ["linear_attention", "hybrid"], "time_step_min": 1e-9},
    "reformer": {"is_decoder": True}, "dots1": {"n_shared_experts": 1},
    "gemma4_text": GEMMA4, "gemma4_unified_text": GEMMA4, "gemma4": {"text_config": GEMMA4},
    "gemma3n_text": {"num_kv_shared_layers": 0, "layer_types": ["sliding_attention",
                                                                "full_attention"]},
}


def sizes(kind):
    """Small sizes of a config class, as far as it has these names; of nested configs too."""
    known = vars(kind()) | getattr(kind, "attribute_map", {})
    small = {name: size for name, size in SIZES.items() if name in known}
    small |= {name: 1 for name, value in known.items()
              if name.endswith("token_id") and isinstance(value, int)}
    # By its name: the mapping's values() would import every config there is.
    return small | {name: sizes(nested) for name, nested in getattr(kind, "sub_configs", {}).items()
                    if (its := getattr(nested, "model_type", "")) in CONFIG_MAPPING
                    and CONFIG_MAPPING[its] is nested}


def build(family):
    """(tiny random model, the same one without numbers), or the reason why there is none."""
    kind = CONFIG_MAPPING[family]
    try:
        also, small = ALSO.get(family, {}), sizes(kind)
        config = kind(**small | {name: small.get(name, {}) | value if isinstance(value, dict)
                                 else value for name, value in also.items()})
        with torch.device("meta"):
            shapes = AutoModelForCausalLM.from_config(copy.deepcopy(config))
        if (count := sum(p.numel() for p in shapes.parameters())) > LARGEST:
            return f"not below {count:.1e} parameters"
        model = AutoModelForCausalLM.from_config(config)
    except Exception as error:                      # of any class: other people's constructors
        return f"{type(error).__name__}: {' '.join(str(error).split())[:90]}"
    for p in model.parameters():                    # the default init predicts almost nothing
        p.data = 0.2 * torch.randn_like(p) + (p.data if p.ndim < 2 else 0)
    for name, b in model.named_buffers():           # scales of layers, corrections of routers
        if name in model.state_dict() and b.is_floating_point():
            b.data += 0.3 * torch.rand_like(b)
    return model, shapes


@torch.no_grad()
def differences(model, own):
    """(of a batch, of the cache): the worst difference of any token's log-prob from those of `own`,
    the same model as transformers computes it, over 3 x 34 tokens of two prompts."""
    tokens = torch.randint(2, 97, (3, 65)).tolist()
    prompts, outputs = [tokens[0][:17], tokens[1][:31]], [row[31:] for row in tokens]
    prompt_of = [0, 1, 1]
    expected = torch.stack([
        own(torch.tensor([prompts[p] + output]), use_cache=False).logits[0, len(prompts[p]) - 1: -1]
        for p, output in zip(prompt_of, outputs)]).log_softmax(-1)          # (samples, tokens, V)
    row = (Pack if is_packed(model) else Rows)(prompts, outputs, prompt_of)
    states = row.states(model)[row.predict]
    cache = make_cache(model, 3, 31 + 34)
    steps = [cache.prefill(model, prompts, [1, 2])[prompt_of]]
    steps += [cache.decode(model, tokens) for tokens in torch.tensor(outputs).T[:-1]]
    weight, c = model.get_output_embeddings().weight, cap(model)
    return [(head_logits(hidden.flatten(0, 1), weight, softcap=c).log_softmax(-1)
             .view_as(expected) - expected).abs().max().item()
            for hidden in (states.view(3, 34, -1), torch.stack(steps, 1))]


def judge(family):
    """A row of the table: verdict "packed", "slow", "refused", "not built" or "FAILED" (an error
    that is no sentence); the verdict of a dry run; the sentence; `differences` if accepted."""
    torch.manual_seed(0)
    built, row = build(family), {"family": family, "says": ""}
    if isinstance(built, str):
        return row | {"verdict": "not built", "dry": "not built", "says": built}
    model, shapes = built
    own = copy.deepcopy(model).eval()
    row["class"] = type(model).__name__
    try:
        row["dry"], row["says"] = verdict(shapes)       # as a dry run, and a run before its weights
        row["verdict"], row["says"] = verdict(model)
        if row["verdict"] != "refused":
            row["rows"], row["cache"] = differences(model, own)
            ModelFlops(shapes)
            with tempfile.TemporaryDirectory() as folder:       # what a dry run estimates
                model.config.save_pretrained(folder)
                Estimate(Config(model=folder), shapes, 100, 200, torch.float32,
                         device_here(False), alone=True).trainer_memory(1)
    except Exception as error:                      # a traceback, in a run
        row |= {"verdict": "FAILED", "says": repr(error)}
    return row


def verdict(model):
    """("packed" | "slow" | "refused", why not packed) of `accept.prepare`."""
    try:
        accept.prepare(model)
        return ("packed", "") if is_packed(model) else ("slow", model.slow_because)
    except ValueError as error:
        return "refused", str(error)


def table(rows):
    """Markdown: the accepted ones with figures, the refused ones with their sentences."""
    of = {verdict: [row for row in rows if row["verdict"] == verdict]
          for verdict in ("packed", "slow", "refused", "not built", "FAILED")}
    counts = ", ".join(f"{len(found)} {verdict}" for verdict, found in of.items())
    lines = [f"{len(rows)} families: {counts}; transformers {transformers.__version__}, torch "
             f"{torch.__version__}, fp32."]
    for way in ("packed", "slow"):
        lines += ["", f"| {way} | worst difference, batch | from the cache |", "|---|--:|--:|"]
        lines += [f"| {r['family']} (`{r['class']}`) | {r['rows']:.0e} | {r['cache']:.0e} |"
                  for r in of[way]]
    lines += ["", "| refused for | families |", "|---|---|"]
    reasons = {}
    for row in of["refused"] + of["FAILED"]:
        reason = row["says"].removeprefix("its config has ")
        if row["verdict"] == "FAILED":
            reason = f"**FAILED**: {reason}"
        reasons.setdefault(reason, []).append(row["family"])
    lines += [f"| {reason} | {', '.join(names)} |" for reason, names in reasons.items()]
    lines += ["", "Not built: " + ", ".join(r["family"] for r in of["not built"]) + "."]
    return "\n".join(lines) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("families", nargs="*", help="none: all")
    p.add_argument("--out", type=Path, help="write the table there")
    args = p.parse_args()
    if unknown := set(args.families) - set(FAMILIES):
        p.error(f"no family of this list: {', '.join(sorted(unknown))}")
    transformers.utils.logging.set_verbosity_error()
    rows = []
    for family in args.families or FAMILIES:
        rows.append(row := judge(family))
        figures = f"{row['rows']:.0e} {row['cache']:.0e} " if "rows" in row else ""
        dry = "" if row["dry"] == row["verdict"] else f"DRY RUN: {row['dry']} "
        print(f"{family:26} {row['verdict']:10} {dry}{figures}{row['says']}", flush=True)
    found = [max(row["rows"], row["cache"]) for row in rows if "rows" in row]
    if found:
        print(f"{len(found)} accepted: {median(found):.0e} median, {max(found):.0e} largest")
    if args.out:
        args.out.write_text(table(rows))


if __name__ == "__main__":
    main()
