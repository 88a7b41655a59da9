"""Who runs where: the rule, and a place for every process of a machine."""

import pytest
from estimates import estimate_of
from transformers import Qwen3Config

from config import ConfigError
from scaleout.placement import free_ports, make_placement
from study import toy


def test_many_servers_find_ports_and_too_many_a_sentence():
    """From 228 on it was a traceback, also where a dry run only asked what they would need."""
    assert len({*free_ports(300, "127.0.0.1")}) == 300
    with pytest.raises(ConfigError, match="ports are free for 30000 servers"):
        free_ports(30_000, "127.0.0.1")


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
    assert all(url.startswith("http://127.") for url in placement.servers)
    if config.gpus:
        used = [*range(placement.trainers)]
        for devices in placement.servers.values():
            used += devices
        assert used == list(range(config.gpus))


@pytest.mark.parametrize("settings, address, sentence", [
    ({"gpus": 8, "servers": 3, "trainers": 4}, "", "1 a server must make 8 GPUs"),
    ({"gpus": 8, "servers": 8}, "", "1 a server must make 8 GPUs"),
    ({"gpus": 8, "servers": 2, "tensor_parallel": 3, "trainers": 3}, "", "3 a server must make 8"),
    ({"gpus": 4, "tensor_parallel": 4}, "", "4 a server must make 4 GPUs"),
    ({"gpus": 8, "vllm_url": "http://127.0.0.1:1", "trainers": 5}, "", "must make 8 GPUs"),
    ({"gpus": 8, "tensor_parallel": 3}, "127.0.0.1", "3 a server must make 8 GPUs"),
    ({"servers": 2, "vllm_url": "http://127.0.0.1:1"}, "", "give one of the two"),
    ({"servers": 1}, "192.0.2.1", "--serve-only 192.0.2.1: .* address of this machine")])
def test_what_does_not_add_up_is_refused(settings, address, sentence, eight):
    config, estimate = estimate_of(eight, address=address, **settings)
    with pytest.raises(ConfigError, match=sentence):
        make_placement(config, estimate, address)


def test_servers_without_vllm_are_refused(eight):
    with pytest.raises(ConfigError, match="engine = 'transformers': servers are vLLM's"):
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


def shape_of(tmp_path, hidden, inner, layers, heads, kv=8, tied=False):
    """A folder with the shape of a Qwen3."""
    Qwen3Config(vocab_size=151936, hidden_size=hidden, intermediate_size=inner, head_dim=128,
                num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv,
                max_position_embeddings=40960, tie_word_embeddings=tied,
                architectures=["Qwen3ForCausalLM"]).save_pretrained(tmp_path)
    toy.make_tokenizer().save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("shape, gpus, size", [
    ((4096, 12288, 36, 32), 8, 1), ((5120, 17408, 40, 40), 32, 2), ((5120, 25600, 64, 64), 32, 4),
    ((5120, 25600, 64, 62), 32, 2)])                    # 8B, 14B, 32B; heads that 4 does not divide
def test_a_server_has_more_gpus_where_one_would_hold_few_sequences(shape, gpus, size, tmp_path):
    """32B weights leave an H100 room for two whole samples: it would read all weights for a handful
    of tokens. The oracle is decode by hand: tokens over bytes read."""
    folder = shape_of(tmp_path, *shape)
    config, estimate = estimate_of(folder, gpus=gpus)
    placement = make_placement(config, estimate)
    assert {config.tensor_parallel, *map(len, placement.servers.values())} == {size}
    assert ("servers of" in placement.why) == (size > 1)

    def by_hand(s):
        weights, kv = 2 * estimate.weights, 2 * shape[2] * 8 * 128 * 2
        whole = (s * (0.9 * 79 - 2) * 2**30 - weights) // (kv * estimate.length)
        n = min(256, int(whole * estimate.length / estimate.mean_length))
        return n / (weights + n * kv * estimate.mean_length)
    for s in (1, 2, 4, 8):
        assert estimate.decode_rate(s) == pytest.approx(by_hand(s), rel=0.02)
    assert size == 1 or by_hand(size) > 1.25 * by_hand(size // 2)
    assert by_hand(2 * size) < 1.5 * by_hand(size)
    asked, estimate = estimate_of(folder, gpus=gpus, tensor_parallel=1)
    assert set(map(len, make_placement(asked, estimate).servers.values())) == {1}


def test_larger_servers_are_left_where_the_gpus_that_they_cost_decode_more(tmp_path):
    """14B: of 8 GPUs training needs 5. In pairs, 2 of the other 3 would decode: a third more tokens
    for the bytes that each reads, two thirds of the GPUs."""
    config, estimate = estimate_of(shape_of(tmp_path, 5120, 17408, 40, 40), gpus=8)
    placement = make_placement(config, estimate)
    assert [t for t in range(1, 9) if estimate.trainer_fits(t, recompute=True)][0] == 5
    assert (placement.trainers, len(placement.servers), config.tensor_parallel) == (5, 3, 1)
    assert 2 * estimate.decode_rate(2) < 3 * estimate.decode_rate(1) < 3 * estimate.decode_rate(2)
    config, estimate = estimate_of(tmp_path, gpus=8, trainers=6)        # an even rest
    assert len(make_placement(config, estimate).servers) == 1 and config.tensor_parallel == 2


@pytest.mark.parametrize("heads, kv, sizes", [(64, 8, {1, 2, 4, 8}), (40, 10, {1, 2}),
                                              (32, 4, {1, 2, 4, 8}), (24, 6, {1, 2})])
def test_a_server_has_as_many_gpus_as_vllm_divides_heads_of_keys_among(heads, kv, sizes, tmp_path,
                                                                       monkeypatch):
    """All of them would be worth it here. vLLM asserts: 10 of them on 4 GPUs are refused, 4 on 8
    are copied, which makes no more room on each."""
    config, estimate = estimate_of(shape_of(tmp_path, 5120, 25600, 64, heads, kv), gpus=32)
    one = estimate.kv_token * estimate.length
    for size in (1, 2, 4, 8):
        assert estimate.server_memory(size)[0]["the cache of one sequence"] == one / min(size, kv)
    n, read = estimate.slots(8), estimate.kv_token * estimate.mean_length * max(1, 8 / kv)
    assert estimate.decode_rate(8) == pytest.approx(n / (2 * estimate.weights + n * read))
    tried = []
    monkeypatch.setattr(estimate, "decode_rate", lambda size: tried.append(size) or size ** 2)
    make_placement(config, estimate)
    assert set(tried) == sizes and config.tensor_parallel == max(sizes)


def test_what_no_number_of_trainers_has_room_for_is_refused_as_it_is_with_recomputing(tmp_path):
    """32B on 8 GPUs: to be told to recompute, and then that this does not help, costs a start."""
    config, estimate = estimate_of(shape_of(tmp_path, 5120, 25600, 64, 64), gpus=8)
    placement = make_placement(config, estimate)
    with pytest.raises(ConfigError, match="the largest is weights, .* take a smaller model"):
        estimate.refuse(placement.trainers, len(placement.servers))


def test_layers_are_recomputed_where_the_split_with_it_makes_the_shorter_step(tmp_path):
    """It is settled with the split: decided before, for the most trainers that are possible, a
    model would take GPUs from generation to train without it. The oracle tries all splits."""
    folder = shape_of(tmp_path, 2048, 6144, 28, 16, tied=True)
    seen = set()
    for gpus in (2, 4, 6, 8, 16, 32):
        config, estimate = estimate_of(folder, gpus=gpus)
        placement = make_placement(config, estimate)
        chosen, estimate.recompute = estimate.recompute, False
        times = [(max((4 / 3 if recompute else 1) / 5 / t, 4 / 5 / (gpus - t)), recompute, t)
                 for t in range(1, gpus) for recompute in (False, True)
                 if sum(estimate.trainer_memory(t, recompute).values()) <= 0.9 * 79 * 2**30]
        assert (chosen, placement.trainers) == min(times)[1:]
        seen.add(chosen)
    assert seen == {False, True}
