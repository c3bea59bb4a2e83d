"""Networks that others wrote, as ONNX files for `onnx_times.py`.

    python bench/onnx_zoo.py FOLDER [NAME ...]

Each network is made with random weights by its authors' library and exported by PyTorch for three sizes. Needs torch, torchvision, monai,
diffusers, onnx and onnxscript.
"""

import json
import sys
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

warnings.filterwarnings("ignore")


class CareUNet(nn.Module):
    """The U-Net of CARE, N2V and StarDist in CSBDeep's form: depth 2, 32 channels, max pooling, nearest upsampling."""

    def __init__(self, batch_norm=False):
        super().__init__()

        def block(i, o):
            norm = [nn.BatchNorm2d(o)] if batch_norm else []
            return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), *norm, nn.ReLU())

        pair = lambda i, o: nn.Sequential(block(i, o), block(o, o))
        self.down = nn.ModuleList([pair(1, 32), pair(32, 64)])
        self.middle = nn.Sequential(block(64, 128), block(128, 64))
        self.up = nn.ModuleList([nn.Sequential(block(128, 64), block(64, 32)), nn.Sequential(block(64, 32), block(32, 32))])
        self.last = nn.Conv2d(32, 1, 1)

    def forward(self, x):
        h, skips = x, []
        for down in self.down:
            h = down(h)
            skips.append(h)
            h = F.max_pool2d(h, 2)
        h = self.middle(h)
        for up, skip in zip(self.up, reversed(skips)):
            h = up(torch.cat([F.interpolate(h, scale_factor=2, mode="nearest"), skip], 1))
        return x + self.last(h)


class ResidualUNet(nn.Module):
    """StarDist-like: strided convolutions, transposed convolutions, leaky ReLU, two heads as one output."""

    def __init__(self):
        super().__init__()
        act = nn.LeakyReLU(0.1)
        self.a = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), act)
        self.b = nn.Sequential(nn.Conv2d(32, 64, 3, stride=2, padding=1), act, nn.Conv2d(64, 64, 3, padding=1), act)
        self.c = nn.ConvTranspose2d(64, 32, 2, stride=2)
        self.d = nn.Sequential(nn.Conv2d(64, 32, 3, padding=1), act, nn.Conv2d(32, 33, 1))

    def forward(self, x):
        a = self.a(x)
        y = self.d(torch.cat([self.c(self.b(a)), a], 1))
        return torch.cat([torch.sigmoid(y[:, :1]), F.relu(y[:, 1:])], 1)


class Tensor(nn.Module):
    """The first image of what a library's network gives."""

    def __init__(self, network, *given, pick=lambda y: y):
        super().__init__()
        self.network, self.given, self.pick = network, given, pick

    def forward(self, x):
        return self.pick(self.network(x, *self.given))


class Timed(nn.Module):
    """A diffusion network at one timestep."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network(x, torch.full((x.shape[0],), 10, dtype=torch.int64), return_dict=False)[0]


def networks():
    """Name, library, network, input channels, spatial sizes; those of libraries that are not there are left out and named."""
    for some in (own, of_monai, of_diffusers, of_torchvision, restoration):
        try:
            yield from some()
        except ImportError as missing:
            print(f"left out: {missing}", file=sys.stderr)


FLAT, DEEP = [(128, 128), (256, 256), (384, 256)], [(16, 64, 64), (32, 64, 64), (32, 96, 96)]
SMALL = [(64, 64), (128, 128), (128, 192)]


def own():
    yield "CARE U-Net", "PyTorch", CareUNet(), 1, FLAT
    yield "CARE U-Net, batch norm", "PyTorch", CareUNet(True), 1, FLAT
    yield "StarDist-like", "PyTorch", ResidualUNet(), 1, FLAT
    dncnn = [nn.Conv2d(1, 64, 3, padding=1), nn.ReLU()]
    for _ in range(15):
        dncnn += [nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    yield "DnCNN, 17 layers", "PyTorch", nn.Sequential(*dncnn, nn.Conv2d(64, 1, 3, padding=1)), 1, FLAT


def of_monai():
    import monai.networks.nets as monai

    yield "UNet", "MONAI", monai.UNet(2, 1, 1, (16, 32, 64, 128), (2, 2, 2), num_res_units=2), 1, FLAT
    yield "UNet 3-D", "MONAI", monai.UNet(3, 1, 1, (8, 16, 32), (2, 2), num_res_units=1), 1, DEEP
    yield "BasicUNet", "MONAI", monai.BasicUNet(2, 1, 1, (32, 32, 64, 64, 128, 32)), 1, FLAT
    yield "SegResNet", "MONAI", monai.SegResNet(2, 16, 1, 1, blocks_down=(1, 2, 2), blocks_up=(1, 1)), 1, FLAT
    yield "DynUNet 3-D", "MONAI", monai.DynUNet(3, 1, 1, [3, 3, 3], [1, 2, 2], [2, 2], filters=[16, 32, 64]), 1, DEEP
    yield "AttentionUnet", "MONAI", monai.AttentionUnet(2, 1, 1, (16, 32, 64), (2, 2)), 1, FLAT


def of_diffusers():
    import diffusers

    unet2d = dict(in_channels=1, out_channels=1, block_out_channels=(32, 64, 128), layers_per_block=1, norm_num_groups=8,
                  down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"))
    yield "UNet2DModel", "diffusers", Timed(diffusers.UNet2DModel(**unet2d)), 1, SMALL
    vae = diffusers.AutoencoderKL(in_channels=1, out_channels=1, block_out_channels=(32, 64), layers_per_block=1, latent_channels=4, norm_num_groups=8,
                                  down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2)
    yield "AutoencoderKL, decoder", "diffusers", Tensor(vae.decoder), 4, [(32, 32), (64, 64), (64, 96)]


def of_torchvision():
    import torchvision

    fcn = torchvision.models.segmentation.fcn_resnet50(weights=None, weights_backbone=None, num_classes=2)
    yield "FCN, ResNet-50", "torchvision", Tensor(fcn, pick=lambda y: y["out"]), 3, SMALL
    lraspp = torchvision.models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=2)
    yield "LR-ASPP, MobileNetV3", "torchvision", Tensor(lraspp, pick=lambda y: y["out"]), 3, SMALL
    yield "ConvNeXt-T, features", "torchvision", torchvision.models.convnext_tiny(weights=None).features, 3, SMALL
    yield "Swin-T, features", "torchvision", torchvision.models.swin_t(weights=None).features, 3, [(64, 64), (128, 128), (224, 224)]


def restoration():
    import onnx_kinds

    wanted = ["RCAN-like", "NAFNet-like", "SwinIR-like", "Restormer-like", "U-Net++", "nnU-Net"]
    for name, opset, make, channels, _ in onnx_kinds.networks():
        if name in wanted and opset == 17:
            yield name, "PyTorch", make(), channels, SMALL


def export(network, channels, size, path):
    x = torch.randn(1, channels, *size)
    network = network.eval()
    for module in network.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.BatchNorm3d)):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    torch.onnx.export(network, (x,), path, dynamo=False, opset_version=17, input_names=["x"], output_names=["y"])


def main(folder, wanted):
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, library, network, channels, sizes) in enumerate(networks()):
        if wanted and not any(w in name for w in wanted):
            continue
        torch.manual_seed(0)
        files = []
        for size in sizes:
            path = folder / f"{number:02}_{'x'.join(map(str, size))}.onnx"
            export(network, channels, size, path)
            files.append({"file": path.name, "shape": [1, channels, *size]})
        about = {"name": name, "library": library, "files": files}
        (folder / f"{number:02}.json").write_text(json.dumps(about))
        print(name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
