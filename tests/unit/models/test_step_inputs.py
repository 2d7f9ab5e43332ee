"""The arithmetic of a step's inputs: cells, positions, masks, padding."""

from __future__ import annotations

import numpy as np
import pytest

from rpc_backend.errors import ConfigError, ContextFullError
from rpc_backend.graph import RopeMode
from rpc_backend.models import Hyperparameters, StepInputs, StepShape, Traits, padded_n_kv, step_arrays
from rpc_backend.models.hyperparameters import read_hyperparameters
from rpc_backend.testing.gguf_writer import byte_vocabulary, shape_keys
from rpc_backend.testing.tiny_shapes import tiny_shape

N_CTX = 16


def _hparams(architecture: str, traits: Traits, **more: int) -> Hyperparameters:
    keys = shape_keys(architecture, 2, 64, 96, 4, 2, 32, 512) | byte_vocabulary()
    own = {**tiny_shape(architecture).keys, **{key.replace("__", "."): value for key, value in more.items()}}
    return read_hyperparameters(keys | {f"{architecture}.{key}": value for key, value in own.items()}, traits)


_SMALL = _hparams("llama", Traits(RopeMode.NORMAL))
_WITH_WINDOW = _hparams("gemma3", Traits(RopeMode.NEOX, window_period=2), attention__sliding_window=2)
_WITH_STATE = _hparams("qwen35", Traits(RopeMode.NEOX, has_linear_attention=True))


def visible(mask: np.ndarray) -> list[list[list[int]]]:
    """Per sequence and slot, the cells it sees."""
    assert set(np.unique(mask)) <= {0.0, -np.inf}
    return [[np.flatnonzero(row == 0).tolist() for row in plane] for plane in mask[:, 0]]


def test_a_prompt_and_then_a_token() -> None:
    prompt = step_arrays(StepShape(0, 1, 3, 8, 1), [[7, 8, 9]], [0], N_CTX)
    assert prompt.tokens.tolist() == [7, 8, 9]
    assert prompt.positions.tolist() == prompt.kv_rows.tolist() == [0, 1, 2]
    assert visible(prompt.mask) == [[[0], [0, 1], [0, 1, 2]]]
    assert prompt.output_rows.tolist() == [2]
    token = step_arrays(StepShape(0, 1, 1, 8, 1), [np.array([5])], [3], N_CTX)
    assert (token.positions.tolist(), visible(token.mask)) == ([3], [[[0, 1, 2, 3]]])


def test_sequences_have_their_own_rows() -> None:
    arrays = step_arrays(StepShape(2, 2, 2, 8, 4), [[1, 2], [3, 4]], [0, 5], N_CTX)
    assert arrays.tokens.tolist() == [1, 2, 3, 4]
    assert arrays.positions.tolist() == [0, 1, 5, 6]
    assert arrays.kv_rows.tolist() == [32, 33, 53, 54]
    assert visible(arrays.mask) == [[[0], [0, 1]], [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 6]]]
    assert arrays.output_rows.tolist() == [0, 1, 2, 3]


def test_padding_writes_free_cells_and_sees_only_its_own() -> None:
    arrays = step_arrays(StepShape(0, 2, 3, 8, 2), [[4, 5], []], [1, 6], N_CTX)
    assert arrays.tokens.tolist() == [4, 5, 0, 0, 0, 0]
    assert arrays.kv_rows.tolist() == [1, 2, 3, N_CTX + 6, N_CTX + 7, N_CTX + 8]
    assert visible(arrays.mask) == [[[0, 1], [0, 1, 2], [3]], [[6], [7], [0]]]
    assert arrays.output_rows.tolist() == [1, 3]


def test_padding_near_the_end_shares_the_last_cell() -> None:
    arrays = step_arrays(StepShape(0, 1, 4, 16, 1), [[9]], [N_CTX - 2], N_CTX)
    assert arrays.kv_rows.tolist() == [14, 15, 15, 15]
    assert visible(arrays.mask)[0][1:] == [[15], [15], [15]]


@pytest.mark.parametrize("hparams", [_SMALL, _WITH_STATE])
def test_arrays_have_the_layout_of_the_leaves(hparams: Hyperparameters) -> None:
    shape = StepShape(1, 3, 2, 8, 5)
    arrays = step_arrays(shape, [[1], [2, 3], []], [0, 0, 0], N_CTX, [0, 1, 2, 3, 4], hparams)
    leaves = StepInputs.of_shape(shape, hparams)
    for name in StepInputs.__dataclass_fields__.keys() - {"embd"}:  # which another step gives
        values, leaf = getattr(arrays, name), getattr(leaves, name)
        assert (values.dtype, values.nbytes, values.size) == (leaf.type.dtype, leaf.nbytes, leaf.n_elements)
        assert values.flags.c_contiguous
    assert arrays.mask.shape == tuple(reversed(leaves.mask.ne))


def test_a_window_hides_what_lies_further_back() -> None:
    arrays = step_arrays(StepShape(0, 2, 3, 8, 2), [[4, 5, 6], [7]], [3, 0], N_CTX, hparams=_WITH_WINDOW)
    assert visible(arrays.window_mask) == [[[2, 3], [3, 4], [4, 5]], [[0], [1], [2]]]
    assert visible(arrays.mask)[0] == [[0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]]


def test_states_are_told_what_is_padding_and_what_begins() -> None:
    arrays = step_arrays(StepShape(0, 3, 2, 8, 3), [[4, 5], [6], []], [3, 0, 2], N_CTX, hparams=_WITH_STATE)
    assert arrays.is_token.tolist() == [1, 1, 1, 0, 0, 0]
    assert arrays.has_past.tolist() == [1, 0, 1]
    assert arrays.conv_rows.tolist() == [[2, 3, 4], [1, 2, 3], [0, 1, 2]]


def test_output_rows_are_chosen_or_checked() -> None:
    shape = StepShape(0, 1, 4, 8, 2)
    assert step_arrays(shape, [[1, 2, 3, 4]], [0], N_CTX, output_rows=[3, 1]).output_rows.tolist() == [3, 1]
    assert step_arrays(StepShape(0, 1, 4, 8, 0), [[1]], [0], N_CTX).output_rows.shape == (0,)
    for rows in (None, [1], [1, 2, 3]):
        with pytest.raises(ConfigError, match="needs 2 output rows"):
            step_arrays(shape, [[1, 2, 3, 4]], [0], N_CTX, output_rows=rows)
    for rows in ([0, 4], [-1, 0]):
        with pytest.raises(ConfigError, match="outside the 4 tokens"):
            step_arrays(shape, [[1, 2, 3, 4]], [0], N_CTX, output_rows=rows)


def test_a_full_context_is_an_error() -> None:
    shape = StepShape(1, 1, 2, 16, 1)
    assert step_arrays(shape, [[1, 2]], [14], N_CTX).kv_rows.tolist() == [30, 31]
    with pytest.raises(ContextFullError, match="sequence 1 needs 17 tokens, its context holds 16"):
        step_arrays(shape, [[1, 2]], [15], N_CTX)
    with pytest.raises(ContextFullError, match="sequence 1 fills its context of 16 tokens and has no cell for padding"):
        step_arrays(shape, [[1]], [15], N_CTX)
    with pytest.raises(ContextFullError, match="no cell for padding"):
        step_arrays(shape, [[]], [16], N_CTX)


def test_counts_that_do_not_fit_the_shape_are_refused() -> None:
    shape = StepShape(0, 2, 2, 4, 2)
    for tokens, lengths in (([[1]], [0]), ([[1], [2]], [0]), ([[1, 2, 3], [1]], [0, 0]), ([[1], [1]], [0, -1])):
        with pytest.raises(ConfigError):
            step_arrays(shape, tokens, lengths, N_CTX)
    with pytest.raises(ConfigError, match="looks at 4 cells, its tokens need 5"):
        step_arrays(shape, [[1], [1]], [4, 0], N_CTX)


def test_the_count_of_cells_is_rounded_up() -> None:
    assert [padded_n_kv(n, 2048) for n in (0, 1, 256, 257, 2047)] == [256, 256, 256, 512, 2048]
    assert padded_n_kv(300, 400) == 400
    assert padded_n_kv(5, 64, 4) == 8
