"""engines: one process. How a forward pass is laid out, to train and to generate.

A training step: packed.py (or own_forward.py, as accept.py decides), head.py, loss_stats.py.
Generation: kv_cache.py, or vllm_inprocess.py with two_requests.py. Around them: load.py,
trained_model.py, agreement.py, compute.py. Read packed.py (parts 1 to 3) and head.py first."""
