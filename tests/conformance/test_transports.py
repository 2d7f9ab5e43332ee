"""The public transport suite over every registered transport; the RDMA one on what `--rdma-provider` says."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpc_backend.registry import load_registry
from rpc_backend.testing.transport_arena import Way
from rpc_backend.testing.transport_suite import CHECKS, inline_ways

LOCAL = "tcp://127.0.0.1:0"
MODES = {  # of the software model: each must be noticed by code that would not work on a device
    "stream": "carrier=stream",
    "between hosts": "address=127.0.0.1",
    "late transmit": "transmit_delay_s=0.002",
    "late receives": "receive_delay_s=0.002",
    "one completion at a time": "one_at_a_time=1",
    "memory for one send": "memlock_nbytes=6553600",
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("name", ["tcp", "ipc", "rdma"])
def test_transports(name: str, check, tmp_path: Path, rdma_transport: str) -> None:
    ways = {way.name: way for way in inline_ways(str(tmp_path))}
    check(ways[name] if name in ways else Way(name, LOCAL, rdma_transport))


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_the_software_model_in_its_harder_modes(mode: str, check) -> None:
    check(Way("rdma", LOCAL, f"rdma:provider=soft,{mode}"))


def test_no_registered_transport_is_left_out() -> None:
    registry = load_registry()
    schemes = {scheme for plugin in registry.transports.values() for scheme in plugin.schemes}
    assert schemes == {"tcp", "ipc"}
    assert set(registry.payloads) == {"rdma"}
