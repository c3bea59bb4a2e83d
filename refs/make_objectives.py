"""Cases of objectives: training losses as PyTorch computes them, in f64.

    python make_objectives.py OUT_DIR [--seed N]

`in.predicted` is what a network said, `in.time` and `in.sigma` are each image's level, and `gin.predicted` is the gradient. Weights are
those of diffusers' training scripts (`compute_snr`) and of EDM's loss. Needs torch and diffusers.
"""
import argparse, json, os
import torch, torch.nn.functional as F
from diffusers import DDPMScheduler
from diffusers.training_utils import compute_snr
from safetensors.torch import save_file

P = argparse.ArgumentParser()
P.add_argument("out")
P.add_argument("--seed", type=int, default=0)
A = P.parse_args()
G = torch.Generator().manual_seed(A.seed)
SHAPE = (4, 2, 6, 7)


def rn(*shape):
    return torch.randn(shape, generator=G)


def save(name, attrs, ins, loss, predicted):
    gradient, = torch.autograd.grad(loss, predicted)
    tensors = {"in." + k: v.float() for k, v in ins.items()} | {"in.predicted": predicted.detach().float(), "out.loss": loss.detach().reshape(1), "gin.predicted": gradient}
    os.makedirs(os.path.join(A.out, "objective"), exist_ok=True)
    path = os.path.join(A.out, "objective", name + ".safetensors")
    save_file({k: v.contiguous() for k, v in tensors.items()}, path, {"kind": "objective", "name": name, "attrs": json.dumps(attrs)})


def each(kind, x, y):
    f = {"l1": lambda: F.l1_loss(x, y, reduction="none"), "l2": lambda: F.mse_loss(x, y, reduction="none"),
         "huber": lambda: F.huber_loss(x, y, reduction="none", delta=0.7), "smooth_l1": lambda: F.smooth_l1_loss(x, y, reduction="none", beta=0.7)}
    return f[kind]().mean(dim=(1, 2, 3))


def leaf():
    return rn(*SHAPE).double().requires_grad_()


# Networks of a schedule, with the weights of diffusers' scripts.
for law in ("linear", "squaredcos_cap_v2"):
    sch = DDPMScheduler(beta_schedule=law)
    for prediction in ("epsilon", "sample", "v_prediction"):
        for weight, kind in (("uniform", "l2"), ("min_snr", "l2"), ("snr", "l2"), ("uniform", "l1"), ("uniform", "huber"), ("min_snr", "smooth_l1")):
            x0, noise, predicted = rn(*SHAPE).double(), rn(*SHAPE).double(), leaf()
            t = torch.randint(0, 1000, (SHAPE[0],), generator=G)
            target = {"epsilon": lambda: noise, "sample": lambda: x0, "v_prediction": lambda: sch.get_velocity(x0, noise, t)}[prediction]()
            snr = compute_snr(sch, t).double()
            share = {"epsilon": 1 / snr, "sample": torch.ones_like(snr), "v_prediction": 1 / (snr + 1)}[prediction]
            w = {"uniform": torch.ones_like(snr), "snr": snr * share, "min_snr": snr.clamp(max=5.0) * share}[weight]
            attrs = dict(objective="prediction", prediction=prediction, weight=weight, distance=kind, gamma=5.0, bend=0.7, beta_schedule=law, beta_start=1e-4, beta_end=0.02)
            save(f"{law}_{prediction}_{weight}_{kind}", attrs, dict(x0=x0, noise=noise, time=t), (w * each(kind, predicted, target)).mean(), predicted)

# EDM's loss: its network's output, preconditioned, against the image.
x0, noise, predicted, s, sd = rn(*SHAPE).double(), rn(*SHAPE).double(), leaf(), (rn(SHAPE[0], 1, 1, 1) * 1.2 - 1.2).exp().float().double(), 0.5
x = x0 + s * noise
D = sd**2 / (s**2 + sd**2) * x + s * sd / (s**2 + sd**2).sqrt() * predicted
loss = ((s**2 + sd**2) / (s * sd) ** 2 * (D - x0) ** 2).mean()
save("edm", dict(objective="edm", sigma_data=sd), dict(x0=x0, noise=noise, sigma=s.flatten()), loss, predicted)

# Terms on clean images; `in.x0` is the target.
x0, predicted = rn(*SHAPE).double(), leaf()
sobel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]).double()
filters = torch.stack([sobel, sobel.T])[:, None].repeat(SHAPE[1], 1, 1, 1)
edges = lambda v: F.conv2d(v, filters, groups=SHAPE[1])
save("sobel", dict(objective="gradient"), dict(x0=x0), F.l1_loss(edges(predicted), edges(x0)), predicted)
save("intensity", dict(objective="intensity", distance="smooth_l1", bend=0.7), dict(x0=x0),
     (F.smooth_l1_loss(predicted, x0, reduction="none", beta=0.7) * (x0 + 1).clamp(0.1, 2.0)).mean(), predicted)
counts, expected = torch.poisson(rn(*SHAPE).abs() * 9, generator=G).double(), (rn(*SHAPE).abs() * 9 + 0.1).double().requires_grad_()
save("poisson", dict(objective="poisson"), dict(x0=counts), F.poisson_nll_loss(expected + 1e-6, counts, log_input=False, full=False, eps=0.0) - 1e-6, expected)
