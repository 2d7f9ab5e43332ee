"""The double behaves like a network: whole messages in order, and faults on demand."""

import pytest

from rpc_backend.errors import WorkerLostError
from rpc_backend.testing.memory_channel import MemoryNetwork


class Ends:
    """A client and a worker that write down what happens."""

    def __init__(self, **options):
        self.network = MemoryNetwork(**options)
        self.at_worker, self.at_client, self.lost, self.lost_peers = [], [], [], []
        self.answers = False
        self.listener = self.network.listen(on_message=self.on_worker_message, on_peer_lost=self.lost_peers.append)
        self.channel = self.network.connect(on_message=self.on_client_message, on_lost=self.lost.append)

    def on_worker_message(self, peer, frames):
        self.at_worker.append([bytes(frame) for frame in frames])
        if self.answers:
            self.listener.send(peer, frames)

    def on_client_message(self, frames):
        self.at_client.append([bytes(frame) for frame in frames])


def test_messages_wait_until_they_are_delivered_and_keep_their_order():
    ends = Ends()
    ends.answers = True
    data = bytearray(b"1")
    assert ends.channel.send([data, b"x"]).done
    data[:] = b"9"
    ends.channel.send([b"2"])
    assert (ends.at_worker, ends.network.n_waiting) == ([], 2)
    assert ends.network.deliver(1) == 1
    assert ends.at_worker == [[b"1", b"x"]]
    assert ends.network.deliver() == 3
    assert ends.at_client == [[b"1", b"x"], [b"2"]]
    assert ends.network.sent.to_client == ends.network.sent.to_worker == [[b"1", b"x"], [b"2"]]


def test_immediate_delivery_answers_within_the_call():
    ends = Ends(immediate=True)
    ends.answers = True
    ends.channel.send([b"1"])
    assert ends.at_client == [[b"1"]]


def test_messages_can_be_dropped_and_delayed():
    ends = Ends(immediate=True)
    ends.network.drop_next()
    ends.channel.send([b"lost"])
    ends.network.hold()
    ends.channel.send([b"late"])
    assert ends.at_worker == []
    ends.network.release()
    assert ends.at_worker == [[b"late"]]


def test_what_is_gathered_is_delivered_after_it_unless_it_is_held():
    ends = Ends(immediate=True)
    ends.answers = True
    with ends.network.gathered():
        with ends.network.gathered():
            ends.channel.send([b"1"])
        ends.channel.send([b"2"])
        assert ends.at_worker == []
    assert ends.at_client == [[b"1"], [b"2"]]
    ends.network.hold()
    with ends.network.gathered():
        ends.channel.send([b"3"])
    assert len(ends.at_worker) == 2
    ends.network.release()
    assert ends.at_client[2:] == [[b"3"]]


def test_a_cut_tells_both_sides_once_and_loses_what_is_under_way():
    ends = Ends()
    ends.channel.send([b"1"])
    ends.network.deliver()
    ends.channel.send([b"2"])
    ends.network.cut(ends.channel)
    ends.network.cut(ends.channel)
    assert [str(error) for error in ends.lost] == [f"the connection to {ends.channel.name} went away: cut by the test"]
    assert ends.lost_peers == [ends.channel.peer]
    assert ends.network.deliver() == 1
    assert ends.at_worker == [[b"1"]]
    with pytest.raises(WorkerLostError, match="cut by the test"):
        ends.channel.send([b"3"])
    ends.listener.send(ends.channel.peer, [b"dropped"])


def test_closing_delivers_and_aborting_does_not():
    ends = Ends()
    ends.channel.send([b"1"])
    ends.channel.close()
    assert (ends.at_worker, ends.lost_peers, ends.lost) == ([[b"1"]], [ends.channel.peer], [])
    ends = Ends()
    ends.channel.send([b"1"])
    ends.channel.abort()
    assert (ends.network.deliver(), ends.at_worker, ends.lost_peers) == (1, [], [])


def test_a_receiver_that_raises_loses_the_connection():
    ends = Ends(immediate=True)
    ends.listener.on_message = lambda peer, frames: 1 / 0
    ends.channel.send([b"1"])
    assert isinstance(ends.lost[0], WorkerLostError)
    assert ends.lost_peers == [ends.channel.peer]


def test_the_worker_can_close_a_peer_or_end():
    ends = Ends()
    ends.channel.send([b"1"])
    ends.listener.close_peer(ends.channel.peer, grace_s=1)
    assert (ends.at_worker, len(ends.lost), len(ends.lost_peers)) == ([[b"1"]], 1, 1)
    ends = Ends(immediate=True)
    ends.channel.send([b"1"])
    ends.listener.close()
    assert (str(ends.lost[0]), ends.lost_peers) == ("the worker ended", [])
