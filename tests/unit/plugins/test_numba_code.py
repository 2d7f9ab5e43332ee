"""Machine code in memory."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import types

from rpc_backend_numba import code, targets
from rpc_backend_numba.cache import KernelCache
from rpc_backend_numba.code import CodeLoader, as_callable
from rpc_backend_numba.compile import compile_function
from rpc_backend_numba.elf import Fixup, Image, UnknownFormError
from rpc_backend_numba.simd import store
from rpc_backend_numba.targets import choose_target

_F32 = types.float32

needs_elf = pytest.mark.skipif(
    not (targets.is_x86() and sys.platform == "linux"), reason="LLVM loads all kernels elsewhere"
)


@pytest.fixture(scope="module")
def compiled() -> tuple[str, bytes]:
    """`put(x, place)` stores x * 0.1 + 7, which takes constants from memory."""

    def put(x, place):
        store(place, _F32(_F32(x) * _F32(0.1) + _F32(7)))

    return compile_function(put, 2, CodeLoader(choose_target()).machine)


def _put(loader: CodeLoader, compiled: tuple[str, bytes], x: int) -> float:
    out = np.zeros(1, np.float32)
    as_callable(loader.load(*compiled), 2)(x, out.ctypes.data)
    return float(out[0])


def test_code_runs_as_often_as_it_is_loaded(compiled: tuple[str, bytes]) -> None:
    loader = CodeLoader(choose_target())
    assert [_put(loader, compiled, x) for x in (0, 10)] == [7.0, 8.0]


@needs_elf
def test_llvm_is_not_needed(compiled: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CodeLoader, "_load_by_llvm", lambda *_: pytest.fail("LLVM was asked"))
    assert _put(CodeLoader(choose_target()), compiled, 20) == 9.0


@needs_elf
@pytest.mark.parametrize("reason", [UnknownFormError("of another form"), OSError("may not run")])
def test_what_is_refused_is_left_to_llvm(
    compiled: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch, reason: Exception
) -> None:
    def refuse(*_: object) -> int:
        raise reason

    monkeypatch.setattr(CodeLoader, "_place", refuse)
    assert _put(CodeLoader(choose_target()), compiled, 10) == 8.0


@needs_elf
def test_memory_that_may_not_run_is_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "_READ_AND_RUN", -1)
    with pytest.raises(OSError, match="may not be made to run"):
        CodeLoader(choose_target())._place(Image(b"\xc3", 0, ()))


@needs_elf
def test_a_function_that_no_library_has_is_refused() -> None:
    with pytest.raises(UnknownFormError, match="no_such_function is not in this process"):
        CodeLoader(choose_target())._place(Image(bytes(8), 0, (Fixup(0, "no_such_function", 0),)))


@needs_elf
def test_the_code_goes_with_its_loader() -> None:
    def n_executable() -> int:
        return sum(" r-xp 00000000 00:00 0" in line for line in Path("/proc/self/maps").read_text().splitlines())

    gc.collect()
    loader, before = CodeLoader(choose_target()), n_executable()
    address = loader._place(Image(b"\xc3" * (1 << 20), 0, ()))
    assert any(line.startswith(f"{address:x}-") for line in Path("/proc/self/maps").read_text().splitlines())
    del loader
    gc.collect()
    assert n_executable() <= before


@needs_elf
def test_a_process_with_compiled_kernels_never_loads_llvm(tmp_path: Path, compiled: tuple[str, bytes]) -> None:
    KernelCache(tmp_path).write("run", *compiled)
    program = (
        "import sys; from pathlib import Path\n"
        "from rpc_backend_numba.cache import KernelCache; from rpc_backend_numba.library import KernelLibrary\n"
        "from rpc_backend_numba.targets import Target\n"
        "target = Target('avx2', 8, 'vnni', True, 'pshufb', 'znver4', '')\n"
        f"KernelLibrary(target, KernelCache(Path({str(tmp_path)!r}))).addresses(['run'])\n"
        "sys.exit('llvmlite' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
