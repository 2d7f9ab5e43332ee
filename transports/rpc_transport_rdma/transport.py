"""The transport as the core sees it: it makes links on one device.

Belongs here: the join of options, device and links. Must not be here: what a link does.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from rpc_backend.plugin_api import PayloadLink, PayloadTransport
from rpc_transport_rdma.device import Adapter, open_adapter
from rpc_transport_rdma.link import RdmaLink
from rpc_transport_rdma.options import SOFT, parse


class RdmaPayloads(PayloadTransport):
    """Links over one open device. `name` tells the software model from real devices: they cannot meet."""

    def __init__(self, adapter: Adapter, name: str) -> None:
        super().__init__()
        self.name = name
        self._adapter = adapter
        # Not left to the garbage collector: in a cycle it clears the references between the package's objects before
        # it frees them, and their destructors then crash. The finalizer holds them until it has closed them.
        weakref.finalize(self, adapter.close)

    def open_link(self) -> PayloadLink:
        return RdmaLink(self._adapter, owner=self)


def create(texts: Mapping[str, str]) -> RdmaPayloads:
    """Open the device that was asked for.

    Raises:
        ConfigError: an option that is not known, or a value that does not fit.
        PluginLoadError: a part is missing here; the message says which.
    """
    options = parse(texts)
    return RdmaPayloads(open_adapter(options), "rdma-soft" if options.provider == SOFT else "rdma")
