"""A training with PyTorch whose ranks are the tasks of a job. It may be stopped at any step, and continues on other workers."""

import os
import pathlib
import signal

import torch
import torch.distributed as ranks

import tidemill.collective.torch  # registers the backend `tidemill`

STEPS, ROWS, EVERY = 2000, 64, 500

stops = []
signal.signal(signal.SIGTERM, lambda *_: stops.append(True))
ranks.init_process_group("tidemill")
folder = pathlib.Path(os.environ["TIDEMILL_CHECKPOINT"])
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

# All ranks continue from the state of rank 0, so that they are at the same step.
saved = folder / "state.pt"
state = [torch.load(saved) if saved.exists() else None]
ranks.broadcast_object_list(state)
step = 0
if state[0]:
    step = state[0]["step"]
    model.load_state_dict(state[0]["model"])
    optimizer.load_state_dict(state[0]["optimizer"])
parallel = torch.nn.parallel.DistributedDataParallel(model)

while step < STEPS:
    step += 1
    random = torch.Generator().manual_seed(step * ranks.get_world_size() + ranks.get_rank())
    inputs = torch.rand(ROWS, 2, generator=random)
    loss = torch.nn.functional.cross_entropy(parallel(inputs), (inputs[:, 0] > inputs[:, 1]).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    stop = torch.tensor([float(bool(stops))])
    ranks.all_reduce(stop, op=ranks.ReduceOp.MAX)  # all ranks end after the same step
    if step % EVERY == 0 or stop:
        (folder / "READY").unlink(missing_ok=True)
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
        (folder / "READY").write_text(f"{step / STEPS}\nstep {step}: loss {loss:.3f}\n")
        print(f"step {step}: loss {loss:.3f}", flush=True)
    if stop and step < STEPS:
        (folder / "RESUME").touch()
        break
ranks.destroy_process_group()
