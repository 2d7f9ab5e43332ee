"""A plain socket as the measure of an upload: the same bytes, two processes, nothing else.

Belongs here: `sendall` and `recv_into`. Must not be here: anything of the project.
"""

from __future__ import annotations

import mmap
import multiprocessing
import multiprocessing.connection
import socket
import time
from collections.abc import Sequence

_LIMIT_S = 120.0
_PIECE_NBYTES = 4 << 20


def seconds(parts: Sequence[memoryview], *, into_new_memory: bool) -> float:
    """Return how long it takes to bring `parts` to another process, until it says that it has all.

    With `into_new_memory` they end up in memory of their own, as weights do; else each piece overwrites the one before.
    """
    here, there = multiprocessing.Pipe()
    nbytes = sum(part.nbytes for part in parts)
    process = multiprocessing.get_context("spawn").Process(
        target=_receive, args=(there, nbytes, into_new_memory), daemon=True
    )
    process.start()
    try:
        if not here.poll(_LIMIT_S):
            raise TimeoutError("the receiving process did not start")
        with socket.create_connection(("127.0.0.1", here.recv()), _LIMIT_S) as connection:
            started = time.perf_counter()
            for part in parts:
                connection.sendall(part)
            connection.recv(1)
            return time.perf_counter() - started
    finally:
        process.join(_LIMIT_S)
        process.kill()


def _receive(pipe: multiprocessing.connection.Connection, nbytes: int, into_new_memory: bool) -> None:
    place = mmap.mmap(-1, nbytes if into_new_memory else _PIECE_NBYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with socket.create_server(("127.0.0.1", 0)) as server, memoryview(place) as memory:
        server.settimeout(_LIMIT_S)
        pipe.send(server.getsockname()[1])
        connection, _ = server.accept()
        with connection:
            connection.settimeout(None)
            done = 0
            while done < nbytes:
                start = done if into_new_memory else 0
                done += connection.recv_into(memory[start:], min(nbytes - done, _PIECE_NBYTES))
            connection.sendall(b"\0")
