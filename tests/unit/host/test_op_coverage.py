"""The table of operations by devices."""

from __future__ import annotations

from rpc_backend.graph import OPS, Tensor, Unary
from rpc_backend.host.op_coverage import op_coverage
from rpc_backend_reference.device import ReferenceDevice


class _Poor(ReferenceDevice):
    """Takes products, and of the functions one."""

    def supports_op(self, tensor: Tensor) -> bool:
        assert tensor.op is not None
        return tensor.op.name == "MUL_MAT" or (tensor.op.name == "UNARY" and tensor.params["function"] == Unary.SILU)


def test_all_some_or_none():
    table = op_coverage([ReferenceDevice(), _Poor()])
    assert list(table) == list(OPS)
    assert {str(full) for full, _ in table.values()} == {"yes"}
    assert (str(table["MUL_MAT"][1]), str(table["ADD"][1])) == ("yes", "no")
    assert str(table["UNARY"][1]) == f"1 of {len(Unary)}"
    assert "SILU" not in table["UNARY"][1].lacking
    assert "TANH" in table["UNARY"][1].lacking
