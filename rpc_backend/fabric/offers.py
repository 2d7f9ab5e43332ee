"""Which payload link a connection gets: what one side offers, what the other takes up.

Belongs here: opening links for HELLO and the choice, with the one line that says why there is none, their form in
HELLO. Must not be here: use of the link (`pairing`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rpc_backend.errors import ChannelError, RemoteProtocolError
from rpc_backend.interfaces import LinkOffer, PayloadLink, PayloadTransport

_log = logging.getLogger(__name__)
_MAX_SHOWN = 300
_MAX_LINKS = 8


@dataclass(frozen=True, slots=True)
class Chosen:
    """A link that is connected on this side, and whose it is."""

    transport: PayloadTransport
    link: PayloadLink


class OwnOffers:
    """What a client offers on one connection. Used by one thread."""

    def __init__(self, transports: Sequence[PayloadTransport], endpoint: str) -> None:
        """Open a link of each transport; one that cannot is left out, and the log says why."""
        self._endpoint = endpoint
        self._opened: dict[str, Chosen] = {}
        for transport in transports:
            try:
                self._opened[transport.name] = Chosen(transport, transport.open_link())
            except ChannelError as error:
                self._log_fallback(error.message)

    def records(self) -> list[LinkOffer]:
        """Return what HELLO says of them."""
        return [LinkOffer(name, chosen.link.offer) for name, chosen in self._opened.items()]

    def choose(self, answers: Sequence[LinkOffer]) -> tuple[Chosen | None, bool]:
        """Connect the link that the worker took up, close the others.

        Returns it, or None; and whether the worker counts on one that cannot be, and must be told.
        """
        taken = next((answer for answer in answers if not answer.refusal and answer.transport in self._opened), None)
        if taken is None:
            self._explain(answers)
            self.close()
            return None, any(not answer.refusal for answer in answers)
        chosen = self._opened.pop(taken.transport)
        self.close()
        try:
            chosen.link.connect(taken.data)
        except ChannelError as error:
            chosen.link.close()
            self._log_fallback(error.message)
            return None, True
        return chosen, False

    def close(self) -> None:
        """Close the links that were not chosen."""
        for chosen in self._opened.values():
            chosen.link.close()
        self._opened.clear()

    def _explain(self, answers: Sequence[LinkOffer]) -> None:
        reasons = {answer.transport: answer.refusal for answer in answers}
        for name in self._opened:
            refusal = reasons.get(name) or "it is older and knows no payload links"
            self._log_fallback(f"the worker cannot take up {name}: {refusal[:_MAX_SHOWN]}")

    def _log_fallback(self, reason: str) -> None:
        _log.warning("payloads to %s travel inside the fabric: %s", self._endpoint, reason)


def offer_records(offers: Sequence[LinkOffer]) -> list[list[Any]]:
    """Return offers or answers in the form of HELLO's `links`."""
    return [[offer.transport, offer.data, offer.refusal] for offer in offers]


def read_offers(records: Sequence[Sequence[Any]]) -> list[LinkOffer]:
    """Read HELLO's `links`.

    Raises:
        RemoteProtocolError: one is malformed.
    """
    for record in records:
        if [type(part) for part in record[:3]] != [str, bytes, str]:
            raise RemoteProtocolError("a payload link in HELLO is a name, bytes and a text")
    return [LinkOffer(*record[:3]) for record in records[:_MAX_LINKS]]


def take_up(transports: Sequence[PayloadTransport], offers: Sequence[LinkOffer]) -> tuple[Chosen | None, LinkOffer]:
    """Connect a link to the first of a client's offers that this side has; return it, or None, and the answer."""
    by_name = {transport.name: transport for transport in transports}
    refusals: list[str] = []
    for offer in offers:
        transport = by_name.get(offer.transport)
        if transport is None:
            refusals.append(f"it was started with {', '.join(by_name) or 'none'}, not with {offer.transport[:40]}")
            continue
        try:
            link = _connected(transport, offer)
        except ChannelError as error:
            refusals.append(error.message)
            _log.warning("payloads of a client travel inside the fabric: %s", error.message)
            continue
        return Chosen(transport, link), LinkOffer(offer.transport, link.offer)
    first = offers[0].transport if offers else ""
    return None, LinkOffer(first, b"", "; ".join(refusals) or "the client offered none")


def _connected(transport: PayloadTransport, offer: LinkOffer) -> PayloadLink:
    link = transport.open_link()
    try:
        link.connect(offer.data)
    except BaseException:
        link.close()
        raise
    return link
