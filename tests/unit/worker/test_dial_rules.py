"""Where a worker may connect to, by the text of an endpoint and by the addresses of a name."""

from __future__ import annotations

import pytest

from rpc_backend.errors import ConfigError, ConnectError, EndpointError
from rpc_backend.interfaces import Transport
from rpc_backend.protocol import parse_endpoint
from rpc_backend.worker import WorkerConfig
from rpc_backend.worker.dial_rules import DialRules, dial_checked, parse_allowed

HERE, EVERYWHERE = (parse_endpoint(text, listen=True) for text in ("tcp://127.0.0.1:1", "tcp://*:1"))


def rules(*listen, allow=None) -> DialRules:
    return DialRules(WorkerConfig(listen or (HERE,), peer_allow=allow))


@pytest.mark.parametrize("text", ["tcp://10.0.0.1:5", "tcp://[2001:db8::1]:5", "tcp://worker.lan:5", "tcp://8.8.8.8:5"])
def test_other_machines_may_be_connected_to(text):
    for chosen in (rules(), rules(EVERYWHERE)):
        assert chosen.why_not(parse_endpoint(text)) == ""


@pytest.mark.parametrize(
    "text",
    ["tcp://127.0.0.1:5", "tcp://127.9.9.9:5", "tcp://localhost:5", "tcp://[::1]:5", "ipc:///run/x",
     "tcp://[::ffff:127.0.0.1]:5"],
)  # fmt: skip
def test_this_machine_only_if_nobody_else_is_served(text):
    assert rules().why_not(parse_endpoint(text)) == ""
    for listen in [(EVERYWHERE,), (HERE, EVERYWHERE), (parse_endpoint("tcp://10.0.0.1:1"),)]:
        assert "on this machine" in rules(*listen).why_not(parse_endpoint(text))


@pytest.mark.parametrize(
    "text",
    ["tcp://169.254.169.254:80", "tcp://[fe80::1]:5", "tcp://224.0.0.1:5", "tcp://[ff02::1]:5", "tcp://0.0.0.0:5",
     "tcp://[::]:5", "tcp://255.255.255.255:5", "tcp://[::ffff:169.254.169.254]:80"],
)  # fmt: skip
def test_addresses_of_no_worker_are_not_connected_to(text):
    assert "no address of a worker" in rules().why_not(parse_endpoint(text))


def test_other_schemes_need_a_list():
    other = parse_endpoint("inproc://x")
    assert "without --peer-allow" in rules().why_not(other)
    assert rules(allow=(other,)).why_not(other) == ""


def test_a_list_is_all_there_is():
    allowed = rules(EVERYWHERE, allow=(parse_endpoint("tcp://127.0.0.1:5"),))
    assert allowed.why_not(parse_endpoint("tcp://127.0.0.1:5")) == ""
    for text in ("tcp://127.0.0.1:6", "tcp://10.0.0.1:5"):
        assert "list of --peer-allow" in allowed.why_not(parse_endpoint(text))


def test_the_list_as_it_is_written():
    assert parse_allowed([]) is None
    assert parse_allowed(["none"]) == ()
    assert parse_allowed(["tcp://A:1", "b:2"]) == (parse_endpoint("tcp://a:1"), parse_endpoint("tcp://b:2"))
    with pytest.raises(ConfigError, match="allows nobody"):
        parse_allowed(["none", "tcp://a:1"])
    with pytest.raises(EndpointError, match="'nothing'"):
        parse_allowed(["nothing"])


class Names(Transport):
    """Resolves every name to the same addresses."""

    name, schemes = "tcp", ("tcp",)

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses

    def listen_address(self, endpoint):
        raise NotImplementedError

    def connect_addresses(self, endpoint):
        return self.addresses


def dialled(names: Names, chosen: DialRules, *, fails=()) -> list[str]:
    tried = []

    def connect_to(place):
        tried.append(str(place))
        if str(place) in fails:
            raise ConnectError("nobody listens there")
        return "channel"

    assert dial_checked(parse_endpoint("tcp://worker.lan:5"), names, chosen, connect_to) == "channel"
    return tried


def test_what_a_name_stands_for_is_judged_before_anything_is_sent():
    names = Names("tcp://127.0.0.1:5", "tcp://169.254.169.254:5", "tcp://10.0.0.1:5")
    assert dialled(names, rules(EVERYWHERE)) == ["tcp://10.0.0.1:5"]
    tried = []
    for address in ("tcp://127.0.0.1:5", "tcp://[fe80::1]:5"):
        with pytest.raises(ConnectError, match=r"worker\.lan:5"):
            dial_checked(parse_endpoint("tcp://worker.lan:5"), Names(address), rules(EVERYWHERE), tried.append)
    assert tried == []


def test_the_next_address_is_tried():
    names = Names("tcp://10.0.0.1:5", "tcp://[2001:db8::1]:5")
    assert dialled(names, rules(), fails=("tcp://10.0.0.1:5",)) == ["tcp://10.0.0.1:5", "tcp://[2001:db8::1]:5"]


def test_a_list_allows_whatever_its_names_stand_for():
    name = parse_endpoint("tcp://worker.lan:5")
    assert dialled(Names("tcp://127.0.0.1:5"), rules(EVERYWHERE, allow=(name,))) == ["tcp://127.0.0.1:5"]
