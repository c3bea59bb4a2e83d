"""Times PyTorch on the supervised training of `experiment=supervised`, one JSON line for each mode.

    python train_torch.py [--iterations 30 | --seconds 60] [--threads N] [--modes eager,channels_last,compile]

The same network (Local, 24-48-72 channels, one block a level), 8 crops of 64 x 64 with 5 channels, mean squared error, clipping to
norm 1, AdamW, average of the weights. Samples are ready before the clock starts. `train.sh` runs it beside clearshot.
"""
import argparse, copy, json, time
import torch
from torch import nn

P = argparse.ArgumentParser()
P.add_argument("--iterations", type=int, default=30)
P.add_argument("--seconds", type=float, help="in place of iterations")
P.add_argument("--threads", type=int)
P.add_argument("--modes", default="eager,channels_last")
A = P.parse_args()
if A.threads:
    torch.set_num_threads(A.threads)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)

    def forward(self, h):
        return h + self.conv2(nn.functional.silu(self.conv1(h)))


class Local(nn.Module):
    def __init__(self, channels=(24, 48, 72), inputs=5):
        super().__init__()
        self.conv_in = nn.Conv2d(inputs, channels[0], 3, padding=1)
        self.down = nn.ModuleList(Block(c) for c in channels[:-1])
        self.shrink = nn.ModuleList(nn.Conv2d(a, b, 2, stride=2) for a, b in zip(channels, channels[1:]))
        self.middle = Block(channels[-1])
        self.grow = nn.ModuleList(nn.Conv2d(b, a, 3, padding=1) for a, b in zip(channels, channels[1:]))
        self.up = nn.ModuleList(Block(c) for c in channels[:-1])
        self.conv_out = nn.Conv2d(channels[0], 1, 3, padding=1)

    def forward(self, x):
        h, skips = self.conv_in(x), []
        for block, shrink in zip(self.down, self.shrink):
            h = block(h)
            skips.append(h)
            h = shrink(h)
        h = self.middle(h)
        for level in reversed(range(len(skips))):
            h = nn.functional.interpolate(h, scale_factor=2, mode="nearest")
            h = self.up[level](self.grow[level](h) + skips[level])
        return self.conv_out(nn.functional.silu(h))


for mode in A.modes.split(","):
    torch.manual_seed(0)
    net = Local()
    layout = torch.contiguous_format if mode == "eager" else torch.channels_last
    net = net.to(memory_format=layout)
    average = copy.deepcopy(net)
    run = torch.compile(net) if mode == "compile" else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    x = torch.randn(8, 5, 64, 64).contiguous(memory_format=layout)
    y = torch.randn(8, 1, 64, 64).contiguous(memory_format=layout)

    def iteration():
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(run(x), y).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(net.parameters()), 0.01)

    for _ in range(5):
        iteration()
    begin, cpu = time.perf_counter(), time.process_time()
    done = 0
    while time.perf_counter() - begin < A.seconds if A.seconds else done < A.iterations:
        iteration()
        done += 1
    seconds, busy = time.perf_counter() - begin, time.process_time() - cpu
    print(json.dumps(dict(engine=f"torch {torch.__version__}", mode=mode, threads=torch.get_num_threads(),
                          parameters=sum(p.numel() for p in net.parameters()), iterations=done,
                          iterations_per_second=round(done / seconds, 3),
                          cpu_seconds_per_iteration=round(busy / done, 4))))
