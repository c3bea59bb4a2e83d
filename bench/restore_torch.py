"""Times the restoration of one image by a model's sampler with PyTorch, for comparison with `clearshot restore`.

    python restore_torch.py [--model models/default.clearshot] [--size 2048] [--steps 25] [--tile 2048] [--batch 1]
                            [--device cuda] [--precision fp32|tf32|bf16] [--modes eager,compile] [--runs 3]

The same network (`Local`) with the same weights, the same tiles with reflected surroundings, and 25 steps of
DPM-Solver++ 2M on Karras' levels; the image and its condition stay on the device. One JSON line for each mode: seconds of
a restoration (the least of the runs), and of the first, which compiles. The other side is

    clearshot restore image.tif -o out.tif --samples 1 --steps 25 --device cuda --precision fp32 --gain 1 --offset 0 --read-noise 1.5 --json
"""
import argparse, json, math, time
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import nn

P = argparse.ArgumentParser()
P.add_argument("--model", default="models/default.clearshot")
P.add_argument("--size", type=int, default=2048)
P.add_argument("--steps", type=int, default=25)
P.add_argument("--tile", type=int, default=2048)
P.add_argument("--batch", type=int, default=1)
P.add_argument("--halo", type=int, default=64)
P.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
P.add_argument("--precision", default="fp32", choices=("fp32", "tf32", "bf16"))
P.add_argument("--modes", default="eager,compile")
P.add_argument("--runs", type=int, default=3)
A = P.parse_args()


class Block(nn.Module):
    def __init__(self, width, emb):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.time_emb_proj = nn.Linear(emb, width)

    def forward(self, h, emb):
        return h + self.conv2(F.silu(self.conv1(h) + self.time_emb_proj(emb)[:, :, None, None]))


class Level(nn.Module):
    def __init__(self, width, count, emb, **more):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, emb) for _ in range(count))
        for name, layer in more.items():
            setattr(self, name, layer)

    def forward(self, h, emb):
        for block in self.blocks:
            h = block(h, emb)
        return h


class Told(nn.Module):
    def __init__(self, code, emb):
        super().__init__()
        self.code, self.linear_1, self.linear_2 = code, nn.Linear(code, emb), nn.Linear(emb, emb)

    def forward(self, t):
        half = self.code // 2
        angle = t[:, None] * torch.exp(-math.log(10000.0) * torch.arange(half, device=t.device) / half)
        return self.linear_2(F.silu(self.linear_1(torch.cat([angle.cos(), angle.sin()], 1))))


class Local(nn.Module):
    def __init__(self, channels=(32, 64, 128), blocks=2, in_channels=6, out_channels=1, **_):
        super().__init__()
        n, c = len(channels), channels
        blocks = blocks if isinstance(blocks, list) else [blocks] * n
        code = c[0] + c[0] % 2
        emb = 4 * code
        self.time_embedding = Told(code, emb)
        self.conv_in = nn.Conv2d(in_channels, c[0], 3, padding=1)
        self.down = nn.ModuleList(Level(c[i], blocks[i], emb, shrink=nn.Conv2d(c[i], c[i + 1], 2, stride=2)) for i in range(n - 1))
        self.middle = Level(c[-1], blocks[-1], emb)
        self.up = nn.ModuleList(Level(c[i], blocks[i], emb, grow=nn.Conv2d(c[i + 1], c[i], 3, padding=1)) for i in range(n - 1))
        self.conv_out = nn.Conv2d(c[0], out_channels, 3, padding=1)

    def forward(self, x, t):
        emb, skips = F.silu(self.time_embedding(t)), []
        h = self.conv_in(x)
        for level in self.down:
            h = level(h, emb)
            skips.append(h)
            h = level.shrink(h)
        h = self.middle(h, emb)
        for level, skip in zip(reversed(self.up), reversed(skips)):
            h = level(level.grow(F.interpolate(h, scale_factor=2.0)) + skip, emb)
        return self.conv_out(F.silu(h))


def load():
    with safe_open(A.model, "pt") as f:
        about, config = json.loads(f.metadata()["about"]), json.loads(f.metadata()["config"])
        weights = {k: f.get_tensor(k).float() for k in f.keys()}
    config.pop("_class_name")
    net = Local(**config)
    net.load_state_dict(weights)
    return about["task"], net.eval().to(A.device, memory_format=torch.channels_last)


def estimate(net, x, condition, sigma, data):
    """EDM's denoiser over tiles."""
    h, out = A.halo, torch.empty_like(x)
    both = math.hypot(sigma, data)
    time_ = torch.full((A.batch,), 0.25 * math.log(sigma), device=x.device)
    wide, given = F.pad(x, (h,) * 4, mode="reflect"), F.pad(condition, (h,) * 4, mode="reflect")
    places = [(y, c) for y in range(0, A.size, A.tile) for c in range(0, A.size, A.tile)]
    cut = lambda v, y, c: v[:, :, y:y + A.tile + 2 * h, c:c + A.tile + 2 * h]
    for i in range(0, len(places), A.batch):
        group = places[i:i + A.batch]
        seen = torch.cat([torch.cat([cut(wide, *p) / both, cut(given, *p)], 1) for p in group])
        seen = seen.contiguous(memory_format=torch.channels_last)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=A.precision == "bf16"):
            raw = net(seen, time_[: len(group)]).float()[:, :, h:-h, h:-h]
        for (y, c), part in zip(group, raw):
            out[0, :, y:y + A.tile, c:c + A.tile] = part
    return x * (data / both) ** 2 + out * (sigma * data / both)


@torch.inference_mode()
def restore(net, task, condition):
    """DPM-Solver++ 2M (Lu et al. 2022), alpha = 1; ends with a step of first order."""
    e = task["process"]["edm"]
    low, high, rho, n = e["sigma_min"], e["sigma_max"], e["rho"], A.steps
    sigmas = [(high ** (1 / rho) + i / (n - 1) * (low ** (1 / rho) - high ** (1 / rho))) ** rho for i in range(n)] + [0.0]
    data = task["prediction"]["edm"]["sigma_data"]
    generator = torch.Generator(condition.device).manual_seed(0)
    x = torch.randn((1, 1, A.size, A.size), generator=generator, device=condition.device) * high
    before = None
    for i, (s, to) in enumerate(zip(sigmas, sigmas[1:])):
        x0 = estimate(net, x, condition, s, data)
        if to == 0.0 or before is None:
            direction = x0
        else:
            ratio = (math.log(sigmas[i - 1]) - math.log(s)) / (math.log(s) - math.log(to))
            direction = (1 + 0.5 / ratio) * x0 - 0.5 / ratio * before
        x, before = (to / s) * x + (1 - to / s) * direction, x0
    return x


torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = A.precision == "tf32"
assert A.size % A.tile == 0, "tiles fill the image"
sync = torch.cuda.synchronize if A.device.startswith("cuda") else lambda: None
for mode in A.modes.split(","):
    task, net = load()
    if mode == "compile":
        net = torch.compile(net)
    condition = torch.full((1, 5, A.size, A.size), 0.25, device=A.device)
    times = []
    for _ in range(A.runs + 1):
        sync()
        begin = time.perf_counter()
        restore(net, task, condition)
        sync()
        times.append(time.perf_counter() - begin)
    print(json.dumps(dict(mode=mode, size=A.size, steps=A.steps, tile=A.tile, batch=A.batch, device=A.device, precision=A.precision,
                          first_seconds=times[0], seconds=min(times[1:]), torch=torch.__version__)), flush=True)
