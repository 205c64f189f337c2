"""All-reduces of float32 by Gloo, for two_racks.py: allreduce_gloo.py MASTER RANK RANKS OUT UNMEASURED BYTES:ITERATIONS..."""
import datetime
import json
import sys
import time

import torch
import torch.distributed as dist


def main():
    master, rank, ranks, out, unmeasured = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{master}", rank=rank, world_size=ranks, timeout=datetime.timedelta(minutes=10))
    with open(f"{out}.{rank}", "w", encoding="utf-8") as lines:
        for argument in sys.argv[6:]:
            size, iterations = map(int, argument.split(":"))
            taken = []
            for iteration in range(-unmeasured, iterations):
                tensor = torch.full((size // 4,), float(rank + 1))
                dist.barrier()
                begun = time.perf_counter()
                dist.all_reduce(tensor)
                if iteration >= 0:
                    taken.append(time.perf_counter() - begun)
            if not bool((tensor == ranks * (ranks + 1) / 2).all()):
                raise SystemExit("the sum is wrong")
            lines.write(json.dumps({"bytes": size, "seconds": taken}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
