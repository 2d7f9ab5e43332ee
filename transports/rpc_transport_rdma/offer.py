"""What one side tells the other in order to connect: bytes in HELLO.

Belongs here: their form and its checks. Must not be here: connecting.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from rpc_backend.plugin_api import ConnectError

VERSION = 1
_HEAD = struct.Struct("!BIHH")
_LEAST_CHUNK_NBYTES = 1024
_MOST_PLACES = 4096


@dataclass(frozen=True, slots=True)
class Offer:
    """`chunk_nbytes` is what a receive takes, `data_places` how many are for chunks; `address` is the provider's."""

    chunk_nbytes: int
    data_places: int
    credit_places: int
    address: bytes

    def encode(self) -> bytes:
        """Return its bytes."""
        return _HEAD.pack(VERSION, self.chunk_nbytes, self.data_places, self.credit_places) + self.address


def decode(data: bytes, least_credit_places: int) -> Offer:
    """Read an offer.

    Raises:
        ConnectError: another version, or values that no side of ours has.
    """
    if len(data) <= _HEAD.size or data[0] != VERSION:
        raise ConnectError(f"rdma: the other side's offer is not of version {VERSION}; update the older side")
    _, chunk_nbytes, data_places, credit_places = _HEAD.unpack_from(data)
    if (
        chunk_nbytes < _LEAST_CHUNK_NBYTES
        or not 1 <= data_places <= _MOST_PLACES
        or credit_places < least_credit_places
    ):
        raise ConnectError(f"rdma: an offer of {data_places} + {credit_places} receives of {chunk_nbytes} bytes")
    return Offer(chunk_nbytes, data_places, credit_places, data[_HEAD.size :])
