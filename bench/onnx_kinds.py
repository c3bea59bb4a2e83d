"""Small networks of many kinds, as ONNX files for `onnx_times.py --outputs`: what networks for images are made of, in opsets 9 to 21.

    python bench/onnx_kinds.py FOLDER [NAME ...]

Blocks are written here after the papers, networks of libraries are made by them with random weights; each is exported by PyTorch for three sizes. Needs torch, torchvision,
timm, onnx and onnxscript; a network of Keras is written here as tf2onnx exports such, transposes around every convolution.
"""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from torch import nn

warnings.filterwarnings("ignore")

FLAT, SMALL, DEEP = [(48, 64), (64, 64), (96, 80)], [(64, 64), (96, 128), (128, 128)], [(8, 32, 32), (16, 32, 48), (16, 64, 64)]
conv = lambda i, o, k=3, **kw: nn.Conv2d(i, o, k, padding=kw.pop("padding", k // 2), **kw)


class ChannelAttention(nn.Module):
    """RCAN's: channels weighed by their means."""

    def __init__(self, c, r=4):
        super().__init__()
        self.weigh = nn.Sequential(nn.AdaptiveAvgPool2d(1), conv(c, c // r, 1), nn.ReLU(), conv(c // r, c, 1), nn.Sigmoid())

    def forward(self, x):
        return x * self.weigh(x)


class Residual(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return x + self.layers(x)


class Rcan(nn.Module):
    """Residual groups with channel attention and PixelShuffle, twice the size."""

    def __init__(self, c=24):
        super().__init__()
        block = lambda: Residual(conv(c, c), nn.ReLU(), conv(c, c), ChannelAttention(c))
        self.all = nn.Sequential(conv(1, c), Residual(block(), block(), conv(c, c)), conv(c, 4 * c), nn.PixelShuffle(2), conv(c, 1))

    def forward(self, x):
        return self.all(x)


class LayerNorm2d(nn.Module):
    """Over the channels of each pixel, as NAFNet and ConvNeXt have it."""

    def __init__(self, c):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(c)), nn.Parameter(torch.randn(c))

    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        return (x - mean) / (variance + 1e-6).sqrt() * self.weight[:, None, None] + self.bias[:, None, None]


class NafBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n1, self.n2 = LayerNorm2d(c), LayerNorm2d(c)
        self.a, self.b, self.c = conv(c, 2 * c, 1), conv(2 * c, 2 * c, groups=2 * c), conv(c, c, 1)
        self.sca = nn.Sequential(nn.AdaptiveAvgPool2d(1), conv(c, c, 1))
        self.d, self.e = conv(c, 2 * c, 1), conv(c, c, 1)
        self.beta, self.gamma = nn.Parameter(torch.randn(1, c, 1, 1)), nn.Parameter(torch.randn(1, c, 1, 1))

    def forward(self, x):
        u, v = self.b(self.a(self.n1(x))).chunk(2, 1)
        h = u * v
        x = x + self.c(h * self.sca(h)) * self.beta
        u, v = self.d(self.n2(x)).chunk(2, 1)
        return x + self.e(u * v) * self.gamma


class NafNet(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.intro, self.ending = conv(1, c), conv(c, 1)
        self.enc, self.mid, self.dec = NafBlock(c), NafBlock(2 * c), NafBlock(c)
        self.down, self.up = nn.Conv2d(c, 2 * c, 2, 2), nn.Sequential(conv(2 * c, 4 * c, 1, bias=False), nn.PixelShuffle(2))

    def forward(self, x):
        h = self.enc(self.intro(x))
        h = self.dec(self.up(self.mid(self.down(h))) + h)
        return x + self.ending(h)


class WindowAttention(nn.Module):
    """SwinIR's: attention in windows of 8 x 8 pixels, shifted by four, with a bias of each relative place and a mask."""

    def __init__(self, c=24, heads=3, window=8, shift=4):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(c), nn.Linear(c, 3 * c), nn.Linear(c, c)
        self.heads, self.window, self.shift = heads, window, shift
        self.bias = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads))
        at = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        far = at[:, :, None] - at[:, None] + window - 1
        self.register_buffer("index", far[0] * (2 * window - 1) + far[1])

    def windows(self, x):
        n, h, w, c = x.shape
        k = self.window
        return x.view(n, h // k, k, w // k, k, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, k * k, c)

    def mask(self, h, w):
        at = torch.zeros(1, h, w, 1)
        s, k = self.shift, self.window
        parts = (slice(0, -k), slice(-k, -s), slice(-s, None))
        for i, y in enumerate(parts):
            for j, x in enumerate(parts):
                at[:, y, x] = 3 * i + j
        at = self.windows(at).squeeze(-1)
        return (at[:, None] - at[:, :, None]).ne(0).float() * -100.0

    def forward(self, x):
        n, h, w, c = x.shape
        y = self.norm(x)
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        y = self.windows(y)
        q, k, v = self.qkv(y).reshape(-1, self.window**2, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        score = q * (c // self.heads) ** -0.5 @ k.transpose(-2, -1)
        score = score + self.bias[self.index.view(-1)].view(self.window**2, self.window**2, -1).permute(2, 0, 1)[None]
        if self.shift:
            mask = self.mask(h, w)
            score = (score.view(n, -1, self.heads, *score.shape[2:]) + mask[None, :, None]).view_as(score)
        y = self.out((score.softmax(-1) @ v).transpose(1, 2).reshape(-1, self.window**2, c))
        kk = self.window
        y = y.view(n, h // kk, w // kk, kk, kk, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        return x + y


class SwinIr(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        self.first, self.last = conv(1, c), conv(c, 1)
        mlp = lambda: Residual(nn.LayerNorm(c), nn.Linear(c, 2 * c), nn.GELU(), nn.Linear(2 * c, c))
        self.blocks = nn.Sequential(WindowAttention(c, shift=0), mlp(), WindowAttention(c), mlp())

    def forward(self, x):
        h = self.first(x)
        return x + self.last(h + self.blocks(h.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


class Restormer(nn.Module):
    """Attention between channels (MDTA) and a gated depthwise feed-forward."""

    def __init__(self, c=16, heads=2):
        super().__init__()
        self.heads, self.first, self.last = heads, conv(1, c), conv(c, 1)
        self.n1, self.n2 = LayerNorm2d(c), LayerNorm2d(c)
        self.qkv, self.dw, self.out = conv(c, 3 * c, 1), conv(3 * c, 3 * c, groups=3 * c), conv(c, c, 1)
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
        self.inn, self.gate, self.outn = conv(c, 4 * c, 1), conv(4 * c, 4 * c, groups=4 * c), conv(2 * c, c, 1)

    def forward(self, x):
        h = self.first(x)
        n, c, height, width = h.shape
        q, k, v = self.dw(self.qkv(self.n1(h))).reshape(n, 3, self.heads, c // self.heads, height * width).unbind(1)
        score = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * self.temperature
        h = h + self.out((score.softmax(-1) @ v).reshape(n, c, height, width))
        u, v = self.gate(self.inn(self.n2(h))).chunk(2, 1)
        return x + self.last(h + self.outn(F.gelu(u) * v))


class UNetPlusPlus(nn.Module):
    def __init__(self, c=(16, 24, 32)):
        super().__init__()
        block = lambda i, o: nn.Sequential(conv(i, o), nn.BatchNorm2d(o), nn.ReLU(), conv(o, o), nn.BatchNorm2d(o), nn.ReLU())
        self.x00, self.x10, self.x20 = block(1, c[0]), block(c[0], c[1]), block(c[1], c[2])
        self.x01, self.x11, self.x02 = block(c[0] + c[1], c[0]), block(c[1] + c[2], c[1]), block(2 * c[0] + c[1], c[0])
        self.last = conv(c[0], 2, 1)

    def forward(self, x):
        up = lambda t: F.interpolate(t, scale_factor=2, mode="bilinear", align_corners=True)
        a = self.x00(x)
        b = self.x10(F.max_pool2d(a, 2))
        a1 = self.x01(torch.cat([a, up(b)], 1))
        c = self.x20(F.max_pool2d(b, 2))
        b1 = self.x11(torch.cat([b, up(c)], 1))
        return self.last(self.x02(torch.cat([a, a1, up(b1)], 1)))


class NnUNet(nn.Module):
    """nnU-Net's plain convolutional U-Net: instance norm with weights, leaky ReLU, strides, transposed convolutions, an output at every level."""

    def __init__(self, dims, c=(16, 24, 32), supervised=True):
        super().__init__()
        of = lambda name: getattr(nn, f"{name}{dims}d")
        Conv, Up, Norm = of("Conv"), of("ConvTranspose"), of("InstanceNorm")
        unit = lambda i, o, s=1: nn.Sequential(Conv(i, o, 3, s, 1), Norm(o, affine=True), nn.LeakyReLU(0.01))
        self.down = nn.ModuleList([nn.Sequential(unit(i, o, 1 + (n > 0)), unit(o, o)) for n, (i, o) in enumerate(zip((1, *c), c))])
        self.up = nn.ModuleList([Up(i, o, 2, 2) for i, o in zip(c[:0:-1], c[-2::-1])])
        self.dec = nn.ModuleList([nn.Sequential(unit(2 * o, o), unit(o, o)) for o in c[-2::-1]])
        self.heads = nn.ModuleList([Conv(o, 2, 1) for o in c[-2::-1]])
        self.supervised = supervised

    def forward(self, x):
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
        outs = []
        for up, block, head, skip in zip(self.up, self.dec, self.heads, skips[-2::-1]):
            x = block(torch.cat([up(x), skip], 1))
            outs.append(head(x))
        if not self.supervised:
            return outs[-1]
        sizes = outs[-1].shape[2:]
        return sum(F.interpolate(o, size=sizes, mode="nearest") for o in outs)


class Odd(nn.Module):
    """Groups, dilations, asymmetric and reflected padding, an even kernel, average pooling with padding, strided transposed convolutions with groups."""

    def __init__(self, mode="reflect"):
        super().__init__()
        self.mode = mode
        self.a, self.b = conv(1, 16, 5, padding=0), conv(16, 32, 3, groups=4, padding=2, dilation=2)
        self.c, self.d = nn.Conv2d(32, 32, (2, 4)), nn.ConvTranspose2d(32, 16, 4, 2, 1, groups=2)
        self.e = nn.ConvTranspose2d(16, 8, (3, 2), (2, 1), (1, 0), output_padding=(1, 0), dilation=(1, 2))
        self.slope = nn.PReLU(8)

    def forward(self, x):
        h = self.a(F.pad(x, (2, 2, 2, 2), mode=self.mode))
        h = F.elu(self.b(h))
        h = F.hardswish(self.c(F.pad(h, (1, 2, 0, 1))))
        h = F.avg_pool2d(h, 3, 2, 1, count_include_pad=False) + F.max_pool2d(h, 3, 2, 1) + F.avg_pool2d(h, 3, 2, 1)
        return self.slope(self.e(F.softplus(self.d(h))))


class Cubic(nn.Module):
    """Bicubic resizing to twice and to half the size, either with aligned corners."""

    def __init__(self, aligned=False):
        super().__init__()
        self.aligned, self.a, self.b = aligned, conv(1, 8), conv(8, 1)

    def forward(self, x):
        big = F.interpolate(self.a(x), scale_factor=2, mode="bicubic", align_corners=self.aligned)
        return self.b(F.interpolate(big, size=(x.shape[2] // 2, x.shape[3] // 2), mode="bicubic", align_corners=self.aligned))


class Scaled(nn.Module):
    """Resizing by factors that are not whole, nearest and linear."""

    def __init__(self):
        super().__init__()
        self.a = conv(1, 8)

    def forward(self, x):
        h = self.a(x)
        near = F.interpolate(h, size=(x.shape[2] * 3 // 2, x.shape[3] * 5 // 4), mode="nearest")
        small = F.interpolate(h, size=(x.shape[2] * 3 // 8, x.shape[3] // 2), mode="bilinear")
        return torch.cat([near, F.interpolate(small, size=near.shape[2:], mode="bilinear", align_corners=True)], 1)


class Picked(nn.Module):
    def __init__(self, network, pick=lambda y: y):
        super().__init__()
        self.network, self.pick = network, pick

    def forward(self, x):
        return self.pick(self.network(x))


def timm_vit():
    import timm

    return timm.create_model("vit_tiny_patch16_224", img_size=64, patch_size=8, in_chans=1, num_classes=5)


def networks():
    """Name, opset, maker, channels, sizes."""
    import torchvision.models as tv

    seg, of = tv.segmentation, lambda make, **kw: (lambda: make(weights=None, **kw))
    yield "RCAN-like", 17, Rcan, 1, FLAT
    yield "NAFNet-like", 17, NafNet, 1, FLAT
    yield "SwinIR-like", 17, SwinIr, 1, FLAT
    yield "Restormer-like", 17, Restormer, 1, FLAT
    yield "U-Net++", 17, UNetPlusPlus, 1, FLAT
    yield "nnU-Net", 17, lambda: NnUNet(2), 1, FLAT
    yield "nnU-Net 3-D", 17, lambda: NnUNet(3), 1, DEEP
    yield "DeepLabV3, MobileNetV3", 17, lambda: Picked(seg.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=2), lambda y: y["out"]), 3, SMALL
    yield "EfficientNet-B0", 17, of(tv.efficientnet_b0), 3, SMALL
    yield "ViT", 17, timm_vit, 1, [(64, 64)]
    yield "VGG-11, features", 17, lambda: tv.vgg11_bn(weights=None).features, 3, SMALL
    yield "ResNet-18", 17, of(tv.resnet18), 3, SMALL
    yield "RegNet-Y 400MF", 17, of(tv.regnet_y_400mf), 3, SMALL
    yield "ShuffleNetV2", 17, of(tv.shufflenet_v2_x0_5), 3, SMALL
    yield "DenseNet-121, features", 17, lambda: tv.densenet121(weights=None).features, 3, SMALL
    yield "Inception, features", 17, lambda: tv.googlenet(weights=None, init_weights=False, aux_logits=False), 3, SMALL
    for mode in ("reflect", "replicate", "circular"):
        yield f"odd convolutions, {mode}", 17, lambda mode=mode: Odd(mode), 1, FLAT
    yield "bicubic", 17, Cubic, 1, FLAT
    yield "bicubic, aligned", 17, lambda: Cubic(True), 1, FLAT
    yield "resized by fractions", 17, Scaled, 1, FLAT
    for opset in (9, 11, 13, 16, 18, 20, 21):
        yield f"nnU-Net, opset {opset}", opset, lambda: NnUNet(2), 1, FLAT
        if opset > 9:
            yield f"U-Net++, opset {opset}", opset, UNetPlusPlus, 1, FLAT
            yield f"odd convolutions, opset {opset}", opset, Odd, 1, FLAT
            yield f"SwinIR-like, opset {opset}", opset, SwinIr, 1, FLAT
        yield f"NAFNet-like, opset {opset}", opset, NafNet, 1, FLAT


def export(network, opset, channels, size, path):
    x = torch.randn(1, channels, *size)
    network = network.eval()
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.affine:
            nn.init.normal_(module.weight, 1, 0.1)
            nn.init.normal_(module.bias, 0, 0.1)
    # PyTorch's exporter that traces writes opsets up to 20, the other one from 18 on.
    new = opset > 20
    torch.onnx.export(network, (x,), path, dynamo=new, opset_version=opset, input_names=["x"], output_names=["y"], **({"external_data": False} if new else {}))


def resized(mode, coordinates, nearest, to, channels=4):
    """One Resize by sizes, as a network; the operator is ONNX's own and exporters write it in every mode."""

    def make(size, path):
        sizes = numpy_helper.from_array(np.array([1, channels, *to(size)], np.int64), "sizes")
        how = dict(mode=mode, coordinate_transformation_mode=coordinates) | ({"nearest_mode": nearest} if mode == "nearest" else {})
        if mode == "cubic":
            how["cubic_coeff_a"] = -0.5 if coordinates == "half_pixel" else -0.75
        nodes = [helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **how)]
        save(nodes, [sizes], [1, channels, *size], [1, channels, *to(size)], 17, path)

    return make


def save(nodes, weights, given, made, opset, path):
    info = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "network", [info("x", given)], [info("y", made)], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def keras(size, path):
    """A U-Net as tf2onnx writes Keras': an input with channels last, and transposes around every operator that wants them second."""
    rng, nodes, weights = np.random.default_rng(0), [], []

    def constant(value, name):
        weights.append(numpy_helper.from_array(value, name))
        return name

    def node(op, inputs, name, **kw):
        nodes.append(helper.make_node(op, inputs, [name], name=name, **kw))
        return name

    def second(x, name):
        return node("Transpose", [x], f"{name}_nchw", perm=[0, 3, 1, 2])

    def last(x, name):
        return node("Transpose", [x], f"{name}_nhwc", perm=[0, 2, 3, 1])

    def conv(x, i, o, name, k=3, act=True, strides=1):
        w = constant((rng.standard_normal((o, i, k, k)) / (k * i**0.5)).astype("f"), f"{name}/kernel")
        y = node("Conv", [second(x, name), w], f"{name}_conv", auto_pad="SAME_UPPER", strides=[strides, strides], kernel_shape=[k, k])
        y = node("Add", [last(y, name), constant(rng.standard_normal(o).astype("f"), f"{name}/bias")], f"{name}_add")
        return node("Relu", [y], f"{name}_relu") if act else y

    def norm(x, c, name):
        a, b = rng.standard_normal((2, c)).astype("f")
        return node("Add", [node("Mul", [x, constant(a, f"{name}/a")], f"{name}_mul"), constant(b, f"{name}/b")], f"{name}_sum")

    a = norm(conv(conv("x", 2, 16, "c1"), 16, 16, "c2"), 16, "n1")
    pooled = last(node("MaxPool", [second(a, "p")], "p_pool", kernel_shape=[2, 2], strides=[2, 2], auto_pad="VALID"), "p")
    b = conv(conv(pooled, 16, 32, "c3"), 32, 32, "c4", strides=2)
    scale = constant(np.array([1, 1, 2, 2], "f"), "scales")
    near = node("Resize", [second(b, "u"), "", scale], "u_resize", mode="nearest", coordinate_transformation_mode="half_pixel", nearest_mode="round_prefer_ceil")
    b = node("LeakyRelu", [conv(last(near, "u"), 32, 16, "c5", act=False)], "leaky", alpha=0.3)
    w = constant(rng.standard_normal((16, 16, 2, 2)).astype("f") / 8, "t/kernel")
    up = last(node("ConvTranspose", [second(b, "t"), w], "t_conv", strides=[2, 2], pads=[0, 0, 0, 0]), "t")
    mean = node("ReduceMean", [a], "squeeze", axes=[1, 2], keepdims=1)
    gate = node("Sigmoid", [conv(mean, 16, 16, "gate", k=1, act=False)], "gate_sigmoid")
    joined = node("Concat", [up, node("Mul", [a, gate], "weighed")], "joined", axis=3)
    node("Add", [conv(joined, 32, 2, "last", k=1, act=False), "x"], "y")
    save(nodes, weights, [1, *size, 2], [1, *size, 2], 15, path)


def made():
    """Name, what writes the file, shape of a size's input, sizes."""
    image = lambda size: [1, 4, *size]
    yield "Keras U-Net, channels last", keras, lambda size: [1, *size, 2], FLAT
    sizes = {"double": lambda s: [2 * s[0], 2 * s[1]], "fraction": lambda s: [s[0] * 5 // 3, s[1] * 5 // 4], "half": lambda s: [s[0] // 2, s[1] * 3 // 7]}
    for coordinates in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"):
        for what, to in sizes.items():
            for mode in ("nearest", "linear", "cubic"):
                if mode == "nearest":
                    for nearest in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
                        yield f"Resize {mode} {coordinates} {nearest} {what}", resized(mode, coordinates, nearest, to), image, [(12, 20)]
                elif not (coordinates == "half_pixel_symmetric" and mode == "cubic"):
                    yield f"Resize {mode} {coordinates} {what}", resized(mode, coordinates, "", to), image, [(12, 20)]


def main(folder, wanted):
    folder.mkdir(parents=True, exist_ok=True)
    is_wanted = lambda name: not wanted or any(w in name for w in wanted)

    def describe(name, library, files):
        (folder / f"{name}.json").write_text(json.dumps({"name": name, "library": library, "files": files}))
        print(name, flush=True)

    for name, opset, maker, channels, sizes in networks():
        if is_wanted(name):
            files = []
            for size in sizes:
                torch.manual_seed(0)
                path = folder / f"{name} {'x'.join(map(str, size))}.onnx"
                export(maker(), opset, channels, size, path)
                files.append({"file": path.name, "shape": [1, channels, *size]})
            describe(name, "PyTorch", files)
    for name, write, shape, sizes in made():
        if is_wanted(name):
            files = []
            for size in sizes:
                path = folder / f"{name} {'x'.join(map(str, size))}.onnx"
                write(size, path)
                files.append({"file": path.name, "shape": shape(size)})
            describe(name, "ONNX", files)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
