"""ROUTER and DEALER sockets, each served by one I/O thread. The only importer of zmq."""

from rpc_backend.fabric.client_channel import ClientChannel, connect
from rpc_backend.fabric.listener import WorkerListener, listen
from rpc_backend.fabric.offers import offer_records, read_offers
from rpc_backend.fabric.options import FabricOptions

__all__ = ["ClientChannel", "FabricOptions", "WorkerListener", "connect", "listen", "offer_records", "read_offers"]
