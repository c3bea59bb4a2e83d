"""What MONAI and PyTorch compute for tasks beside restoration: CytoDL's DynUNet in 2-D and 3-D, the losses of segmentation and of objects one by one.

    python make_tasks.py OUT_DIR

Needs torch, monai and safetensors. Weights follow from a rule that the tests know too, so that files hold inputs and outputs alone:
value i of parameter k (in the order of their names) is a sine, of standard deviation 1/sqrt(fan-in) for weights and about 1 for the scales of norms.
"""
import json, math, os, sys
import torch
from monai.losses import DiceCELoss, TverskyLoss
from monai.networks.nets import DynUNet
from safetensors.torch import save_file

OUT = sys.argv[1]
os.makedirs(OUT, exist_ok=True)
G = torch.Generator().manual_seed(23)


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


def dynunet(name, dims, size):
    config = dict(
        spatial_dims=dims, in_channels=1, out_channels=1, kernel_size=[3, 3, 3], strides=[1, 2, 2], upsample_kernel_size=[2, 2], filters=[16, 32, 64],
        res_block=True,
    )
    m = DynUNet(norm_name=("INSTANCE", {"affine": True}), **config).double()
    own = {n: p for n, p in m.named_parameters() if not n.startswith("skip_layers.")}
    for k, n in enumerate(sorted(own)):
        own[n].data.copy_(rule(k, own[n].shape))
    x = torch.randn((2, 1, *size), generator=G).requires_grad_(True)
    y = m(x.double())
    g = torch.randn(y.shape, generator=G)
    y.backward(g.double())
    tensors = {"in.x": x, "out.y": y.float(), "gout.y": g, "gin.x": x.grad.float()}
    count = sum(p.numel() for p in own.values())
    save(name, dict(config=config, parameters=count), tensors)


def losses():
    tensors = {}
    for name, classes, loss in [("sigmoid", 1, DiceCELoss(sigmoid=True)), ("softmax", 3, DiceCELoss(softmax=True))]:
        x = (2 * torch.randn((2, classes, 6, 5), generator=G)).requires_grad_(True)
        label = torch.randint(0, 2 if classes == 1 else classes, (2, 6, 5), generator=G)
        t = label[:, None].float() if classes == 1 else torch.nn.functional.one_hot(label, classes).permute(0, 3, 1, 2).float()
        y = loss(x, t)
        y.backward()
        tensors |= {f"{name}.x": x, f"{name}.t": t, f"{name}.loss": y.reshape(1), f"{name}.gx": x.grad}
    save("losses", {}, tensors)


def instances():
    """CytoDL's InstanceSegLoss: y has depth in cores, foreground, vectors, boundary and how much pixels count; y_hat has all but the last."""
    tensors = {}
    mse, bce = torch.nn.MSELoss(reduction="none"), torch.nn.BCEWithLogitsLoss(reduction="none")
    for dims, size in [(2, (7, 6)), (3, (3, 5, 4))]:
        y_hat = (2 * torch.randn((2, dims + 3, *size), generator=G)).requires_grad_(True)
        core = 5 * torch.randn((2, 1, *size), generator=G)
        binary = torch.randint(0, 2, (2, 2, *size), generator=G).float()
        vector = 4 * torch.randn((2, dims, *size), generator=G)
        cmap = 0.5 + 10 * torch.rand((2, 1, *size), generator=G)
        y = torch.cat([core, binary[:, :1], vector, binary[:, 1:], cmap], 1)
        loss = (
            10 * (mse(y_hat[:, 2:-1], y[:, 2:-2]) * cmap).mean() + (mse(y_hat[:, :1], y[:, :1]) * cmap).mean()
            + 40 * TverskyLoss(sigmoid=True)(y_hat[:, 1:2], y[:, 1:2]) + (bce(y_hat[:, -1:], y[:, -2:-1]) * cmap).mean()
        )
        loss.backward()
        tensors |= {f"{dims}.x": y_hat, f"{dims}.t": y, f"{dims}.loss": loss.reshape(1), f"{dims}.gx": y_hat.grad}
    save("instances", {}, tensors)


dynunet("dynunet2d", 2, (16, 12))
dynunet("dynunet3d", 3, (8, 12, 8))
losses()
instances()
