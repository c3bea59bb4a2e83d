"""Times whole sampling runs with PyTorch and diffusers, one JSON line for each sampler and mode.

    python sampling_torch.py [--net small] [--size 128] [--batch 1] [--runs 3] [--threads N] [--modes eager,channels_last,compile]

The same loops as the example `sampling_bench`: 25 steps of DPM-Solver++ 2M and 18 of Heun, on Karras' levels, with a
condition beside x. Needs torch and diffusers.
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
    yield "dpmpp-2m 25", DPMSolverMultistepScheduler(solver_order=2, **settings), 25
    yield "heun 18", HeunDiscreteScheduler(**settings), 18


@torch.inference_mode()
def sample(net, scheduler, steps, condition, channels_last):
    scheduler.set_timesteps(steps)
    x = torch.randn(condition.shape, generator=torch.Generator().manual_seed(0)) * scheduler.init_noise_sigma
    for t in scheduler.timesteps:
        seen = torch.cat([scheduler.scale_model_input(x, t), condition], 1)
        if channels_last:
            seen = seen.contiguous(memory_format=torch.channels_last)
        x = scheduler.step(net(seen, t).sample, t, x).prev_sample
    return x


for mode in A.modes.split(","):
    torch.manual_seed(0)
    net = UNet2DModel(sample_size=A.size, in_channels=2, out_channels=1, **NETS[A.net]).eval()
    if mode != "eager":
        net = net.to(memory_format=torch.channels_last)
    if mode == "compile":
        net = torch.compile(net)
    condition = torch.full((A.batch, 1, A.size, A.size), 0.25)
    for work, scheduler, steps in schedulers():
        begin = time.perf_counter()
        sample(net, scheduler, steps, condition, mode != "eager")
        setup, times = time.perf_counter() - begin, []
        for _ in range(A.runs):
            start = time.perf_counter()
            sample(net, scheduler, steps, condition, mode != "eager")
            times.append((time.perf_counter() - start) * 1e3)
        print(json.dumps(dict(engine="torch " + torch.__version__, mode=mode, net=A.net, work=work, batch=A.batch, size=A.size,
                              median_ms=round(sorted(times)[len(times) // 2], 1), setup_s=round(setup, 2))), flush=True)
