"""Cases of what DeepSeek models add.

Belongs here: LIGHTNING_INDEXER, DSV4_HC_*. Must not be here: anything else.
"""

from __future__ import annotations

from collections.abc import Iterator

from rpc_backend.graph import ElementType, Tensor, build
from rpc_backend.graph.element_types import BF16, F16, F32
from rpc_backend.testing.backend_suite.case import Case, case_id
from rpc_backend.testing.backend_suite.leaves import Leaves


def cases() -> Iterator[Case]:
    """Yield all of them."""
    for kind in (F32, F16, BF16):
        for size, heads, tokens, streams, masks in ((32, 4, 1, 1, 1), (128, 3, 5, 2, 1), (20, 2, 3, 4, 2)):
            yield _indexer(kind, size, heads, tokens, streams, masks)
    for tokens, rounds in ((1, 1), (5, 3), (7, 20)):
        yield Case(
            case_id("DSV4_HC_COMB", f"tokens{tokens}", f"rounds{rounds}"), "DSV4_HC_COMB",
            lambda leaves, tokens=tokens, rounds=rounds: _comb(leaves, tokens, rounds),
        )  # fmt: skip
    for tokens in (1, 5):
        for variant in (False, True):
            parts = (f"tokens{tokens}", "variant" * variant)
            yield Case(
                case_id("DSV4_HC_PRE", *parts), "DSV4_HC_PRE",
                lambda leaves, tokens=tokens, variant=variant: _pre(leaves, tokens, gated=variant),
            )  # fmt: skip
            yield Case(
                case_id("DSV4_HC_POST", *parts), "DSV4_HC_POST",
                lambda leaves, tokens=tokens, variant=variant: _post(leaves, tokens, mixed=variant),
            )  # fmt: skip


def _indexer(kind: ElementType, size: int, heads: int, tokens: int, streams: int, masks: int) -> Case:
    def make(leaves: Leaves) -> Tensor:
        q, k = leaves.tensor(F32, (size, heads, tokens, streams)), leaves.tensor(kind, (size, 1, 19, streams))
        weights = leaves.tensor(F32, (heads, tokens, 1, streams), between=(0.0, 1.0))
        mask = leaves.tensor(F16, (19, tokens, 1, masks))
        return build.build("LIGHTNING_INDEXER", [q, k, weights, mask])

    parts = (kind, f"size{size}", f"tokens{tokens}", f"streams{streams}")
    return Case(case_id("LIGHTNING_INDEXER", *parts), "LIGHTNING_INDEXER", make)


def _comb(leaves: Leaves, tokens: int, rounds: int) -> Tensor:
    sources = [
        leaves.tensor(F32, (24, tokens, 1, 1)),
        leaves.weight(F32, (3, 1, 1, 1)),
        leaves.weight(F32, (24, 1, 1, 1)),
    ]
    return build.build("DSV4_HC_COMB", sources, {"eps": 1e-6, "n_iter": rounds})


def _pre(leaves: Leaves, tokens: int, *, gated: bool) -> Tensor:
    x = leaves.tensor(F32, (72, 4, tokens, 1), "padded")
    weights = leaves.tensor(F32, (72, 4, tokens, 1) if gated else (4, tokens, 1, 1))
    return build.build("DSV4_HC_PRE", [x, weights], {"scale": 0.5, "gated": int(gated)})


def _post(leaves: Leaves, tokens: int, *, mixed: bool) -> Tensor:
    sources = [
        leaves.tensor(F32, (72, tokens, 1, 1)), leaves.tensor(F32, (72, 4, tokens, 1), "padded"),
        leaves.tensor(F32, (4, tokens, 1, 1)),
    ]  # fmt: skip
    if mixed:
        sources.append(leaves.tensor(F32, (4, 4, tokens, 1), "transposed"))
    return build.build("DSV4_HC_POST", sources)
