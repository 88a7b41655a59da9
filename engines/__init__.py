"""engines: one process. How a forward pass is laid out, to train (packed.py, or own_forward.py, as
accept.py decides; head.py, loss_stats.py) and to generate (kv_cache.py, or vllm_inprocess.py with
two_requests.py). Read packed.py (parts 1 to 3) and head.py first."""
