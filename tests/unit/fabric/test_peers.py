"""The books of a listener: deaths, descriptors used again, late messages."""

from rpc_backend.fabric.outgoing import prepare
from rpc_backend.fabric.peers import Peer, PeerTable, Verdict
from rpc_backend.interfaces import Ticket


def made(number):
    return b"\0" + number.to_bytes(4, "big")


A, B, C = made(1), made(2), made(3)


def test_a_peer_is_known_from_its_first_message_and_lost_once_with_its_connection():
    table = PeerTable()
    assert table.opened(10) is None
    assert table.arrived(A, 10) == (Verdict.NEW, None)
    assert table.peers[A].fd == 10
    assert table.closed(11) is None
    lost = table.closed(10)
    assert lost is not None
    assert lost.identity == A
    assert table.closed(10) is None
    assert table.peers == {}


def test_a_connection_that_never_spoke_is_no_loss():
    table = PeerTable()
    table.opened(10)
    assert table.closed(10) is None


def test_a_descriptor_used_again_belongs_to_the_new_peer():
    table = PeerTable()
    table.opened(10)
    table.arrived(A, 10)
    assert table.closed(10) is not None
    table.opened(10)
    assert table.arrived(B, 10) == (Verdict.NEW, None)
    assert list(table.peers) == [B]


def test_an_end_that_was_not_seen_is_noticed_when_the_descriptor_is_used_again():
    table = PeerTable()
    table.opened(10)
    table.arrived(A, 10)
    stale = table.opened(10)
    assert stale is not None
    assert stale.identity == A


def test_a_message_that_comes_after_its_connection_ended_is_late():
    table = PeerTable()
    table.opened(10)
    table.closed(10)
    assert table.arrived(A, 10) == (Verdict.LATE, None)
    assert table.arrived(A, -1) == (Verdict.LATE, None)
    assert table.peers == {}


def test_a_late_first_message_does_not_push_out_the_next_holder_of_the_descriptor():
    table = PeerTable()
    table.opened(10)
    table.closed(10)
    table.opened(10)
    table.arrived(B, 10)
    assert table.arrived(A, 10) == (Verdict.LATE, None)
    assert list(table.peers) == [B]


def test_a_late_first_message_that_was_entered_is_replaced_by_the_true_holder():
    table = PeerTable()
    table.opened(10)
    table.closed(10)
    table.opened(10)
    assert table.arrived(A, 10)[0] is Verdict.NEW
    verdict, lost = table.arrived(B, 10)
    assert verdict is Verdict.NEW
    assert lost is not None
    assert lost.identity == A
    assert list(table.peers) == [B]


def test_what_a_closed_peer_sent_before_is_late_also_on_a_descriptor_used_again():
    table = PeerTable()
    table.opened(7)
    table.arrived(made(1), 7)
    table.removed(made(1))
    table.closed(7)
    table.opened(7)
    assert table.arrived(made(1), 7) == (Verdict.LATE, None)
    assert table.arrived(made(2), 7) == (Verdict.NEW, None)


def test_identities_are_compared_around_their_end():
    table = PeerTable()
    table.opened(10)
    table.arrived(made((1 << 32) - 1), 10)
    assert table.arrived(made(0), 10)[0] is Verdict.NEW
    assert table.arrived(made((1 << 32) - 2), 10)[0] is Verdict.LATE


def test_an_identity_that_a_client_chose_never_pushes_out_another():
    table = PeerTable()
    table.opened(10)
    table.arrived(B, 10)
    assert table.arrived(b"chosen", 10)[0] is Verdict.LATE
    table.opened(11)
    assert table.arrived(b"chosen", 11)[0] is Verdict.NEW
    assert table.arrived(C, 11)[0] is Verdict.LATE


def test_a_peer_that_was_closed_here_stays_closed():
    table = PeerTable()
    table.opened(10)
    table.arrived(A, 10)
    removed = table.removed(A)
    assert removed is not None
    assert table.removed(A) is None
    assert table.arrived(A, 10) == (Verdict.LATE, None)
    assert table.closed(10) is None


class ManualTicket(Ticket):
    is_done = False

    @property
    def done(self):
        return self.is_done

    def wait(self, timeout_s):
        raise AssertionError("the books never wait")


def test_bytes_are_counted_while_queued_and_while_the_socket_holds_them():
    peer = Peer(A, 10)
    tickets = [ManualTicket(), ManualTicket()]
    for ticket in tickets:
        outgoing = prepare([bytes(100)])
        outgoing.ticket = ticket
        peer.put(outgoing)
    assert peer.queued_nbytes == 200
    peer.taken()
    peer.taken()
    assert (peer.queued_nbytes, peer.settle()) == (0, 200)
    tickets[0].is_done = True
    assert peer.settle() == 100
    tickets[1].is_done = True
    assert peer.settle() == 0


def test_small_messages_are_not_counted_as_held():
    peer = Peer(A, 10)
    peer.put(prepare([b"small"]))
    peer.taken()
    assert peer.in_flight_nbytes == 0
