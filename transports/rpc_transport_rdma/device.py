"""The RDMA device of this machine: which one, and under which address.

Belongs here: loading a provider, choosing device, port and GID, saying what is missing. Must not be here: connections.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpc_backend.plugin_api import ConfigError, PluginLoadError
from rpc_transport_rdma.options import RdmaOptions
from rpc_transport_rdma.verbs import PortState, Verbs, load_provider

INSTALL_HINT = "install it with pip install 'zmq-rpc-backend[rdma]' and the system library libibverbs1"
_SYSFS = Path("/sys/class/infiniband")
_V4_PREFIX = bytes(10) + b"\xff\xff"
_LINK_LOCAL = b"\xfe\x80"


@dataclass(frozen=True, slots=True)
class Adapter:
    """An open device with what every connection of it needs."""

    verbs: Verbs
    name: str
    context: Any
    domain: Any
    port: int
    port_attr: Any
    gid_index: int
    gid: Any

    def close(self) -> None:
        """Close the device. Never raises: what something still uses stays open."""
        for part in (self.domain, self.context):
            with suppress(OSError):  # in use by a link that was never closed, or the device is gone
                part.close()


def missing_part() -> str:
    """Say why RDMA cannot be used here, "" if it can; without side effects."""
    try:
        _list_devices(load_provider("verbs"))
    except ImportError as error:
        return _package_missing(error)
    except PluginLoadError as error:
        return error.message
    return ""


def open_adapter(options: RdmaOptions) -> Adapter:
    """Open the device that the options ask for.

    Raises:
        PluginLoadError: package, kernel support, device or active port is missing; the message says which.
        ConfigError: an option that the provider does not know.
    """
    try:
        verbs = load_provider(options.provider, options.extra)
    except ImportError as error:
        raise PluginLoadError(_package_missing(error)) from error
    except ValueError as error:
        raise ConfigError(f"rdma: {error}") from error
    reasons: list[str] = []
    for device in _list_devices(verbs, options.device):
        try:
            return _open(verbs, device, options)
        except (OSError, LookupError) as error:
            reasons.append(f"{device.name}: {error}")
    raise PluginLoadError(f"no RDMA device can be used: {'; '.join(reasons)}")


def _package_missing(error: ImportError) -> str:
    return f"the package ibverbs is missing or lacks its system library ({error}); {INSTALL_HINT}"


def _list_devices(verbs: Verbs, wanted: str = "") -> list[Any]:
    try:
        found = list(verbs.get_device_list())
    except verbs.VerbsError as error:
        if error.errno == errno.ENOSYS:
            raise PluginLoadError("the kernel has no RDMA support (module ib_uverbs is not loaded)") from error
        raise PluginLoadError(f"RDMA devices cannot be listed: {error}") from error
    chosen = [device for device in found if wanted in ("", device.name)]
    if not chosen:
        there = f"there is {', '.join(device.name for device in found)}" if found else "there is none"
        raise PluginLoadError(f"no RDMA device {wanted}: {there}" if wanted else "this machine has no RDMA device")
    return chosen


def _open(verbs: Verbs, device: Any, options: RdmaOptions) -> Adapter:
    context = device.open()
    try:
        port_attr = context.query_port(options.port)
        if port_attr.state != PortState.ACTIVE:
            raise LookupError(f"port {options.port} is not active")
        index = options.gid if options.gid >= 0 else choose_gid(read_gids(context, device.name, options.port))
        gid = context.query_gid(options.port, index)
        domain = context.alloc_pd()
    except BaseException:
        context.close()
        raise
    return Adapter(verbs, device.name, context, domain, options.port, port_attr, index, gid)


@dataclass(frozen=True, slots=True)
class GidEntry:
    """One address of a port; `kind` is the kernel's text such as `RoCE v2`, "" if unknown."""

    index: int
    raw: bytes
    kind: str


def read_gids(context: Any, device: str, port: int, sysfs: Path = _SYSFS) -> list[GidEntry]:
    """Return the addresses of a port; their kinds are read from the kernel's files, the package does not tell them."""
    entries = []
    for index in range(context.query_port(port).gid_tbl_len):
        try:
            raw = bytes(context.query_gid(port, index).raw)
        except OSError:
            continue  # an empty place of the table
        if any(raw):
            entries.append(GidEntry(index, raw, _kind(sysfs / device / "ports" / str(port) / "gid_attrs", index)))
    return entries


def choose_gid(entries: list[GidEntry]) -> int:
    """Return the index of the address to connect from: RoCE v2 before others, IPv4 before global before link-local.

    Raises:
        LookupError: the port has none.
    """
    if not entries:
        raise LookupError("its port has no address (GID); give its network interface an IP address")
    return min(entries, key=_rank).index


def _rank(entry: GidEntry) -> tuple[int, int, int]:
    reach = 0 if entry.raw.startswith(_V4_PREFIX) else 2 if entry.raw.startswith(_LINK_LOCAL) else 1
    return (0 if "v2" in entry.kind else 1, reach, entry.index)


def _kind(folder: Path, index: int) -> str:
    try:
        return (folder / "types" / str(index)).read_text().strip()
    except OSError:
        return ""  # the software model, or a place that the kernel does not show
