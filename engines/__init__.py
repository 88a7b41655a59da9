"""engines: where forward passes run, to train and to generate.

scalerl.py makes one trainer and one sampler, and sees no more of this folder than these two.

    packed.py                 the trainer's batch as one row of tokens, and its attention
    policy.py                 log-probs of rollouts under the model
    trained_model.py          the model, how its layers run in training, its optimizer
    head.py                   the fp32 head behind loss.token_logprobs
    loss_stats.py             what to watch: ratios, effective sample size, mismatch
    protocol.py               the methods by which the loop knows an engine
    kv_cache.py               keys and values of the sequences that sampler.py generates
    load.py                   from the settings to all of these
    compute.py, checks.py     FLOPs so far; what is checked before the first step
    vllm_inprocess.py         vLLM in the trainer's process; two_requests.py is its interruption
    vllm_servers.py           vLLM on other GPUs, with all files that are not named here

On a first reading nothing in here is needed. To follow one forward pass of the trainer, read
policy.py, then packed.py; everything that mentions vLLM may be ignored until it is used.
"""
