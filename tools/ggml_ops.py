"""Runs the cases of the backend suite on ggml's own CPU kernels and compares the reference backend with them.

Belongs here: ggml's tensors as ctypes records, and one verdict per case. Must not be here: which cases there are, or
limits (tests/interop/test_ops.py).

Usage: python tools/ggml_ops.py LIBRARY_FOLDER
Prints one JSON line per case: its id, and the error in the unit of its measure, or why there is none. A process of
its own runs them, since ggml ends it where it does not take a case; another goes on behind that one.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from rpc_backend.graph import Tensor
from rpc_backend.testing.backend_suite import Case, cases
from rpc_backend.testing.backend_suite.runner import Trial, reference_device
from rpc_backend.testing.backend_suite.values import cells, difference, numbers

_ALIGNMENT = 64
_CONTEXT_NBYTES = 256 << 20
_GRAPH_NODES = 256
_FLAG_COMPUTE = 16
_ROUND = 1
_CASE_LIMIT_S = 30


class GgmlTensor(ctypes.Structure):
    """`ggml_tensor` of ggml.h."""


GgmlTensor._fields_ = [
    ("type", ctypes.c_int32), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4), ("nb", ctypes.c_size_t * 4),
    ("op", ctypes.c_int32), ("op_params", ctypes.c_byte * 64), ("flags", ctypes.c_int32), ("src", ctypes.c_void_p * 10),
    ("view_src", ctypes.c_void_p), ("view_offs", ctypes.c_size_t), ("data", ctypes.c_void_p),
    ("name", ctypes.c_char * 64), ("extra", ctypes.c_void_p), ("padding", ctypes.c_byte * 8),
]  # fmt: skip


class InitParams(ctypes.Structure):
    """`ggml_init_params` of ggml.h."""


InitParams._fields_ = [
    ("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool),
]  # fmt: skip


class Ggml:
    """The functions that are used, with their types."""

    def __init__(self, folder: Path) -> None:
        base, cpu = (
            ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL) for name in ("libggml-base.so", "libggml-cpu.so")
        )
        pointer = ctypes.c_void_p
        self.init = _typed(base.ggml_init, pointer, InitParams)
        self.free = _typed(base.ggml_free, None, pointer)
        self.new_graph = _typed(base.ggml_new_graph_custom, pointer, pointer, ctypes.c_size_t, ctypes.c_bool)
        self.add_node = _typed(base.ggml_graph_add_node, None, pointer, pointer)
        self.compute = _typed(cpu.ggml_graph_compute_with_ctx, ctypes.c_int, pointer, pointer, ctypes.c_int)
        cpu.ggml_cpu_init()


def _typed(function: Any, result: Any, *arguments: Any) -> Any:
    function.restype, function.argtypes = result, arguments
    return function


def main(arguments: Sequence[str]) -> int:
    """Run all cases; return the exit status."""
    ggml, listed = Ggml(Path(arguments[0])), cases()
    at = mmap.mmap(-1, 8)  # the number of the case under way, shared with the process that runs it
    while _number(at) < len(listed):
        sys.stdout.flush()
        process = os.fork()
        if not process:
            _run_rest(ggml, listed, at)
        _, status = os.waitpid(process, 0)
        if os.WIFSIGNALED(status):
            _say(id=listed[_number(at)].id, refused=f"signal {os.WTERMSIG(status)}")
            _advance(at)
    return 0


def _number(at: mmap.mmap) -> int:
    return int.from_bytes(at[:8], "little")


def _advance(at: mmap.mmap) -> None:
    at[:8] = (_number(at) + 1).to_bytes(8, "little")


def _run_rest(ggml: Ggml, listed: Sequence[Case], at: mmap.mmap) -> NoReturn:
    """Say what came of each case from the one under way on, and end this process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while _number(at) < len(listed):
        case = listed[_number(at)]
        signal.alarm(_CASE_LIMIT_S)
        try:
            _say(**compare(ggml, case))
        except Exception as error:
            _say(id=case.id, failed=f"{type(error).__name__}: {error}")
        _advance(at)
    os._exit(0)


def _say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def compare(ggml: Ggml, case: Case) -> dict[str, Any]:
    """Return the error between the reference and ggml, in the unit of the case's measure."""
    with Trial(reference_device(), case) as right:
        right.write(0)  # weights are written in the first round only
        right.write(_ROUND)
        right.compute()
        expected = right.cells_of(right.output)
        source = None
        if case.measure == "order":
            source = numbers(right.output.sources[0].type, right.cells_of(right.output.sources[0]))
    ours, output = _run(ggml, case)
    measure = "nmse" if case.measure == "relative" else case.measure
    error = difference(measure, output.type, ours, expected, source)
    return {"id": case.id, "op": case.op, "error": error, "measure": measure, "tolerance": case.tolerance}


def _run(ggml: Ggml, case: Case) -> tuple[Any, Tensor]:
    """Compute a case with ggml: the cells of its output, and the output."""
    trial = Trial(reference_device(), case)
    graph = trial.graph
    tensors = graph.tensors()
    memory, addresses = _placed(tensors)
    for leaf in trial.leaves.made:
        if leaf.tensor in addresses:
            content = leaf.contents[_ROUND]
            ctypes.memmove(addresses[leaf.tensor], content, len(content))
    records = {tensor: GgmlTensor() for tensor in tensors}
    for tensor in tensors:
        _fill(records, addresses, tensor, computed=tensor in graph.nodes)
    context = ggml.init(InitParams(_CONTEXT_NBYTES, None, False))
    made = ggml.new_graph(context, _GRAPH_NODES, False)
    for node in graph.nodes:
        ggml.add_node(made, ctypes.addressof(records[node]))
    status = ggml.compute(context, made, 1)
    ggml.free(context)
    if status:
        raise RuntimeError(f"ggml answered {status}")
    output = trial.output
    raw = np.empty(output.nbytes, np.uint8)
    if raw.size:
        ctypes.memmove(raw.ctypes.data, records[output].data, raw.size)
    del memory
    return cells(output, raw), output


def _placed(tensors: Sequence[Tensor]) -> tuple[Any, dict[Tensor, int]]:
    """Give every tensor that is no view zeroed memory; return what keeps it, and the addresses."""
    roots = [tensor for tensor in tensors if tensor.view_src is None]
    memory = np.zeros(sum(tensor.nbytes + 2 * _ALIGNMENT for tensor in roots) + _ALIGNMENT, np.uint8)
    addresses, at = {}, memory.ctypes.data
    for tensor in roots:
        at = -(-at // _ALIGNMENT) * _ALIGNMENT
        addresses[tensor] = at
        at += tensor.nbytes + _ALIGNMENT
    return memory, addresses


def _fill(
    records: dict[Tensor, GgmlTensor], addresses: dict[Tensor, int], tensor: Tensor, *, computed: bool
) -> None:  # fmt: skip
    record: Any = records[tensor]
    record.type, record.ne, record.nb = tensor.type.code, tensor.ne, tensor.nb
    if tensor.view_src is None:
        record.data = addresses[tensor]
    else:
        record.view_src, record.view_offs = ctypes.addressof(records[tensor.view_src]), tensor.view_offs
        record.data = addresses[tensor.view_src] + tensor.view_offs
    if computed and tensor.op is not None:
        record.op, record.flags = tensor.op.code, _FLAG_COMPUTE
        ctypes.memmove(record.op_params, tensor.op_params, len(tensor.op_params))
        sources = [ctypes.addressof(records[source]) for source in tensor.sources]
        record.src[: len(sources)] = sources


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
