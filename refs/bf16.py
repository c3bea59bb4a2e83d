"""PyTorch's own error in bfloat16 on the UNet cases: `python bf16.py REFS` writes REFS/bf16.json.

For each case the relative L2 error, against the case's fp32, of the output and of all the gradients of
parameters that the case has, taken as one vector, of diffusers' model under autocast. Needs torch and diffusers.
"""
import glob, json, os, sys
import torch
from diffusers import UNet2DModel
from safetensors import safe_open

errors = {}
for path in sorted(glob.glob(os.path.join(sys.argv[1], "unet2d", "*.safetensors"))):
    with safe_open(path, "pt") as f:
        attrs = json.loads(f.metadata()["attrs"])
        case = {k: f.get_tensor(k) for k in f.keys()}
    model = UNet2DModel(**attrs["config"])
    model.load_state_dict({k[6:]: v for k, v in case.items() if k.startswith("param.")})
    known = {"class_labels": case["in.class"]} if "in.class" in case else {}
    with torch.autocast("cpu", torch.bfloat16):
        t = case["in.t"].long() if attrs["config"].get("time_embedding_type") == "learned" else case["in.t"]
        y = model(case["in.x"], t, **known).sample
    y.float().backward(case["gout.y"])
    off = size = 0.0
    for name, p in model.named_parameters():
        if "gparam." + name in case:
            got, truth = p.grad.flatten(), case["gparam." + name].flatten()
        elif "gsome." + name in case:
            truth = case["gsome." + name].flatten()
            got = p.grad.flatten()[::97][: len(truth)]
        else:
            continue
        off += (got - truth).double().square().sum().item()
        size += truth.double().square().sum().item()
    errors[os.path.basename(path)[: -len(".safetensors")]] = {
        "y": ((y.float() - case["out.y"]).norm() / case["out.y"].norm()).item(),
        "gradient": (off / size) ** 0.5,
    }
with open(os.path.join(sys.argv[1], "bf16.json"), "w") as f:
    json.dump(errors, f, indent=1)
    f.write("\n")
