"""Layer splits: the three requests, memory, and how a plan prints."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpc_backend.errors import OutOfMemoryError, SplitError
from rpc_backend.scheduler import DeviceMemory, LayerSplit, ModelSizes, SplitRequest, parse_split, plan_layers

MIB = 1 << 20
MODEL = ModelSizes((10 * MIB,) * 30, (2 * MIB,) * 30, input_nbytes=20 * MIB, output_nbytes=20 * MIB)


def devices(*free_mib: int, scratch_mib: int = 0) -> list[DeviceMemory]:
    return [DeviceMemory(f"w{index}", free * MIB, scratch_mib * MIB) for index, free in enumerate(free_mib)]


def counts(split: LayerSplit) -> list[int]:
    return [share.n_layers for share in split.shares]


def test_exact_counts_are_kept() -> None:
    split = plan_layers(MODEL, devices(1000, 1000, 1000), parse_split("layers:5,20,5"))
    assert split.layer_devices == (0,) * 5 + (1,) * 20 + (2,) * 5
    assert (split.input_device, split.output_device) == (0, 2)
    assert split.shares[0].weight_nbytes == 70 * MIB
    assert split.shares[1].weight_nbytes == 200 * MIB
    assert split.shares[2].weight_nbytes == 70 * MIB
    assert [share.kv_nbytes for share in split.shares] == [10 * MIB, 40 * MIB, 10 * MIB]


def test_input_and_output_go_with_the_first_and_last_layer() -> None:
    split = plan_layers(MODEL, devices(1000, 1000, 1000, 1000), parse_split("layers:0,15,15,0"))
    assert (split.input_device, split.output_device) == (1, 2)
    assert split.unused_devices == (0, 3)
    assert split.shares[3].needed_nbytes == 0
    assert [note for note in split.notes if "not used" in note] == [
        "w0 is not used: it holds no layer",
        "w3 is not used: it holds no layer",
    ]


@pytest.mark.parametrize(
    ("ratio", "n_layers", "expected"),
    [
        # By hand: layer i goes to the first device whose share of the running sum is above i / (n_layers + 1).
        ("1,1", 30, [16, 14]),
        ("1,1", 31, [16, 15]),
        ("3,1", 30, [24, 6]),
        ("1,2,1", 7, [2, 4, 1]),
        ("1,1000", 30, [1, 29]),
        ("1000,1", 30, [30, 0]),
        ("1,1", 1, [1, 0]),
    ],
)
def test_ratio_counts_the_output_as_one_more_unit(ratio: str, n_layers: int, expected: list[int]) -> None:
    model = ModelSizes((MIB,) * n_layers, (0,) * n_layers)
    split = plan_layers(model, devices(*[1000] * len(expected)), parse_split(ratio))
    assert counts(split) == expected
    assert split.output_device == max(index for index, count in enumerate(expected) if count)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("1,1,1", "3 numbers for 2 devices"),
        ("1", "1 numbers for 2 devices"),
        ("layers:30", "1 numbers for 2 devices"),
        ("layers:20,9", "places 29 layers, the model has 30"),
        ("layers:20,11", "places 31 layers, the model has 30"),
    ],
)
def test_a_request_that_does_not_fit_the_model(text: str, match: str) -> None:
    with pytest.raises(SplitError, match=match):
        plan_layers(MODEL, devices(1000, 1000), parse_split(text))


def test_no_devices_and_no_layers() -> None:
    with pytest.raises(SplitError, match="at least one device"):
        plan_layers(MODEL, [])
    with pytest.raises(SplitError, match="at least one layer"):
        ModelSizes((), ())
    with pytest.raises(SplitError, match=r"2 given.*1 given"):
        ModelSizes((1, 1), (1,))


@pytest.mark.parametrize("free", [(500, 120, 250), (60, 400, 100, 90, 200)])
def test_automatic_fits_every_cap_in_proportion(free: tuple[int, ...]) -> None:
    split = plan_layers(MODEL, devices(*free))
    needed = sum(share.needed_nbytes for share in split.shares)
    assert sum(counts(split)) == 30
    for share in split.shares:
        assert share.needed_nbytes <= share.free_nbytes
        ideal = needed * share.free_nbytes / (sum(free) * MIB)
        assert abs(share.needed_nbytes - ideal) <= 24 * MIB  # within a layer or the input or output


def test_automatic_finds_the_only_split_that_fits() -> None:
    model = ModelSizes((MIB,) * 4, (0,) * 4, output_nbytes=5 * MIB)
    assert counts(plan_layers(model, devices(1, 1, 7))) == [1, 1, 2]
    assert counts(plan_layers(model, devices(3, 0, 6))) == [3, 0, 1]


def test_more_devices_than_layers() -> None:
    model = ModelSizes((MIB, MIB), (MIB, MIB))
    split = plan_layers(model, devices(100, 100, 100, 100))
    assert counts(split) == [1, 1, 0, 0]
    assert split.unused_devices == (2, 3)


def test_scratch_is_charged_where_layers_are() -> None:
    split = plan_layers(MODEL, devices(1000, 4, 1000, scratch_mib=5))
    assert [share.scratch_nbytes for share in split.shares] == [5 * MIB, 0, 5 * MIB]


def test_out_of_memory_names_device_and_figures() -> None:
    with pytest.raises(
        OutOfMemoryError, match=r"w1 cannot hold.*\(209715200 bytes\).*free.*\(104857600 bytes\)"
    ) as info:
        plan_layers(MODEL, devices(1000, 100), parse_split("layers:15,15"))
    assert info.value.context.device == "w1"
    with pytest.raises(OutOfMemoryError, match=r"400.00 MiB \(419430400 bytes\).*300.00 MiB.*share of w[01]") as info:
        plan_layers(MODEL, devices(200, 100))
    assert info.value.context.device in ("w0", "w1")


def test_measured_scratch_is_checked() -> None:
    split = plan_layers(MODEL, devices(250, 250))
    assert split.with_scratch([MIB, 2 * MIB]).shares[1].scratch_nbytes == 2 * MIB
    with pytest.raises(OutOfMemoryError, match="w0 cannot hold"):
        split.with_scratch([100 * MIB, 0])


def test_says_that_stages_can_slow_a_small_model() -> None:
    assert any("slow a small model" in note for note in plan_layers(MODEL, devices(1000, 100)).notes)
    assert plan_layers(MODEL, devices(250, 250)).notes == ()
    assert plan_layers(MODEL, devices(1000)).notes == ()


def test_prints_as_a_table() -> None:
    split = plan_layers(MODEL, devices(1000, 1000, 1000), parse_split("layers:20,10,0"))
    assert split.rows()[1] == ["w0", "input 0-19", "220.00 MiB", "40.00 MiB", "0 B", "260.00 MiB", "1000.00 MiB"]
    text = split.describe()
    assert "20-29 output" in text
    assert "none" in text
    assert "note: w2 is not used" in text


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 9)), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 5)), min_size=1, max_size=5),
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_automatic_is_deterministic_and_finds_a_fit_if_there_is_one(
    layers: list[tuple[int, int]], memories: list[tuple[int, int]], first: int, last: int
) -> None:
    model = ModelSizes(tuple(w for w, _ in layers), tuple(kv for _, kv in layers), first, last)
    given_devices = [DeviceMemory(f"d{index}", *memory) for index, memory in enumerate(memories)]
    if not _can_fit(model, given_devices):
        with pytest.raises(OutOfMemoryError):
            plan_layers(model, given_devices)
        return
    split = plan_layers(model, given_devices)
    assert split == plan_layers(replace(model), list(given_devices), SplitRequest.automatic())
    assert all(share.needed_nbytes <= share.free_nbytes for share in split.shares)
    assert list(split.layer_devices) == sorted(split.layer_devices)
    total = sum(map(sum, layers)) + first + last
    assert sum(share.weight_nbytes + share.kv_nbytes for share in split.shares) == total


def _can_fit(model: ModelSizes, given_devices: list[DeviceMemory]) -> bool:
    """Whether any cut fits, by trying the ends that each device can reach."""
    reached = {0}
    for device in given_devices:
        for start in sorted(reached):
            for end in range(start + 1, model.n_layers + 1):
                needed = device.scratch_nbytes + sum(model.layer_weight_nbytes[start:end])
                needed += sum(model.layer_kv_nbytes[start:end])
                needed += model.input_nbytes * (start == 0) + model.output_nbytes * (end == model.n_layers)
                if needed <= device.free_nbytes:
                    reached = reached | {end}
    return model.n_layers in reached


def test_an_input_takes_the_place_of_no_layer_but_must_fit():
    model = ModelSizes((10,) * 30, (0,) * 30, input_nbytes=120)
    split = plan_layers(model, [DeviceMemory("a", 10_000), DeviceMemory("b", 10_000)])
    assert [share.n_layers for share in split.shares] == [15, 15]
    assert [share.weight_nbytes for share in split.shares] == [270, 150]
    split = plan_layers(model, [DeviceMemory("a", 250), DeviceMemory("b", 250)])
    assert [share.n_layers for share in split.shares] == [13, 17]


def test_a_large_output_takes_the_place_of_few_layers_only():
    model = ModelSizes((10,) * 30, (0,) * 30, output_nbytes=120)
    split = plan_layers(model, [DeviceMemory("a", 10_000), DeviceMemory("b", 10_000)])
    assert [share.n_layers for share in split.shares] == [16, 14]
