"""PyTorch: training where each rank has a part of all parameters. The argument is a file for the store."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import tidemill.collective.torch

torch.set_num_threads(1)
rank, size = int(os.environ["TIDEMILL_RANK"]), int(os.environ["TIDEMILL_SIZE"])


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 30), torch.nn.ReLU(), torch.nn.Linear(30, 1))


def train(net, first, count):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for step in range(15):
        inputs = torch.randn(size * 4, 8, generator=torch.Generator().manual_seed(step))[first * 4:(first + count) * 4]
        optimizer.zero_grad()
        ((net(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean().backward()
        optimizer.step()


alone = model()
train(alone, 0, size)
dist.init_process_group("tidemill", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=size)
sharded = model()
fully_shard(sharded, mesh=init_device_mesh("cpu", (size,)))
train(sharded, rank, 1)
for mine, whole in zip(sharded.parameters(), alone.parameters()):
    parts = whole.chunk(size)
    part = parts[rank] if rank < len(parts) else whole[:0]
    assert torch.allclose(mine.to_local(), part, atol=1e-4), (mine, part)
dist.destroy_process_group()
