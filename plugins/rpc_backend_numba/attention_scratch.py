"""The working memory of one thread in FLASH_ATTN_EXT.

Belongs here: its regions and sizes. Must not be here: numba.
"""

from __future__ import annotations

from enum import IntEnum

from rpc_backend_numba.formats import UNIT_COLUMNS

TILE_ROWS = 12
"""Query rows that share one pass over keys and values."""
BLOCK = 64
"""Positions of keys and values that are handled at a time."""


class Region(IntEnum):
    """Regions, in the order of their offsets in the kernel's parameters; all hold float32.

    QUERIES [units of four rows][head][4]; KEYS [lanes][head]; PANEL [head][lanes]; VALUES [block][value head];
    SCORES and BIAS [row][block]; RESULT [row][value head]; SEEN [block]; LARGEST, SUM, FACTOR [row].
    """

    QUERIES = 0
    KEYS = 1
    PANEL = 2
    VALUES = 3
    SCORES = 4
    BIAS = 5
    RESULT = 6
    SEEN = 7
    LARGEST = 8
    SUM = 9
    FACTOR = 10


def padded(n: int, lanes: int) -> int:
    """Return `n` rounded up to whole vectors."""
    return -(-n // lanes) * lanes


def region_offsets(key_head: int, value_head: int, lanes: int) -> tuple[list[int], int]:
    """Return the offset in bytes of each region, and the bytes of all."""
    key, value = padded(key_head, lanes), padded(value_head, lanes)
    sizes = {
        Region.QUERIES: TILE_ROWS // UNIT_COLUMNS * key * UNIT_COLUMNS,
        Region.KEYS: lanes * key,
        Region.PANEL: key * lanes,
        Region.VALUES: BLOCK * value,
        Region.SCORES: TILE_ROWS * BLOCK,
        Region.BIAS: TILE_ROWS * BLOCK,
        Region.RESULT: TILE_ROWS * value,
        Region.SEEN: BLOCK,
        Region.LARGEST: TILE_ROWS,
        Region.SUM: TILE_ROWS,
        Region.FACTOR: TILE_ROWS,
    }
    offsets, end = [], 0
    for region in Region:
        offsets.append(end)
        end += -(-4 * sizes[region] // 64) * 64
    return offsets, end
