"""What PyTorch's powerSGD_hook makes of given gradients: refs/train/powersgd.json.

    python refs/make_powersgd.py

Two processes over gloo. One matrix and one bias, whose gradients are given; the first Q is given too, so that nothing is random.
"""

import json
import pathlib

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
from torch.nn.parallel import DistributedDataParallel

ROWS, COLUMNS, RANK, RANKS, STEPS = 24, 40, 2, 2, 6


def gradients(rank, step):
    made = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(ROWS, COLUMNS, generator=made), torch.randn(7, generator=made)


class Given(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(ROWS, COLUMNS))
        self.bias = torch.nn.Parameter(torch.zeros(7))

    def forward(self, a, b):
        return (self.weight * a).sum() + (self.bias * b).sum()


def work(rank, file, found):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=RANKS)
    model = DistributedDataParallel(Given())
    state = power.PowerSGDState(process_group=None, matrix_approximation_rank=RANK, start_powerSGD_iter=2)
    q = torch.randn(COLUMNS, RANK, generator=torch.Generator().manual_seed(7))
    state.p_memory_dict[0] = torch.zeros(ROWS * RANK)
    state.q_memory_dict[0] = q.reshape(-1).clone()
    model.register_comm_hook(state, power.powerSGD_hook)
    steps = []
    for step in range(STEPS):
        model.zero_grad()
        model(*gradients(rank, step)).backward()
        steps.append(torch.cat([model.module.weight.grad.reshape(-1), model.module.bias.grad]).tolist())
    if rank == 0:
        given = [[torch.cat([t.reshape(-1) for t in gradients(r, s)]).tolist() for s in range(STEPS)] for r in range(RANKS)]
        record = {"rows": ROWS, "columns": COLUMNS, "bias": 7, "rank": RANK, "start": 2, "q": q.T.reshape(-1).tolist(), "gradients": given, "averaged": steps}
        pathlib.Path(found).write_text(json.dumps(record, separators=(",", ":")))
    dist.destroy_process_group()


if __name__ == "__main__":
    out = pathlib.Path(__file__).parent / "train" / "powersgd.json"
    meet = pathlib.Path("/tmp/powersgd-meeting")
    meet.unlink(missing_ok=True)
    mp.spawn(work, args=(str(meet), str(out)), nprocs=RANKS)
