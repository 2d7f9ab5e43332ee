from __future__ import annotations

import pytest

from rpc_backend.errors import ConfigError, LimitError, OutOfMemoryError
from rpc_backend.interfaces import Memory
from rpc_backend.testing.devices import NullDevice
from rpc_backend.worker.memory import MemoryAccount


def test_the_cap_is_reported_exactly_as_the_total():
    account = MemoryAccount(NullDevice(total_nbytes=10_000), 3_000)
    account.reserve(1_000)
    assert account.memory() == Memory(2_000, 3_000)


def test_without_a_cap_the_device_is_the_limit():
    account = MemoryAccount(NullDevice(total_nbytes=10_000), None)
    account.reserve(10_000)
    with pytest.raises(OutOfMemoryError):
        account.reserve(1)


def test_what_is_only_retained_counts_as_free_but_cannot_be_reserved():
    account = MemoryAccount(NullDevice(total_nbytes=10_000), 3_000)
    account.reserve(2_000)
    account.retain(2_000)
    assert account.memory() == Memory(3_000, 3_000)
    with pytest.raises(OutOfMemoryError):
        account.reserve(1_001)
    account.release(2_000, retained=True)
    account.reserve(3_000)
    assert account.memory() == Memory(0, 3_000)


def test_free_is_no_more_than_what_the_device_has_left():
    device = NullDevice(total_nbytes=10_000)
    account = MemoryAccount(device, 8_000)
    device.used_nbytes = 9_000
    assert account.memory() == Memory(1_000, 8_000)


@pytest.mark.parametrize("cap", [-1, 10_001])
def test_a_cap_that_the_device_does_not_have_is_refused(cap):
    with pytest.raises(ConfigError, match=rf"{cap} bytes does not fit device null of 10000"):
        MemoryAccount(NullDevice(total_nbytes=10_000), cap)


@pytest.mark.parametrize(
    ("nbytes", "error", "text"),
    [
        (-1, LimitError, "cannot have -1 bytes"),
        (3_001, OutOfMemoryError, "3001 bytes does not fit device null: 3000 of 3000 are free"),
        (1 << 63, LimitError, "can address"),
        ((1 << 64) - 1, LimitError, "can address"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(nbytes, error, text):
    account = MemoryAccount(NullDevice(total_nbytes=10_000), 3_000)
    with pytest.raises(error, match=text):
        account.reserve(nbytes)
    assert account.memory() == Memory(3_000, 3_000)


def test_released_memory_is_free_again():
    account = MemoryAccount(NullDevice(total_nbytes=10_000), 3_000)
    account.reserve(3_000)
    account.reserve(0)
    account.release(3_000)
    assert account.memory().free_nbytes == 3_000
