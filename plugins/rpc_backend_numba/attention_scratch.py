"""The working memory of one thread in FLASH_ATTN_EXT.

Belongs here: its regions and sizes. Must not be here: numba.
"""

from __future__ import annotations

from enum import IntEnum

TILE_ROWS = 12
"""Query rows that are multiplied at a time."""
ITEM_ROWS = 4 * TILE_ROWS
"""Query rows that can share the decoding of keys and values."""
BLOCK = 64
"""Positions of keys and values that are handled at a time."""
INLINED_TYPES = ("F16", "F32", "BF16", "Q8_0")
"""Element types that have a kernel of their own where keys and values share them."""


class Region(IntEnum):
    """Regions, in the order of their offsets in the kernel's parameters; all hold float32, but MASKS int64.

    QUERIES [units of four rows][head][4]; KEYS [lanes][head]; PANEL [head][lanes]; VALUES [block][value head];
    SCORES [row][block]; RESULT [row][value head]; SEEN [block]: the largest bias of a position; EDGE [lanes];
    LARGEST, SUM, FACTOR, SLOPES [row]; MASKS [row]: the address of its row of the mask.
    """

    QUERIES = 0
    KEYS = 1
    PANEL = 2
    VALUES = 3
    SCORES = 4
    RESULT = 5
    SEEN = 6
    EDGE = 7
    LARGEST = 8
    SUM = 9
    FACTOR = 10
    SLOPES = 11
    MASKS = 12


def padded(n: int, lanes: int) -> int:
    """Return `n` rounded up to whole vectors."""
    return -(-n // lanes) * lanes


def region_offsets(key_head: int, value_head: int, lanes: int) -> tuple[list[int], int]:
    """Return the offset in bytes of each region, and the bytes of all."""
    key, value = padded(key_head, lanes), padded(value_head, lanes)
    sizes = {
        Region.QUERIES: ITEM_ROWS * key,
        Region.KEYS: lanes * key,
        Region.PANEL: key * lanes,
        Region.VALUES: BLOCK * value,
        Region.SCORES: ITEM_ROWS * BLOCK,
        Region.RESULT: ITEM_ROWS * value,
        Region.SEEN: BLOCK,
        Region.EDGE: lanes,
        Region.LARGEST: ITEM_ROWS,
        Region.SUM: ITEM_ROWS,
        Region.FACTOR: ITEM_ROWS,
        Region.SLOPES: ITEM_ROWS,
        Region.MASKS: 2 * ITEM_ROWS,
    }
    offsets, end = [], 0
    for region in Region:
        offsets.append(end)
        end += -(-4 * sizes[region] // 64) * 64
    return offsets, end
