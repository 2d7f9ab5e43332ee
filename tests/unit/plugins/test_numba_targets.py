"""The choice of instructions."""

from __future__ import annotations

import pytest

from rpc_backend.errors import ConfigError
from rpc_backend_numba import targets
from rpc_backend_numba.targets import choose_target

AVX2 = {"avx2": True, "f16c": True, "fma": True, "sse2": True}
AVX512 = {**AVX2, **dict.fromkeys(("avx512f", "avx512bw", "avx512vl", "avx512dq"), True)}


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch):
    """Pretends to be a CPU of the features given."""
    return lambda features: monkeypatch.setattr(targets, "cpu_features", lambda: features)


@pytest.mark.parametrize(("features", "name"), [({}, "portable"), (AVX2, "avx2"), (AVX512, "avx512")])
def test_auto_takes_the_widest_there_is(cpu, features: dict[str, bool], name: str) -> None:
    cpu(features)

    assert choose_target().name == name


@pytest.mark.parametrize(
    ("name", "extra", "byte_dot"),
    [
        ("avx512", {"avx512vnni": True}, "vnni"),
        ("avx512", {"avx512vnni": False, "avxvnni": True}, "pairs"),
        ("avx2", {"avx512vnni": True, "avxvnni": False}, "pairs"),
        ("avx2", {"avx512vnni": True, "avxvnni": True}, "vnni"),
        ("avx2", {}, "pairs"),
        ("portable", {"avx512vnni": True, "avxvnni": True}, "widened"),
    ],
)
def test_byte_products_need_a_feature_of_their_own(cpu, name: str, extra: dict[str, bool], byte_dot: str) -> None:
    cpu({**AVX512, **extra})

    assert choose_target(name).byte_dot == byte_dot


@pytest.mark.parametrize(("has_dotprod", "byte_dot"), [(True, "signed"), (False, "widened")])
def test_what_arm_gets(cpu, monkeypatch: pytest.MonkeyPatch, has_dotprod: bool, byte_dot: str) -> None:
    cpu({"neon": True, "dotprod": has_dotprod})
    monkeypatch.setattr(targets.platform, "machine", lambda: "aarch64")

    target = choose_target()
    assert (target.name, target.byte_dot, target.byte_shuffle) == ("portable", byte_dot, "tbl")


def test_any_target_can_be_forced_down(cpu) -> None:
    cpu(AVX512)

    assert [choose_target(name).lanes for name in ("avx512", "avx2", "portable")] == [16, 8, 8]


def test_instructions_the_cpu_lacks_are_refused(cpu) -> None:
    cpu(AVX2)

    with pytest.raises(ConfigError, match=r"cpu_features=avx512.*only avx2, portable"):
        choose_target("avx512")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="'sse9' is not known; known: auto, avx512, avx2, portable"):
        choose_target("sse9")


def test_lower_targets_use_no_higher_instructions(cpu, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu(AVX512)
    monkeypatch.setattr(targets, "is_x86", lambda: True)

    assert "+avx512f" not in choose_target("avx2").features
    assert "+avx2" in choose_target("avx2").features
    assert "+avx2" not in choose_target("portable").features
    assert "+sse2" in choose_target("portable").features


def test_nothing_that_turns_avx512_on_again_is_left_to_avx2(cpu) -> None:
    cpu({**AVX512, "avxvnni": True, "avx10.1": True, "avx10.2": True, "amx-avx512": True})

    enabled = {item[1:] for item in choose_target("avx2").features.split(",") if item.startswith("+")}
    assert enabled == {*AVX2, "avxvnni"}
