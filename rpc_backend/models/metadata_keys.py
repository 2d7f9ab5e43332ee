"""Typed reads of metadata.

Belongs here: complaints about keys. Must not be here: which keys there are (`hyperparameters`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rpc_backend.errors import ModelFileError, UnsupportedModelError


class MetadataKeys:
    """Typed reads of the keys of one architecture; every complaint names the key."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self.metadata = metadata
        self.architecture = architecture

    def name(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def value(self, key: str) -> Any:
        return self.metadata.get(self.name(key))

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number above 0; a list of one number per layer must repeat the same."""
        value = self.value(key)
        if isinstance(value, list) and value:
            if any(item != value[0] for item in value):
                raise UnsupportedModelError(f"metadata key {self.name(key)} differs between layers: {value[:8]}")
            value = value[0]
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelFileError(f"metadata key {self.name(key)} is {describe(value)}; it must be a count above 0")
        return value

    def count_or_none(self, key: str) -> int:
        """A whole number, 0 if the key is missing."""
        return 0 if self.value(key) in (None, 0) else self.count(key)

    def flags(self, key: str, n_layer: int) -> tuple[bool, ...] | None:
        """One flag per layer; None if the key is missing."""
        value = self.value(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < n_layer or not all(isinstance(item, int) for item in value):
            raise ModelFileError(f"metadata key {self.name(key)} is {describe(value)}; it must have a flag per layer")
        return tuple(bool(item) for item in value[:n_layer])

    def number_or_none(self, key: str, default: float = 0.0) -> float:
        """A finite number above 0; the default if the key is missing, 0 if it is 0."""
        value = self.value(key)
        return default if value is None else 0.0 if value == 0 else self.number(key)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.value(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ModelFileError(f"metadata key {self.name(key)} is {describe(value)}; it must be a number above 0")
        return float(value)


def describe(value: Any) -> str:
    """Return a value for a complaint, cut if it is long."""
    if value is None:
        return "missing"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
