"""The waker never loses a wake."""

import select

from rpc_backend.fabric.waker import Waker


def is_readable(waker):
    return bool(select.select([waker], [], [], 0)[0])


def test_wakes_collapse_and_clear_ends_them():
    waker = Waker()
    assert not is_readable(waker)
    for _ in range(100_000):
        waker.wake()
    assert is_readable(waker)
    waker.clear()
    assert not is_readable(waker)
    waker.wake()
    assert is_readable(waker)
    waker.close()


def test_a_wake_in_the_middle_of_clear_does_not_silence_later_ones():
    waker = Waker()
    real = waker._reader

    class WakesWhileRead:
        def recv(self, nbytes):
            taken = real.recv(nbytes)
            waker.wake()  # another thread, after the byte was taken
            return taken

    waker.wake()
    waker._reader = WakesWhileRead()
    waker.clear()
    waker._reader = real
    waker.wake()
    assert is_readable(waker)
    waker.close()


def test_clear_without_a_wake_and_wake_after_close_are_harmless():
    waker = Waker()
    waker.clear()
    waker.close()
    waker.wake()
