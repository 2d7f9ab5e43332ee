"""Quantised formats: where the words of a block go when rows are interleaved."""

from __future__ import annotations

import pytest

from rpc_backend_numba.formats import FORMATS


@pytest.mark.parametrize("name", FORMATS)
def test_interleaving_moves_each_byte_of_a_block_to_a_place_of_its_own(name):
    form = FORMATS[name]
    taken, given = [], []
    for run in form.runs:
        for i in range(run.count):
            taken += range(run.offset + i * run.nbytes, run.offset + (i + 1) * run.nbytes)
            given += range(run.place + i * run.step, run.place + i * run.step + run.nbytes)

    assert sorted(taken) == list(range(form.block_nbytes))
    assert sorted(given) == list(range(form.block_nbytes))
