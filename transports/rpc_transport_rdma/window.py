"""How much each side may send: counts of chunks, no memory and no device.

Belongs here: credits. Must not be here: how they travel (`link`).

A receive ring has places for chunks, and a few that only bare credits use. Both sides count the chunks they consumed
and tell the count, modulo 2**32, with every message; a sender has at most as many chunks under way, past the count it
was told, as the ring has places for chunks. A bare credit is sent after every `RETURN_AFTER` chunks at the latest, so
of them at most `data places / RETURN_AFTER + 1` can be unread at once: fewer than the places kept for them, and neither
side can be stopped by the other's stop.
"""

from __future__ import annotations

from rpc_backend.plugin_api import ChannelError

CREDIT_PLACES = 4
RETURN_AFTER = 8
_MASK = 0xFFFF_FFFF


class Window:
    """The counts of one side of a connection. `data_places` are those of the other side's ring."""

    def __init__(self, data_places: int) -> None:
        self._data_places = data_places
        self._n_sent = 0
        self._n_consumed_there = 0
        self._n_consumed = 0
        self._n_told = 0

    @property
    def may_send(self) -> bool:
        """Whether the other side has a place for one more chunk."""
        return self._n_sent - self._n_consumed_there < self._data_places

    @property
    def owes_credit(self) -> bool:
        """Whether the other side should be told the count even if no chunk goes there."""
        return self._n_consumed - self._n_told >= RETURN_AFTER

    def sent(self) -> None:
        """Count a chunk that was sent."""
        self._n_sent += 1

    def consumed(self) -> None:
        """Count a chunk whose place is free again."""
        self._n_consumed += 1

    def tell(self) -> int:
        """Return the count that goes with a message."""
        self._n_told = self._n_consumed
        return self._n_consumed & _MASK

    def told(self, count: int) -> None:
        """Take the count that came with a message.

        Raises:
            ChannelError: the other side cannot have consumed so many.
        """
        more = (count - self._n_consumed_there) & _MASK
        if self._n_consumed_there + more > self._n_sent:
            raise ChannelError(f"rdma: the other side says it took {more} chunks more, of fewer under way")
        self._n_consumed_there += more
