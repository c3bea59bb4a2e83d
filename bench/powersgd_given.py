"""PowerSGD in PyTorch on exactly what our own run saw: the same batches, first weights, learning rates, optimiser and clipping.

    cargo run --release -p clearshot-train --example batches -- GIVEN 2 200 KEYS          # KEYS as in `bench/ranks.py ... powersgd`, with records.every=1
    clearshot train KEYS --devices 2 --out GIVEN/run
    clearshot train KEYS --stop-at 0 --out GIVEN/first                                  # the first weights
    python bench/powersgd_given.py GIVEN

Two processes over gloo with PyTorch's powerSGD_hook; MONAI's DynUNet has the weights' names that ours has. Prints the mean loss of the last 20 of 200 iterations of each row, and for the
uncompressed one how far its losses are from GIVEN/run's.
"""

import json
import math
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from monai.networks.nets import DynUNet
from powersgd_torch import Bucket
from safetensors.torch import load_file
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

ROWS = [(None, 1.0), ((2, 10), 1.0), ((2, 10, 1), 1.0), ((2, 100), 1.0), ((8, 10), 1.0), (None, None), ((2, 10), None)]


def tensor(given):
    return torch.tensor(given["values"], dtype=torch.float32).reshape(given["shape"])


def rate_of(i, total=200, warm_up=20, most=1e-3, floor=0.01):
    """`train::schedule::rate`: a linear rise and half a cosine."""
    way = max(i - warm_up, 0) / (total - warm_up)
    return most * min(1, (i + 1) / warm_up) * (floor + (1 - floor) * (0.5 + 0.5 * math.cos(math.pi * way)))


def batch(given):
    """What the network is given, what it should say, and how much each sample counts: as `train::iteration` has it."""
    measured, clean, numbers = (tensor(given[name]) for name in ["measured", "clean", "numbers"])
    n = numbers.split(1, dim=-1)
    channels = [measured * n[0] + n[1], (measured + n[2]).relu().sqrt() * n[3] + n[4]]
    channels += [one.expand_as(measured) for one in n[5:]]
    first = lambda x: x.movedim(-1, 1).contiguous()
    return first(torch.cat(channels, dim=-1)), first(clean), torch.tensor(given["balance"])


def work(rank, folder, meet, results):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
    given = [json.loads(line) for line in (folder / f"rank{rank}.jsonl").read_text().splitlines()]
    batches = [(*batch(g), rate_of(i)) for i, g in enumerate(given)]
    states = load_file(next((folder / "first" / "checkpoints").glob("iteration-*")) / "states.safetensors")
    records = [json.loads(line) for line in (folder / "run" / "records.jsonl").read_text().splitlines()]
    ours = [r["loss"] for r in records if "loss" in r]
    for compression, clip in ROWS:
        network = DynUNet(3, 9, 1, [3, 3, 3], [1, 2, 2], [2, 2], filters=[16, 32, 64], res_block=True)
        for name, p in network.named_parameters():
            own = states[name]
            # Ours have their channels last.
            p.data = (own.movedim(-1, 1) if own.dim() == 5 else own).clone().contiguous()
        of, start, seed = ((*compression, 0)[:3]) if compression else (1, len(batches) + 1, 0)
        state = power.PowerSGDState(process_group=None, matrix_approximation_rank=of, start_powerSGD_iter=start, random_seed=seed)
        optimiser = torch.optim.AdamW(network.parameters(), betas=(0.9, 0.99), eps=1e-8, weight_decay=0.01)
        losses = []
        for x, clean, weights, rate in batches:
            optimiser.param_groups[0]["lr"] = rate
            each = (network(x) - clean).square().mean(dim=(1, 2, 3, 4))
            loss = (each * weights).mean()
            optimiser.zero_grad()
            loss.backward()
            bucket = Bucket(network.parameters())
            power.powerSGD_hook(state, bucket).wait()
            for p, mean in zip(network.parameters(), bucket.gradients()):
                p.grad = mean.clone()
            if clip:
                torch.nn.utils.clip_grad_norm_(network.parameters(), clip)
            optimiser.step()
            both = loss.detach().clone()
            dist.all_reduce(both)
            losses.append(both.item() / 2)
        if rank == 0:
            how = f"PowerSGD, rank {of}, start {start}, seed {seed}" if compression else "none"
            with open(results, "a") as f:
                print(f"| {how} | clip {clip} | {sum(losses[-20:]) / 20:.4f} |", file=f)
                if not compression and clip:
                    off = [abs(a - b) / b for a, b in zip(losses, ours)]
                    print(f"  losses beside ours: first 20 within {max(off[:20]):.1e}, all within {max(off):.1e}; ours {sum(ours[-20:]) / 20:.4f}", file=f)
    dist.destroy_process_group()


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    meet, results = pathlib.Path("/tmp/powersgd-given-meeting"), folder / "torch.txt"
    for file in [meet, results]:
        file.unlink(missing_ok=True)
    mp.spawn(work, args=(folder, str(meet), str(results)), nprocs=2)
    print(results.read_text())
