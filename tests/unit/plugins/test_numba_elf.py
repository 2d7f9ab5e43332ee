"""Object files as images of memory."""

from __future__ import annotations

import struct
import sys

import pytest

from rpc_backend_numba import targets
from rpc_backend_numba.compile import compile_function
from rpc_backend_numba.elf import UnknownFormError, read_image
from rpc_backend_numba.kernels.rope import make_angles
from rpc_backend_numba.simd.layer import Layer
from rpc_backend_numba.targets import choose_target, create_machine

pytestmark = pytest.mark.skipif(
    not (targets.is_x86() and sys.platform == "linux"), reason="object files of kernels are ELF for x86 on it alone"
)


@pytest.fixture(scope="module")
def compiled() -> tuple[str, bytes]:
    """A kernel with constants that calls a function of the C library."""
    target = choose_target()
    return compile_function(make_angles(Layer(target)), 3, create_machine(target))


def test_what_a_kernel_calls_and_where_its_constants_are(compiled: tuple[str, bytes]) -> None:
    image = read_image(*compiled)

    assert {fixup.symbol for fixup in image.fixups} == {"sincos", ""}
    assert 0 <= image.entry < len(image.content)
    for fixup in image.fixups:
        assert 0 <= fixup.offset <= len(image.content) - 8
        assert fixup.symbol or 0 <= fixup.addend < len(image.content)


def test_a_function_that_is_not_in_it(compiled: tuple[str, bytes]) -> None:
    for name in ("sincos", "nothing"):
        with pytest.raises(UnknownFormError, match=f"{name} is not a function"):
            read_image(name, compiled[1])


def test_a_file_that_was_cut_short_is_refused_or_read_whole(compiled: tuple[str, bytes]) -> None:
    symbol, data = compiled
    whole = read_image(symbol, data)
    for nbytes in range(0, len(data), 97):
        try:
            assert read_image(symbol, data[:nbytes]) == whole
        except UnknownFormError:
            continue
    for nbytes in (0, 16, 64, len(data) // 2):
        with pytest.raises(UnknownFormError):
            read_image(symbol, data[:nbytes])


def _sections(data: bytes | bytearray) -> list[tuple[int, tuple[int, ...]]]:
    start, count = struct.unpack_from("<Q", data, 0x28)[0], struct.unpack_from("<H", data, 0x3C)[0]
    return [(start + 64 * index, struct.unpack_from("<IIQQQQIIQQ", data, start + 64 * index)) for index in range(count)]


def _of_another_machine(data: bytearray) -> None:
    data[18:20] = struct.pack("<H", 183)


def _with_variables(data: bytearray) -> None:
    place = next(place for place, section in _sections(data) if section[1] == 1 and section[2] & 2 and section[5])
    data[place + 8] |= 1


def _with_zeroed_memory(data: bytearray) -> None:
    place = next(place for place, section in _sections(data) if section[1] == 1 and section[2] & 2 and section[5])
    data[place + 4 : place + 8] = struct.pack("<I", 8)


def _with_another_relocation(data: bytearray) -> None:
    kept = {index for index, (_, section) in enumerate(_sections(data)) if section[2] & 4}
    offset = next(section[4] for _, section in _sections(data) if section[1] == 4 and section[7] in kept)
    data[offset + 8 : offset + 12] = struct.pack("<I", 2)


OTHERS = [_of_another_machine, _with_variables, _with_zeroed_memory, _with_another_relocation]


@pytest.mark.parametrize("change", OTHERS)
def test_other_forms_are_refused(compiled: tuple[str, bytes], change) -> None:
    data = bytearray(compiled[1])
    change(data)
    with pytest.raises(UnknownFormError):
        read_image(compiled[0], bytes(data))
