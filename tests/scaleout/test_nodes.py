"""The launchers of several nodes: they end together, through any network in between."""

import contextlib
import dataclasses
import socket
import threading
import time

import pytest
from processes import until

from config import Config
from scaleout import launch
from scaleout.launch import Link
from scaleout.placement import free_ports
from scaleout.supervise import LaunchError


class Cable:
    """Between a node and the first host: passes bytes on, until it is cut."""

    def __init__(self, port):
        self.target, self.whole, self.ends = ("127.0.0.1", port), threading.Event(), []
        self.whole.set()
        self.listener = socket.create_server(("127.0.0.3", port))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                ends = [self.listener.accept()[0], socket.create_connection(self.target)]
                self.ends += ends
                for pair in (ends, ends[::-1]):
                    threading.Thread(target=self.carry, args=pair, daemon=True).start()

    def carry(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                self.whole.wait()               # cut: nobody hears anything, nor of its loss
                target.sendall(data)
        self.hang_up(source, target)

    def hang_up(self, *ends):
        """As when a process is killed: both sides see it."""
        for end in ends or self.ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def config_of(**changes):
    return Config(**{"hosts": "127.0.0.1,127.0.0.3", "port": free_ports(1).pop(),
                     "deadline_s": 9.0} | changes)


def node_of(config, rank=1, at="127.0.0.1"):
    return Link(dataclasses.replace(config, node_rank=rank), [at, *config.hosts.split(",")[1:]])


def end_of(node):
    """The exit status that `watch` returns in the end."""
    return until(lambda: [status for status in [node.watch()] if status is not None], "the end")[0]


@pytest.fixture
def pair(monkeypatch):
    """The first host and one other, the cable between them, and what they are made of."""
    monkeypatch.setattr(launch, "ASK_S", 0.05)
    config = config_of()
    head, cable = Link(config, config.hosts.split(",")), Cable(config.port)
    node = node_of(config, at="127.0.0.3")
    try:
        hears(node)
        yield head, node, cable, config
    finally:
        cable.whole.set()
        if head.store:
            head.close(0)
        end_of(node)
        cable.listener.close()


def hears(node):
    """Wait until the node has heard of the first host once more."""
    before = node.heard
    until(lambda: node.watch() or node.heard > before, "the first host at the node")


@pytest.mark.parametrize("status", [0, 1, 2, 130, 143])
def test_a_node_ends_with_the_run_and_knows_how_it_ended(pair, status):
    head, node, _, _ = pair
    assert node.watch() is None and head.watch() is None
    head.close(status)                          # leaves time to read it
    assert node.watch() == status


@pytest.mark.parametrize("loss", ["cut", "hung up"])
def test_a_lost_connection_comes_back_and_nothing_is_missed(pair, loss):
    head, node, cable, _ = pair
    if loss == "cut":
        cable.whole.clear()
        until(lambda: node.watch() or time.monotonic() - node.heard > 0.5, "silence")
        cable.whole.set()
    else:
        cable.hang_up()
    hears(node)
    assert node.watch() is None
    head.close(0)
    assert end_of(node) == 0


def test_a_node_ends_when_the_first_hosts_launcher_was_killed(pair, capsys):
    """The next first host's answers would keep it, and the GPUs and ports of its servers, for
    ever."""
    head, node, cable, _ = pair
    head.store = None                           # what a SIGKILL does to it
    cable.listener.shutdown(socket.SHUT_RDWR)
    cable.hang_up()
    assert end_of(node) == 1
    assert "launcher is gone" in capsys.readouterr().err


def test_a_first_host_that_is_silent_past_the_deadline_is_given_up(monkeypatch):
    monkeypatch.setattr(launch, "LATER_S", 0.5)
    alone = node_of(config_of(deadline_s=0.5))
    with pytest.raises(LaunchError, match="the first host, 127.0.0.1, has not been .* for 2 s"):
        until(alone.watch, "giving up")
    alone.ended = 1


def test_behind_a_cable_that_stays_cut_a_node_gives_up_by_itself(pair):
    """A call of torch's store has no end there, so nobody may wait for one."""
    _, node, cable, _ = pair
    node.limit_s = 2
    cable.whole.clear()
    with pytest.raises(LaunchError, match="the first host, 127.0.0.3, has not been .* for 2 s"):
        until(node.watch, "giving up")


def test_an_address_that_is_not_this_machines_is_refused():
    config = config_of(hosts="192.0.2.1,127.0.0.3")         # for documentation, nobody's
    with pytest.raises(OSError, match="192.0.2.1"):
        Link(config, config.hosts.split(","))
