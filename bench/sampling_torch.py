"""Times whole sampling runs with PyTorch and diffusers, one JSON line for each sampler and mode.

    python sampling_torch.py [--net small] [--size 128] [--batch 1] [--runs 3] [--threads N] [--device cpu|cuda]
        [--precision fp32|bf16] [--modes eager,channels_last,compile]

The same loops as the example `sampling_bench`: 25 steps of DPM-Solver++ 2M and 18 of Heun guided by a measurement, on
Karras' levels, with a condition beside x. Needs torch and diffusers.
"""
import argparse, json, time
import torch
from diffusers import DPMSolverMultistepScheduler, HeunDiscreteScheduler, UNet2DModel

P = argparse.ArgumentParser()
P.add_argument("--net", default="small", choices=("small", "tiny"))
P.add_argument("--size", type=int, default=128)
P.add_argument("--batch", type=int, default=1)
P.add_argument("--runs", type=int, default=3)
P.add_argument("--threads", type=int)
P.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
P.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
P.add_argument("--modes", default="eager,channels_last")
A = P.parse_args()
if A.threads:
    torch.set_num_threads(A.threads)

NETS = {
    "small": dict(layers_per_block=2, block_out_channels=(64, 128, 256), down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
                  up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"), attention_head_dim=64, norm_num_groups=32),
    "tiny": dict(layers_per_block=1, block_out_channels=(32, 64, 128), down_block_types=("DownBlock2D",) * 3, up_block_types=("UpBlock2D",) * 3,
                 attention_head_dim=32, norm_num_groups=8),
}


def schedulers():
    settings = dict(beta_start=1e-4, beta_end=0.02, beta_schedule="linear", use_karras_sigmas=True)
    yield "dpmpp-2m 25", DPMSolverMultistepScheduler(solver_order=2, **settings), 25, False
    yield "guided heun 18", HeunDiscreteScheduler(**settings), 18, True


def proximal(x0, sigma, y, sd=0.5, per_unit=10.0, at_zero=10.0, background=2.0, variance=1.5**2):
    """Precision-weighted correction of x0 by counts y with shot and read noise, two passes."""
    weight = sigma**2 * sd**2 / (sigma**2 + sd**2)
    change = torch.zeros_like(x0)
    for _ in range(2):
        total = torch.clamp(per_unit * (x0 + change) + at_zero + background, min=1e-4) + variance
        slope = 1 - (y + variance) / total
        change = change + (-weight * per_unit * slope - change) / (1 + weight * per_unit**2 / total)
    return x0 + change


@torch.inference_mode()
def sample(net, correct, scheduler, steps, guided, condition, channels_last):
    scheduler.set_timesteps(steps, device=A.device)
    noise = torch.randn(condition.shape, generator=torch.Generator().manual_seed(0)).to(A.device)
    x = noise * scheduler.init_noise_sigma
    y = torch.full_like(x, 7.0)
    for t in scheduler.timesteps:
        seen = torch.cat([scheduler.scale_model_input(x, t), condition], 1)
        if channels_last:
            seen = seen.contiguous(memory_format=torch.channels_last)
        with torch.autocast(A.device, torch.bfloat16, enabled=A.precision == "bf16"):
            predicted = net(seen, t).sample
        predicted = predicted.float()
        if guided:
            sigma = scheduler.sigmas[scheduler.step_index].to(A.device)
            predicted = (x - correct(x - sigma * predicted, sigma, y)) / sigma
        x = scheduler.step(predicted, t, x).prev_sample
    if A.device == "cuda":
        torch.cuda.synchronize()
    return x


for mode in A.modes.split(","):
    torch.manual_seed(0)
    net = UNet2DModel(sample_size=A.size, in_channels=2, out_channels=1, **NETS[A.net]).eval().to(A.device)
    correct = proximal
    if mode != "eager":
        net = net.to(memory_format=torch.channels_last)
    if mode == "compile":
        net, correct = torch.compile(net), torch.compile(proximal)
    condition = torch.full((A.batch, 1, A.size, A.size), 0.25, device=A.device)
    for work, scheduler, steps, guided in schedulers():
        run = lambda: sample(net, correct, scheduler, steps, guided, condition, mode != "eager")
        begin = time.perf_counter()
        run()
        setup, times = time.perf_counter() - begin, []
        for _ in range(A.runs):
            start = time.perf_counter()
            run()
            times.append((time.perf_counter() - start) * 1e3)
        print(json.dumps(dict(engine="torch " + torch.__version__, mode=mode, net=A.net, work=work, batch=A.batch, size=A.size,
                              median_ms=round(sorted(times)[len(times) // 2], 1), setup_s=round(setup, 2))), flush=True)
