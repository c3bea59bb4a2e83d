"""A plain U-Net of PyTorch, trained on the pairs of W2S for so many seconds and scored on W2S dev: one JSON line.

    python pairs_torch.py --data DATA/w2s --seconds 80

Images are held on the device; crops, turns and flips are cut there. Inputs and targets are scaled image by image to mean 0 and deviation 1, which is the fit of
gain and offset that pairs stretched separately need; results are fitted to the clean image before PSNR. bf16 on a GPU, AdamW, cosine rate by the
clock, averaged weights.
"""
import argparse, copy, json, math, pathlib, time
import numpy as np
import tifffile
import torch
from torch import nn
from torch.nn import functional as F

P = argparse.ArgumentParser()
P.add_argument("--data", type=pathlib.Path, required=True)
P.add_argument("--seconds", type=float, default=80)
P.add_argument("--batch", type=int, default=16)
P.add_argument("--crop", type=int, default=128)
P.add_argument("--rate", type=float, default=1e-3)
A = P.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def images(part, kind):
    files = sorted((A.data / part / kind).glob("*.tif"))
    return torch.stack([torch.from_numpy(tifffile.imread(f).astype(np.float32)) for f in files]).to(device)


def scaled(x):
    return (x - x.mean((1, 2), keepdim=True)) / x.std((1, 2), keepdim=True)


def block(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.Conv2d(b, b, 3, padding=1), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, widths=(48, 96, 192)):
        super().__init__()
        self.down = nn.ModuleList(block(a, b) for a, b in zip((1, *widths), widths))
        self.up = nn.ModuleList(block(a + b, a) for a, b in zip(widths, widths[1:]))
        self.out = nn.Conv2d(widths[0], 1, 1)

    def forward(self, x):
        h, skips = self.down[0](x), []
        for layer in self.down[1:]:
            skips.append(h)
            h = layer(F.max_pool2d(h, 2))
        for layer, skip in zip(reversed(self.up), reversed(skips)):
            h = layer(torch.cat([skip, F.interpolate(h, scale_factor=2)], 1))
        return x + self.out(h)


x, y = scaled(images("train", "noisy")), scaled(images("train", "clean"))
# The slope of the noisy image on the clean one, so that the target is the mean of the input.
y = y * (x * y).mean((1, 2), keepdim=True)
net = UNet().to(device, memory_format=torch.channels_last)
average = copy.deepcopy(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=A.rate)
begin, iterations = time.perf_counter(), 0
while (spent := (time.perf_counter() - begin) / A.seconds) < 1:
    optimizer.param_groups[0]["lr"] = A.rate * min(1, (iterations + 1) / 50) * 0.5 * (1 + math.cos(math.pi * spent))
    pick = torch.randint(len(x), (A.batch,)).tolist()
    top, left = (torch.randint(x.shape[k] - A.crop + 1, (A.batch,)).tolist() for k in (1, 2))
    cut = lambda s: torch.stack([s[i, t : t + A.crop, l : l + A.crop] for i, t, l in zip(pick, top, left)])[:, None]
    turns, flip = int(torch.randint(4, ())), bool(torch.randint(2, ()))
    turn = lambda s: (s.flip(-1) if flip else s).rot90(turns, (2, 3)).contiguous(memory_format=torch.channels_last)
    a, b = turn(cut(x)), turn(cut(y))
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        made = net(a)
    optimizer.zero_grad(set_to_none=True)
    F.mse_loss(made.float(), b).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        torch._foreach_lerp_(list(average.parameters()), list(net.parameters()), min(0.01, 1 / (iterations + 1)))
    iterations += 1
if device == "cuda":
    torch.cuda.synchronize()
seconds = time.perf_counter() - begin
noisy, clean = scaled(images("dev", "noisy")), images("dev", "clean").double()
found = []
with torch.no_grad():
    for n, c in zip(noisy, clean):
        made = average(n[None, None])[0, 0].double()
        centred, wanted = made - made.mean(), c - c.mean()
        fitted = c.mean() + centred * (centred * wanted).mean() / (centred**2).mean()
        found.append(float(10 * torch.log10(255**2 / ((fitted - c) ** 2).mean())))
print(json.dumps(dict(engine=f"torch {torch.__version__}", device=device, seconds=round(seconds, 1), iterations=iterations,
                      iterations_per_second=iterations / seconds, psnr=sum(found) / len(found))))
