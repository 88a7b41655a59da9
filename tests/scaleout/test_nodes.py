"""The launchers of several nodes: they end together, through any network in between."""

import contextlib
import dataclasses
import socket
import threading

import pytest
from processes import until

from config import Config, ConfigError
from scaleout import nodes
from scaleout.launch import free_port
from scaleout.nodes import Link
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
    return Config(**{"hosts": "127.0.0.1,127.0.0.3", "port": free_port(),
                     "deadline_s": 9.0} | changes)


def node_of(config, rank=1, at="127.0.0.1"):
    return Link(dataclasses.replace(config, node_rank=rank), [at, *config.hosts.split(",")[1:]])


def end_of(node):
    """The exit status that `watch` returns in the end."""
    return until(lambda: [status for status in [node.watch()] if status is not None], "the end")[0]


@pytest.fixture
def pair(monkeypatch):
    """The first host and one other, the cable between them, and what they are made of."""
    monkeypatch.setattr(nodes, "BEAT_S", 0.05)
    config = config_of()
    head, cable = Link(config, config.hosts.split(",")), Cable(config.port)
    node = node_of(config, at="127.0.0.3")
    try:
        until(lambda: head.watch() or head.heard[1][0], "the node at the first host")
        until(lambda: node.watch() or node.heard[0][0], "the first host at the node")
        yield head, node, cable, config
    finally:
        cable.whole.set()
        node.close(0)
        if head.store:
            head.close(0)
        cable.listener.close()


@pytest.mark.parametrize("status, result", [(0, 0), (1, 1), (130, 130), (143, 143), (137, 1)])
def test_a_node_ends_with_the_run_and_knows_how_it_ended(pair, status, result):
    head, node, _, _ = pair
    assert node.watch() is None
    head.close(status)                          # leaves time to read it
    assert node.watch() == result


def test_a_node_that_fails_fails_the_run_by_its_name(pair):
    head, node, _, _ = pair
    node.close(3)
    with pytest.raises(LaunchError, match=r"node 1 \(127.0.0.3\) has failed: .* exit status 3"):
        until(head.watch, "the failure")


def test_a_node_that_cannot_go_on_says_so_before_it_ends(pair):
    """Only rank 0, on the first host, can be asked for a checkpoint, and it takes all ranks."""
    head, node, _, _ = pair
    node.failed("server 1 has ended 3 times")
    with pytest.raises(LaunchError, match=r"node 1 \(127.0.0.3\) has failed: server 1 has ended 3"):
        until(head.watch, "the failure")
    assert node.watch() is None and node.thread.is_alive()
    head.close(1)
    assert end_of(node) == 1


@pytest.mark.parametrize("loss", ["cut", "hung up"])
def test_a_lost_connection_comes_back_and_nothing_is_missed(pair, loss, monkeypatch, capsys):
    head, node, cable, _ = pair
    monkeypatch.setattr(nodes, "SILENT_S", 0.3)
    if loss == "cut":
        cable.whole.clear()
        until(lambda: node.watch() or "node 0" in capsys.readouterr().err, "silence, said")
        until(lambda: head.watch() or "node 1" in capsys.readouterr().err, "silence, said")
        cable.whole.set()
    else:
        cable.hang_up()
    before = head.heard[1][0]
    until(lambda: head.watch() or head.heard[1][0] > before + 2, "signs of life")
    assert node.watch() is None
    head.close(0)
    assert end_of(node) == 0


def test_a_node_of_a_killed_run_says_nothing_to_the_next_run_and_ends(pair, capsys):
    """The next first host's signs of life would keep it, and the GPUs and ports of its servers,
    for ever; and the end of its trainer would end that run as well."""
    head, node, cable, config = pair
    head.closing.set()                          # what a SIGKILL does to it
    head.thread.join()
    head.store = None
    cable.hang_up()
    following = Link(config, config.hosts.split(","))
    try:
        assert end_of(node) == 1
        assert "has been started again" in capsys.readouterr().err
        node.failed("its trainer ended")
        node.close(1)
        assert following.watch() is None and not following.heard[1][0]
    finally:
        following.close(0)


def test_whoever_is_silent_past_the_deadline_is_given_up_by_name(capsys, monkeypatch):
    monkeypatch.setattr(nodes, "SILENT_S", 0.2)
    config = config_of(hosts="127.0.0.1,127.0.0.3,127.0.0.4", deadline_s=2 / 3)
    alone = node_of(config, rank=2)
    try:
        with pytest.raises(LaunchError, match=r"node 0 \(127.0.0.1\) .* heard of for 2 s"):
            until(alone.watch, "giving up")
        assert "node 0 (127.0.0.1) is silent; waiting for it, 2 s" in capsys.readouterr().err
        head = Link(config, config.hosts.split(","))
        try:
            until(lambda: head.store.add("alive 2", 0), "node 2, which is in time")
            with pytest.raises(LaunchError, match=r"node 1 \(127.0.0.3\) has not been heard"):
                until(head.watch, "giving up")
        finally:
            head.close(1)
    finally:
        alone.close(0)


def test_behind_a_cable_that_stays_cut_everybody_gives_up_by_himself(pair, monkeypatch):
    """A call of torch's store has no end there, so nobody may wait for one."""
    head, node, cable, config = pair
    monkeypatch.setattr(nodes, "LATER_S", 0.5)
    for side in head, node:
        side.config = dataclasses.replace(config, deadline_s=0.5)
    cable.whole.clear()
    for watch, who in ((node.watch, "node 0"), (head.watch, "node 1")):
        with pytest.raises(LaunchError, match=rf"{who} \(.*\) has not been heard of for 1.5 s"):
            until(watch, "giving up")


def test_an_address_that_is_not_this_machines_is_refused():
    config = config_of(hosts="192.0.2.1,127.0.0.3")         # for documentation, nobody's
    with pytest.raises(ConfigError, match=r"hosts = '192.0.2.1,.*, the first, cannot listen"):
        Link(config, config.hosts.split(","))
