"""Which kernels the operations beside products, copies and plain attention become."""

from __future__ import annotations

import numpy as np
import pytest

from rpc_backend.graph import Interpolation, Pool, Tensor, Triangle, build, build_images, element_type
from rpc_backend.graph.element_types import F16, F32, I32
from rpc_backend.graph.ops import RopeMode
from rpc_backend.interfaces import HostBuffer
from rpc_backend.testing.devices import NullDevice
from rpc_backend_numba.builder import PlanBuilder
from rpc_backend_numba.lowering import LOWERINGS
from rpc_backend_numba.lowering.attention import rope_frequencies, rope_sections

BUFFER = HostBuffer(NullDevice(), 1 << 24)


def leaf(kind, *ne: int) -> Tensor:
    tensor = build.leaf(kind, ne)
    tensor.buffer = BUFFER
    return tensor


def rows_of(node: Tensor):
    node.buffer, node.offset = BUFFER, 1 << 23
    builder = PlanBuilder(16)
    assert node.op is not None
    assert LOWERINGS[node.op.name].supports(node)
    LOWERINGS[node.op.name].emit(builder, node)
    return builder.rows


def kernels(node: Tensor) -> list[list[str]]:
    return [row.codes for row in rows_of(node)]


def test_sinks_are_read_though_they_have_no_place_among_the_tensors():
    q, k = leaf(F32, 32, 3, 4), leaf(F16, 32, 8, 4)
    (row,) = rows_of(build.flash_attn_ext(q, k, k, leaf(F16, 8, 3), 1.0, 0.0, 0.0, leaf(F32, 4)))
    assert len(row.operands) == 5
    assert row.reads[-1].nbytes == 16


def test_values_in_half_precision_are_decoded_before_rows_are_set():
    node = build.set_rows(leaf(element_type("Q8_0"), 32, 8), leaf(F16, 32, 2), leaf(element_type("I64"), 2))
    assert kernels(node) == [["set_rows", "from_float.Q8_0", "to_float.F16"]]


def test_a_quantised_tensor_of_another_shape_is_copied_byte_by_byte():
    moved = build.permute(leaf(element_type("Q8_0"), 64, 6, 4), 0, 2, 1, 3)
    (row,) = rows_of(build.cont(moved, (128, 12)))
    assert (row.kernel, row.params[0], row.operands[0].ne) == ("copy.same", 1, (136, 12, 1, 1))


def test_padding_is_zeros_and_a_window():
    node = build.pad(leaf(F32, 5, 3), (1, 0, 0, 0), (2, 1, 0, 0))
    fill, copy = rows_of(node)
    assert (fill.kernel, copy.kernel) == ("fill", "copy.same")
    assert copy.operands[0].address == fill.operands[0].address + 8 + node.nb[1]
    assert copy.operands[0].ne == (5, 3, 1, 1)


def test_circular_padding_wraps():
    assert kernels(build.pad(leaf(F32, 5, 3), (2, 1, 0, 0), (1, 0, 0, 0), circular=True)) == [["wrap"]]


def test_adding_to_a_window_copies_the_rest_first():
    a = leaf(F32, 8, 4)
    node = build.overwrite(a, leaf(F32, 2, 2), a.nb[1:], 8, add=True)
    assert kernels(node) == [["copy.same"], ["binary.ADD"]]


def test_a_result_that_lies_on_its_source_is_not_copied():
    a = leaf(F32, 8, 4)
    node = build.overwrite(a, leaf(F32, 2, 2), a.nb[1:], 8, add=False)
    node.buffer, node.offset = a.buffer, a.offset
    builder = PlanBuilder(16)
    LOWERINGS["SET"].emit(builder, node)
    assert [row.kernel for row in builder.rows] == ["copy.same"]
    assert builder.rows[0].operands[0].ne == (2, 2, 1, 1)


@pytest.mark.parametrize(
    ("triangle", "bounds"),
    [
        (Triangle.UPPER_DIAGONAL, (0, 99)),
        (Triangle.UPPER, (1, 99)),
        (Triangle.LOWER_DIAGONAL, (-99, 0)),
        (Triangle.LOWER, (-99, -1)),
    ],
)
def test_triangles_are_bands(triangle, bounds):
    (row,) = rows_of(build.tri(leaf(F32, 9, 9), triangle))
    assert tuple(np.clip(row.params[:2], -99, 99)) == bounds


def test_delta_nets_need_packed_rows():
    wide = leaf(F32, 32, 2, 3, 1)
    spaced = build.view(wide, (16, 2, 3, 1), (8, *wide.nb[1:]))
    packed, state = leaf(F32, 16, 2, 3, 1), leaf(F32, 16, 16, 2, 1)
    one = leaf(F32, 1, 2, 3, 1)
    supports = LOWERINGS["GATED_DELTA_NET"].supports
    assert supports(build.gated_delta_net(packed, packed, packed, one, one, state, 1))
    assert not supports(build.gated_delta_net(packed, packed, spaced, one, one, state, 1))


def test_positions_of_interleaved_sections_take_turns():
    sections = {f"section{index}": size for index, size in enumerate((2, 2, 2, 0))}
    streams, exponents = rope_sections(RopeMode.IMROPE, 8, sections)
    assert streams.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert exponents.tolist() == list(range(8))


def test_sections_of_vision_begin_their_frequencies_anew():
    sections = {f"section{index}": size for index, size in enumerate((2, 2, 0, 0))}
    streams, exponents = rope_sections(RopeMode.VISION, 4, sections)
    assert (streams.tolist(), exponents.tolist()) == ([0, 0, 1, 1], [0, 1, 0, 1])
    params = {"n_dims": 4, "freq_base": 100.0, "ext_factor": 0.0, "attn_factor": 1.0}
    assert rope_frequencies(params, exponents)[0].tolist() == pytest.approx([1.0, 0.1, 1.0, 0.1])


def test_positions_with_sections_share_angles_only_among_themselves():
    x, positions = leaf(F32, 16, 2, 3), leaf(I32, 12)
    builder = PlanBuilder(16)
    for mode in (RopeMode.MROPE, RopeMode.IMROPE, RopeMode.MROPE):
        node = build.rope(x, positions, None, n_dims=16, mode=mode, sections=(4, 2, 2, 0))
        node.buffer, node.offset = BUFFER, 1 << 23
        LOWERINGS["ROPE"].emit(builder, node)
    assert [row.kernel for row in builder.rows] == ["angles", "rope.NEOX", "angles", "rope.NEOX", "rope.NEOX"]


def test_a_scan_reads_what_has_no_place_among_the_tensors():
    x, b = leaf(F32, 8, 4, 3, 2), leaf(F32, 16, 2, 3, 2)
    states, step, decay, ids = leaf(F32, 16, 8, 4, 5), leaf(F32, 4, 3, 2), leaf(F32, 1, 4), leaf(I32, 2)
    (row,) = rows_of(build.ssm_scan(states, x, step, decay, b, b, ids, 2))
    assert (row.kernel, len(row.operands), len(row.reads)) == ("ssm_scan", 5, 7)
    assert row.params[1::2] == [5, 1, 4]  # states, decays per head, bytes between ids
    assert row.params[-1] == 2


@pytest.mark.parametrize("version", [6, 7])
def test_states_of_rwkv_must_lie_packed(version):
    one, state = leaf(F32, 16, 2, 3), leaf(F32, 512, 1)
    spread = build.view(leaf(F32, 600, 2), (512, 2), (4, 2400, 4800, 4800))
    make = {
        6: lambda state: build.rwkv_wkv6(one, one, one, leaf(F32, 16, 2), one, state),
        7: lambda state: build.rwkv_wkv7(one, one, one, one, one, one, state),
    }[version]
    (row,) = rows_of(make(state))
    assert row.kernel == f"rwkv_wkv{version}"
    one = leaf(F32, 16, 2, 4)  # tokens for both streams
    node = make(spread)
    assert node.op is not None
    assert not LOWERINGS[node.op.name].supports(node)


def test_a_sound_is_a_flat_image():
    kernel, sound = leaf(F32, 3, 4), leaf(F32, 9, 4, 2)
    (patches,) = rows_of(build_images.im2col(kernel, sound, (1,), (0,), (1,)))
    assert (patches.kernel, patches.operands[0].ne) == ("patches", (12, 7, 1, 2))
    (spread,) = rows_of(build_images.conv_transpose_1d(leaf(F32, 3, 5, 4), leaf(F32, 9, 4), 2))
    assert [operand.ne for operand in spread.operands] == [(19, 1, 5, 1), (9, 1, 4, 1), (3, 1, 5, 4)]
    (pool,) = rows_of(build_images.pool(sound, Pool.MEAN, (2,), (3,), (1,)))
    assert pool.params == [2, 1, 3, 1, 1, 0, 1, 0]


def test_mirrored_rows_and_larger_images_are_tables_for_one_kernel():
    nodes = [build_images.pad_reflect_1d(leaf(F32, 9, 4), 2, 3)]
    nodes += [build_images.upscale(leaf(F32, 9, 4), (18, 8, 1, 1), kind) for kind in Interpolation]
    for node, taps in zip(nodes, (1, 1, 2, 4), strict=True):
        (row,) = rows_of(node)
        assert (row.kernel, row.params[2]) == ("resample", taps)


def test_positions_of_pairs_are_a_view_that_goes_backwards():
    (row,) = rows_of(build_images.get_rel_pos(leaf(F16, 8, 7)))
    assert (row.kernel, row.operands[1].nb) == ("copy.same", (2, -16, 16, 0))
    w = leaf(F32, 3, 4, 2)
    assert [row.kernel for row in rows_of(build_images.add_rel_pos(leaf(F32, 9, 8), w, w))] == ["binary.ADD"] * 2


def test_streams_are_mixed_by_one_kernel_each_and_scores_need_float_keys():
    x, post = leaf(F32, 32, 4, 3), leaf(F32, 4, 3)
    (row,) = rows_of(build.build("DSV4_HC_PRE", [x, post], {"scale": 2.0}))
    assert (row.kernel, row.params) == ("hc_pre", [2.0, 0])
    (row,) = rows_of(build.build("DSV4_HC_POST", [leaf(F32, 32, 3), x, post]))
    assert (row.kernel, len(row.operands)) == ("hc_post", 4)
    for kind, is_taken in ((F16, True), (element_type("Q8_0"), False)):
        others = leaf(F32, 2, 3), leaf(F16, 9, 3)
        node = build.build("LIGHTNING_INDEXER", [leaf(F32, 32, 2, 3), leaf(kind, 32, 1, 9), *others])
        assert LOWERINGS["LIGHTNING_INDEXER"].supports(node) is is_taken
