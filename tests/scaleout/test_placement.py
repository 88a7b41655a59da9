"""Who runs where: the split, and a place for every process on every node."""

import dataclasses
import random

import pytest
from estimates import estimate_of

from config import ConfigError
from scaleout.placement import make_placement, split


def test_the_split_is_the_fastest_there_is_and_tends_to_the_ratio_of_the_rates(seed):
    rng = random.Random(seed)
    for _ in range(200):
        generate, train, size = rng.uniform(1, 9), rng.uniform(1, 40), rng.choice([1, 2, 4])
        gpus = rng.randrange(size + 1, 60)
        choices = [t for t in range(1, gpus) if (gpus - t) % size == 0]
        generators, trainers = split(gpus, generate, train, choices)
        assert generators + trainers == gpus and trainers in choices
        best = max(min((gpus - t) * generate, t * train) for t in choices)
        assert min(generators * generate, trainers * train) == pytest.approx(best)
    generators, trainers = split(10_000, generate, train)
    assert generators / trainers == pytest.approx(train / generate, rel=0.01)


@pytest.mark.parametrize("settings, hosts, shape", [
    ({"gpus": 8}, 1, None), ({"gpus": 8, "tensor_parallel": 4}, 1, None),
    ({"gpus": 8, "trainers": 3}, 1, (3, 5)),
    ({"gpus": 8, "servers": 2, "tensor_parallel": 3}, 1, (2, 2)),
    ({"gpus": 4}, 5, None), ({"gpus": 4, "trainers": 12, "tensor_parallel": 4}, 5, (12, 2)),
    ({"gpus": 4, "trainers": 2, "tensor_parallel": 2}, 2, (2, 3)),
    ({"gpus": 0, "servers": 3}, 1, (1, 3)), ({"gpus": 0, "servers": 1, "trainers": 2}, 3, (2, 1)),
    ({"gpus": 0, "servers": 3, "trainers": 5}, 3, (5, 3)),
    ({"gpus": 0, "trainers": 1}, 3, (1, 1))])
def test_every_device_has_one_process_and_every_node_knows_it_all(settings, hosts, shape, eight):
    names = ",".join(f"10.0.0.{i + 1}" for i in range(hosts)) if hosts > 1 else ""
    config, estimate = estimate_of(eight, hosts=names, tls="none", **settings)
    placement = make_placement(config, estimate)
    if hosts > 1:
        for node in range(hosts):
            config.node_rank = node
            assert make_placement(config, estimate) == placement
    if shape:
        assert (sum(placement.trainers), len(placement.servers)) == shape
    assert placement.trainers[0] > 0 and len(placement.trainers) == hosts
    urls = [server.url for server in placement.servers]
    assert len(set(urls)) == len(urls) > 0 and all(url.startswith("http://") for url in urls)
    for node in range(placement.gpus and hosts):
        used = [*range(placement.trainers[node])]
        for server in placement.servers:
            used += server.devices if server.node == node else ()
        assert used == list(range(placement.gpus))


@pytest.mark.parametrize("settings, sentence", [
    ({"gpus": 8, "servers": 3, "trainers": 4}, "8 GPUs are to be all in use"),
    ({"gpus": 8, "servers": 8}, "8 GPUs are to be all in use"),
    ({"gpus": 8, "servers": 2, "tensor_parallel": 3, "trainers": 3}, "servers of 3"),
    ({"gpus": 4, "tensor_parallel": 4}, "4 GPUs are to be all in use, .* servers of 4 on the rest"),
    ({"gpus": 4, "hosts": "127.0.0.1,localhost", "trainers": 6}, "whole nodes"),
    ({"gpus": 8, "vllm_url": "http://127.0.0.1:1", "trainers": 5}, "8 GPUs are to be all in use"),
    ({"hosts": "127.0.0.1,127.0.0.1"}, "should be different addresses"),
    ({"hosts": "127.0.0.1,127.0.0.3", "node_rank": 2}, "node_rank = 2: .* position of this"),
    ({"hosts": "10.0.0.1,10.0.0.2"}, "10.0.0.2:8110'.* use https with tls, or tls = \"none\""),
    ({"hosts": "10.0.0.1,10.0.0.2", "tls": "nowhere"}, "tls = 'nowhere': ca.pem"),
    ({"servers": 2, "vllm_url": "http://127.0.0.1:1"}, "give one of the two")])
def test_what_does_not_add_up_is_refused(settings, sentence, eight):
    config, estimate = estimate_of(eight, **settings)
    with pytest.raises(ConfigError, match=sentence):
        make_placement(config, estimate)


def test_servers_without_vllm_are_refused(eight):
    with pytest.raises(ConfigError, match="engine = 'transformers': .* need servers, which are"):
        estimate_of(eight, servers=1, engine="transformers")


def test_the_rule_gives_an_8b_model_on_8_gpus_as_many_trainers_as_have_room_for_it(eight):
    """It generates slower than it trains, so fewer trainers would do: but not hold it."""
    config, estimate = estimate_of(eight, gpus=8)
    for memory, trainers in ((79, 3), (58, 4), (45, 6)):
        estimate.device = dataclasses.replace(estimate.device, memory=memory * 2**30)
        placement = make_placement(config, estimate)
        assert sum(placement.trainers) == trainers
        estimate.refuse(trainers, len(placement.servers))
        with pytest.raises(ConfigError, match="a trainer does not fit"):
            estimate.refuse(trainers - 1, len(placement.servers))
