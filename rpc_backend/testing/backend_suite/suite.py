"""All cases.

Belongs here: their collection. Must not be here: cases themselves.
"""

from __future__ import annotations

from rpc_backend.testing.backend_suite import (
    cases_attention,
    cases_experts,
    cases_graphs,
    cases_images,
    cases_layout,
    cases_math,
    cases_mixes,
    cases_places,
    cases_products,
    cases_rows,
    cases_states,
)
from rpc_backend.testing.backend_suite.case import Case

_MODULES = (
    cases_products, cases_math, cases_experts, cases_attention, cases_states, cases_rows, cases_layout, cases_places,
    cases_images, cases_mixes, cases_graphs,
)  # fmt: skip


def cases() -> list[Case]:
    """Return every case, each with an id of its own."""
    found = {case.id: case for module in _MODULES for case in module.cases()}
    return list(found.values())
