"""Which device holds which layers of a model: a pure function of sizes and free memory.

Belongs here: the rules of a layer split, its check against memory, and how it prints. Must not be here:
graphs, or anything that asks a device.

Source: the ratio rule is that of llama.cpp's `load_tensors` (n_layers + 1 equal units, the output being
the last; unit i goes to the first device whose part of the running sum is above i).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate

from rpc_backend.errors import ErrorContext, OutOfMemoryError, SplitError
from rpc_backend.scheduler.split_request import SplitKind, SplitRequest
from rpc_backend.text import exact_nbytes, human_nbytes, render_table

_OUTPUT_SHARE = 5


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """What a model takes, in bytes: weights and KV cache of each layer, input and output weights.

    `input_nbytes` is 0 if the token embedding does not lie on a device of the split; `output_nbytes` holds the
    output norm too, and a second copy of the embedding where the model ties both.
    """

    layer_weight_nbytes: tuple[int, ...]
    layer_kv_nbytes: tuple[int, ...]
    input_nbytes: int = 0
    output_nbytes: int = 0

    def __post_init__(self) -> None:
        if not self.layer_weight_nbytes or len(self.layer_weight_nbytes) != len(self.layer_kv_nbytes):
            raise SplitError(
                f"a split needs at least one layer, with weights ({len(self.layer_weight_nbytes)} given) "
                f"and KV cache ({len(self.layer_kv_nbytes)} given) of each"
            )

    @property
    def n_layers(self) -> int:
        return len(self.layer_weight_nbytes)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A device as a split sees it, in bytes; `scratch_nbytes` is what graphs need beside weights and cache."""

    name: str
    free_nbytes: int
    scratch_nbytes: int = 0


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """What one device holds of the model; sizes in bytes."""

    name: str
    first_layer: int
    n_layers: int
    weight_nbytes: int
    kv_nbytes: int
    scratch_nbytes: int
    free_nbytes: int

    @property
    def needed_nbytes(self) -> int:
        return self.weight_nbytes + self.kv_nbytes + self.scratch_nbytes


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """The plan: a device index per layer, for the input and for the output; one share per device.

    `input_device` is None where the token embedding lies on no device of the split.
    """

    layer_devices: tuple[int, ...]
    input_device: int | None
    output_device: int
    shares: tuple[DeviceShare, ...]
    notes: tuple[str, ...]

    @property
    def unused_devices(self) -> tuple[int, ...]:
        return tuple(index for index, share in enumerate(self.shares) if share.n_layers == 0)

    def with_scratch(self, scratch_nbytes: Sequence[int]) -> LayerSplit:
        """Return the same split with measured scratch bytes per device instead of the estimate.

        Raises:
            OutOfMemoryError: a device cannot hold its share with them.
        """
        pairs = zip(self.shares, scratch_nbytes, strict=True)
        shares = tuple(replace(share, scratch_nbytes=nbytes) for share, nbytes in pairs)
        _check_fit(shares)
        return replace(self, shares=shares)

    def rows(self) -> list[list[str]]:
        """Return the plan as a table of text, headings first."""
        table = [["device", "layers", "weights", "kv", "scratch", "needed", "free"]]
        for index, share in enumerate(self.shares):
            sizes = (share.weight_nbytes, share.kv_nbytes, share.scratch_nbytes, share.needed_nbytes, share.free_nbytes)
            table.append([share.name, self._layers_text(index), *(human_nbytes(size) for size in sizes)])
        return table

    def describe(self) -> str:
        """Return the table and the notes as plain text."""
        return "\n".join([render_table(self.rows()), *(f"note: {note}" for note in self.notes)])

    def _layers_text(self, index: int) -> str:
        share = self.shares[index]
        if share.n_layers == 0:
            return "none"
        text = f"{share.first_layer}-{share.first_layer + share.n_layers - 1}"
        parts = ["input"] * (index == self.input_device) + [text] + ["output"] * (index == self.output_device)
        return " ".join(parts)


def plan_layers(model: ModelSizes, devices: Sequence[DeviceMemory], request: SplitRequest | None = None) -> LayerSplit:
    """Split a model's layers over devices, in order, and check that each device can hold its share.

    The input goes with the first layer, the output with the last one. Ratios count the output as one more
    unit. The automatic split gives each device weights in proportion to its free memory, the output counted at a fifth,
    as closely as whole layers and the caps allow.

    Raises:
        SplitError: the request does not fit the model or the devices.
        OutOfMemoryError: naming the device, with the needed and the free bytes.
    """
    if not devices:
        raise SplitError("a split needs at least one device")
    counts = _counts(model, devices, request or SplitRequest.automatic())
    shares = _shares(model, devices, counts)
    _check_fit(shares)
    used = [index for index, count in enumerate(counts) if count]
    layer_devices = tuple(index for index, count in enumerate(counts) for _ in range(count))
    input_device = used[0] if model.input_nbytes else None
    return LayerSplit(layer_devices, input_device, used[-1], shares, _notes(model, devices, shares))


def _counts(model: ModelSizes, devices: Sequence[DeviceMemory], request: SplitRequest) -> list[int]:
    if request.kind is SplitKind.AUTOMATIC:
        return _automatic(model, devices)
    if len(request.numbers) != len(devices):
        raise SplitError(
            f"split '{request}' has {len(request.numbers)} numbers for {len(devices)} devices "
            f"({', '.join(device.name for device in devices)}); give one per device"
        )
    if request.kind is SplitKind.RATIO:
        return _by_ratio(model.n_layers, request.numbers)
    counts = [int(number) for number in request.numbers]
    if sum(counts) != model.n_layers:
        raise SplitError(f"split '{request}' places {sum(counts)} layers, the model has {model.n_layers}")
    return counts


def _by_ratio(n_layers: int, ratios: Sequence[float]) -> list[int]:
    sums = list(accumulate(Fraction(ratio) for ratio in ratios))
    counts = [0] * len(ratios)
    for layer in range(n_layers):
        reached = sums[-1] * layer / (n_layers + 1)
        counts[next(index for index, running in enumerate(sums) if running > reached)] += 1
    return counts


def _automatic(model: ModelSizes, devices: Sequence[DeviceMemory]) -> list[int]:
    counts = _proportional(model, devices, capped=True)
    if counts is not None:
        return counts
    nearest = _proportional(model, devices, capped=False)
    assert nearest is not None, "without caps every split is possible"
    shares = _shares(model, devices, nearest)
    worst = max(shares, key=lambda share: share.needed_nbytes - share.free_nbytes)
    total = sum(share.needed_nbytes for share in shares)
    free = sum(share.free_nbytes for share in shares)
    text = (
        f"the model does not fit: it needs {exact_nbytes(total)} in all, the devices have {exact_nbytes(free)} free; "
        f"its share of {worst.name} would be {exact_nbytes(worst.needed_nbytes)} of {exact_nbytes(worst.free_nbytes)}; "
        "add workers, or lower the context length or the number of sequences"
    )
    raise OutOfMemoryError(text, context=ErrorContext(device=worst.name))


def _proportional(model: ModelSizes, devices: Sequence[DeviceMemory], *, capped: bool) -> list[int] | None:
    """Minimise the sum of load² / free over all ways to cut, which is least where load ~ free.

    The load is the bytes of weights, which decide how long a stage works; the output's count for a fifth, as it works
    on every token of a decode step but only on the last of a prompt. Cache, scratch and input only have to fit.

    Whole numbers throughout, so that equal inputs give equal plans; of equal splits, the one that fills the
    earlier devices. None: no cut respects the caps.
    """
    n_layers = model.n_layers
    # best[layer]: least cost and counts of placing the layers from `layer` on over the devices seen so far.
    best: list[tuple[int, list[int]] | None] = [None] * n_layers + [(0, [])]
    for device in reversed(devices):
        best = [_extend(model, device, layer, best, capped) for layer in range(n_layers + 1)]
    return None if best[0] is None else best[0][1]


def _extend(
    model: ModelSizes, device: DeviceMemory, layer: int, rest: Sequence[tuple[int, list[int]] | None], capped: bool
) -> tuple[int, list[int]] | None:
    """Try every count of layers on one device, the later ones being placed as `rest` says."""
    found: tuple[int, list[int]] | None = None
    weights = 0
    others = device.scratch_nbytes + (model.input_nbytes if layer == 0 else 0)
    for end in range(layer, model.n_layers + 1):
        if end > layer:
            weights += model.layer_weight_nbytes[end - 1]
            others += model.layer_kv_nbytes[end - 1]
        last = end == model.n_layers
        output = model.output_nbytes if last else 0
        tail = rest[end]
        if tail is None or (capped and end > layer and weights + others + output > device.free_nbytes):
            continue
        load = 0 if end == layer else weights + output // _OUTPUT_SHARE
        cost = tail[0] + (load * load << 32) // max(device.free_nbytes, 1)
        if found is None or cost <= found[0]:
            found = (cost, [end - layer, *tail[1]])
    return found


def _shares(model: ModelSizes, devices: Sequence[DeviceMemory], counts: Sequence[int]) -> tuple[DeviceShare, ...]:
    shares: list[DeviceShare] = []
    first = 0
    for device, count in zip(devices, counts, strict=True):
        end = first + count
        weights = sum(model.layer_weight_nbytes[first:end])
        if count and first == 0:
            weights += model.input_nbytes
        if count and end == model.n_layers:
            weights += model.output_nbytes
        kv = sum(model.layer_kv_nbytes[first:end])
        scratch = device.scratch_nbytes if count else 0
        shares.append(DeviceShare(device.name, first, count, weights, kv, scratch, device.free_nbytes))
        first = end
    return tuple(shares)


def _check_fit(shares: Sequence[DeviceShare]) -> None:
    for share in shares:
        if share.needed_nbytes > share.free_nbytes:
            text = (
                f"{share.name} cannot hold its {share.n_layers} layers: needed {exact_nbytes(share.needed_nbytes)} "
                f"(weights {human_nbytes(share.weight_nbytes)}, KV cache {human_nbytes(share.kv_nbytes)}, scratch "
                f"{human_nbytes(share.scratch_nbytes)}), free {exact_nbytes(share.free_nbytes)}; give it fewer layers"
            )
            raise OutOfMemoryError(text, context=ErrorContext(device=share.name))


def _notes(model: ModelSizes, devices: Sequence[DeviceMemory], shares: Sequence[DeviceShare]) -> tuple[str, ...]:
    notes = [f"{share.name} is not used: it holds no layer" for share in shares if share.n_layers == 0]
    n_stages = len(shares) - len(notes)
    whole = sum(share.weight_nbytes + share.kv_nbytes for share in shares)
    roomy = [device.name for device in devices if whole + device.scratch_nbytes <= device.free_nbytes]
    if n_stages > 1 and roomy:
        notes.append(
            f"the model would fit on {roomy[0]} alone; each token passes all {n_stages} stages, "
            "and more stages can slow a small model"
        )
    return tuple(notes)
