"""Slots follow the plain forward, whatever moves between them."""

import pytest
import torch
from conftest import packed_copy, random_llama
from test_packed import random_qwen3

from engines.kv_cache import Slots


@pytest.mark.parametrize("make", [random_llama, random_qwen3])
def test_decoding_in_slots_follows_the_plain_forward_while_slots_move(make, seed):
    """Sequences of different ages share a decode step; closing a hole moves a whole cache. A cache
    saved and loaded in between goes on as if nothing had happened."""
    llama = make()
    twin = packed_copy(llama)
    slots = Slots(twin, slots=5, length=40)
    with torch.no_grad():
        first, second, third = [3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5]
        slots.prefill(twin, [first, second], [1, 2])
        slots.decode(twin, torch.tensor([7, 8, 11]))
        slots.prefill(twin, [third], [1])
        # The first sequence, the longest, ends, and the third takes over.
        slots.keep(3, torch.tensor([3]), torch.tensor([0]))
        assert slots.width == 4
        loaded = Slots(twin, slots=7, length=30)
        loaded.load_state(slots.state())
        assert loaded.active == 3 and loaded.lengths[:3].tolist() == [4, 3, 3]
        hidden, again = (s.decode(twin, torch.tensor([20, 21, 22])) for s in (slots, loaded))
        assert torch.equal(hidden, again)
        for row, ids in zip(hidden, ([*third, 20], [*second, 8, 21], [*second, 11, 22])):
            expected = llama.model(torch.tensor([ids])).last_hidden_state[0, -1]
            torch.testing.assert_close(row, expected, atol=1e-4, rtol=1e-4)


def test_an_empty_cache_can_be_saved(seed):
    """A run may be stopped between two steps of training that left nothing in flight."""
    model = random_llama()
    loaded = Slots(model, slots=3, length=10)
    loaded.load_state(Slots(model, slots=5, length=10).state())
    assert loaded.active == 0
