from __future__ import annotations

from rpc_backend.client.pulse import Pulse, Verdict


def test_a_caller_waits_then_asks_then_gives_up_within_the_timeout():
    pulse = Pulse(10.0)
    verdicts = [pulse.judge(0.0, now_s) for now_s in (0.0, 3.9, 4.1, 5.0, 8.0, 8.2)]
    assert verdicts == [
        Verdict.WAIT, Verdict.WAIT, Verdict.ASK, Verdict.WAIT, Verdict.WAIT, Verdict.LOST,
    ]  # fmt: skip


def test_anything_heard_is_a_sign_of_life():
    pulse = Pulse(10.0)
    assert pulse.judge(0.0, 5.0) is Verdict.ASK
    pulse.heard(6.0)
    assert pulse.judge(0.0, 9.0) is Verdict.WAIT
    assert pulse.judge(0.0, 10.5) is Verdict.ASK


def test_silence_before_the_wait_does_not_count():
    pulse = Pulse(10.0)
    pulse.heard(0.0)
    assert pulse.judge(100.0, 101.0) is Verdict.WAIT


def test_callers_look_often_enough():
    pulse = Pulse(10.0)
    assert 0.8 * pulse.timeout_s + 2 * pulse.interval_s <= pulse.timeout_s
