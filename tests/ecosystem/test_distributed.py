"""DistributedDataParallel over gloo: two processes, each with a compiled model, keep one set of weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import os, sys, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import litz
rank, port = int(sys.argv[1]), sys.argv[2]
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
torch.set_num_threads(1)
dist.init_process_group("gloo", rank=rank, world_size=2)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))

    def forward(self, x):
        return self.layers(x)

def trained(compile, inside):
    torch.manual_seed(0)
    net = Net()
    if compile and inside:
        net.compile(backend="litz")
    model = DistributedDataParallel(net)
    if compile and not inside:
        model = torch.compile(model, backend="litz")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(6):
        draw = torch.Generator().manual_seed(10 * step + rank)
        x = torch.randn(4 + step % 3 + rank, 8, generator=draw)  # ranks and steps differ in their batch
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])

wanted = trained(False, False)
for inside in (True, False):
    torch._dynamo.reset()
    found = trained(True, inside)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    both = [torch.empty_like(found) for _ in range(2)]
    dist.all_gather(both, found)
    assert torch.equal(*both), "the processes have drifted apart"
assert litz.reports() and not any(r.left_to_eager for r in litz.reports()), [r.left_to_eager for r in litz.reports()]
dist.destroy_process_group()
# Threads of torch's that are at work while the interpreter ends take the process down, with any backend, eager's too.
os._exit(0)
"""


def test_two_processes() -> None:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), port], env=environment, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    for process in running:
        _, errors = process.communicate(timeout=400)
        assert process.returncode == 0, errors[-3000:]
