"""The op table: numbers of ggml, parameters in their slots, a digest."""

from __future__ import annotations

import struct

import pytest

from rpc_backend.errors import GraphError
from rpc_backend.graph.ops import OPS, op_of_code, op_table_digest, table

_GGML = {
    "DUP": 1, "ADD": 2, "SUB": 6, "MUL": 7, "DIV": 8, "RMS_NORM": 25, "MUL_MAT": 29, "SCALE": 32, "CPY": 34,
    "ADD_ID": 3, "SSM_CONV": 76, "GATED_DELTA_NET": 86, "PAD": 64, "MUL_MAT_ID": 30, "NORM": 24,
    "LOG": 11, "SUM_ROWS": 15, "CUMSUM": 16, "ARGMAX": 18, "CLAMP": 50, "ARGSORT": 69, "TOP_K": 70,
    "VIEW": 37, "GET_ROWS": 40, "SET_ROWS": 42, "SOFT_MAX": 46, "ROPE": 48, "FLASH_ATTN_EXT": 74, "GLU": 100,
}  # fmt: skip
_DESCRIBE_ONLY = {"RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"}


def test_numbers_are_those_of_ggml_and_unique():
    assert {name: OPS[name].code for name in _GGML} == _GGML
    assert len({op.code for op in OPS.values()}) == len(OPS)
    assert {op.name for op in OPS.values() if not op.moves_data} == _DESCRIBE_ONLY


def test_lookup_by_number():
    assert op_of_code(29) is OPS["MUL_MAT"]
    for unknown in (0, -1, 9999, 2**63):
        with pytest.raises(GraphError, match="unknown operation number"):
            op_of_code(unknown)


def test_parameters_lie_in_their_slots():
    raw = OPS["ROPE"].pack_params({"n_dims": 64, "mode": 2, "freq_base": 1e4, "beta_slow": 1.0})
    assert len(raw) == 64
    assert struct.unpack_from("<ii", raw, 4) == (64, 2)
    assert struct.unpack_from("<f", raw, 20) == (1e4,)
    assert struct.unpack_from("<f", raw, 40) == (1.0,)
    assert OPS["ROPE"].unpack_params(raw)["freq_base"] == 1e4
    assert OPS["ROPE"].unpack_params(raw)["ext_factor"] == 0.0


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_parameters_survive_packing(op):
    values = {param.name: 3 + i if param.kind == "i32" else 0.5 + i for i, param in enumerate(op.params)}

    assert op.unpack_params(op.pack_params(values)) == values
    assert len({param.slot for param in op.params}) == len(op.params)


def test_bad_parameters_are_refused():
    with pytest.raises(GraphError, match="SCALE has no parameter 'factor'; it has scale, bias"):
        OPS["SCALE"].pack_params({"factor": 1.0})
    for value in (2**31, -(2**31) - 1, 2**64, 1.5):
        with pytest.raises(GraphError, match="CONCAT: parameter dim"):
            OPS["CONCAT"].pack_params({"dim": value})
    with pytest.raises(GraphError, match="SCALE: parameter scale"):
        OPS["SCALE"].pack_params({"scale": 1e40})


def test_the_digest_changes_with_the_table(monkeypatch):
    before = op_table_digest()
    assert len(before) == 16
    assert op_table_digest() == before
    monkeypatch.setattr(table, "_ROWS", table._ROWS[1:])
    assert op_table_digest() != before
