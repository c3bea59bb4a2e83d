"""More cases of samplers: settings of diffusers' schedulers that the others leave out.

    python make_samplers.py OUT_DIR [--all] [--seed N]

Without --all only the few that the project keeps. Needs torch and diffusers. A function stands in place of the network, as in
the other cases; where the variance is learned, its second half is cos(x) / 2.
"""
import argparse, itertools, json, math, os, warnings
import numpy as np, torch
from safetensors.torch import save_file
from diffusers import (
    DDPMScheduler, DDIMScheduler, DPMSolverMultistepScheduler, HeunDiscreteScheduler, EulerDiscreteScheduler,
    EDMEulerScheduler, EDMDPMSolverMultistepScheduler, UNet2DModel,
)

warnings.filterwarnings("ignore")
P = argparse.ArgumentParser()
P.add_argument("out")
P.add_argument("--all", action="store_true")
P.add_argument("--seed", type=int, default=5)
A = P.parse_args()
G = torch.Generator().manual_seed(A.seed)

KEPT = {
    "ddpm_learned_range", "ddpm_sigmoid_clip_trailing", "ddim_eta1_clipped_direction", "ddim_offset_first",
    "dpmpp_3_few", "dpmpp_3_few_full_order", "dpmpp_2_heun_sigma_min", "dpmpp_2_leading_sample",
    "dpmpp_sde_1_heun_trailing", "ddim_threshold_0.9_1.7", "dpmpp_threshold_0.995_40.0", "dpmpp_2_trained_betas", "euler_leading_v", "euler_trailing_sigma_min",
    "heun_trailing_v_clip", "heun_linspace", "edm_dpmpp_3", "edm_dpmpp_sde", "network_dpmpp_2", "network_ddpm", "network_heun",
}


class Function:
    """What stands in place of a network."""
    tensors, attrs = {}, {}

    def __call__(self, x, t):
        return 0.3 * x * math.cos(t / 300.0) + 0.1 * torch.sin(3 * x) + 0.05


class Network:
    """A real one, conditioned on an image beside x."""

    def __init__(self):
        torch.manual_seed(A.seed)
        config = dict(sample_size=8, in_channels=2, out_channels=1, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4,
                      down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=8)
        self.net = UNet2DModel(**config)
        self.image = torch.randn(2, 1, 8, 8, generator=G)
        for p in self.net.parameters():
            p.data.add_(0.1 * torch.randn(p.shape, generator=G))
        self.attrs = dict(network={k: v for k, v in json.loads(json.dumps(dict(self.net.config))).items() if not k.startswith("_")})
        self.tensors = {"in.image": self.image} | {"param." + k: v.detach() for k, v in self.net.named_parameters()}

    @torch.no_grad()
    def __call__(self, x, t):
        # As a tensor: numbers are cut to whole ones.
        return self.net(torch.cat([x, self.image], 1), torch.tensor(t)).sample


def run(name, sch, steps, sampler, stochastic=False, network=Function(), **kw):
    if not (A.all or name in KEPT):
        return
    sch.set_timesteps(steps)
    getattr(sch, "set_begin_index", lambda i: None)(0)
    x = torch.randn(network.tensors["in.image"].shape if network.tensors else (2, 1, 5, 7), generator=G) * sch.init_noise_sigma
    tensors, trajectory, noises = {"in.x": x.clone()} | network.tensors, [], []
    for i, t in enumerate(sch.timesteps):
        scaled = sch.scale_model_input(x, t)
        y = network(scaled, float(t))
        if sch.config.get("variance_type") == "learned_range" and sampler == "ddpm":
            y = torch.cat([y, 0.5 * torch.cos(scaled)], 1)
        more = dict(kw)
        if stochastic:
            more["generator"] = torch.Generator().manual_seed(77 * i + A.seed)
            noises.append(torch.randn(x.shape, generator=torch.Generator().manual_seed(77 * i + A.seed)))
        x = sch.step(y, t, x, **more).prev_sample
        trajectory.append(x.clone())
    tensors["out.trajectory"], tensors["out.timesteps"] = torch.stack(trajectory), sch.timesteps.float()
    if noises:
        tensors["in.noise"] = torch.stack(noises)
    if hasattr(sch, "sigmas"):
        tensors["out.sigmas"] = sch.sigmas.float()
    plain = (int, float, str, bool, type(None), list)
    config = {k: v for k, v in dict(sch.config).items() if isinstance(v, plain) and not k.startswith("_")}
    if not torch.isfinite(tensors["out.trajectory"]).all():
        print("not finite:", name)
        return
    os.makedirs(os.path.join(A.out, "sampler"), exist_ok=True)
    attrs = json.dumps(dict(kw, **network.attrs, sampler=sampler, steps=steps, config=config))
    save_file({k: v.contiguous() for k, v in tensors.items()}, os.path.join(A.out, "sampler", f"more_{name}.safetensors"),
              {"kind": "sampler", "name": f"more_{name}", "attrs": attrs})


SPACINGS = ("leading", "linspace", "trailing")
PREDICTIONS = ("epsilon", "sample", "v_prediction")
LAWS = ("linear", "scaled_linear", "squaredcos_cap_v2")

# DDPM. With `trailing` and `fixed_large` diffusers adds noise in the last step; that is left out.
for law, spacing, prediction, clip in itertools.product(LAWS + ("sigmoid",), SPACINGS, PREDICTIONS, (False, True)):
    for variance in ("fixed_small", "fixed_large", "learned_range"):
        if not (spacing == "trailing" and variance != "fixed_small"):
            run(f"ddpm_{law}_{spacing}_{prediction}_{variance}_{clip}",
                DDPMScheduler(beta_schedule=law, timestep_spacing=spacing, prediction_type=prediction, clip_sample=clip, variance_type=variance), 11, "ddpm", True)
run("ddpm_learned_range", DDPMScheduler(variance_type="learned_range", clip_sample=False), 13, "ddpm", True)
run("ddpm_sigmoid_clip_trailing", DDPMScheduler(beta_schedule="sigmoid", timestep_spacing="trailing", clip_sample=True, clip_sample_range=1.5), 12, "ddpm", True)
run("ddpm_whole", DDPMScheduler(num_train_timesteps=100, clip_sample=False), 100, "ddpm", True)

# DDIM.
for law, spacing, prediction, clip, eta, steps in itertools.product(LAWS, SPACINGS, PREDICTIONS, (False, True), (0.0, 0.3, 1.0), (1, 7, 30)):
    run(f"ddim_{law}_{spacing}_{prediction}_{clip}_{eta}_{steps}",
        DDIMScheduler(beta_schedule=law, timestep_spacing=spacing, prediction_type=prediction, clip_sample=clip), steps, "ddim", eta > 0, eta=eta)
run("ddim_eta1_clipped_direction", DDIMScheduler(clip_sample=True), 9, "ddim", True, eta=1.0, use_clipped_model_output=True)
run("ddim_offset_first", DDIMScheduler(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012, steps_offset=1, set_alpha_to_one=False, clip_sample=False), 9, "ddim", eta=0.0)

# DPM-Solver++.
DPM = DPMSolverMultistepScheduler
for law, spacing, prediction, order, steps in itertools.product(LAWS, SPACINGS, PREDICTIONS, (1, 2, 3), (2, 5, 14, 15, 21)):
    for lower, final, kind in itertools.product((True, False), ("zero", "sigma_min"), ("midpoint", "heun")):
        run(f"dpmpp_{law}_{spacing}_{prediction}_{order}_{steps}_{lower}_{final}_{kind}",
            DPM(beta_schedule=law, timestep_spacing=spacing, prediction_type=prediction, solver_order=order, lower_order_final=lower, final_sigmas_type=final, solver_type=kind), steps, "dpmpp")
for law, order, steps, karras, kind in itertools.product(LAWS, (1, 2), (3, 12, 20), (False, True), ("midpoint", "heun")):
    run(f"dpmpp_sde_{law}_{order}_{steps}_{karras}_{kind}",
        DPM(beta_schedule=law, solver_order=order, algorithm_type="sde-dpmsolver++", use_karras_sigmas=karras, solver_type=kind), steps, "dpmpp_sde", True)
for law, order, steps, prediction in itertools.product(LAWS, (2, 3), (4, 10, 25), PREDICTIONS):
    run(f"dpmpp_karras_{law}_{order}_{steps}_{prediction}", DPM(beta_schedule=law, solver_order=order, use_karras_sigmas=True, prediction_type=prediction), steps, "dpmpp")
run("dpmpp_3_few", DPM(solver_order=3), 6, "dpmpp")
run("dpmpp_3_few_full_order", DPM(solver_order=3, lower_order_final=False, beta_schedule="scaled_linear"), 6, "dpmpp")
run("dpmpp_2_heun_sigma_min", DPM(solver_type="heun", final_sigmas_type="sigma_min"), 16, "dpmpp")
run("dpmpp_2_euler_final", DPM(euler_at_final=True, final_sigmas_type="sigma_min"), 16, "dpmpp")
run("dpmpp_2_leading_sample", DPM(timestep_spacing="leading", steps_offset=1, prediction_type="sample"), 9, "dpmpp")
run("dpmpp_sde_1_heun_trailing", DPM(timestep_spacing="trailing", solver_order=1, algorithm_type="sde-dpmsolver++", solver_type="heun"), 9, "dpmpp_sde", True)
run("dpmpp_2_trained_betas", DPM(trained_betas=[1e-4 + 2e-4 * i for i in range(90)], num_train_timesteps=90), 10, "dpmpp")

# Dynamic thresholding; with a largest value of 1 it is clipping.
for ratio, most in itertools.product((0.9, 0.995, 0.5), (1.0, 1.7, 40.0)):
    kw = dict(thresholding=True, dynamic_thresholding_ratio=ratio, sample_max_value=most)
    run(f"ddim_threshold_{ratio}_{most}", DDIMScheduler(clip_sample=False, **kw), 9, "ddim", eta=0.0)
    run(f"ddpm_threshold_{ratio}_{most}", DDPMScheduler(clip_sample=False, **kw), 9, "ddpm", True)
    run(f"dpmpp_threshold_{ratio}_{most}", DPM(beta_schedule="squaredcos_cap_v2", **kw), 9, "dpmpp")

# Euler and Heun.
for law, spacing, prediction, karras, steps in itertools.product(LAWS, SPACINGS, PREDICTIONS, (False, True), (2, 9, 25)):
    kw = dict(beta_schedule=law, timestep_spacing=spacing, prediction_type=prediction, use_karras_sigmas=karras)
    run(f"euler_{law}_{spacing}_{prediction}_{karras}_{steps}", EulerDiscreteScheduler(**kw), steps, "euler")
    for clip in (False, True):
        run(f"heun_{law}_{spacing}_{prediction}_{karras}_{steps}_{clip}", HeunDiscreteScheduler(clip_sample=clip, **kw), steps, "heun")
run("euler_leading_v", EulerDiscreteScheduler(beta_schedule="scaled_linear", timestep_spacing="leading", steps_offset=1, prediction_type="v_prediction"), 9, "euler")
run("euler_trailing_sigma_min", EulerDiscreteScheduler(timestep_spacing="trailing", final_sigmas_type="sigma_min"), 9, "euler")
run("heun_trailing_v_clip", HeunDiscreteScheduler(timestep_spacing="trailing", prediction_type="v_prediction", clip_sample=True), 8, "heun")
run("heun_linspace", HeunDiscreteScheduler(beta_schedule="squaredcos_cap_v2"), 8, "heun")

# EDM.
for order, steps, kind, lower in itertools.product((1, 2, 3), (2, 8, 20), ("midpoint", "heun"), (True, False)):
    run(f"edm_dpmpp_{order}_{steps}_{kind}_{lower}", EDMDPMSolverMultistepScheduler(solver_order=order, solver_type=kind, lower_order_final=lower), steps, "edm_dpmpp")
run("edm_dpmpp_3", EDMDPMSolverMultistepScheduler(solver_order=3, sigma_data=1.0, sigma_max=20.0), 10, "edm_dpmpp")
run("edm_dpmpp_sde", EDMDPMSolverMultistepScheduler(algorithm_type="sde-dpmsolver++", rho=5.0), 12, "edm_dpmpp", True)
run("edm_euler_other", EDMEulerScheduler(sigma_min=0.01, sigma_max=10.0, sigma_data=0.3, rho=3.0), 12, "edm_euler")

# Whole runs of a network.
net = Network()
run("network_dpmpp_2", DPM(use_karras_sigmas=True, beta_schedule="scaled_linear"), 12, "dpmpp", network=net)
run("network_ddpm", DDPMScheduler(clip_sample=True, prediction_type="v_prediction"), 12, "ddpm", True, network=net)
run("network_heun", HeunDiscreteScheduler(use_karras_sigmas=True), 8, "heun", network=net)
