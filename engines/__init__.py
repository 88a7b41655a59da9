"""One process: how a forward pass is laid out, to train (packed.py, or own_forward.py, as accept.py
decides; head.py, loss_stats.py) and to generate (kv_cache.py; vllm_inprocess.py, two_requests.py).
Read packed.py (parts 1 to 3) and head.py first; all others may be ignored."""
