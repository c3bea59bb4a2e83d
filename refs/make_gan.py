"""What PyTorch computes for adversarial training: pix2pixHD's discriminator at several scales as CytoDL has it, its losses, and one whole iteration of both optimisers.

    python make_gan.py OUT_DIR

Needs torch and safetensors. The generator of the iteration is DnCNN of three layers, which both sides have; weights follow from the rule of make_tasks.py (value i of
parameter k in the order of names), so that files hold inputs and results alone. Weights that an iteration leaves are those of Adam with clipping by norm, each by itself.
"""
import json, math, os, sys
import torch
from torch import nn
from safetensors.torch import save_file

OUT = sys.argv[1]
os.makedirs(OUT, exist_ok=True)
G = torch.Generator().manual_seed(158)


def rule(k, shape):
    i = torch.arange(math.prod(shape), dtype=torch.float64)
    wave = torch.sin(0.7 * i + 1.3 * k + 0.01 * (i % 97) * (k + 1))
    if len(shape) == 1:
        return (0.1 * wave).reshape(shape)
    return (wave * math.sqrt(2 / math.prod(shape[1:]))).reshape(shape)


class Patches(nn.Module):
    def __init__(self, dims, channels, filters, layers):
        super().__init__()
        conv, norm = (nn.Conv2d, nn.InstanceNorm2d) if dims == 2 else (nn.Conv3d, nn.InstanceNorm3d)
        blocks = [[conv(channels, filters, 4, 2, 1), nn.LeakyReLU(0.2)]]
        for i in range(1, layers + 1):
            before, after = filters * min(2 ** (i - 1), 8), filters * min(2**i, 8)
            blocks.append([conv(before, after, 4, 2 if i < layers else 1, 1), norm(after), nn.LeakyReLU(0.2)])
        blocks.append([conv(filters * min(2**layers, 8), 1, 4, 1, 1)])
        self.model = nn.ModuleDict({f"block_{i}": nn.Sequential(*b) for i, b in enumerate(blocks)})

    def forward(self, x):
        features = []
        for block in self.model.values():
            x = block(x)
            features.append(x)
        return features


class Discriminator(nn.Module):
    def __init__(self, dims, channels, filters, layers, scales):
        super().__init__()
        self.discriminators = nn.ModuleDict({str(s): Patches(dims, channels, filters, layers) for s in range(scales)})
        self.pool = (nn.AvgPool2d if dims == 2 else nn.AvgPool3d)(3, 2, 1, count_include_pad=False)

    def forward(self, given, image):
        features = []
        for network in self.discriminators.values():
            features.append(network(torch.cat([given, image], 1)))
            given, image = self.pool(given), self.pool(image)
        return features


class DnCnn(nn.Module):
    def __init__(self, dims):
        super().__init__()
        conv = nn.Conv2d if dims == 2 else nn.Conv3d
        self.model = nn.Sequential(conv(1, 5, 3, 1, 1), nn.ReLU(), conv(5, 5, 3, 1, 1), nn.ReLU(), conv(5, 1, 3, 1, 1))

    def forward(self, x):
        return x - self.model(x)


def fill(m):
    named = dict(m.named_parameters())
    for k, n in enumerate(sorted(named)):
        named[n].data.copy_(rule(k, named[n].shape))


BCE, L1, MSE = nn.BCEWithLogitsLoss(), nn.L1Loss(), nn.MSELoss()


def gan_loss(features, is_real):
    return sum(BCE(f[-1], torch.full_like(f[-1], float(is_real))) for f in features) / len(features)


def losses(d, given, real, made):
    of_real, of_constant = d(given, real), d(given, made.detach())
    loss_d = 0.5 * (gan_loss(of_real, 1) + gan_loss(of_constant, 0))
    of_real, of_made = d(given, real), d(given, made)
    matched = sum(L1(r.detach(), m) for a, b in zip(of_real, of_made) for r, m in zip(a, b)) / len(of_made)
    parts = [gan_loss(of_made, 1), matched, MSE(real, made), loss_d]
    return parts[0] + 10 * parts[1] + 100 * parts[2], loss_d, parts


for name, dims, size, scales, layers in [("plane", 2, (24, 28), 2, 2), ("volume", 3, (12, 12, 16), 1, 1)]:
    g, d = DnCnn(dims).double(), Discriminator(dims, 2, 4, layers, scales).double()
    fill(g), fill(d)
    options = dict(lr=1e-3, betas=(0.5, 0.999), weight_decay=1e-4)
    g_opt, d_opt = torch.optim.Adam(g.parameters(), **options), torch.optim.Adam(d.parameters(), **options)
    given, real = [torch.randn((2, 1, *size), generator=G) for _ in range(2)]
    tensors = {"given": given, "real": real}
    for i, scale in enumerate(d(given.double(), real.double())):
        tensors |= {f"features.{i}.{k}": f.float() for k, f in enumerate(scale)}
    norms = []
    for step in range(2):
        made = g(given.double())
        loss_g, loss_d, parts = losses(d, given.double(), real.double(), made)
        tensors[f"parts.{step}"] = torch.stack([loss_g, *parts]).float()
        g_opt.zero_grad(), loss_g.backward(retain_graph=True)
        norms.append(nn.utils.clip_grad_norm_(g.parameters(), 1.0).item())
        g_opt.step()
        d_opt.zero_grad(), loss_d.backward()
        norms.append(nn.utils.clip_grad_norm_(d.parameters(), 1.0).item())
        d_opt.step()
    tensors["norms"] = torch.tensor(norms)
    tensors |= {f"g.{n}": p.float() for n, p in g.named_parameters()} | {f"d.{n}": p.float() for n, p in d.named_parameters()}
    attrs = dict(dims=dims, scales=scales, layers=layers, filters=4, rate=1e-3, betas=[0.5, 0.999], weight_decay=1e-4, clip=1.0)
    path = os.path.join(OUT, f"{name}.safetensors")
    save_file({k: v.detach().contiguous().clone() for k, v in tensors.items()}, path, {"kind": "gan", "name": name, "attrs": json.dumps(attrs)})
    os.chmod(path, 0o644)
