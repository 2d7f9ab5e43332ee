"""The links of a listener's peers: taken up once, given turns, dropped with their peer."""

import pytest

from rpc_backend.errors import ChannelError
from rpc_backend.fabric import payload_links as module
from rpc_backend.fabric.envelope import Envelope, Say
from rpc_backend.fabric.options import FabricOptions
from rpc_backend.fabric.payload_links import PayloadLinks
from rpc_backend.fabric.peers import Peer
from rpc_backend.interfaces import LinkOffer
from rpc_backend.testing.memory_links import MemoryPayloads


class Poller:
    """Writes down what is registered."""

    def __init__(self):
        self.fds = set()

    def register(self, fd, events):
        assert fd not in self.fds
        self.fds.add(fd)

    def unregister(self, fd):
        self.fds.remove(fd)


class Hub:
    """The links under test, and clients' ends."""

    def __init__(self):
        self.here, self.there, self.came = MemoryPayloads(), MemoryPayloads(), []
        self.links = PayloadLinks([self.here], lambda peer, frames: self.came.append((peer, frames)), FabricOptions())

    def join(self, name=b"peer"):
        link, peer = self.there.open_link(), Peer(name, 1)
        (answer,) = self.links.accept(peer, [LinkOffer("memory", link.offer)])
        link.connect(answer.data)
        return peer, link

    def say(self, peer, *frames):
        self.links.arrived(peer, [memoryview(frame) for frame in frames])

    def turns(self):
        n = 0
        while self.links.have_more:
            for peer in self.links.due({}):
                self.links.advance(peer)
            n += 1
            assert n < 100


@pytest.fixture
def hub():
    return Hub()


def test_a_payload_comes_from_the_peer_it_is_of(hub):
    first, _ = hub.join(b"one")
    second, link = hub.join(b"two")
    hub.turns()
    hub.say(second, Envelope(Say.READY).encode())
    hub.say(second, Envelope(Say.PAYLOADS, (5000,)).encode(), b"head")
    link.send(memoryview(b"x" * 5000))
    hub.turns()
    ((peer, frames),) = hub.came
    assert (peer, [bytes(frame) for frame in frames]) == (b"two", [b"head", b"x" * 5000])
    assert first.pairing is not None


def test_a_link_with_nothing_to_do_is_armed_and_then_left_alone_until_it_wakes(hub):
    peer, _ = hub.join()
    hub.turns()
    (link,) = hub.here.links
    assert link.n_armed == 1
    assert hub.links.due({}) == []
    assert hub.links.due({link.fileno(): 1}) == [peer]


def test_a_message_that_was_begun_gives_its_link_a_turn(hub):
    peer, _ = hub.join()
    hub.say(peer, Envelope(Say.READY).encode())
    hub.turns()
    hub.links.begun(peer)
    assert not hub.links.have_more
    peer.pairing.begin([memoryview(bytes(5000))])
    hub.links.begun(peer)
    assert hub.links.have_more
    hub.turns()
    assert not peer.pairing.is_sending
    assert not hub.links.have_sent_all()  # the other side has not read it


def test_descriptors_follow_the_links(hub):
    poller = Poller()
    hub.links.register(poller)
    peer, _ = hub.join()
    hub.links.register(poller)
    assert poller.fds == {hub.here.links[0].fileno()}
    hub.links.drop(peer)
    other, _ = hub.join()
    hub.links.register(poller)
    assert poller.fds == {hub.here.links[1].fileno()}
    hub.links.close()
    hub.links.register(poller)
    assert poller.fds == set()
    assert (peer.pairing, other.pairing) == (None, None)
    assert all(link.is_closed for link in hub.here.links)


def test_a_peer_that_declines_has_its_link_closed(hub):
    peer, _ = hub.join()
    hub.say(peer, Envelope(Say.DECLINED).encode())
    assert peer.pairing is None
    assert hub.here.links[0].is_closed
    hub.links.drop(peer)
    assert hub.links.have_sent_all()


def test_a_broken_link_raises_in_its_turn(hub):
    peer, _ = hub.join()
    hub.here.links[0].broken = "LOC_PROT_ERR"
    with pytest.raises(ChannelError, match="LOC_PROT_ERR"):
        hub.links.advance(peer)


def test_a_peer_may_be_dropped_by_what_it_delivers(hub):
    peer, link = hub.join()
    hub.links._on_message = None
    hub.say(peer, Envelope(Say.READY).encode())
    peer.pairing._deliver = lambda frames: hub.links.drop(peer)
    hub.say(peer, Envelope(Say.PAYLOADS, (5000,)).encode(), b"head")
    link.send(memoryview(bytes(5000)))
    hub.turns()
    assert peer.pairing is None


def test_one_link_for_each_peer_and_so_many_in_all(hub, monkeypatch):
    assert hub.links.accept(Peer(b"x", 1), []) == []
    assert hub.links.accept(None, [LinkOffer("memory", b"")]) == []
    peer, link = hub.join()
    assert hub.links.accept(peer, [LinkOffer("memory", link.offer)]) == []
    monkeypatch.setattr(module, "MAX_LINKS", 1)
    (answer,) = hub.links.accept(Peer(b"late", 2), [LinkOffer("memory", link.offer)])
    assert "1 links already" in answer.refusal


def test_what_had_come_of_a_peer_that_is_gone_is_delivered(hub):
    peer, link = hub.join()
    hub.say(peer, Envelope(Say.READY).encode())
    hub.turns()
    for number in range(3):
        hub.say(peer, Envelope(Say.PAYLOADS, (5000,)).encode(), b"%d" % number)
        assert link.send(memoryview(bytes(5000))) == 5000
    assert hub.came == []
    hub.links.finish(peer)
    assert [bytes(frames[0]) for _, frames in hub.came] == [b"0", b"1", b"2"]
    hub.links.drop(peer)
    hub.links.finish(peer)


def test_a_broken_link_of_a_peer_that_is_gone_says_so(hub):
    peer, _ = hub.join()
    hub.here.links[0].broken = "the device is gone"
    with pytest.raises(ChannelError, match="device is gone"):
        hub.links.finish(peer)
