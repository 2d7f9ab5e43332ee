"""Options of the software device."""

from __future__ import annotations

import pytest

from rpc_transport_rdma.soft import SoftOptions
from rpc_transport_rdma.verbs import load_provider


def test_options_are_read_from_texts() -> None:
    parsed = SoftOptions.parse(
        {"carrier": "stream", "memlock_nbytes": "1024", "transmit_delay_s": "0.5", "one_at_a_time": "yes", "seed": "9"}
    )
    assert parsed == SoftOptions("stream", memlock_nbytes=1024, transmit_delay_s=0.5, one_at_a_time=True, seed=9)
    assert SoftOptions.parse({"vanish_after": "3", "one_at_a_time": "0"}) == SoftOptions(vanish_after=3)
    assert SoftOptions.parse({}) == SoftOptions()


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        ({"carier": "ring"}, "unknown option 'carier'; known: carrier, address"),
        ({"carrier": "pigeon"}, "'pigeon'"),
        ({"address": "localhost"}, "localhost"),
        ({"ring_nbytes": "12"}, "ring_nbytes is at least"),
        ({"memlock_nbytes": "lots"}, "memlock_nbytes is a number, not 'lots'"),
        ({"memlock_nbytes": "-1"}, "memlock_nbytes cannot be -1"),
        ({"transmit_delay_s": "nan"}, "transmit_delay_s cannot be nan"),
        ({"one_at_a_time": "perhaps"}, "one_at_a_time is 0 or 1, not 'perhaps'"),
        ({"vanish_after": "1.5"}, "vanish_after is a number"),
    ],
)
def test_bad_options_are_named(texts: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        SoftOptions.parse(texts)


def test_providers_are_found_by_name() -> None:
    assert load_provider("soft", {"carrier": "stream"}).get_device_list()[0].name == "soft0"
    with pytest.raises(ValueError, match="unknown provider 'hard'; known: verbs, soft"):
        load_provider("hard")
    with pytest.raises(ValueError, match="no option 'carrier'"):
        load_provider("verbs", {"carrier": "ring"})
