"""The other side of a link for the tests of verbs: a program that receives, and can die at a chosen point.

Arguments: provider, its options as JSON, count of receives to post, nbytes of each, what to do after how many
completions: "kill:N", "exit:N". It reads its peer's description (hexadecimal) from standard input and writes its own,
then one line "wr_id status byte_len digest" per completion.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import signal
import sys
import time

import numpy as np

from rpc_transport_rdma.verbs import AccessFlags, load_provider

WAIT_S = 30.0


def tell(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main() -> None:
    provider, options, count, nbytes, (deed, _, after) = (
        sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5].partition(":"),
    )  # fmt: skip
    ib = load_provider(provider, options)
    context = ib.get_device_list()[0].open()
    domain = context.alloc_pd()
    queues = [context.create_cq(64) for _ in range(2)]
    pair = domain.create_qp(ib.QPInitAttr(send_cq=queues[0], recv_cq=queues[1], max_send_wr=8, max_recv_wr=count))
    memory = np.frombuffer(mmap.mmap(-1, count * nbytes), np.uint8)
    region = domain.reg_mr(int(memory.ctypes.data), memory.nbytes, AccessFlags.LOCAL_WRITE)
    index = int(sys.argv[6])
    info = ib.local_qp_info(pair, context.query_port(1), context.query_gid(1, index), port=1, psn=77)
    tell(info.to_bytes().hex())
    pair.to_init(1, AccessFlags.LOCAL_WRITE)
    for number in range(count):
        pair.post_recv(ib.RecvWR(number, [ib.SGE(region, nbytes, offset=number * nbytes)]))
    pair.to_rtr(ib.QPInfo.from_bytes(bytes.fromhex(sys.stdin.readline())), sgid_index=index)
    pair.to_rts(77)
    tell("connected")
    done, deadline = 0, time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        for wc in queues[1].poll(1):
            start = wc.wr_id * nbytes
            digest = hashlib.blake2b(memory[start : start + wc.byte_len], digest_size=8).hexdigest()
            tell(wc.wr_id, wc.status, wc.byte_len, digest)
            done += 1
        if done >= int(after):
            if deed == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            sys.stdin.readline()
            return
        time.sleep(0.0005)
    sys.exit("the peer waited too long")


main()
