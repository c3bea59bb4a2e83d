"""One training iteration of the tasks beside restoration, in Clearshot and in PyTorch on the same machine.

    python bench/tasks.py [--device cpu|cuda] [--threads N] [--tasks gan_superres,instances,segmentation,mae] [--clearshot PROGRAM] [--iterations N]

Networks, sizes, losses and optimisers are those of Clearshot's experiments (MONAI's DynUNet, CytoDL's discriminator, a vision transformer's blocks). Clearshot trains on generated
scenes, and its time is that of its last iterations without the share that waited for data; PyTorch is given random numbers that are on the device already. On a CPU both compute in
fp32; on a GPU Clearshot chooses its precision, and PyTorch computes in bf16 by autocast, with torch.compile and without. Needs torch, monai and safetensors; what one of them
is missing for is left out and named. The table goes to standard output as Markdown.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
#: What `clearshot train` is told for each task.
OURS = {
    "gan_superres": ["experiment=im2im/gan_superres"],
    "instances": ["experiment=instances", "model=dynunet2d"],
    "segmentation": ["experiment=segmentation", "model=dynunet2d"],
    "mae": ["experiment=mae"],
}


def clearshot(program, task, device, threads, iterations):
    """Milliseconds of an iteration, and the share of the time that it waited for data."""
    every = max(iterations // 4, 1)
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        keys = ["trainer.seconds=null", f"trainer.iterations={iterations}", f"trainer.device={device}", f"records.every={every}", "validation.every=0",
                "validation.images=2", "checkpoint.every=0", "calibration.images=0"]
        keys += [f"performance.threads={threads}"] if device == "cpu" else []
        done = subprocess.run([program, "train", *OURS[task], *keys, "--out", run, "--quiet"], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip())
        records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    windows = [r for r in records if r["kind"] == "train"]
    before, last = windows[-2:]
    seconds = (last["seconds"] - before["seconds"]) * (1.0 - last["waiting"])
    return 1e3 * seconds / (last["iteration"] - before["iteration"]), last["waiting"]


def gan_parts():
    """CytoDL's discriminator and losses, as the references have them."""
    path = HERE.parent / "refs" / "make_gan.py"
    spec = importlib.util.spec_from_file_location("make_gan", path)
    module = importlib.util.module_from_spec(spec)
    arguments, sys.argv = sys.argv, [str(path), tempfile.mkdtemp()]
    spec.loader.exec_module(module)
    sys.argv = arguments
    return module


def dynunet(out):
    from monai.networks.nets import DynUNet

    shape = {"kernel_size": [3, 3, 3], "strides": [1, 2, 2], "upsample_kernel_size": [2, 2], "filters": [16, 32, 64], "res_block": True}
    return DynUNet(spatial_dims=2, in_channels=1, out_channels=out, norm_name=("INSTANCE", {"affine": True}), **shape)


def gan_superres(torch, device, compiled):
    from monai.networks.blocks import UnetResBlock
    from torch import nn

    gan = gan_parts()

    class Generator(nn.Module):
        def __init__(self, features=16):
            super().__init__()
            self.network, self.up = dynunet(features), nn.Upsample(scale_factor=4, mode="bilinear")
            self.head, self.out = UnetResBlock(2, features, features, 3, 1, "INSTANCE"), nn.Conv2d(features, 1, 1)

        def forward(self, x):
            return self.up(x) + self.out(self.head(self.up(self.network(x))))

    g, d = Generator().to(device), gan.Discriminator(2, 2, 16, 1, 1).to(device)
    options = {"lr": 1e-4, "betas": (0.5, 0.999), "weight_decay": 1e-4, "fused": True}
    g_opt, d_opt = torch.optim.Adam(g.parameters(), **options), torch.optim.Adam(d.parameters(), **options)
    coarse, real = torch.randn(8, 1, 32, 32, device=device), torch.randn(8, 1, 128, 128, device=device)
    given = coarse.repeat_interleave(4, 2).repeat_interleave(4, 3)
    losses = compiled(lambda: gan.losses(d, given, real, g(coarse))[:2])

    def step():
        loss_g, loss_d = losses()
        g_opt.zero_grad()
        loss_g.backward(retain_graph=True)
        nn.utils.clip_grad_norm_(g.parameters(), 1.0)
        d_opt.zero_grad()
        loss_d.backward()
        nn.utils.clip_grad_norm_(d.parameters(), 1.0)
        g_opt.step()
        d_opt.step()

    return step


def instances(torch, device, compiled):
    from monai.losses import TverskyLoss
    from torch import nn

    m = dynunet(5).to(device)
    x, y, cmap = torch.randn(8, 1, 64, 64, device=device), torch.randn(8, 5, 64, 64, device=device), torch.rand(8, 1, 64, 64, device=device)
    y[:, [1, 4]] = (y[:, [1, 4]] > 0).float()
    mse, bce, tversky = nn.MSELoss(reduction="none"), nn.BCEWithLogitsLoss(reduction="none"), TverskyLoss(sigmoid=True)

    def loss():
        p = m(x)
        found = 10 * (mse(p[:, 2:4], y[:, 2:4]) * cmap).mean() + (mse(p[:, :1], y[:, :1]) * cmap).mean()
        return found + 40 * tversky(p[:, 1:2], y[:, 1:2]) + (bce(p[:, 4:], y[:, 4:]) * cmap).mean()

    return stepping(torch, m, compiled(loss))


def segmentation(torch, device, compiled):
    from monai.losses import DiceCELoss

    m = dynunet(1).to(device)
    x, y = torch.randn(8, 1, 64, 64, device=device), (torch.randn(8, 1, 64, 64, device=device) > 0).float()
    dice = DiceCELoss(sigmoid=True)
    return stepping(torch, m, compiled(lambda: dice(m(x), y)))


def mae(torch, device, compiled):
    """Encoder of 4 blocks of 128 numbers on the 16 visible of 64 patches of 8 x 8 pixels, decoder of 2 blocks of 64, 16 images of 64 x 64 pixels."""
    from torch import nn

    count, tokens, visible, wide, narrow, patch = 16, 64, 16, 128, 64, 64

    class Block(nn.Module):
        """A vision transformer's, as timm has it."""

        def __init__(self, numbers, heads):
            super().__init__()
            self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(numbers), nn.LayerNorm(numbers)
            self.qkv, self.proj = nn.Linear(numbers, 3 * numbers), nn.Linear(numbers, numbers)
            self.mlp = nn.Sequential(nn.Linear(numbers, 4 * numbers), nn.GELU(), nn.Linear(4 * numbers, numbers))

        def forward(self, x):
            n, tokens, numbers = x.shape
            q, k, v = self.qkv(self.norm1(x)).reshape(n, tokens, 3, self.heads, numbers // self.heads).permute(2, 0, 3, 1, 4)
            seen = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, tokens, numbers)
            x = x + self.proj(seen)
            return x + self.mlp(self.norm2(x))

    class Mae(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(patch, wide)
            self.encoder = nn.Sequential(*[Block(wide, 4) for _ in range(4)], nn.LayerNorm(wide))
            self.embed, self.token = nn.Linear(wide, narrow), nn.Parameter(torch.zeros(1, 1, narrow))
            self.decoder = nn.Sequential(*[Block(narrow, 4) for _ in range(2)], nn.LayerNorm(narrow), nn.Linear(narrow, patch))
            self.register_buffer("at", torch.randn(1, tokens, wide))
            self.register_buffer("at2", torch.randn(1, tokens, narrow))

        def forward(self, x, seen, hidden):
            def pick(t, i):
                return torch.gather(t, 1, i[..., None].expand(-1, -1, t.shape[2]))

            patches = x.unfold(2, 8, 8).unfold(3, 8, 8).reshape(count, tokens, patch)
            h = self.proj(pick(patches, seen)) + pick(self.at.expand(count, -1, -1), seen)
            h = self.embed(self.encoder(h)) + pick(self.at2.expand(count, -1, -1), seen)
            asked = self.token + pick(self.at2.expand(count, -1, -1), hidden)
            made = self.decoder(torch.cat([h, asked], 1))[:, visible:]
            return ((made - pick(patches, hidden)) ** 2).mean()

    m = Mae().to(device)
    x = torch.randn(count, 1, 64, 64, device=device)
    loss = compiled(lambda order: m(x, order[:, :visible], order[:, visible:]))
    return stepping(torch, m, lambda: loss(torch.rand(count, tokens, device=device).argsort(1)))


def stepping(torch, m, loss):
    """An iteration with clipping, AdamW and an average of the weights, which Clearshot keeps too."""
    optimiser = torch.optim.AdamW(m.parameters(), lr=1e-3, fused=True)
    average = torch.optim.swa_utils.AveragedModel(m, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999))

    def step():
        value = loss()
        optimiser.zero_grad(set_to_none=True)
        value.backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        optimiser.step()
        average.update_parameters(m)

    return step


def pytorch(task, device, compiled, iterations):
    """Milliseconds of an iteration."""
    import torch

    torch.backends.cudnn.benchmark = True

    def wrapped(loss):
        def cast(*arguments):
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                return loss(*arguments)

        return torch.compile(cast) if compiled else cast

    step = globals()[task](torch, device, wrapped)

    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(5):
        step()
    wait()
    clock = time.perf_counter()
    for _ in range(iterations):
        step()
    wait()
    return 1e3 * (time.perf_counter() - clock) / iterations


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--tasks", default=",".join(OURS))
    parser.add_argument("--clearshot", default=str(HERE.parent / "target" / "release" / "clearshot"))
    parser.add_argument("--iterations", type=int, default=100)
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(arguments.threads)
    print(f"PyTorch {torch.__version__}, {arguments.device}, {arguments.threads} threads")
    print("| task | Clearshot | waits for data | PyTorch | torch.compile | of the faster |\n|---|---|---|---|---|---|", flush=True)
    for task in arguments.tasks.split(","):
        ours, waiting = clearshot(arguments.clearshot, task, arguments.device, arguments.threads, arguments.iterations * (8 if arguments.device == "cuda" else 1))
        theirs = []
        for compiled in (False, True):
            try:
                theirs.append(pytorch(task, arguments.device, compiled, arguments.iterations))
            except Exception as error:  # A compiler or a package that is missing leaves one column out.
                print(f"{task}, compiled {compiled}: {str(error).splitlines()[0][:200]}", file=sys.stderr)
                theirs.append(None)
        fastest = min((t for t in theirs if t is not None), default=None)
        said = ["-" if t is None else f"{t:.2f} ms" for t in theirs]
        print(f"| {task} | {ours:.2f} ms | {100 * waiting:.0f} % | {said[0]} | {said[1]} | {'-' if fastest is None else f'{fastest / ours:.2f}x'} |", flush=True)


if __name__ == "__main__":
    main()
