"""All-reduces of float32 by PCCL, for two_racks.py: allreduce_pccl.py MASTER RANK RANKS OUT UNMEASURED BYTES:ITERATIONS...

RANK `master` runs its master. PCCL chooses the order of its ring itself. It does not measure the pairs before: on
shaped links, `optimize_topology` of 1.0.0 ends all processes (`terminate called without an active exception`).
"""
import json
import signal
import sys
import time

import numpy
import pccl


def reduced(communicator, values):
    """The sum. An operation in which a peer was late fails, and is tried again."""
    received = numpy.empty_like(values)
    while True:
        try:
            communicator.all_reduce(values, received, op=pccl.ReduceOp.SUM)
            return received
        except pccl.PCCLError as error:
            print(error, file=sys.stderr)
            communicator.update_topology()


def main():
    address, rank, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if rank == "master":
        master = pccl.MasterNode(listen_address=address)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        master.run()
        return
    out, unmeasured = sys.argv[4], int(sys.argv[5])
    communicator = pccl.Communicator(address)
    communicator.connect(n_attempts=60)
    while communicator.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE) < ranks:
        if communicator.are_peers_pending():
            communicator.update_topology()
    with open(f"{out}.{rank}", "w", encoding="utf-8") as lines:
        for argument in sys.argv[6:]:
            size, iterations = map(int, argument.split(":"))
            values = numpy.full(size // 4, float(int(rank) + 1), dtype=numpy.float32)
            taken = []
            for iteration in range(-unmeasured, iterations):
                reduced(communicator, numpy.zeros(1, dtype=numpy.float32))  # there is no barrier
                begun = time.perf_counter()
                result = reduced(communicator, values)
                if iteration >= 0:
                    taken.append(time.perf_counter() - begun)
            if not bool((result == ranks * (ranks + 1) / 2).all()):
                raise SystemExit("the sum is wrong")
            lines.write(json.dumps({"bytes": size, "seconds": taken}) + "\n")


if __name__ == "__main__":
    main()
