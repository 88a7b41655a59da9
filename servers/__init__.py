"""servers: vLLM servers, which generate on other GPUs while the trainer trains.

    sampler.py            samples from a pool of servers, by the methods of all engines
    pool.py               the pool: who has room, who has failed, a push to all
    server.py             one server: its routes over HTTP, and what its answers must be
    weight_transfer.py    new weights from the trainer to the workers: NCCL, or gloo on a CPU
    worker.py             what a worker of a vLLM server loads, to receive them on a CPU
    addresses.py          where servers listen, who may reach them, how trainers hear of it

With one process none of it runs, and a reader of the method needs none of it.
"""
