"""Who runs where: the rule, and a place for every process of a machine."""

import pytest
from estimates import estimate_of

from config import ConfigError
from scaleout.placement import make_placement


@pytest.mark.parametrize("settings, address, shape", [
    ({"gpus": 8}, "", None), ({"gpus": 8, "tensor_parallel": 4}, "", None),
    ({"gpus": 8, "trainers": 3}, "", (3, 5)),
    ({"gpus": 8, "servers": 2, "tensor_parallel": 3}, "", (2, 2)),
    ({"gpus": 8}, "127.0.0.1", (0, 8)),
    ({"gpus": 8, "trainers": 3, "tensor_parallel": 4}, "127.0.0.1", (0, 2)),
    ({"gpus": 0, "servers": 3}, "", (1, 3)), ({"gpus": 0, "trainers": 5}, "", (5, 1)),
    ({"gpus": 0, "trainers": 5, "vllm_url": "@addresses"}, "", (5, 0)),
    ({"gpus": 0, "servers": 3, "trainers": 5}, "127.0.0.1", (0, 3)),
    ({"gpus": 0, "vllm_url": "@addresses"}, "127.0.0.1", (0, 1))])
def test_every_device_has_one_process(settings, address, shape, eight):
    """With an address the machine only serves, whatever the trainers' words are."""
    config, estimate = estimate_of(eight, address=address, **settings)
    placement = make_placement(config, estimate, address)
    if shape:
        assert (placement.trainers, len(placement.servers)) == shape
    assert (placement.trainers > 0) == (not address)
    urls = [server.url for server in placement.servers]
    assert len(set(urls)) == len(urls) and all(url.startswith("http://127.") for url in urls)
    if config.gpus:
        used = [*range(placement.trainers)]
        for server in placement.servers:
            used += server.devices
        assert used == list(range(config.gpus))


@pytest.mark.parametrize("settings, address, sentence", [
    ({"gpus": 8, "servers": 3, "trainers": 4}, "", "8 GPUs are to be all in use"),
    ({"gpus": 8, "servers": 8}, "", "8 GPUs are to be all in use"),
    ({"gpus": 8, "servers": 2, "tensor_parallel": 3, "trainers": 3}, "", "servers of 3"),
    ({"gpus": 4, "tensor_parallel": 4}, "", "4 GPUs are to be all in use, .* of 4 on the rest"),
    ({"gpus": 8, "vllm_url": "http://127.0.0.1:1", "trainers": 5}, "", "to be all in use"),
    ({"gpus": 8, "tensor_parallel": 3}, "127.0.0.1", "servers of 3"),
    ({"servers": 2, "vllm_url": "http://127.0.0.1:1"}, "", "give one of the two"),
    ({"servers": 1}, "192.0.2.1", "--serve-only 192.0.2.1: .* address of this machine"),
    ({"servers": 1}, "0.0.0.0", "everybody who reaches .* use https with tls, or tls = \"none\""),
    ({"servers": 1, "tls": "nowhere"}, "0.0.0.0", "tls = 'nowhere': ca.pem")])
def test_what_does_not_add_up_is_refused(settings, address, sentence, eight):
    config, estimate = estimate_of(eight, address=address, **settings)
    with pytest.raises(ConfigError, match=sentence):
        make_placement(config, estimate, address)


def test_servers_without_vllm_are_refused(eight):
    with pytest.raises(ConfigError, match="engine = 'transformers': .* need servers, which are"):
        estimate_of(eight, servers=1, engine="transformers")


@pytest.mark.parametrize("gpus, trainers", [(2, 1), (4, 1), (8, 2), (20, 4), (80, 16)])
def test_the_rule_gives_training_the_papers_share(gpus, trainers, micro):
    config, estimate = estimate_of(micro, gpus=gpus, think_min=9, think_max=99, prompt_tokens=9,
                                   answer_tokens=9)
    assert make_placement(config, estimate).trainers == trainers


def test_the_rule_gives_an_8b_model_on_8_gpus_as_many_trainers_as_have_room_for_it(eight):
    """More than the paper's share."""
    config, estimate = estimate_of(eight, gpus=8)
    for memory, trainers in ((79, 3), (58, 4), (45, 6)):
        estimate.device = estimate.device._replace(memory=memory * 2**30)
        placement = make_placement(config, estimate)
        assert placement.trainers == trainers
        estimate.refuse(trainers, len(placement.servers))
        with pytest.raises(ConfigError, match="a trainer does not fit"):
            estimate.refuse(trainers - 1, len(placement.servers))
