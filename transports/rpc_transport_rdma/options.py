"""What a user may ask of the transport.

Belongs here: the keys of `--transport rdma:key=value,…` and their checks. Must not be here: what they do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rpc_backend.plugin_api import ConfigError

VERBS, SOFT = "verbs", "soft"
_KEYS = ("provider", "device", "port", "gid")


@dataclass(frozen=True, slots=True)
class RdmaOptions:
    """`device` "" is the first with an active port; `gid` -1 chooses an address. `extra` is for the software model."""

    provider: str = VERBS
    device: str = ""
    port: int = 1
    gid: int = -1
    extra: Mapping[str, str] = field(default_factory=dict)


def parse(texts: Mapping[str, str]) -> RdmaOptions:
    """Make options from texts.

    Raises:
        ConfigError: an unknown key, or a value that does not fit; naming it.
    """
    extra = {key: value for key, value in texts.items() if key not in _KEYS}
    provider = texts.get("provider", VERBS)
    if provider not in (VERBS, SOFT):
        raise ConfigError(f"rdma: provider is {VERBS} or {SOFT}, not {provider!r}")
    if extra and provider != SOFT:
        raise ConfigError(f"rdma: unknown option {sorted(extra)[0]!r}; known: {', '.join(_KEYS)}")
    port, gid = (_number(texts, key, default) for key, default in (("port", 1), ("gid", -1)))
    return RdmaOptions(provider, texts.get("device", ""), port, gid, extra)


def _number(texts: Mapping[str, str], key: str, default: int) -> int:
    text = texts.get(key)
    if text is None:
        return default
    if not text.isdecimal() or int(text) > 255:
        raise ConfigError(f"rdma: {key} is a number from 0 to 255, not {text!r}")
    return int(text)
