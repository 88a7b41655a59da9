"""engines: one process. How a forward pass is laid out, to train and to generate.

    packed.py             the trainer's batch as one row of tokens, and its attention
    own_forward.py        models that no packed row can serve: slow, by their own forward pass
    accept.py             which of the two? Numbers are compared before a run
    head.py               the fp32 head behind loss.token_logprobs, without a (T, V) tensor
    loss_stats.py         what to watch: ratios, effective sample size, mismatch
    trained_model.py      what samplers and checkpoints ask of a trainer; how its layers run
    kv_cache.py           keys and values of the sequences that sampler.py generates
    load.py               from the settings to model, tokenizer, device
    compute.py            FLOPs so far, the x of the curve
    agreement.py          do sampler and trainer compute alike? asked before the first step
    vllm_inprocess.py     vLLM in the trainer's process; two_requests.py is its interruption

To follow a training step, read packed.py (parts 1 to 3) and head.py. The rest can wait.
"""
