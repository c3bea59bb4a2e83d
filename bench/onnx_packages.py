"""Packages of the BioImage Model Zoo whose weights are a state of PyTorch, and what `clearshot check` says of each.

    cargo build --release
    python bench/onnx_packages.py target/release/clearshot FOLDER

Networks of MONAI and CAREamics with random weights are written as packages of formats 0.5 and 0.4, with a test made by PyTorch: folders and zips, checkpoints and safetensors, classes by
import path and in a file. Then packages that must be refused. The exit status says whether all is as expected. Needs torch, monai, careamics, safetensors and numpy.
"""

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file


def axes(dims, channels, new, of=None, step=16):
    names = "zyx"[3 - dims:]
    if not new:
        return "bc" + names
    size = lambda n: {"min": step, "step": step} if of is None else {"tensor_id": of, "axis_id": n}
    space = [{"type": "space", "id": n, "size": size(n)} for n in names]
    return [{"type": "batch"}, {"type": "channel", "channel_names": [f"c{i}" for i in range(channels)]}, *space]


def write(folder, network, architecture, dims, channels, classes, *, new=True, safetensors=False, test=True, step=16, file=None):
    """A package; `architecture` is what the description says of the network."""
    folder.mkdir(parents=True)
    network = network.eval()
    for module in network.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    x = torch.randn(1, channels, *[32 if dims == 3 else 64] * dims)
    with torch.no_grad():
        y = network(2 * x + 1)
    source = folder / ("weights.safetensors" if safetensors else "weights.pt")
    state = {k: v.contiguous() for k, v in network.state_dict().items()}
    save_file({k: v.clone() for k, v in state.items()}, source) if safetensors else torch.save(state, source)
    np.save(folder / "in.npy", x.numpy())
    np.save(folder / "out.npy", y.numpy())
    if file:
        (folder / file).write_text("raise SystemExit('this is never run')\n")
    weights = {"source": source.name, "sha256": hashlib.sha256(source.read_bytes()).hexdigest()}
    if new:
        linear = [{"id": "scale_linear", "kwargs": {"gain": 2, "offset": 1}}]
        tensor = lambda name, c, of, source, key, steps: {"id": name, "axes": axes(dims, c, True, of, step), "data": {"type": "float32"}, key: steps} | (
            {"test_tensor": {"source": source}} if test else {})
        rdf = {"format_version": "0.5.4", "inputs": [tensor("raw", channels, None, "in.npy", "preprocessing", linear)], "outputs": [tensor("out", classes, "raw", "out.npy", "postprocessing", [])]}
        weights["architecture"] = architecture
    else:
        linear = [{"name": "scale_linear", "kwargs": {"gain": 2, "offset": 1}}]
        shape = {"min": [1, channels, *[step] * dims], "step": [0, 0, *[step] * dims]}
        given = {"name": "raw", "axes": axes(dims, channels, False), "data_type": "float32", "shape": shape, "preprocessing": linear}
        made = {"name": "out", "axes": axes(dims, classes, False), "data_type": "float32", "shape": {"reference_tensor": "raw", "scale": [1] * (dims + 2), "offset": [0] * (dims + 2)}}
        rdf = {"format_version": "0.4.10", "inputs": [given], "outputs": [made]} | ({"test_inputs": ["in.npy"], "test_outputs": ["out.npy"]} if test else {})
        place = architecture.get("import_from", architecture.get("source"))
        weights |= {"architecture": f"{place}{'.' if 'import_from' in architecture else ':'}{architecture['callable']}", "kwargs": architecture["kwargs"]}
    rdf |= {"type": "model", "name": folder.name, "weights": {"pytorch_state_dict": weights}}
    (folder / ("bioimageio.yaml" if new else "rdf.yaml")).write_text(json.dumps(rdf))


def packed(folder):
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in folder.iterdir():
            archive.write(file, file.name)
    return path


def main(program, root):
    from careamics.models.unet import UNet
    from monai.networks.nets import DynUNet

    failed = []

    def expect(path, said, why):
        ran = subprocess.run([program, "check", path], capture_output=True, text=True)
        answer = (ran.stdout + ran.stderr).strip().splitlines()[-1]
        fine = (ran.returncode == 0) == (said is None) and (said is None or said in answer)
        failed.extend([] if fine else [why])
        print(f"{'ok  ' if fine else 'FAIL'} {why}: {answer}", flush=True)

    def library(module, cls, **kwargs):
        return {"import_from": module, "callable": cls, "kwargs": kwargs}

    dyn = lambda dims, **more: dict(spatial_dims=dims, in_channels=1, out_channels=2, kernel_size=[3, 3, 3], strides=[1, 2, 2], upsample_kernel_size=[2, 2], filters=[8, 16, 24]) | more
    kinds = {
        "plane": dyn(2),
        "volume": dyn(3, res_block=True),
        "supervised": dyn(2, deep_supervision=True, deep_supr_num=1, norm_name=["INSTANCE", {"affine": True}]),
        "groups": dyn(2, norm_name=["GROUP", {"num_groups": 4, "affine": True}], trans_bias=True),
    }
    for i, (name, kwargs) in enumerate(kinds.items()):
        for new in (True, False):
            torch.manual_seed(i)
            folder = root / f"monai {name} {'0.5' if new else '0.4'}"
            write(folder, DynUNet(**kwargs), library("monai.networks.nets", "DynUNet", **kwargs), kwargs["spatial_dims"], 1, 2, new=new, safetensors=name == "groups")
            expect(folder, None, f"MONAI's DynUNet, {name}, {'0.5' if new else '0.4'}")
    care = lambda **more: dict(conv_dims=2, num_classes=1, in_channels=1, depth=2, num_channels_init=8, n2v2=False, independent_channels=True, final_activation="None") | more
    kinds = {
        "CARE": care(),
        "N2V2": care(n2v2=True, use_batch_norm=False),
        "N2V2 with norms": care(n2v2=True, depth=3),
        "volume": care(conv_dims=3),
        "N2V2 volume": care(conv_dims=3, n2v2=True),
        "channels apart": care(in_channels=3, num_classes=3),
        "channels together": care(in_channels=3, num_classes=2, independent_channels=False, final_activation="Sigmoid"),
    }
    for i, (name, kwargs) in enumerate(kinds.items()):
        torch.manual_seed(i)
        folder = root / f"careamics {name}"
        given = {"architecture": "UNet"} | kwargs
        write(folder, UNet(**kwargs), library("careamics.models.unet", "UNet", **given), kwargs["conv_dims"], kwargs["in_channels"], kwargs["num_classes"])
        expect(folder, None, f"CAREamics' UNet, {name}")
        expect(packed(folder), None, f"the same as a zip")
    args = dyn(2)
    network = DynUNet(**args)
    file = {"source": "net.py", "callable": "DynUNet", "kwargs": args}
    write(root / "file", network, file, 2, 1, 2, file="net.py")
    expect(root / "file", None, "a class in a file, which its test shows to be MONAI's")
    write(root / "file without test", network, file, 2, 1, 2, file="net.py", test=False)
    expect(root / "file without test", "has no test", "a class in a file without a test")
    write(root / "unknown", network, file | {"callable": "UNet2d"}, 2, 1, 2, file="net.py")
    expect(root / "unknown", "torch.onnx.export", "a class that is not known")
    write(root / "other", network, library("monai.networks.nets", "DynUNet", **dyn(2, filters=[8, 16, 32])), 2, 1, 2)
    expect(root / "other", "does not fit", "weights of another network")
    write(root / "argument", network, library("monai.networks.nets", "DynUNet", **dyn(2, colour="red")), 2, 1, 2)
    expect(root / "argument", "colour", "an argument that is not known")
    write(root / "changed", UNet(**care()), library("careamics.models.unet", "UNet", **care(final_activation="Tanh")), 2, 1, 1)
    expect(root / "changed", "not what the package says", "another last activation than the test was made with")
    write(root / "pickle", network, library("monai.networks.nets", "DynUNet", **args), 2, 1, 2)
    torch.save(network, root / "pickle" / "weights.pt")
    rdf = json.loads((root / "pickle" / "bioimageio.yaml").read_text())
    del rdf["weights"]["pytorch_state_dict"]["sha256"]
    (root / "pickle" / "bioimageio.yaml").write_text(json.dumps(rdf))
    expect(root / "pickle", "weights.pt", "a whole module in place of its state")
    sys.exit(f"{len(failed)} failed: {failed}" if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
