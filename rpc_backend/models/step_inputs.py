"""The values of a step's inputs: which token goes to which cell and may look at which.

Belongs here: arithmetic on plain arrays. Must not be here: tensors, devices, who schedules what.

Cells are numbered by position: the token at position p of a sequence lies in cell p, and sees cells 0 to
p. A sequence's free cells are those from its length on.

Padding: all sequences of a step have the same count of token slots. A sequence with fewer tokens than
that (none at all: it is idle) has padding in the rest. A padding slot holds token 0 in the next free cell;
slots that would pass the end share the last cell. It sees that cell alone, so its result is finite and
means nothing, and a real token writes over the cell before anything can see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rpc_backend.errors import ConfigError, ContextFullError
from rpc_backend.models.hyperparameters import Hyperparameters
from rpc_backend.models.step_shape import StepShape

KV_GRANULARITY = 256

Tokens = Sequence[int] | npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class StepArrays:
    """The values of `StepInputs`, field by field, C-contiguous with the outermost axis first.

    Shapes: tokens, positions int32 [n_total]; kv_rows int64 [n_total]; mask float16
    [n_seqs, 1, n_tokens, n_kv], and window_mask; output_rows int32 [n_outputs]; is_token float32 [n_total]; has_past
    float32 [n_seqs]; conv_rows int32 [n_seqs, conv_width - 1].
    """

    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    kv_rows: npt.NDArray[np.int64]
    mask: npt.NDArray[np.float16]
    window_mask: npt.NDArray[np.float16]
    output_rows: npt.NDArray[np.int32]
    is_token: npt.NDArray[np.float32]
    has_past: npt.NDArray[np.float32]
    conv_rows: npt.NDArray[np.int32]


def padded_n_kv(n_cells: int, n_ctx_seq: int, granularity: int = KV_GRANULARITY) -> int:
    """Round a count of used cells up, so that graphs repeat from step to step."""
    return min(n_ctx_seq, -(-max(n_cells, 1) // granularity) * granularity)


def step_arrays(
    shape: StepShape,
    tokens: Sequence[Tokens],
    lengths: Sequence[int],
    n_ctx_seq: int,
    output_rows: Sequence[int] | None = None,
    hparams: Hyperparameters | None = None,
) -> StepArrays:
    """Lay out one step.

    `hparams` says what layers with a window or a state need; it may be left out of models without them.

    `tokens` are the new tokens of each of the shape's sequences, at most `n_tokens` and possibly none;
    `lengths` how many tokens each has in its cells before. `output_rows` index the slots, sequence by
    sequence; left out, they are the last token of each sequence, or all slots if that many are asked.

    Raises:
        ContextFullError: tokens or padding need more cells than a sequence has.
        ConfigError: counts that do not fit the shape.
    """
    counts, starts = _counts(shape, tokens, lengths), np.asarray(lengths, np.int64)
    _check_room(shape, counts, starts, n_ctx_seq)
    slot = np.arange(shape.n_tokens)
    is_padding = slot >= counts[:, None]  # [n_seqs, n_tokens]
    cells = np.minimum(starts[:, None] + slot, n_ctx_seq - 1)  # [n_seqs, n_tokens]
    values = np.zeros((shape.n_seqs, shape.n_tokens), np.int32)
    for row, own in zip(values, tokens, strict=True):
        row[: len(own)] = own
    window = hparams.window.size if hparams and hparams.window else 0
    n_kept = hparams.linear.conv_width - 1 if hparams and hparams.linear else 0
    mask = _mask(shape, cells, is_padding, 0)
    planes = (shape.first_seq + np.arange(shape.n_seqs))[:, None] * n_ctx_seq
    return StepArrays(
        tokens=values.reshape(-1),
        positions=cells.astype(np.int32).reshape(-1),
        kv_rows=(planes + cells).reshape(-1),
        mask=mask,
        window_mask=_mask(shape, cells, is_padding, window) if window else mask,
        output_rows=_output_rows(shape, counts, output_rows),
        is_token=(~is_padding).astype(np.float32).reshape(-1),
        has_past=(starts > 0).astype(np.float32),
        conv_rows=(counts[:, None] + np.arange(n_kept)).astype(np.int32),
    )


def _counts(shape: StepShape, tokens: Sequence[Tokens], lengths: Sequence[int]) -> npt.NDArray[np.int64]:
    if len(tokens) != shape.n_seqs or len(lengths) != shape.n_seqs:
        raise ConfigError(f"tokens of {len(tokens)} and lengths of {len(lengths)} sequences for {shape}")
    counts = np.array([len(own) for own in tokens], np.int64)
    if counts.max() > shape.n_tokens or min(lengths) < 0:
        raise ConfigError(f"{counts.max()} tokens of a sequence, or a negative length, do not fit {shape}")
    return counts


def _check_room(shape: StepShape, counts: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], n_ctx_seq: int) -> None:
    ends = starts + counts
    for sequence, end in enumerate(ends.tolist(), shape.first_seq):
        if end > n_ctx_seq:
            raise ContextFullError(f"sequence {sequence} needs {end} tokens, its context holds {n_ctx_seq}")
        if end == n_ctx_seq and counts[sequence - shape.first_seq] < shape.n_tokens:
            raise ContextFullError(
                f"sequence {sequence} fills its context of {n_ctx_seq} tokens and has no cell for padding; "
                "leave it out of steps that it has too few tokens for"
            )
    seen = int(np.max(np.where(counts > 0, ends, 0)))
    if seen > shape.n_kv:
        raise ConfigError(f"{shape} looks at {shape.n_kv} cells, its tokens need {seen}")


def _mask(
    shape: StepShape, cells: npt.NDArray[np.int64], is_padding: npt.NDArray[np.bool_], window: int
) -> npt.NDArray[np.float16]:
    """Causal for tokens, which see the last `window` cells, or all if it is 0; padding sees its own cell, or the first
    where its own is beyond `n_kv`."""
    cell = np.arange(shape.n_kv)
    own = np.where(cells < shape.n_kv, cells, 0)[:, :, None]
    seen = cell <= cells[:, :, None]
    if window:
        seen &= cell > cells[:, :, None] - window
    visible = np.where(is_padding[:, :, None], cell == own, seen)  # [n_seqs, n_tokens, n_kv]
    return np.where(visible, np.float16(0), np.float16(-np.inf))[:, None]


def _output_rows(shape: StepShape, counts: npt.NDArray[np.int64], asked: Sequence[int] | None) -> npt.NDArray[np.int32]:
    if asked is None and shape.n_outputs == shape.n_seqs:
        asked = (np.arange(shape.n_seqs) * shape.n_tokens + np.maximum(counts, 1) - 1).tolist()
    elif asked is None and shape.n_outputs in (0, shape.n_total):
        asked = range(shape.n_outputs)
    if asked is None or len(asked) != shape.n_outputs:
        raise ConfigError(f"{shape} needs {shape.n_outputs} output rows, not {asked and len(asked)}")
    rows = np.asarray(asked, np.int32)
    if shape.n_outputs and not (rows.min() >= 0 and rows.max() < shape.n_total):
        raise ConfigError(f"output rows {list(asked)[:8]} are outside the {shape.n_total} tokens of {shape}")
    return rows
