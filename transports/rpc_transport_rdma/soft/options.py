"""How a software device is set up: its carrier and its test modes.

Belongs here: the options, and reading them from texts. Must not be here: what they do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from ipaddress import ip_address

_KIB = 1024
_LEAST_RING_NBYTES = 4 * _KIB
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True)
class SoftOptions:
    """Options of a software device. Those from `memlock_nbytes` on are test modes.

    `carrier` is "ring" (shared memory) or "stream" (a Unix socket), both between processes of one user on one host.
    `address`, an IP address of this machine, makes the device listen there with TCP streams instead.
    """

    carrier: str = "ring"
    address: str = ""
    ring_nbytes: int = 2048 * _KIB
    memlock_nbytes: int | None = None  # registered pages above this many bytes are refused with ENOMEM
    transmit_delay_s: float = 0.0  # each send leaves, and its buffer is read, up to this much later
    receive_delay_s: float = 0.0  # a posted receive is seen by the device this much later
    one_at_a_time: bool = False  # `poll` hands out one completion per call
    vanish_after: int | None = None  # after so many polled completions the device is silent, as if its process died
    seed: int = 0

    def __post_init__(self) -> None:
        if self.carrier not in ("ring", "stream"):
            raise ValueError(f"carrier is 'ring' or 'stream', not {self.carrier!r}")
        if self.address:
            ip_address(self.address)
        if self.ring_nbytes < _LEAST_RING_NBYTES:
            raise ValueError(f"ring_nbytes is at least {_LEAST_RING_NBYTES}, not {self.ring_nbytes}")
        for name in ("memlock_nbytes", "transmit_delay_s", "receive_delay_s", "vanish_after"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"{name} cannot be {value}: it is 0 or more")

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> SoftOptions:
        """Make options from texts, as a command line gives them.

        Raises:
            ValueError: an unknown name, listing the known ones, or a value that does not fit, naming it.
        """
        kinds = {field.name: str(field.type) for field in fields(cls)}
        values: dict[str, object] = {}
        for name, text in texts.items():
            if name not in kinds:
                raise ValueError(f"unknown option {name!r}; known: {', '.join(kinds)}")
            values[name] = _value(name, kinds[name], text)
        return cls(**values)  # type: ignore[arg-type]  # each value was made for its field


def _value(name: str, kind: str, text: str) -> object:
    if kind == "bool":
        if text.lower() not in _TRUE + _FALSE:
            raise ValueError(f"{name} is 0 or 1, not {text!r}")
        return text.lower() in _TRUE
    try:
        return text if kind == "str" else float(text) if kind == "float" else int(text)
    except ValueError as error:
        raise ValueError(f"{name} is a number, not {text!r}") from error
