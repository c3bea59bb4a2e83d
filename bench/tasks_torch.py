"""One training iteration of CytoDL's GAN for super-resolution and of its instance segmentation in PyTorch: wall and processor time, on one thread.

    python tasks_torch.py

Needs torch, monai and safetensors. Networks, sizes and losses are those of `experiment=im2im/gan_superres` (8 crops of 128 x 128 pixels, DynUNet and head, one scale of one layer) and of
`experiment=instances model=dynunet2d` (8 crops of 64 x 64); samples are random numbers that are there already.
"""
import importlib.util, os, sys, tempfile, time
import torch
from monai.losses import TverskyLoss
from monai.networks.blocks import UnetResBlock
from monai.networks.nets import DynUNet
from torch import nn

torch.set_num_threads(1)
refs = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "refs", "make_gan.py")
spec = importlib.util.spec_from_file_location("make_gan", refs)
gan = importlib.util.module_from_spec(spec)
sys.argv = [refs, tempfile.mkdtemp()]
spec.loader.exec_module(gan)


def dynunet(out):
    shape = dict(kernel_size=[3, 3, 3], strides=[1, 2, 2], upsample_kernel_size=[2, 2], filters=[16, 32, 64], res_block=True)
    return DynUNet(spatial_dims=2, in_channels=1, out_channels=out, norm_name=("INSTANCE", {"affine": True}), **shape)


class Generator(nn.Module):
    def __init__(self, features=16):
        super().__init__()
        self.network, self.up = dynunet(features), nn.Upsample(scale_factor=4, mode="bilinear")
        self.head, self.out = UnetResBlock(2, features, features, 3, 1, "INSTANCE"), nn.Conv2d(features, 1, 1)

    def forward(self, x):
        return self.up(x) + self.out(self.head(self.up(self.network(x))))


def timed(name, step, count=10):
    step()
    wall, processor = time.time(), time.process_time()
    for _ in range(count):
        step()
    print(f"{name}: {1e3 * (time.time() - wall) / count:.1f} ms, {1e3 * (time.process_time() - processor) / count:.1f} ms of processor time")


g, d = Generator(), gan.Discriminator(2, 2, 16, 1, 1)
options = dict(lr=1e-4, betas=(0.5, 0.999), weight_decay=1e-4)
g_opt, d_opt = torch.optim.Adam(g.parameters(), **options), torch.optim.Adam(d.parameters(), **options)
coarse, real = torch.randn(8, 1, 32, 32), torch.randn(8, 1, 128, 128)
given = coarse.repeat_interleave(4, 2).repeat_interleave(4, 3)


def both():
    loss_g, loss_d, _ = gan.losses(d, given, real, g(coarse))
    g_opt.zero_grad(), loss_g.backward(retain_graph=True)
    nn.utils.clip_grad_norm_(g.parameters(), 1.0)
    g_opt.step()
    d_opt.zero_grad(), loss_d.backward()
    nn.utils.clip_grad_norm_(d.parameters(), 1.0)
    d_opt.step()


timed("gan_superres", both)
m = dynunet(5)
opt = torch.optim.AdamW(m.parameters(), lr=1e-3)
x, y, cmap = torch.randn(8, 1, 64, 64), torch.randn(8, 5, 64, 64), torch.rand(8, 1, 64, 64)
y[:, [1, 4]] = (y[:, [1, 4]] > 0).float()
mse, bce, tversky = nn.MSELoss(reduction="none"), nn.BCEWithLogitsLoss(reduction="none"), TverskyLoss(sigmoid=True)


def objects():
    p = m(x)
    loss = 10 * (mse(p[:, 2:4], y[:, 2:4]) * cmap).mean() + (mse(p[:, :1], y[:, :1]) * cmap).mean()
    loss = loss + 40 * tversky(p[:, 1:2], y[:, 1:2]) + (bce(p[:, 4:], y[:, 4:]) * cmap).mean()
    opt.zero_grad(), loss.backward()
    nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    opt.step()


timed("instances", objects)
