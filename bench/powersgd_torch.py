"""PowerSGD beside no compression in PyTorch, on the network and the settings of `bench/ranks.py ... powersgd`: is what it costs the algorithm's or ours?

    python bench/powersgd_torch.py [ITERATIONS]

MONAI's DynUNet in three dimensions (342,321 parameters), Adam, two processes over gloo with two images each, 200 iterations: the mean loss of the last 20.
Volumes are smooth blobs with noise, drawn from (seed, number), the same for every row of the table.
"""

import pathlib
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from monai.networks.nets import DynUNet
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

ITERATIONS = int(sys.argv[1]) if __name__ == "__main__" and len(sys.argv) > 1 else 200
ROWS = [
    ("Adam", None),
    ("Adam", (2, 10)),
    ("Adam", (2, 100)),
    ("Adam", (8, 10)),
    ("Adam, norm clipped to 0.1", None),
    ("Adam, norm clipped to 0.1", (2, 10)),
    ("Adam, norm clipped to 0.1", (2, 100)),
    ("Adam, norm clipped to 1, far from the answer", None),
    ("Adam, norm clipped to 1, far from the answer", (2, 10)),
    ("Adam, norm clipped to 1, far from the answer", (2, 100)),
    ("Adam, norm clipped to 1, far from the answer", (8, 10)),
    ("SGD, momentum 0.9", None),
    ("SGD, momentum 0.9", (2, 10)),
]


class Bucket:
    """All gradients of a network as the hook takes them: gloo mixes up the exchanges of several buckets under way."""

    def __init__(self, parameters):
        self.own = list(parameters)
        self.flat = torch.cat([p.grad.reshape(-1) for p in self.own])

    def gradients(self):
        parts = self.flat.split([p.numel() for p in self.own])
        return [part.view(p.shape) for part, p in zip(parts, self.own)]

    def buffer(self):
        return self.flat

    def parameters(self):
        return self.own

    def index(self):
        return 0

    def is_last(self):
        return True


def batch(number, count=2):
    made = torch.Generator().manual_seed(number)
    raw = torch.randn(count, 1, 8, 16, 16, generator=made)
    for _ in range(3):
        raw = torch.nn.functional.avg_pool3d(raw, 3, 1, 1)
    clean = raw / raw.std()
    return clean + 0.7 * torch.randn(clean.shape, generator=made), clean


def work(rank, meet, results):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
    for name, compression in ROWS:
        torch.manual_seed(0)
        network = DynUNet(3, 1, 1, [3, 3, 3], [1, 2, 2], [2, 2], filters=[16, 32, 64], res_block=True)
        of, start = compression or (1, ITERATIONS + 1)
        state = power.PowerSGDState(process_group=None, matrix_approximation_rank=of, start_powerSGD_iter=start)
        adam = name.startswith("Adam")
        rate = 1e-3 if adam else 1e-2
        optimiser = torch.optim.Adam(network.parameters(), rate) if adam else torch.optim.SGD(network.parameters(), rate, momentum=0.9)
        last = []
        for i in range(ITERATIONS):
            for group in optimiser.param_groups:
                group["lr"] = rate * min(1, (i + 1) / 20)
            noisy, clean = batch(2 * i + rank)
            if "far" in name:
                # The losses of the first iterations are large, as of images in photons.
                clean = 3 * clean + 4
            loss = torch.nn.functional.mse_loss(network(noisy), clean)
            optimiser.zero_grad()
            loss.backward()
            bucket = Bucket(network.parameters())
            power.powerSGD_hook(state, bucket).wait()
            for p, mean in zip(network.parameters(), bucket.gradients()):
                p.grad = mean.clone()
            if "clipped" in name:
                torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0 if "far" in name else 0.1)
            optimiser.step()
            both = loss.detach().clone()
            dist.all_reduce(both)
            last.append(both.item() / 2)
        if rank == 0:
            count = sum(p.numel() for p in network.parameters())
            how = "none" if compression is None else f"PowerSGD, rank {compression[0]}, start {compression[1]}"
            with open(results, "a") as f:
                print(f"| {name} | {how} | {sum(last[-20:]) / len(last[-20:]):.4f} | {count} parameters", file=f)
    dist.destroy_process_group()


if __name__ == "__main__":
    meet, results = pathlib.Path("/tmp/powersgd-torch-meeting"), pathlib.Path("/tmp/powersgd-torch.txt")
    for file in [meet, results]:
        file.unlink(missing_ok=True)
    mp.spawn(work, args=(str(meet), str(results)), nprocs=2)
    print(results.read_text())
