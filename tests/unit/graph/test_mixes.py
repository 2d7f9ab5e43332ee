"""What DeepSeek models add: which shapes the rules give, and what they refuse."""

from __future__ import annotations

import pytest

from rpc_backend.errors import GraphError
from rpc_backend.graph import build
from rpc_backend.graph.element_types import F16, F32


def _leaf(*ne, kind=F32):
    return build.leaf(kind, ne)


def _indexer(q=None, k=None, weights=None, mask=None):
    given = (q or _leaf(32, 4, 5, 2), k or _leaf(32, 1, 9, 2), weights or _leaf(4, 5, 1, 2))
    return build.build("LIGHTNING_INDEXER", [*given, mask or _leaf(9, 5, kind=F16)])


def _comb(mixes=None, scale=None, base=None, n_iter=2):
    given = [mixes or _leaf(24, 5), scale or _leaf(3), base or _leaf(24)]
    return build.build("DSV4_HC_COMB", given, {"eps": 1e-6, "n_iter": n_iter})


def _pre(weights, gated=0):
    return build.build("DSV4_HC_PRE", [_leaf(32, 4, 5), weights], {"scale": 1.0, "gated": gated})


def _post(*sources):
    given = (_leaf(32, 5), _leaf(32, 4, 5), _leaf(4, 5))
    return build.build("DSV4_HC_POST", [*sources, *given[len(sources) :]])


def test_shapes():
    assert _indexer().ne == (9, 5, 1, 2)
    assert _comb().ne == (4, 4, 5, 1)
    assert _pre(_leaf(4, 5)).ne == (32, 5, 1, 1)
    assert _pre(_leaf(32, 4, 5), 1).ne == (32, 5, 1, 1)
    assert _post().ne == (32, 4, 5, 1)
    assert _post(_leaf(32, 5), _leaf(32, 4, 5), _leaf(4, 5), _leaf(4, 4, 5)).ne == (32, 4, 5, 1)


_REFUSED = {
    "indexer: k": (lambda: _indexer(k=_leaf(32, 2, 9, 2)), "does not fit"),
    "indexer: weights": (lambda: _indexer(weights=_leaf(4, 6, 1, 2)), "no weight per head"),
    "indexer: mask type": (lambda: _indexer(mask=_leaf(9, 5)), "not an F16 mask"),
    "indexer: mask": (lambda: _indexer(mask=_leaf(9, 4, kind=F16)), "not an F16 mask"),
    "indexer: masks": (lambda: _indexer(mask=_leaf(9, 5, 1, 3, kind=F16)), "does not repeat"),
    "indexer: no mask": (lambda: _indexer(mask=_leaf(9, 5, 1, 0, kind=F16)), "does not repeat"),
    "comb: mixes": (lambda: _comb(mixes=_leaf(23, 5)), "no 24 numbers"),
    "comb: scale": (lambda: _comb(scale=_leaf(2)), "no three factors"),
    "comb: base": (lambda: _comb(base=_leaf(24, 2)), "not a row of 24"),
    "comb: no rounds": (lambda: _comb(n_iter=0), "n_iter 0"),
    "comb: rounds without end": (lambda: _comb(n_iter=2**31 - 1), "not between 1 and 1024"),
    "pre: weights": (lambda: _pre(_leaf(4, 6)), "does not fit"),
    "pre: gates": (lambda: _pre(_leaf(4, 5), 1), "does not fit"),
    "pre: flag": (lambda: _pre(_leaf(4, 5), 2), "neither 0 nor 1"),
    "post: residual": (lambda: _post(_leaf(32, 6)), "does not fit"),
    "post: factors": (lambda: _post(_leaf(32, 5), _leaf(32, 4, 5), _leaf(3, 5)), "no factor per stream"),
    "post: mixing": (lambda: _post(_leaf(32, 5), _leaf(32, 4, 5), _leaf(4, 5), _leaf(4, 3, 5)), "does not mix"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), _REFUSED.values(), ids=_REFUSED)
def test_what_breaks_a_rule_is_refused(make, message):
    with pytest.raises(GraphError, match=message):
        make()
