"""Options, the choice of device and address, and what is said when a part is missing."""

import errno
import gc
from types import SimpleNamespace

import pytest

from rpc_backend.plugin_api import ConfigError, PluginLoadError
from rpc_transport_rdma import device as module
from rpc_transport_rdma.device import Adapter, GidEntry, choose_gid, missing_part, open_adapter, read_gids
from rpc_transport_rdma.options import RdmaOptions, parse
from rpc_transport_rdma.transport import create
from rpc_transport_rdma.verbs import PortState

V4 = bytes(10) + b"\xff\xff\x0a\0\0\1"
GLOBAL = b"\x20\x01" + bytes(13) + b"\1"
LOCAL = b"\xfe\x80" + bytes(13) + b"\1"


class VerbsError(OSError):
    pass


class Context:
    def __init__(self, gids=(V4,), state=PortState.ACTIVE):
        self.gids, self.state, self.closed = list(gids), state, False

    def query_port(self, port):
        return SimpleNamespace(state=self.state, gid_tbl_len=len(self.gids), active_mtu=3, lid=0)

    def query_gid(self, port, index):
        if self.gids[index] is None:
            raise VerbsError(errno.ENODATA, "empty")
        return SimpleNamespace(raw=self.gids[index])

    def alloc_pd(self):
        return "domain"

    def close(self):
        self.closed = True


def provider(monkeypatch, *devices, error=None):
    def get_device_list():
        if error:
            raise error
        return [SimpleNamespace(name=name, open=lambda context=context: context) for name, context in devices]

    verbs = SimpleNamespace(get_device_list=get_device_list, VerbsError=VerbsError)
    monkeypatch.setattr(module, "load_provider", lambda name, options=None: verbs)


def test_options():
    assert parse({}) == RdmaOptions()
    asked = parse({"provider": "soft", "device": "d", "port": "2", "gid": "3", "carrier": "stream"})
    assert asked == RdmaOptions("soft", "d", 2, 3, {"carrier": "stream"})


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"provider": "hard"}, "verbs or soft"),
        ({"carrier": "ring"}, "unknown option 'carrier'"),
        ({"port": "x"}, "port is a number"),
        ({"gid": "-1"}, "gid is a number"),
        ({"gid": "256"}, "0 to 255"),
    ],
)
def test_mistakes_in_options(texts, words):
    with pytest.raises(ConfigError, match=words):
        parse(texts)


@pytest.mark.parametrize("texts", [{"nonsense": "1"}, {"carrier": "pigeon"}])
def test_mistakes_in_options_of_the_model(texts):
    with pytest.raises(ConfigError, match="rdma"):
        create({"provider": "soft", **texts})


def test_the_model_has_a_name_of_its_own():
    assert create({"provider": "soft"}).name == "rdma-soft"


def test_a_missing_package_is_named(monkeypatch):
    def load(name, options=None):
        raise ImportError("No module named 'ibverbs'")

    monkeypatch.setattr(module, "load_provider", load)
    assert "package ibverbs is missing" in missing_part()
    with pytest.raises(PluginLoadError, match=r"No module named.*pip install"):
        open_adapter(RdmaOptions())


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (VerbsError(errno.ENOSYS, "Function not implemented"), "kernel has no RDMA support"),
        (VerbsError(errno.EACCES, "Permission denied"), "cannot be listed.*Permission denied"),
        (None, "no RDMA device"),
    ],
)
def test_a_missing_kernel_part_or_device_is_named(monkeypatch, error, words):
    provider(monkeypatch, error=error)
    with pytest.raises(PluginLoadError, match=words):
        open_adapter(RdmaOptions())
    assert missing_part()


def test_a_device_that_is_not_there_is_named(monkeypatch):
    provider(monkeypatch, ("mlx5_0", Context()))
    assert missing_part() == ""
    with pytest.raises(PluginLoadError, match="no RDMA device rxe7: there is mlx5_0"):
        open_adapter(RdmaOptions(device="rxe7"))


def test_the_first_device_with_an_active_port_is_taken(monkeypatch):
    down, up = Context(state=PortState.DOWN), Context()
    provider(monkeypatch, ("a", down), ("b", up))
    adapter = open_adapter(RdmaOptions())
    assert (adapter.name, adapter.context, adapter.gid_index) == ("b", up, 0)
    assert down.closed
    assert not up.closed


def test_ports_that_cannot_be_used_are_all_named(monkeypatch):
    contexts = Context(state=PortState.DOWN), Context(gids=[None, bytes(16)])
    provider(monkeypatch, ("a", contexts[0]), ("b", contexts[1]))
    with pytest.raises(PluginLoadError, match=r"a: port 1 is not active; b: its port has no address"):
        open_adapter(RdmaOptions())
    assert all(context.closed for context in contexts)


def test_a_device_is_closed_with_the_last_that_uses_it(monkeypatch):
    context = Context()
    context.alloc_pd = lambda: SimpleNamespace(close=lambda: closed.append("domain"))
    closed = []
    context.close = lambda: closed.append("context")
    provider(monkeypatch, ("dev0", context))
    transport = create({})
    itself = [transport]
    itself.append(itself)  # in a cycle, as an exception's frames can make one
    del transport, itself
    gc.collect()
    assert closed == ["domain", "context"]


def test_closing_a_device_that_is_in_use_is_no_error():
    def busy():
        raise VerbsError(errno.EBUSY, "in use")

    part = SimpleNamespace(close=busy)
    Adapter(None, "dev0", part, part, 1, None, 0, None).close()


def test_addresses_come_with_the_kinds_that_the_kernel_tells(tmp_path):
    types = tmp_path / "dev0" / "ports" / "1" / "gid_attrs" / "types"
    types.mkdir(parents=True)
    (types / "0").write_text("IB/RoCE v1\n")
    (types / "2").write_text("RoCE v2\n")
    found = read_gids(Context(gids=[V4, None, V4, bytes(16), LOCAL]), "dev0", 1, tmp_path)
    assert found == [GidEntry(0, V4, "IB/RoCE v1"), GidEntry(2, V4, "RoCE v2"), GidEntry(4, LOCAL, "")]


@pytest.mark.parametrize(
    ("entries", "chosen"),
    [
        ([(V4, "IB/RoCE v1"), (V4, "RoCE v2")], 1),
        ([(LOCAL, "RoCE v2"), (V4, "IB/RoCE v1")], 0),
        ([(LOCAL, "RoCE v2"), (GLOBAL, "RoCE v2"), (V4, "RoCE v2")], 2),
        ([(LOCAL, "RoCE v2"), (GLOBAL, "RoCE v2")], 1),
        ([(LOCAL, "")], 0),
    ],
)
def test_the_choice_of_an_address(entries, chosen):
    assert choose_gid([GidEntry(index, raw, kind) for index, (raw, kind) in enumerate(entries)]) == chosen
