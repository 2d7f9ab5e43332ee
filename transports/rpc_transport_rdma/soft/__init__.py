"""A software model of RDMA verbs: the API of the PyPI package `ibverbs`, strict in every rule of the specification.

It is for tests, and for links between processes where no RDMA device is. What would hang or corrupt data on a real
device fails here too: queue depths are exact, buffers are read when they are transmitted, errors end a queue pair.

`SoftVerbs(options)` is a provider of its own; the names of this module are those of one with default options.
"""

from __future__ import annotations

from rpc_transport_rdma.soft.options import SoftOptions
from rpc_transport_rdma.soft.provider import SoftVerbs
from rpc_transport_rdma.soft.values import (
    SGE,
    WC,
    CompletionError,
    Gid,
    PortAttr,
    QPCap,
    QPInfo,
    QPInitAttr,
    RecvWR,
    SendWR,
    VerbsError,
    local_qp_info,
)
from rpc_transport_rdma.verbs import (
    MTU,
    AccessFlags,
    PortState,
    QPAttrMask,
    QPState,
    QPType,
    SendFlags,
    WCFlags,
    WCOpcode,
    WCStatus,
    WROpcode,
)

__all__ = [
    "MTU", "SGE", "WC", "AccessFlags", "CompletionError", "Gid", "PortAttr", "PortState", "QPAttrMask", "QPCap",
    "QPInfo", "QPInitAttr", "QPState", "QPType", "RecvWR", "SendFlags", "SendWR", "SoftOptions", "SoftVerbs",
    "VerbsError", "WCFlags", "WCOpcode", "WCStatus", "WROpcode", "alloc", "get_device_list", "local_qp_info",
]  # fmt: skip

_PROVIDER = SoftVerbs()
get_device_list = _PROVIDER.get_device_list
alloc = _PROVIDER.alloc
