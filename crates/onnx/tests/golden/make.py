"""Makes the golden files: small networks exported by PyTorch, with inputs and what ONNX Runtime computes of them.

    python crates/onnx/tests/golden/make.py

Needs torch, onnx, onnxruntime, onnxscript and safetensors. Weights are random and small; what matters is which operators stand in the
files, in which forms and opsets.
"""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import onnxruntime.quantization
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file
from torch import nn

HERE = Path(__file__).parent


class UNet(nn.Module):
    """A U-Net as StarDist, CARE and N2V have them: batch norm, pooling, nearest upsampling, concatenation."""

    def __init__(self):
        super().__init__()
        block = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU())
        self.down, self.middle, self.up = block(1, 4), block(4, 6), block(10, 4)
        self.last = nn.Conv2d(4, 2, 1)

    def forward(self, x):
        a = self.down(x)
        b = self.middle(F.max_pool2d(a, 2))
        b = F.interpolate(b, scale_factor=2, mode="nearest")
        return torch.sigmoid(self.last(self.up(torch.cat([b, a], 1))))


class Volume(nn.Module):
    """3-D, with instance norm, transposed convolution, trilinear upsampling, PReLU and ELU."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv3d(1, 4, 3, stride=(1, 2, 2), padding=1)
        self.norm = nn.InstanceNorm3d(4, affine=True)
        self.up = nn.ConvTranspose3d(4, 3, (1, 2, 2), stride=(1, 2, 2))
        self.act = nn.PReLU(4)

    def forward(self, x):
        y = self.up(self.act(self.norm(self.first(x))))
        y = F.interpolate(F.avg_pool3d(y, 2), size=y.shape[2:], mode="trilinear", align_corners=False)
        return F.elu(y) + x


class Attention(nn.Module):
    """Group norm, SiLU and attention over pixels, as diffusion networks have them."""

    def __init__(self):
        super().__init__()
        self.norm, self.first = nn.GroupNorm(2, 8), nn.Conv2d(2, 8, 3, padding=1)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.last = nn.Conv2d(8, 1, 3, padding=1, padding_mode="reflect")

    def forward(self, x):
        h = F.silu(self.norm(self.first(x)))
        n, c, y, w = h.shape
        t = h.reshape(n, c, y * w).permute(0, 2, 1)
        q, k, v = self.qkv(t).reshape(n, y * w, 3, 2, 4).permute(2, 0, 3, 1, 4)
        a = torch.softmax(q @ k.transpose(-1, -2) * 0.5, dim=-1) @ v
        a = self.out(a.permute(0, 2, 1, 3).reshape(n, y * w, c))
        return self.last(h + a.permute(0, 2, 1).reshape(n, c, y, w))


class ConvNeXt(nn.Module):
    """Depthwise convolution, layer norm over channels, GELU, a learned scale, pixel shuffle, windows."""

    def __init__(self):
        super().__init__()
        self.first, self.depth = nn.Conv2d(1, 8, 2, stride=2), nn.Conv2d(8, 8, 5, padding=2, groups=8)
        self.norm, self.wide, self.narrow = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.gamma = nn.Parameter(torch.rand(8))
        self.last = nn.Conv2d(8, 4, 3, padding=2, dilation=2)

    def forward(self, x):
        h = self.first(x)
        y = self.norm(self.depth(h).permute(0, 2, 3, 1))
        y = self.narrow(F.gelu(self.wide(y))) * self.gamma
        h = h + y.permute(0, 3, 1, 2)
        # Swin's windows and their inverse.
        n, c, a, b = h.shape
        w = h.view(n, c, a // 2, 2, b // 2, 2).permute(0, 2, 4, 3, 5, 1).reshape(-1, 4, c)
        w = w - w.mean(1, keepdim=True)
        w = w.view(n, a // 2, b // 2, 2, 2, c).permute(0, 5, 1, 3, 2, 4).reshape(n, c, a, b)
        return F.pixel_shuffle(self.last(w), 2)


class Small(nn.Module):
    """What is left: slices, padding, squeeze and excitation, hard activations, powers, maxima, clipping."""

    def __init__(self):
        super().__init__()
        self.first, self.squeeze, self.excite = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4), nn.Linear(4, 8)

    def forward(self, x):
        h = F.hardswish(self.first(F.pad(x, (1, 2, 3, 0), mode="replicate")))
        gate = F.hardsigmoid(self.excite(F.relu(self.squeeze(h.mean((2, 3))))))
        h = h * gate[:, :, None, None]
        even, odd = h[:, ::2], h[:, 1::2]
        y = torch.maximum(even, odd) - (even**2 + 1e-3).sqrt() / (1 + odd.abs())
        y = torch.cat([y.clamp(-1, 1), F.leaky_relu(y, 0.2), F.softplus(y), torch.where(y > 0, y, 2 * y)], 1)
        return F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=True)[..., 1:-1, 2:]


class Wide(nn.Module):
    """Enough channels for products in 8 bits, a skip connection, and a first and a last convolution that have too few."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1, stride=2)
        self.last = nn.ConvTranspose2d(16, 1, 2, stride=2)

    def forward(self, x):
        a = F.relu(self.first(x))
        b = a + F.leaky_relu(self.second(a), 0.1)
        return self.last(self.third(b))


def strip(path):
    """Takes out what exporters say about the source code: it is larger than the network."""
    model = onnx.load(path)
    model.doc_string = model.producer_version = ""
    for item in [model.graph, *model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output, *model.graph.initializer]:
        item.doc_string = ""
        del item.metadata_props[:]
    del model.metadata_props[:]
    del model.graph.value_info[:]
    onnx.save(model, path)


def write(name, network, shape, opset, dynamo, open_sizes=True):
    torch.manual_seed(len(name))
    network = network.eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 2)
    with torch.no_grad():
        for p in network.parameters():
            if p.ndim == 1:
                p.add_(0.1 * torch.randn_like(p))
    x = torch.randn(shape)
    path = HERE / f"{name}.onnx"
    options = {"input_names": ["x"], "output_names": ["y"], "opset_version": opset}
    if dynamo:
        torch.onnx.export(network, (x,), path, dynamo=True, external_data=False, **options)
    else:
        axes = {0: "n"} | {i: f"s{i}" for i in range(2, len(shape))} if open_sizes else {}
        torch.onnx.export(network, (x,), path, dynamo=False, dynamic_axes={"x": axes}, **options)
    strip(path)
    y = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x.numpy()})[0]
    save_file({"in.x": x.numpy(), "out.y": np.ascontiguousarray(y)}, path.with_suffix(".safetensors"))
    print(name, path.stat().st_size, y.shape)


class Calibration(onnxruntime.quantization.CalibrationDataReader):
    """A few random images."""

    def __init__(self, shape):
        self.images = iter([{"x": np.random.default_rng(i).normal(size=shape).astype(np.float32)} for i in range(8)])

    def get_next(self):
        return next(self.images, None)


def write_quantised(name, of, shape, per_channel, activation, weight):
    """A network in the form of pairs (QDQ), computed by ONNX Runtime node by node: as the operators are defined, without integer kernels."""
    from onnxruntime.quantization import QuantFormat, quantize_static

    path = HERE / f"{name}.onnx"
    quantize_static(HERE / f"{of}.onnx", path, Calibration(shape), quant_format=QuantFormat.QDQ, per_channel=per_channel,
                    activation_type=activation, weight_type=weight)
    strip(path)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    x = np.random.default_rng(100).normal(size=shape).astype(np.float32)
    y = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    save_file({"in.x": x, "out.y": np.ascontiguousarray(y)}, path.with_suffix(".safetensors"))
    print(name, path.stat().st_size, y.shape)


if __name__ == "__main__":
    write("unet_opset9", UNet(), (2, 1, 8, 12), 9, False)
    write("unet_opset17", UNet(), (1, 1, 8, 8), 17, False)
    write("volume_opset13", Volume(), (1, 1, 4, 6, 8), 13, False)
    write("attention_opset14", Attention(), (2, 2, 4, 6), 14, False)
    write("attention_opset18", Attention(), (2, 2, 4, 6), 18, True)
    write("convnext_opset17", ConvNeXt(), (2, 1, 8, 8), 17, False)
    write("convnext_opset20", ConvNeXt(), (1, 1, 8, 12), 20, True)
    write("small_opset11", Small(), (2, 3, 6, 5), 11, False, open_sizes=False)
    write("small_opset18", Small(), (1, 3, 6, 5), 18, True)
    from onnxruntime.quantization import QuantType

    write("wide_opset17", Wide(), (1, 1, 8, 8), 17, False)
    write_quantised("quantised_wide", "wide_opset17", (1, 1, 8, 8), True, QuantType.QUInt8, QuantType.QInt8)
    write_quantised("quantised_signed", "wide_opset17", (1, 1, 8, 8), True, QuantType.QInt8, QuantType.QInt8)
    write_quantised("quantised_tensor", "unet_opset17", (1, 1, 8, 8), False, QuantType.QUInt8, QuantType.QUInt8)
    write_quantised("quantised_channel", "small_opset18", (1, 3, 6, 5), True, QuantType.QInt8, QuantType.QInt8)
