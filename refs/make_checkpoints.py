"""Checkpoints that torch.save writes, in every form that is read and some that are refused, beside the same values as
safetensors; and a network of diffusers as its older versions saved it, with an output.

Needs torch, diffusers, safetensors. Run from this folder: python make_checkpoints.py
"""
import pathlib
from collections import OrderedDict

import torch
from diffusers import UNet2DModel
from safetensors.torch import save_file

torch.manual_seed(20261115)
here = pathlib.Path("../crates/tensor/tests/checkpoint")
here.mkdir(exist_ok=True)

big = torch.randn(6, 7)
tied = torch.randn(5)
tensors = OrderedDict(
    f64=torch.randn(2, 3, dtype=torch.float64),
    f32=torch.randn(3, 4),
    f16=torch.randn(5).half(),
    bf16=torch.randn(2, 2).bfloat16(),
    i64=torch.tensor([-(2**60), 5, 2**40]),
    i32=torch.tensor([[-7, 2**30]], dtype=torch.int32),
    i8=torch.tensor([-128, 127], dtype=torch.int8),
    u8=torch.tensor([0, 255], dtype=torch.uint8),
    bool=torch.tensor([True, False, True]),
    scalar=torch.tensor(2.5),
    empty=torch.zeros(0, 4),
    transposed=big.t(),
    part=big[1:5:2, 2:6],
    column=big[:, 3],
    channels_last=torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    expanded=torch.randn(1, 3).expand(4, 3),
    tied_a=tied,
    tied_b=tied,
)
tensors["block.0.weight"] = torch.nn.Parameter(torch.randn(4, 2, 3))
save_file({k: v.detach().clone().contiguous().to(torch.uint8 if v.dtype == torch.bool else v.dtype)
           for k, v in tensors.items()}, here / "values.safetensors")
torch.save(tensors, here / "plain.pt")
for protocol in (3, 4, 5):
    torch.save(tensors, here / f"protocol{protocol}.pt", pickle_protocol=protocol)

layer = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
moved = torch.optim.AdamW(layer.parameters())
layer(torch.randn(4, 3)).sum().backward()
moved.step()
average = {k: v + 1 for k, v in layer.state_dict().items()}
save_file({k: v.contiguous() for k, v in layer.state_dict().items()}, here / "layer.safetensors")
torch.save(layer.state_dict(), here / "layer.pt")
torch.save({"epoch": 3, "lr": 1e-3, "best": None, "device": torch.device("cpu"), "state_dict": layer.state_dict(),
            "optimizer": moved.state_dict(), "sizes": [torch.Size([2, 3])]}, here / "training.pth")
torch.save({"model": layer.state_dict(), "ema": average, "optimizer": moved.state_dict()}, here / "averaged.pth")
torch.save({"model": {"module." + k: v for k, v in layer.state_dict().items()}}, here / "wrapped.pth")
torch.save({"generator": layer.state_dict(), "critic": layer.state_dict()}, here / "two_networks.pth")
torch.save(layer, here / "whole_module.pt")
torch.save([torch.zeros(2)], here / "list.pt")
torch.save(layer.state_dict(), here / "legacy.pt", _use_new_zipfile_serialization=False)


class Attack:
    def __reduce__(self):
        return eval, ("open('clearshot-was-here', 'w')",)


torch.save({"weight": torch.zeros(2), "x": Attack()}, here / "attack.pt")

folder = pathlib.Path("unet2d/diffusers_bin")
folder.mkdir(exist_ok=True)
network = UNet2DModel(sample_size=8, in_channels=1, out_channels=1, block_out_channels=(8, 8), layers_per_block=1,
                      norm_num_groups=4, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                      up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=4).eval()
network.save_pretrained(folder, safe_serialization=False)
x, t = torch.randn(2, 1, 8, 8), torch.tensor([3.0, 400.0])
with torch.no_grad():
    y = network(x, t).sample
save_file({"x": x, "t": t, "y": y}, folder / "output.safetensors")
