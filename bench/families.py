"""Which families of transformers' causal LMs are computed rightly here?   (docs/models.md)

    python bench/families.py                       all of them, half a minute on a core
    python bench/families.py llama gemma2          some
    python bench/families.py --out table.md        the table, in Markdown

Each family of the installed transformers is built as a tiny random model from its config class. It
goes the way of a model of a run: refused by its settings, refused by its numbers, or accepted. Of
accepted ones, about a hundred fresh tokens are scored in packed rows and from the cache, and
compared with the model's own logits.
"""

import argparse
import copy
import re
import sys
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as FAMILIES

sys.path.insert(0, str(Path(__file__).parent.parent))

from engines import accept  # noqa: E402
from engines.kv_cache import Slots  # noqa: E402
from engines.packed import Pack, forward  # noqa: E402

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
    512: "max_position_embeddings n_positions n_ctx max_seq_len",
}.items() for name in names.split()}
# What the class's own defaults would hide or not allow. Values as in published models.
ALSO = {
    "granite": {"logits_scaling": 8.0}, "granitemoe": {"logits_scaling": 6.0},
    "granitemoeshared": {"logits_scaling": 6.0}, "cohere": {"logit_scale": 0.0625},
    "mistral": {"sliding_window": None},                    # as in version 0.3
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse"]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1, "state_size": 8},
    "zaya": {"num_experts_per_tok": 1},
    "zamba": {"layer_types": ["linear_attention", "hybrid"]},
    "zamba2": {"layer_types": ["linear_attention", "hybrid"]},
    "reformer": {"is_decoder": True}, "dots1": {"n_shared_experts": 1},
    "gemma3n_text": {"num_kv_shared_layers": 0, "layer_types": ["sliding_attention",
                                                                "full_attention"]},
}


def sizes(kind):
    """Small sizes of a config class, as far as it has these names; of nested configs too."""
    known = vars(kind()) | getattr(kind, "attribute_map", {})
    small = {name: size for name, size in SIZES.items() if name in known}
    small |= {name: 1 for name, value in known.items()
              if name.endswith("token_id") and isinstance(value, int)}
    return small | {name: sizes(nested) for name, nested in getattr(kind, "sub_configs", {}).items()
                    if nested in CONFIG_MAPPING.values()}


def build(family):
    """(tiny random model, the same one without numbers), or the reason why there is none."""
    kind = CONFIG_MAPPING[family]
    try:
        config = kind(**sizes(kind) | ALSO.get(family, {}))
        with torch.device("meta"):
            shapes = AutoModelForCausalLM.from_config(copy.deepcopy(config))
        if (count := sum(p.numel() for p in shapes.parameters())) > LARGEST:
            return f"not below {count:.1e} parameters"
        model = AutoModelForCausalLM.from_config(config)
    except Exception as error:                      # of any class: other people's constructors
        return f"{type(error).__name__}: {' '.join(str(error).split())[:90]}"
    for p in model.parameters():                    # the default init predicts almost nothing
        p.data = 0.2 * torch.randn_like(p) + (p.data if p.ndim < 2 else 0)
    return model, shapes


@torch.no_grad()
def differences(model, own):
    """(of packed rows, of the cache): the worst difference of any token's log-prob from those of
    `own`, the same model as transformers computes it, over 3 x 34 tokens of two prompts."""
    tokens = torch.randint(2, 97, (3, 65)).tolist()
    prompts, outputs = [tokens[0][:17], tokens[1][:31]], [row[31:] for row in tokens]
    prompt_of = [0, 1, 1]
    weight = model.get_output_embeddings().weight
    expected = torch.stack([
        own(torch.tensor([prompts[p] + output]), use_cache=False).logits[0, len(prompts[p]) - 1: -1]
        for p, output in zip(prompt_of, outputs)]).log_softmax(-1)          # (samples, tokens, V)
    pack = Pack(prompts, outputs, prompt_of)
    row = forward(model, pack.input_ids, pack.position_ids, pack.attend)[pack.predict]
    slots = Slots(model.config, 3, 31 + 34)
    steps = [slots.prefill(model, prompts, [1, 2])[prompt_of]]
    steps += [slots.decode(model, tokens) for tokens in torch.tensor(outputs).T[:-1]]
    return [(F.linear(hidden, weight).log_softmax(-1) - expected).abs().max().item()
            for hidden in (row.view(3, 34, -1), torch.stack(steps, 1))]


def judge(family):
    """A row of the table: verdict "accepted", "refused", "not built" or "FAILED" (an error that is
    no sentence), the sentence, whether settings alone tell it, and `differences` if accepted."""
    torch.manual_seed(0)
    built, row = build(family), {"family": family, "dry": False, "says": ""}
    if isinstance(built, str):
        return row | {"verdict": "not built", "says": built}
    model, shapes = built
    row |= {"class": type(model).__name__, "verdict": "refused", "dry": True}
    own = copy.deepcopy(model).eval()
    try:
        accept.prepare(shapes)                      # as a dry run, and every run before its weights
        row["dry"] = False
        accept.prepare(model)
        row["verdict"] = "accepted"
        row["rows"], row["slots"] = differences(model, own)
    except ValueError as error:
        if row["verdict"] == "accepted":
            row["verdict"] = "FAILED"
        row["says"] = str(error)
    except Exception as error:                      # a traceback, in a run
        row |= {"verdict": "FAILED", "says": repr(error)}
    return row


def table(rows):
    """Markdown: the accepted ones with figures, the refused ones by the setting that tells it, or
    with their sentences."""
    of = {verdict: [row for row in rows if row["verdict"] == verdict]
          for verdict in ("accepted", "refused", "not built", "FAILED")}
    counts = ", ".join(f"{len(found)} {verdict}" for verdict, found in of.items())
    lines = [f"{len(rows)} families: {counts}; transformers {transformers.__version__}, torch "
             f"{torch.__version__}, fp32.", "",
             "| accepted | worst difference, packed rows | from the cache |", "|---|--:|--:|"]
    lines += [f"| {r['family']} (`{r['class']}`) | {r['rows']:.0e} | {r['slots']:.0e} |"
              for r in of["accepted"]]
    lines += ["", "| refused for | families |", "|---|---|"]
    reasons = {}
    for row in of["refused"]:       # windows of other lengths are one reason
        reason = re.sub(r"( = (\d[\d.]*|True))?, which.*", "", row["says"]) if row["dry"] else \
            f"by its weights: {row['says']}"
        reasons.setdefault(reason, []).append(row["family"])
    lines += [f"| {reason.removeprefix('model config has ')} | {', '.join(names)} |"
              for reason, names in reasons.items()]
    lines += [f"| **FAILED**: {r['says']} | {r['family']} |" for r in of["FAILED"]]
    lines += ["", "Not built: " + ", ".join(r["family"] for r in of["not built"]) + "."]
    return "\n".join(lines) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("families", nargs="*", help="none: all")
    p.add_argument("--out", type=Path, help="write the table there")
    args = p.parse_args()
    transformers.utils.logging.set_verbosity_error()
    rows = []
    for family in args.families or FAMILIES:
        rows.append(row := judge(family))
        figures = f"{row['rows']:.0e} {row['slots']:.0e}" if "rows" in row else ""
        print(f"{family:26} {row['verdict']:10} {'settings' * row['dry']:8} {figures}{row['says']}",
              flush=True)
    found = [max(row["rows"], row["slots"]) for row in rows if "rows" in row]
    if found:
        print(f"{len(found)} accepted: {median(found):.0e} median, {max(found):.0e} largest")
    if args.out:
        args.out.write_text(table(rows))


if __name__ == "__main__":
    main()
