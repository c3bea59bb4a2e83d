"""What PyTorch and timm compute for networks that are trained without labels: masked autoencoders (plain and CrossMAE) and joint embeddings.

    python make_vit.py OUT_DIR

Needs torch, timm and safetensors. Blocks of self-attention are timm's own; the rest is written from the papers. Weights follow from the rule of make_tasks.py,
so that files hold inputs, outputs and gradients alone. Everything is computed in f64.
"""
import functools, json, math, os, sys
import torch
from torch import nn
from torch.nn import functional as F
from safetensors.torch import save_file
from timm.models.vision_transformer import Block, Mlp

OUT = sys.argv[1]
os.makedirs(OUT, exist_ok=True)
G = torch.Generator().manual_seed(29)
EPS = 1e-6
NORM = functools.partial(nn.LayerNorm, eps=EPS)


def save(name, attrs, tensors):
    tensors = {k: v.detach().contiguous().clone() for k, v in tensors.items()}
    path = os.path.join(OUT, name + ".safetensors")
    save_file(tensors, path, {"kind": "task", "name": name, "attrs": json.dumps(attrs)})
    os.chmod(path, 0o644)


def rule(k, shape):
    i = torch.arange(math.prod(shape), dtype=torch.float64)
    wave = torch.sin(0.7 * i + 1.3 * k + 0.01 * (i % 97) * (k + 1))
    if len(shape) == 1:
        return (1 + 0.2 * wave if k % 2 else 0.1 * wave).reshape(shape)
    return (wave * math.sqrt(2 / math.prod(shape[1:]))).reshape(shape)


def ruled(module, first=0):
    own = dict(module.named_parameters())
    for k, n in enumerate(sorted(own)):
        own[n].data.copy_(rule(first + k, own[n].shape))


def sines(grid, dim):
    each = dim // len(grid) // 2
    freq = 10000.0 ** (-torch.arange(each, dtype=torch.float64) / each)
    at = torch.stack(torch.meshgrid(*[torch.arange(g, dtype=torch.float64) for g in grid], indexing="ij"), -1).reshape(-1, len(grid))
    parts = []
    for a in range(len(grid)):
        angle = at[:, a : a + 1] * freq
        parts += [torch.sin(angle), torch.cos(angle)]
    out = torch.cat(parts, 1)
    return F.pad(out, (0, dim - out.shape[1]))


def pick(tokens, index):
    return torch.gather(tokens, 1, index[..., None].expand(-1, -1, tokens.shape[2]))


class Patches(nn.Module):
    def __init__(self, channels, patch, dim):
        super().__init__()
        conv = nn.Conv2d if len(patch) == 2 else nn.Conv3d
        self.proj = conv(channels, dim, tuple(patch), tuple(patch))

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class Encoder(nn.Module):
    def __init__(self, channels, patch, dim, depth, heads):
        super().__init__()
        self.dim = dim
        self.patch_embed = Patches(channels, patch, dim)
        self.blocks = nn.ModuleList([Block(dim, heads, 4.0, qkv_bias=True, norm_layer=NORM) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim, EPS)

    def forward(self, x, grid, seen=None):
        h = self.patch_embed(x) + sines(grid, self.dim)
        if seen is not None:
            h = pick(h, seen)
        for block in self.blocks:
            h = block(h)
        return self.norm(h)


class Cross(nn.Module):
    """A block of CrossMAE: queries look at what the encoder saw, then an MLP."""

    class Attention(nn.Module):
        def __init__(self, dim, heads):
            super().__init__()
            self.heads = heads
            self.q, self.kv, self.proj = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

        def forward(self, x, y):
            split = lambda t: t.unflatten(2, (self.heads, -1)).transpose(1, 2)
            k, v = self.kv(y).chunk(2, -1)
            h = F.scaled_dot_product_attention(split(self.q(x)), split(k), split(v))
            return self.proj(h.transpose(1, 2).flatten(2))

    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, EPS), nn.LayerNorm(dim, EPS)
        self.attn, self.mlp = Cross.Attention(dim, heads), Mlp(dim, 4 * dim)

    def forward(self, x, y):
        x = x + self.attn(self.norm1(x), y)
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, latent, dim, depth, heads, values, cross):
        super().__init__()
        self.dim, self.cross = dim, cross
        self.embed = nn.Linear(latent, dim)
        self.mask_token = nn.Parameter(torch.zeros(dim))
        block = (lambda: Cross(dim, heads)) if cross else (lambda: Block(dim, heads, 4.0, qkv_bias=True, norm_layer=NORM))
        self.blocks = nn.ModuleList([block() for _ in range(depth)])
        self.norm = nn.LayerNorm(dim, EPS)
        self.pred = nn.Linear(dim, values)

    def forward(self, latent, grid, seen, hidden):
        at = sines(grid, self.dim)[None].expand(len(latent), -1, -1)
        known = self.embed(latent) + pick(at, seen)
        asked = self.mask_token + pick(at, hidden)
        if self.cross:
            h = asked
            for block in self.blocks:
                h = block(h, known)
        else:
            # In the order of the image, as He et al. have it.
            h = torch.zeros(len(latent), at.shape[1], self.dim, dtype=torch.float64)
            h = h.scatter(1, seen[..., None].expand(-1, -1, self.dim), known).scatter(1, hidden[..., None].expand(-1, -1, self.dim), asked)
            for block in self.blocks:
                h = block(h)
            h = pick(h, hidden)
        return self.pred(self.norm(h))


class Mae(nn.Module):
    def __init__(self, c):
        super().__init__()
        values = math.prod(c["patch_size"]) * c["in_channels"]
        self.encoder = Encoder(c["in_channels"], c["patch_size"], c["emb_dim"], c["encoder_layer"], c["encoder_head"])
        self.decoder = Decoder(c["emb_dim"], c["decoder_dim"], c["decoder_layer"], c["decoder_head"], values, c["use_crossmae"])


class Predictor(nn.Module):
    def __init__(self, latent, dim, depth, heads, domains):
        super().__init__()
        self.dim = dim
        self.embed = nn.Linear(latent, dim)
        self.mask_token = nn.Parameter(torch.zeros(dim))
        self.domain_tokens = nn.Parameter(torch.zeros(domains, dim))
        self.blocks = nn.ModuleList([Block(dim, heads, 4.0, qkv_bias=True, norm_layer=NORM) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim, EPS)
        self.proj = nn.Linear(dim, latent)

    def forward(self, latent, grid, seen, hidden, domain):
        at = sines(grid, self.dim)[None].expand(len(latent), -1, -1)
        known = self.embed(latent) + pick(at, seen)
        asked = self.mask_token + self.domain_tokens[domain][:, None] + pick(at, hidden)
        h = torch.cat([known, asked], 1)
        for block in self.blocks:
            h = block(h)
        return self.proj(self.norm(h)[:, known.shape[1] :])


class Jepa(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.encoder = Encoder(c["in_channels"], c["patch_size"], c["emb_dim"], c["encoder_layer"], c["encoder_head"])
        self.predictor = Predictor(c["emb_dim"], c["predictor_dim"], c["predictor_layer"], c["predictor_head"], c["domains"])


def cut(x, patch):
    """[N, T, values], each patch's values as (pz,) py, px, C."""
    dims = len(patch)
    for a, p in enumerate(patch):
        x = x.unfold(2 + a, p, p)
    order = [0, *range(2, 2 + dims), *range(2 + dims, 2 + 2 * dims), 1]
    return x.permute(order).flatten(1 + dims).flatten(1, dims)


def uncut(patches, patch, grid, channels):
    dims = len(patch)
    x = patches.reshape(len(patches), *grid, *patch, channels)
    order = [0, 1 + 2 * dims] + [i for a in range(dims) for i in (1 + a, 1 + dims + a)]
    return x.permute(order).reshape(len(patches), channels, *[g * p for g, p in zip(grid, patch)])


def split(batch, tokens, visible, hidden):
    order = torch.stack([torch.randperm(tokens, generator=G) for _ in range(batch)])
    return order[:, :visible].sort(1)[0], order[:, visible : visible + hidden].sort(1)[0]


def grads(module):
    return {f"g.{n}": p.grad.float() for n, p in module.named_parameters()}


def mae(name, size, config):
    m = Mae(config).double()
    ruled(m)
    patch, channels = config["patch_size"], config["in_channels"]
    grid = [s // p for s, p in zip(size, patch)]
    tokens = math.prod(grid)
    hidden = round(tokens * config["mask_ratio"])
    x = torch.randn((2, channels, *size), generator=G)
    seen, asked = split(2, tokens, tokens - hidden, hidden)
    made = m.decoder(m.encoder(x.double(), grid, seen), grid, seen, asked)
    patches = cut(x.double(), patch)
    loss = F.mse_loss(made, pick(patches, asked))
    loss.backward()
    whole = patches.scatter(1, asked[..., None].expand(-1, -1, patches.shape[2]), made)
    tensors = {"in.x": x, "visible": seen.int(), "hidden": asked.int(), "out.y": uncut(whole, patch, grid, channels).float(), "loss": loss.reshape(1).float()}
    save(name, dict(config=config), tensors | grads(m))


def jepa(name, size, config):
    m = Jepa(config).double()
    ruled(m)
    teacher = Encoder(config["in_channels"], config["patch_size"], config["emb_dim"], config["encoder_layer"], config["encoder_head"]).double()
    ruled(teacher, 5)
    grid = [s // p for s, p in zip(size, config["patch_size"])]
    tokens = math.prod(grid)
    hidden, visible = round(tokens * config["mask_ratio"]), round(tokens * config["context_ratio"])
    x, z = (torch.randn((2, config["in_channels"], *size), generator=G) for _ in range(2))
    seen, asked = split(2, tokens, visible, hidden)
    domain = torch.tensor([1, 0])
    with torch.no_grad():
        h = teacher(z.double(), grid)
        wanted = pick(F.layer_norm(h, (h.shape[2],), eps=EPS), asked)
    made = m.predictor(m.encoder(x.double(), grid, seen), grid, seen, asked, domain)
    loss = F.l1_loss(made, wanted)
    loss.backward()
    tensors = {
        "in.x": x, "in.z": z, "visible": seen.int(), "hidden": asked.int(), "domain": domain.int(), "out.made": made.float(), "out.wanted": wanted.float(),
        "loss": loss.reshape(1).float(),
    }
    save(name, dict(config=config), tensors | grads(m))


encoder = dict(spatial_dims=2, in_channels=2, patch_size=[4, 2], emb_dim=12, encoder_layer=2, encoder_head=3)
volume = dict(spatial_dims=3, in_channels=1, patch_size=[2, 4, 2], emb_dim=14, encoder_layer=1, encoder_head=2)
decoder = dict(decoder_dim=8, decoder_layer=2, decoder_head=2, mask_ratio=0.75)
predictor = dict(predictor_dim=8, predictor_layer=1, predictor_head=2, mask_ratio=0.5, context_ratio=0.25, domains=2)
mae("mae2d", (16, 8), encoder | decoder | dict(use_crossmae=False))
mae("mae3d_cross", (4, 8, 6), volume | decoder | dict(use_crossmae=True))
jepa("jepa2d", (16, 8), encoder | predictor)
jepa("jepa3d", (4, 8, 6), volume | predictor)
