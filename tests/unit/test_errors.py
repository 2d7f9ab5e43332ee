"""The tree of errors and its codes on the wire."""

from __future__ import annotations

import inspect
import re

import pytest

from rpc_backend import errors
from rpc_backend.errors import (
    ComputeError,
    DeviceError,
    ErrorContext,
    RpcBackendError,
    UnsupportedOpError,
    error_class,
)

_CLASSES = [
    cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, RpcBackendError)
]  # fmt: skip


@pytest.mark.parametrize("cls", _CLASSES, ids=lambda cls: cls.__name__)
def test_every_class_has_a_code_of_its_own_and_comes_back_by_it(cls):
    assert "code" in vars(cls)
    assert error_class(cls.code) is cls


def test_the_drawn_tree_is_the_real_one():
    drawn = dict(re.findall(r"(\w+Error) \[(\d+)\]", errors.__doc__ or ""))

    assert drawn == {cls.__name__: str(cls.code) for cls in _CLASSES}


@pytest.mark.parametrize("code", [0, -1, 9999, 2**63])
def test_an_unknown_code_is_the_base_class(code):
    assert error_class(code) is RpcBackendError


def test_a_class_is_caught_as_its_parents():
    with pytest.raises(DeviceError):
        raise ComputeError("no")
    assert issubclass(UnsupportedOpError, errors.GraphError)


def test_the_text_says_where():
    error = ComputeError("row 9 of 4", context=ErrorContext(device="cpu", op="GET_ROWS", traceback="long"))

    assert str(error) == "row 9 of 4 (device cpu, op GET_ROWS)"
    assert str(ComputeError("row 9 of 4")) == "row 9 of 4"


def test_places_are_filled_in_once_by_whoever_knows_first():
    error = ComputeError("failed").located(op="ADD")

    assert error.located(op="MUL", worker="tcp://a:1") is error
    assert error.context == ErrorContext(op="ADD", worker="tcp://a:1")
    assert error.context.describe() == "worker tcp://a:1, op ADD"


def test_an_unknown_place_is_a_bug():
    with pytest.raises(TypeError):
        ComputeError("failed").located(planet="earth")
