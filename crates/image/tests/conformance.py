#!/usr/bin/env python3
"""Compares what clearshot-image reads and writes with what tifffile, zarr, nibabel, pydicom and astropy read.

    python conformance.py --tool target/release/examples/dump_image [--data DIR] [--venv DIR] [--only NAME]

Runs in an environment of its own: where the readers are missing it makes one in --venv and installs them.
Every file of DIR (if there is one) and files generated here is dumped by the tool and compared, then copied by the tool, and
the copy is read by the Python reader and compared with the original, with the metadata that must survive.
"""
import argparse
import gzip
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import environment

PACKAGES = ["numpy", "tifffile", "imagecodecs", "zarr>=3", "nibabel", "pydicom", "astropy", "pillow",
            "pylibjpeg", "pylibjpeg-openjpeg", "pyjpegls"]
MODULES = ["astropy", "imagecodecs", "nibabel", "numpy", "pydicom", "tifffile", "zarr"]

parser = argparse.ArgumentParser()
parser.add_argument("--tool", required=True)
parser.add_argument("--data", default=os.environ.get("CLEARSHOT_DATA", "../shared/data"))
parser.add_argument("--venv", default="target/conformance-venv")
parser.add_argument("--only", default="")
args = parser.parse_args()
environment.enter(args.venv, PACKAGES, MODULES)

import warnings  # noqa: E402

import astropy.io.fits as fits  # noqa: E402
import nibabel  # noqa: E402
import numpy as np  # noqa: E402
import pydicom  # noqa: E402
import tifffile  # noqa: E402
import zarr  # noqa: E402

warnings.filterwarnings("ignore")
DATA = pathlib.Path(args.data)
PICTURES = pathlib.Path(__file__).parent / "pictures"
WORK = pathlib.Path(tempfile.mkdtemp(prefix="conformance"))
failures = []
checked = 0


def tool(*arguments):
    return subprocess.run([args.tool, *map(str, arguments)], capture_output=True, text=True, timeout=120)


def dump(path, item=None):
    out = WORK / "pixels.raw"
    done = tool(path, out, *([item] if item is not None else []))
    if done.returncode != 0:
        raise AssertionError("tool: " + done.stderr.strip()[-300:])
    info = json.loads(done.stdout)
    info["levels"] = [np.fromfile(l["file"], info["dtype"]).reshape(l["shape"]) for l in info["levels"]]
    info["pixels"] = info["levels"][0]
    return info


def samples(folder, pattern="*"):
    """Sample files, of which there may be none: generated files alone are then compared."""
    return sorted((DATA / folder).glob(pattern))


def copied(path, name=None):
    out = WORK / "copies" / (name or path.name)
    out.parent.mkdir(exist_ok=True)
    done = tool("--copy", path, out)
    if done.returncode != 0:
        raise AssertionError("copy: " + done.stderr.strip()[-300:])
    return out


def same(ours, theirs, what="pixels", exact_dtype=True, within=None):
    theirs = np.asarray(theirs)
    squeezed = lambda a: a.reshape([n for n in a.shape if n != 1])
    ours, theirs = squeezed(ours), squeezed(theirs)
    ours = ours.astype(ours.dtype.newbyteorder("="))
    assert ours.shape == theirs.shape, f"{what}: shape {ours.shape}, reader has {theirs.shape}"
    if exact_dtype:
        theirs_type = theirs.dtype.newbyteorder("=")
        if theirs_type == bool:
            theirs_type = np.dtype("uint8")
        assert ours.dtype == theirs_type, f"{what}: dtype {ours.dtype}, reader has {theirs_type}"
    if within is not None:
        worst = np.abs(ours.astype("f8") - theirs.astype("f8")).max()
        assert worst <= within, f"{what}: differ by {worst}"
        return
    assert np.array_equal(ours, theirs, equal_nan=ours.dtype.kind == "f"), f"{what}: values differ"


def check(name, function, *arguments):
    global checked
    if args.only and args.only not in name:
        return
    checked += 1
    try:
        note = function(*arguments)
        print(f"ok    {name}" + (f"  ({note})" if note else ""))
    except Exception as e:  # noqa: BLE001
        failures.append(name)
        print(f"FAIL  {name}: {type(e).__name__}: {e}")


# ---- TIFF ------------------------------------------------------------------------------------------------

SKIPPED_TAGS = {"StripOffsets", "StripByteCounts", "TileOffsets", "TileByteCounts", "SubIFDs", "FreeOffsets",
                "FreeByteCounts", "JPEGTables", "LercParameters", "T4Options", "T6Options", "YCbCrSubSampling", "ReferenceBlackWhite", "FillOrder",
                "Compression", "PhotometricInterpretation", "BitsPerSample", "Predictor", "65123", "ExifTag",
                "GPSTag", "InteroperabilityTag"}


def tiff_page_tags(page):
    return {t.name: t.value for t in page.tags.values() if t.name not in SKIPPED_TAGS}


def tiff_values(path):
    with tifffile.TiffFile(path, _multifile=False) as t:
        series = t.series[0]
        pages = [p for p in series.pages if p is not None]
        return [np.asarray(l.asarray()) for l in series.levels], series.axes, pages[0].is_ome, t.ome_metadata


def check_tiff(path, single=False):
    ours = dump(path)
    levels, axes, _, _ = tiff_values(path)
    if single:
        levels = [levels[0][:1]] if len(ours["shape"]) > 2 else levels
    if path.name == "it_subsubifds.tif":
        with tifffile.TiffFile(path) as t:
            levels = [np.stack([p.asarray() for p in t.pages])]
    for n, level in enumerate(levels):
        same(ours["levels"][n], level, f"level {n}")
    for letter in ours["axes"]:
        if letter in "TCZ":
            assert letter in axes, f"axes {ours['axes']}, reader has {axes}"
    return f"{ours['axes']} {ours['shape']} {ours['dtype']}"


def check_tiff_copy(path):
    out = copied(path)
    before, axes, _, xml = tiff_values(path)
    after, axes2, _, xml2 = tiff_values(out)
    assert axes == axes2, f"axes {axes} became {axes2}"
    assert len(before) == len(after), "levels"
    for n, (a, b) in enumerate(zip(after, before)):
        same(a, b, f"level {n}")
    with tifffile.TiffFile(path) as a, tifffile.TiffFile(out) as b:
        assert len(a.pages) == len(b.pages) or a.is_imagej or a.is_shaped, "pages"
        assert a.byteorder == b.byteorder and a.is_bigtiff == b.is_bigtiff, "byte order or layout"
        for p, q in zip(a.pages, b.pages):
            x, y = tiff_page_tags(p), tiff_page_tags(q)
            if p.is_ome:
                x.pop("ImageDescription", None), y.pop("ImageDescription", None)
            for key, value in x.items():
                assert key in y, f"tag {key} is lost"
                assert repr(value) == repr(y[key]), f"tag {key}: {value!r} became {y[key]!r}"
        assert len(a.series) == len(b.series), "series"
        for s, t in zip(a.series[1:], b.series[1:]):
            same(t.asarray(), s.asarray(), "other series")
        if a.is_imagej:
            keep = {k: v for k, v in a.imagej_metadata.items()}
            assert repr(keep) == repr(b.imagej_metadata), "ImageJ metadata"
        record = json.loads(b.pages[0].tags[65123].value)
        assert record["program"] == "clearshot" and record["source"] == path.name, "provenance"
    if xml:
        import xml.etree.ElementTree as ET
        x, y = ET.fromstring(xml), ET.fromstring(xml2)
        for tag in ["Pixels", "Channel", "Image", "Plane"]:
            a = [e.attrib for e in x.iter() if e.tag.endswith("}" + tag)]
            b = [e.attrib for e in y.iter() if e.tag.endswith("}" + tag)]
            assert a == b, f"OME {tag}"


def generated_tiffs():
    rng = np.random.default_rng(3)
    folder = WORK / "tiff"
    folder.mkdir()
    for dtype in ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]:
        a = (rng.normal(size=(3, 45, 67)) * 50 + 60).astype(dtype)
        for order in "<>":
            path = folder / f"plain_{dtype}_{'le' if order == '<' else 'be'}.tif"
            tifffile.imwrite(path, a, byteorder=order, photometric="minisblack")
            yield path
        path = folder / f"tiles_{dtype}.tif"
        tifffile.imwrite(path, a[0], tile=(32, 16), compression="zlib", photometric="minisblack",
                         predictor=3 if dtype[0] == "f" else 2, byteorder=">")
        yield path
    a = rng.integers(0, 4000, (70, 101, 3)).astype("u2")
    for compression in ["lzw", "zlib", "zstd", "packbits", None]:
        for predictor in [False, True]:
            if predictor and compression in ("packbits", None):
                continue
            for tile in [None, (16, 32)]:
                for planar in [False, True]:
                    path = folder / f"{compression}_{predictor}_{'tile' if tile else 'strip'}_{planar}.tif"
                    data = np.moveaxis(a, -1, 0) if planar else a
                    tifffile.imwrite(path, data, compression=compression, predictor=predictor, tile=tile,
                                     rowsperstrip=None if tile else 9, photometric="rgb",
                                     planarconfig="separate" if planar else "contig")
                    yield path
    path = folder / "big.tif"
    tifffile.imwrite(path, a, bigtiff=True, photometric="rgb", byteorder=">")
    yield path
    smooth = np.add.outer(np.arange(70) * 2, np.arange(101)).astype("u1")[..., None] + np.array([0, 40, 90], "u1")
    noisy = rng.integers(0, 255, smooth.shape).astype("u1")
    for name, data in [("smooth", smooth), ("noisy", noisy)]:
        for sampling in [(1, 1), (2, 1), (2, 2), (4, 1)]:
            path = folder / f"jpeg_{name}_{sampling[0]}{sampling[1]}.tif"
            tifffile.imwrite(path, data, compression="jpeg", compressionargs={"level": 80}, tile=(32, 64),
                             photometric="rgb", subsampling=sampling)
            yield path
    path = folder / "jpeg_grey.tif"
    tifffile.imwrite(path, noisy[..., 0], compression="jpeg", rowsperstrip=16, photometric="minisblack")
    yield path
    for name, compression, options in [
        ("j2k", 34712, {"level": 0, "reversible": True}), ("aperio", 33005, {"level": 0, "reversible": True, "codecformat": "j2k"}),
        ("webp", "webp", {"lossless": True}), ("lerc", "lerc", {}), ("lerc_deflate", "lerc", {"compression": "deflate"}),
        ("lerc_zstd", "lerc", {"compression": "zstd"}),
    ]:
        for layout in [{"tile": (32, 64)}, {"rowsperstrip": 16}]:
            path = folder / f"{name}_{'tile' if 'tile' in layout else 'strip'}.tif"
            tifffile.imwrite(path, noisy, compression=compression, compressionargs=options, photometric="rgb", **layout)
            yield path
    for dtype in ["i1", "i2", "u2", "u4", "i4", "f4", "f8"]:
        path = folder / f"lerc_{dtype}.tif"
        data = (rng.normal(size=(45, 67)) * 50 + 60).astype(dtype)
        tifffile.imwrite(path, data, compression="lerc", tile=(16, 32), photometric="minisblack")
        yield path
        if dtype in ("i2", "u2"):
            path = folder / f"j2k_{dtype}.tif"
            tifffile.imwrite(path, data, compression="jpeg2000", tile=(16, 32), photometric="minisblack",
                             compressionargs={"level": 0, "reversible": True})
            yield path
    path = folder / "bilevel.tif"
    tifffile.imwrite(path, rng.integers(0, 2, (33, 41)).astype(bool), photometric="minisblack")
    yield path
    for dtype in ["u1", "u2", "f4"]:
        path = folder / f"hyperstack_{dtype}.tif"
        h = rng.integers(0, 200, (2, 3, 4, 21, 33)).astype(dtype)
        tifffile.imwrite(path, h, imagej=True, resolution=(1 / 0.2, 1 / 0.3),
                         metadata={"spacing": 0.7, "unit": "um", "finterval": 2.5, "axes": "TZCYX",
                                   "Labels": [f"p{i}" for i in range(24)]})
        yield path
    for axes, shape in [("TCZYX", (2, 2, 3, 40, 50)), ("ZCYX", (3, 2, 40, 50)), ("CYX", (3, 40, 50)), ("YXS", (40, 50, 3))]:
        for compression in [None, "zlib"]:
            path = folder / f"{axes}_{compression}.ome.tif"
            data = rng.integers(0, 255, shape).astype("u1" if "S" in axes else "u2")
            meta = {"axes": axes, "PhysicalSizeX": 0.11, "PhysicalSizeXUnit": "µm", "PhysicalSizeY": 0.12,
                    "PhysicalSizeYUnit": "µm", "PhysicalSizeZ": 0.5, "PhysicalSizeZUnit": "µm"}
            if "C" in axes:
                meta["Channel"] = {"Name": [f"dye {i}" for i in range(shape[axes.index("C")])]}
            tifffile.imwrite(path, data, compression=compression, metadata=meta,
                             photometric="rgb" if "S" in axes else "minisblack")
            yield path
    path = folder / "pyramid.ome.tif"
    data = rng.integers(0, 60000, (2, 256, 320)).astype("u2")
    with tifffile.TiffWriter(path, bigtiff=True) as t:
        options = dict(tile=(64, 64), compression="zlib", photometric="minisblack")
        t.write(data, subifds=2, metadata={"axes": "CYX", "PhysicalSizeX": 0.25}, **options)
        t.write(data[:, ::2, ::2], subfiletype=1, **options)
        t.write(data[:, ::4, ::4], subfiletype=1, **options)
    yield path


def check_ome_metadata():
    path = WORK / "tiff" / "TCZYX_None.ome.tif"
    d = dump(path)
    assert d["axes"] == "TCZYX" and d["channels"] == ["dye 0", "dye 1"], d["channels"]
    assert d["steps"][4] == [0.11, "µm"] and d["steps"][2] == [0.5, "µm"], d["steps"]
    d = dump(WORK / "tiff" / "hyperstack_u2.tif")
    assert d["axes"] == "TZCYX" and abs(d["steps"][4][0] - 0.2) < 1e-6 and d["steps"][1] == [0.7, "um"], d["steps"]


def check_ome_set():
    """Two files of one image: read as one, a missing one named, written into one file."""
    folder = WORK / "set"
    folder.mkdir()
    data = np.random.default_rng(23).integers(0, 60000, (4, 30, 41)).astype("u2")
    uuids = ["urn:uuid:00000000-0000-4000-8000-00000000000" + c for c in "12"]
    blocks = "".join(
        f'<TiffData IFD="{z % 2}" FirstZ="{z}" PlaneCount="1"><UUID FileName="part{z // 2}.ome.tif">{uuids[z // 2]}</UUID></TiffData>'
        for z in range(4))
    for n in range(2):
        xml = ('<?xml version="1.0" encoding="UTF-8"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" '
               f'UUID="{uuids[n]}"><Image ID="Image:0" Name="set"><Pixels ID="Pixels:0" DimensionOrder="XYZCT" Type="uint16" '
               'SizeX="41" SizeY="30" SizeZ="4" SizeC="1" SizeT="1" PhysicalSizeZ="0.4"><Channel ID="Channel:0:0" '
               f'SamplesPerPixel="1"/>{blocks}</Pixels></Image></OME>')
        tifffile.imwrite(folder / f"part{n}.ome.tif", data[2 * n:2 * n + 2], description=xml, metadata=None,
                         photometric="minisblack", byteorder="<>"[n], contiguous=False)
    for n in range(2):
        d = dump(folder / f"part{n}.ome.tif")
        assert d["axes"] == "ZYX" and not d["warnings"], d
        same(d["pixels"], data)
    out = copied(folder / "part1.ome.tif", "whole.ome.tif")
    same(tifffile.imread(out), data, "copy")
    same(dump(out)["pixels"], data, "copy")
    (folder / "part1.ome.tif").unlink()
    done = tool(folder / "part0.ome.tif", WORK / "x")
    assert done.returncode != 0 and "part1.ome.tif" in done.stderr and "missing" in done.stderr, done.stderr


def run_tiff():
    # JPEG 2000 with loss is compared by packed.rs, to within what its readers differ by.
    pictures = [p for p in sorted(PICTURES.glob("*.tif")) if not p.name.startswith("j2k")]
    for path in samples("tiff") + samples("pairs", "*.tif") + pictures:
        if path.suffix in (".tif", ".tiff", ".svs"):
            check("tiff " + path.name, check_tiff, path)
            check("tiff copy " + path.name, check_tiff_copy, path)
    for path in generated_tiffs():
        check("tiff generated " + path.name, check_tiff, path)
        check("tiff generated copy " + path.name, check_tiff_copy, path)
    check("tiff metadata", check_ome_metadata)
    check("tiff set of files", check_ome_set)


# ---- Zarr ------------------------------------------------------------------------------------------------

def zarr_levels(path):
    root = zarr.open(zarr.storage.ZipStore(path, mode="r") if path.is_file() else str(path), mode="r")
    if isinstance(root, zarr.Array):
        return [root[...]], None
    attributes = dict(root.attrs)
    ome = attributes.get("ome", attributes)
    if "multiscales" in ome:
        return [root[d["path"]][...] for d in ome["multiscales"][0]["datasets"]], ome
    arrays = [v for _, v in root.arrays()]
    return [arrays[0][...]], None


def check_zarr(path, reference=None):
    d = dump(path)
    levels, ome = zarr_levels(reference or path)
    assert len(levels) == len(d["levels"]), "levels"
    for n, level in enumerate(levels):
        same(d["levels"][n], level, f"level {n}")
    if ome:
        assert d["axes"].lower() == "".join(a["name"] for a in ome["multiscales"][0]["axes"]), d["axes"]
    return f"{d['axes']} {d['shape']} {d['dtype']}"


def check_zarr_copy(path, name, reference=None):
    out = copied(path, name)
    before, ome = zarr_levels(reference or path)
    after, ome2 = zarr_levels(out)
    assert len(before) == len(after), "levels"
    for n, (a, b) in enumerate(zip(after, before)):
        same(a, b, f"level {n}")
    if ome:
        assert ome2["version"] == "0.5"
        strip = lambda m: {k: v for k, v in m.items() if k != "version"}
        assert strip(ome["multiscales"][0]) == strip(ome2["multiscales"][0]), "multiscales"
        assert ome.get("omero") == ome2.get("omero"), "omero"


def generated_zarrs():
    import numcodecs
    rng = np.random.default_rng(5)
    folder = WORK / "zarr"
    folder.mkdir()
    a = rng.integers(0, 500, (3, 70, 90)).astype("u2")
    for cname in ["zstd", "lz4", "blosclz", "zlib", "lz4hc"]:
        for shuffle in [0, 1, 2]:
            path = folder / f"v2_{cname}_{shuffle}.zarr"
            z = zarr.create_array(str(path), shape=a.shape, chunks=(2, 64, 33), dtype="u2", zarr_format=2,
                                  compressors=numcodecs.Blosc(cname=cname, shuffle=shuffle))
            z[...] = a
            yield path
    for name, codec in [("gzip", numcodecs.GZip()), ("zlib", numcodecs.Zlib()), ("zstd", numcodecs.Zstd()),
                        ("lz4", numcodecs.LZ4()), ("none", None)]:
        for order in "CF":
            path = folder / f"v2_{name}_{order}.zarr"
            z = zarr.create_array(str(path), shape=a.shape, chunks=(1, 64, 33), dtype=">f4", zarr_format=2,
                                  compressors=codec, order=order, fill_value=7)
            z[:2] = a[:2]
            yield path
    from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec
    variants = {
        "blosc": dict(compressors=[BloscCodec(cname="lz4", shuffle="bitshuffle")]),
        "gzip": dict(compressors=[GzipCodec()]),
        "crc": dict(compressors=[ZstdCodec(), Crc32cCodec()]),
        "transpose": dict(filters=[TransposeCodec(order=(2, 0, 1))], serializer=BytesCodec(endian="big")),
        "shard": dict(shards=(2, 64, 60)),
        "shard_blosc": dict(shards=(4, 128, 90), compressors=[BloscCodec(cname="zstd", shuffle="shuffle")]),
    }
    for name, options in variants.items():
        for dtype in ["u1", "i2", "f8"]:
            path = folder / f"v3_{name}_{dtype}.zarr"
            z = zarr.create_array(str(path), shape=a.shape, chunks=(2, 32, 30), dtype=dtype, fill_value=3, **options)
            z[:, :60] = a[:, :60].astype(dtype)
            yield path


def check_to_zarr(source):
    """A TIFF hyperstack into OME-Zarr: axes in the format's order, sizes kept."""
    out = copied(source, source.stem + ".ome.zarr")
    levels, ome = zarr_levels(out)
    names = [a["name"] for a in ome["multiscales"][0]["axes"]]
    assert names == sorted(names, key="tczyx".index), names
    with tifffile.TiffFile(source) as t:
        series = t.series[0]
        theirs = np.transpose(series.asarray(), [series.axes.index(n.upper().replace("C", "C")) for n in names])
    same(levels[0], theirs)


def run_zarr():
    for path in samples("zarr"):
        if path.suffix in (".zarr", ".zip"):
            reference = path / "group" if path.name == "zarrs_sharded_v3.zarr" else None
            check("zarr " + path.name, check_zarr, path, reference)
            for ending in [".zarr", ".zarr.zip"]:
                check(f"zarr copy {path.name} to {ending}", check_zarr_copy, path, path.stem + "_copy" + ending, reference)
    for path in generated_zarrs():
        check("zarr generated " + path.name, check_zarr, path)
        check("zarr generated copy " + path.name, check_zarr_copy, path, path.stem + "_copy.zarr")
    for source in [WORK / "tiff" / "ZCYX_zlib.ome.tif", WORK / "tiff" / "hyperstack_u2.tif"]:
        if source.exists():
            check("tiff to zarr " + source.name, check_to_zarr, source)


# ---- NPY, PNG --------------------------------------------------------------------------------------------

def run_npy_png():
    from PIL import Image
    rng = np.random.default_rng(7)
    folder = WORK / "npy"
    folder.mkdir()

    def npy(path, theirs):
        same(dump(path)["pixels"], theirs)
        same(np.load(copied(path)), theirs, "copy")

    for dtype in ["u1", "i1", ">u2", "<i2", ">f4", "f8", "u8", "f2"]:
        for shape in [(31, 17), (5, 20, 30), (3, 1200, 700), (40, 50, 3), (9,)]:
            for order in "CF":
                a = np.asarray((rng.normal(size=shape) * 40 + 50).astype(dtype), order=order)
                path = folder / f"{dtype.strip('<>')}_{len(shape)}_{shape[0]}_{order}.npy"
                np.save(path, a)
                check("npy " + path.name, npy, path, a)

    def npz(path, arrays):
        for name, theirs in arrays.items():
            same(dump(path, name)["pixels"], theirs, name)
        with np.load(copied(path)) as z:
            for name, theirs in arrays.items():
                same(z[name], theirs, "copy of " + name)

    arrays = {"noisy": rng.normal(size=(20, 30)).astype("f4"), "clean": rng.integers(0, 99, (20, 30)).astype("u2")}
    for save in [np.savez, np.savez_compressed]:
        path = folder / f"{save.__name__}.npz"
        save(path, **arrays)
        check("npz " + path.name, npz, path, arrays)

    def png(path):
        theirs = np.asarray(Image.open(path))
        same(dump(path)["pixels"], theirs)
        out = copied(path)
        same(np.asarray(Image.open(out)), theirs, "copy")
        before, after = Image.open(path).info, Image.open(out).info
        for key in ["Title", "dpi", "gamma"]:
            assert before.get(key) == after.get(key), key
        assert "clearshot provenance" in after, after.keys()

    from PIL import PngImagePlugin
    text = PngImagePlugin.PngInfo()
    text.add_text("Title", "a title")
    for mode, shape, dtype in [("L", (70, 51), "u1"), ("RGB", (70, 51, 3), "u1"), ("RGBA", (70, 51, 4), "u1"),
                               ("LA", (70, 51, 2), "u1"), ("I;16", (700, 910), "u2")]:
        a = rng.integers(0, np.iinfo(dtype).max, shape).astype(dtype)
        path = folder / f"{mode.replace(';', '')}.png"
        Image.fromarray(a).save(path, pnginfo=text, dpi=(300, 300))
        check("png " + path.name, png, path)
    for path in samples("pairs", "*.png"):
        check("png " + path.name, png, path)


# ---- NIfTI -----------------------------------------------------------------------------------------------

def nifti_raw(path):
    image = nibabel.load(path)
    raw = np.asanyarray(image.dataobj.get_unscaled())
    if raw.dtype.names:
        raw = np.stack([raw[n] for n in raw.dtype.names])
    return image, raw.T if raw.ndim < 4 or raw.shape[0] not in (3, 4) else np.moveaxis(raw, 0, 0).T


def check_nifti(path, name=None):
    d = dump(path)
    image, raw = nifti_raw(path)
    same(d["pixels"].reshape(-1), np.ascontiguousarray(raw).reshape(-1))
    slope, inter = image.dataobj.slope, image.dataobj.inter
    ours = d["rescale"] or [1, 0, None]
    assert abs(ours[0] - slope) < 1e-6 * abs(slope) and abs(ours[1] - inter) <= 1e-6 * max(1, abs(inter)), ours
    zooms = image.header.get_zooms()
    space = dict(zip(d["axes"], d["steps"]))
    for letter, zoom in zip("XYZ", zooms):
        if zoom > 0 and letter in space:
            assert abs(space[letter][0] - zoom) < 1e-6 * zoom, "zooms"
    out = copied(path, name)
    image2, raw2 = nifti_raw(out)
    same(np.ascontiguousarray(raw2).reshape(-1), np.ascontiguousarray(raw).reshape(-1), "copy")
    assert np.array_equal(image.affine, image2.affine), "affine"
    for key in image.header.keys():
        if key not in ("vox_offset", "magic"):
            a, b = image.header[key], image2.header[key]
            assert a.tobytes() == b.tobytes(), f"header {key}: {a} became {b}"
    kept = [e.get_content() for e in image2.header.extensions]
    assert any(b"clearshot provenance" in (k if isinstance(k, bytes) else k.encode()) for k in kept), "provenance"
    for e in image.header.extensions:
        assert e.get_content() in kept, "extension"
    return f"{d['axes']} {d['shape']} {d['dtype']}"


def run_nifti():
    for path in samples("medical") + samples("pairs"):
        if ".nii" not in path.name:
            continue
        if "complex" in path.name:
            def refused(path=path):
                done = tool(path, WORK / "x")
                assert done.returncode != 0 and "complex" in done.stderr, done.stderr
            check("nifti refuses " + path.name, refused)
        else:
            check("nifti " + path.name, check_nifti, path)
    rng = np.random.default_rng(11)
    folder = WORK / "nifti"
    folder.mkdir()
    affine = np.array([[-1.5, 0.1, 0, 10], [0.1, 2, 0, -4], [0, 0, 3, 7], [0, 0, 0, 1.0]])
    for dtype in ["u1", "i1", "u2", "i2", "u4", "i4", "f4", "f8"]:
        for kind, ending in [(nibabel.Nifti1Image, ".nii"), (nibabel.Nifti2Image, ".nii.gz"), (nibabel.Nifti1Pair, ".img")]:
            a = (rng.normal(size=(7, 9, 5, 3)) * 30 + 40).astype(dtype)
            image = kind(a, affine)
            image.header.set_xyzt_units("mm", "sec")
            image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"a note"))
            if dtype == "i2":
                image.header.set_slope_inter(0.5, 3)
            path = folder / f"{kind.__name__}_{dtype}{ending}"
            nibabel.save(image, path)
            check("nifti generated " + path.name, check_nifti, path, path.stem + ".nii" if ending == ".img" else None)
    for order in "<>":
        header = nibabel.Nifti1Header(endianness=order)
        image = nibabel.Nifti1Image(rng.integers(0, 99, (200, 150, 40)).astype("i2"), affine, header)
        path = folder / f"large_{'le' if order == '<' else 'be'}.nii"
        nibabel.save(image, path)
        check("nifti generated " + path.name, check_nifti, path)


# ---- FITS ------------------------------------------------------------------------------------------------

def meant(d):
    """Values after slope, intercept and blank, as astropy gives them."""
    if d["rescale"] is None:
        return d["pixels"]
    slope, inter, blank = d["rescale"]
    values = d["pixels"].astype("f8") * slope + inter
    if blank is not None:
        values[d["pixels"] == blank] = np.nan
    return values


def fits_images(path):
    with fits.open(path) as hdus:
        found = []
        for h in hdus:
            if h.is_image and h.data is not None:
                found.append((np.array(h.data), h.header.copy()))
        return found, len(hdus)


def check_fits(path, name=None):
    images, count = fits_images(path)
    out = copied(path, name)
    copies, count2 = fits_images(out)
    assert count == count2, "number of units"
    items = dump(path)["items"]
    assert len(items) == len(images), items
    for n, (theirs, header) in enumerate(images):
        d = dump(path, str(n))
        ours = meant(d)
        exact = d["rescale"] is None
        if exact:
            same(ours, theirs)
        else:
            assert np.allclose(ours, theirs, rtol=2e-7, atol=0, equal_nan=True), "values differ"
        same(copies[n][0], theirs, f"copy of {n}")
        for card in header.cards:
            if card.keyword in ("CHECKSUM", "DATASUM", "", "COMMENT", "HISTORY", "EXTEND", "XTENSION", "EXTNAME", "SIMPLE", "PCOUNT", "GCOUNT"):
                continue
            assert card.keyword in copies[n][1], f"card {card.keyword} is lost"
            assert copies[n][1][card.keyword] == card.value, f"card {card.keyword}"
        before = list(header.get("HISTORY", []))
        assert list(copies[n][1].get("HISTORY", []))[:len(before)] == before, "history"
    assert "clearshot provenance" in "".join(str(h) for h in copies[0][1]["HISTORY"]), "provenance"
    assert path.suffix == ".gz" or out.stat().st_size % 2880 == 0, "blocks"
    return f"{len(images)} images"


def run_fits():
    for path in samples("medical", "*.fits") + samples("pairs", "*.fits"):
        check("fits " + path.name, check_fits, path)
    rng = np.random.default_rng(13)
    folder = WORK / "fits"
    folder.mkdir()
    base = rng.normal(size=(3, 41, 67)) * 30 + 100
    for dtype in ["u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]:
        path = folder / f"plain_{dtype}.fits"
        h = fits.PrimaryHDU(base.astype(dtype))
        h.header["OBJECT"] = "M 13 'quoted'"
        h.header["CTYPE1"], h.header["CDELT1"] = "RA---TAN", -0.0003
        h.header.add_history("made for a test")
        fits.HDUList([h, fits.ImageHDU((base * 2).astype("i4"), name="SECOND"),
                      fits.BinTableHDU.from_columns([fits.Column("a", "J", array=np.arange(5))])]).writeto(path)
        check("fits generated " + path.name, check_fits, path)
        packed = folder / f"plain_{dtype}.fits.gz"
        packed.write_bytes(gzip.compress(path.read_bytes()))
        check("fits generated " + packed.name, check_fits, packed)
    for method in ["RICE_1", "GZIP_1", "GZIP_2", "HCOMPRESS_1", "PLIO_1"]:
        for dtype in ["u1", "i2", "i4", "f4", "f8"]:
            plane = base[0] if method == "HCOMPRESS_1" else base
            if method == "PLIO_1" and dtype != "i2":
                continue
            options = [{}]
            if dtype[0] == "f":
                options = [{"quantize_method": m, "quantize_level": 16, "dither_seed": 5} for m in (-1, 1, 2)]
                if method.startswith("GZIP"):
                    options.append({"quantize_level": 0})
            for n, option in enumerate(options):
                for tile in ([(1, 20, 30), None] if plane.ndim == 3 else [(21, 23), (41, 67)]):
                    path = folder / f"{method}_{dtype}_{n}_{'x'.join(map(str, tile or ())) or 'rows'}.fits"
                    data = (np.abs(plane) if method == "PLIO_1" else plane).astype(dtype)
                    if dtype[0] == "f":
                        data = data.copy()
                        data[..., 3, 5] = np.nan
                    h = fits.CompImageHDU(data, compression_type=method, tile_shape=tile, **option)
                    fits.HDUList([fits.PrimaryHDU(), h]).writeto(path)
                    check("fits generated " + path.name, check_fits, path)


# ---- DICOM -----------------------------------------------------------------------------------------------

def dicom_pixels(path):
    ds = pydicom.dcmread(path)
    return ds, ds.pixel_array


def dicom_order(d):
    """Our pixels with samples last, as pydicom gives them."""
    pixels = d["pixels"]
    if "S" in d["axes"]:
        pixels = np.moveaxis(pixels, d["axes"].index("S"), -1)
    return pixels


def check_dicom(path, within=None):
    ds, theirs = dicom_pixels(path)
    d = dump(path)
    same(dicom_order(d), theirs, within=within)
    if "PixelSpacing" in ds:
        steps = dict(zip(d["axes"], d["steps"]))
        assert steps["Y"][0] == float(ds.PixelSpacing[0]) and steps["X"][0] == float(ds.PixelSpacing[1]), "spacing"
    if float(ds.get("RescaleSlope", 1)) != 1 or float(ds.get("RescaleIntercept", 0)) != 0:
        assert d["rescale"][:2] == [float(ds.RescaleSlope), float(ds.RescaleIntercept)], "rescale"
    out = copied(path)
    ds2, again = dicom_pixels(out)
    same(again, dicom_order(d), "copy")
    changed = {"ImageType", "SOPInstanceUID", "SeriesInstanceUID", "DerivationDescription", "PixelData",
               "PlanarConfiguration", "PhotometricInterpretation"}
    if ds.BitsAllocated == 1:
        changed |= {"BitsAllocated", "BitsStored", "HighBit"}
    for element in ds:
        if element.keyword in changed or element.tag.element == 0:
            continue
        assert element.tag in ds2, f"{element.keyword} is lost"
        assert ds2[element.tag] == element, f"{element.keyword} changed"
    assert list(ds2.ImageType[:2]) == ["DERIVED", "SECONDARY"], "ImageType"
    assert ds2.SOPInstanceUID != ds.SOPInstanceUID and ds2.file_meta.MediaStorageSOPInstanceUID == ds2.SOPInstanceUID
    assert ds2.DerivationDescription.startswith("clearshot provenance: "), "provenance"
    return f"{d['axes']} {d['shape']} {d['dtype']}"


def run_dicom():
    for path in samples("medical", "*.dcm"):
        if path.name == "pd_JPEG-lossy.dcm":
            continue
        check("dicom " + path.name, check_dicom, path)
    from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian, RLELossless
    rng = np.random.default_rng(17)
    folder = WORK / "dicom"
    folder.mkdir()
    from pydicom.data import get_testdata_file
    template = get_testdata_file("CT_small.dcm", download=False)
    for n, (dtype, shape, syntax, planar) in enumerate([
        ("u2", (5, 31, 47), ExplicitVRLittleEndian, 0), ("i2", (31, 47), ImplicitVRLittleEndian, 0),
        ("u1", (33, 45), ExplicitVRLittleEndian, 0), ("u1", (3, 20, 30, 3), ExplicitVRLittleEndian, 1),
        ("u1", (20, 30, 3), RLELossless, 0), ("u2", (4, 40, 50), RLELossless, 0), ("i2", (40, 50), RLELossless, 0),
    ]):
        ds = pydicom.dcmread(template)
        a = rng.integers(0, 200, shape).astype(dtype)
        colour = shape[-1] == 3
        frames = shape[0] if len(shape) == 3 + colour else 1
        ds.Rows, ds.Columns = shape[-3:-1] if colour else shape[-2:]
        ds.BitsAllocated = ds.BitsStored = a.itemsize * 8
        ds.HighBit = ds.BitsStored - 1
        ds.PixelRepresentation = int(dtype[0] == "i")
        ds.SamplesPerPixel = 3 if colour else 1
        ds.PhotometricInterpretation = "RGB" if colour else "MONOCHROME2"
        if frames > 1:
            ds.NumberOfFrames = frames
        for key in ["SmallestImagePixelValue", "LargestImagePixelValue", "PixelPaddingValue"]:
            if key in ds:
                del ds[key]
        data = a
        if colour:
            ds.PlanarConfiguration = planar
            data = np.moveaxis(a, -1, -3) if planar else a
        raw = np.ascontiguousarray(data).tobytes()
        ds.PixelData = raw + b"\0" * (len(raw) % 2)
        ds["PixelData"].VR = "OB" if a.itemsize == 1 else "OW"
        ds.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian if syntax == RLELossless else syntax
        if syntax == RLELossless:
            ds.compress(RLELossless, generate_instance_uid=False)
        path = folder / f"made_{n}.dcm"
        ds.save_as(path, enforce_file_format=True)
        check("dicom generated " + path.name, check_dicom, path)
    import imagecodecs
    from pydicom.encaps import encapsulate, encapsulate_extended
    from pydicom.uid import JPEG2000, JPEG2000Lossless

    def frames_in_pieces(path):
        d, theirs = dump(path), pydicom.dcmread(path).pixel_array
        same(d["pixels"], theirs)
        copy = pydicom.dcmread(copied(path))
        same(copy.pixel_array, theirs, "copy")
        assert "ExtendedOffsetTable" not in copy, "a table of offsets into what is no longer there"

    frames = rng.integers(0, 4000, (3, 31, 47)).astype("u2")
    streams = [imagecodecs.jpeg2k_encode(f, level=0, reversible=True, codecformat="j2k") for f in frames]
    extended = encapsulate_extended(streams)
    for name, data, tables in [
        ("pieces", encapsulate(streams, fragments_per_frame=2), None),
        ("pieces_no_table", encapsulate(streams, fragments_per_frame=2, has_bot=False), None),
        ("extended", extended[0], extended[1:]),
    ]:
        ds = pydicom.dcmread(template)
        ds.Rows, ds.Columns = frames.shape[1:]
        ds.BitsAllocated = ds.BitsStored = 16
        ds.HighBit, ds.PixelRepresentation, ds.NumberOfFrames = 15, 0, 3
        ds.file_meta.TransferSyntaxUID = JPEG2000Lossless
        if tables:
            ds.ExtendedOffsetTable, ds.ExtendedOffsetTableLengths = tables
        ds.PixelData = data
        ds["PixelData"].VR = "OB"
        ds["PixelData"].is_undefined_length = True
        path = folder / f"{name}.dcm"
        ds.save_as(path, enforce_file_format=True)
        check("dicom generated " + path.name, frames_in_pieces, path)
    for path in sorted(PICTURES.glob("*.dcm")):
        check("dicom " + path.name, check_dicom, path, 1 if "lossy" in path.name else 0)

    def packed(name, a, syntax, data, photometric, stored=None, within=None):
        ds = pydicom.dcmread(template)
        ds.Rows, ds.Columns = a.shape[:2]
        ds.BitsAllocated, ds.BitsStored = a.itemsize * 8, stored or a.itemsize * 8
        ds.HighBit = ds.BitsStored - 1
        ds.PixelRepresentation = int(a.dtype.kind == "i")
        ds.SamplesPerPixel = 3 if a.ndim == 3 else 1
        ds.PhotometricInterpretation = photometric if a.ndim == 3 else "MONOCHROME2"
        if a.ndim == 3:
            ds.PlanarConfiguration = 0
        for key in ["SmallestImagePixelValue", "LargestImagePixelValue", "PixelPaddingValue"]:
            if key in ds:
                del ds[key]
        ds.file_meta.TransferSyntaxUID = syntax
        ds.PixelData = encapsulate([bytes(data)])
        ds["PixelData"].VR = "OB"
        ds["PixelData"].is_undefined_length = True
        path = folder / f"{name}.dcm"
        ds.save_as(path, enforce_file_format=True)
        check("dicom generated " + path.name, check_dicom, path, within)

    def jpeg2000(a, **options):
        from PIL import Image
        out = io.BytesIO()
        Image.fromarray(a).save(out, format="JPEG2000", no_jp2=True, **options)
        return out.getvalue()

    scenes = []
    for dtype, shape in [("u2", (70, 93)), ("i2", (64, 64)), ("u1", (37, 51, 3)), ("u1", (200, 33)), ("u2", (1, 40)),
                         ("u2", (129, 5)), ("u2", (90, 110)), ("u2", (1, 1)), ("i2", (45, 31))]:
        a = np.clip(rng.normal(size=shape) * 40 + 110, 0, 200).astype(dtype)
        a[: shape[0] // 2] += np.arange(shape[1]).reshape((1, -1) + (1,) * (len(shape) - 2)).astype(dtype) % 50
        a[shape[0] // 3: shape[0] // 2] = 77
        scenes.append(a)
    for n, a in enumerate(scenes):
        for resolutions in [None, 3]:
            options = {"codecformat": "j2k", "resolutions": resolutions}
            data = imagecodecs.jpeg2k_encode(a, level=0, reversible=True, **options)
            packed(f"jpeg2000_{n}_{resolutions}", a, JPEG2000Lossless, data, "YBR_RCT")
            for level in [30, 60]:
                data = imagecodecs.jpeg2k_encode(a, level=level, reversible=False, **options)
                packed(f"jpeg2000_{n}_{resolutions}_{level}", a, JPEG2000, data, "YBR_ICT", within=1)
    grey, colour = scenes[3], scenes[2]
    for order in ["LRCP", "RLCP", "RPCL", "PCRL", "CPRL"]:
        for lossy in [False, True]:
            for name, a in [("grey", grey), ("colour", colour)]:
                photometric = "YBR_ICT" if lossy else "YBR_RCT"
                data = jpeg2000(a, tile_size=(30, 20), progression=order, irreversible=lossy, mct=int(a.ndim == 3),
                                quality_mode="rates", quality_layers=[20, 10, 5, 1], precinct_size=(64, 64),
                                codeblock_size=(16, 16), num_resolutions=3)
                packed(f"tiles_{order}_{lossy}_{name}", a, JPEG2000, data, photometric, within=1)
    data = jpeg2000(grey, quality_mode="rates", quality_layers=[200 - 3 * i for i in range(59)] + [1])
    packed("layers", grey, JPEG2000Lossless, data, "")

    import jpeg_ls
    from pydicom.uid import JPEGLSLossless, JPEGLSNearLossless
    for n, a in enumerate(scenes):
        # CharLS finds no room for a single pixel.
        for near in [0, 1, 3] if a.size > 1 else []:
            # Components in planes, lines and pixels; with a sign, the bits are packed as they are.
            for mode in [0, 1, 2] if a.ndim == 3 else [0]:
                ordered = np.moveaxis(a, -1, 0) if a.ndim == 3 and mode == 0 else a
                raw = np.ascontiguousarray(ordered).tobytes()
                if near and a.dtype.kind == "i":
                    continue
                data = jpeg_ls.encode_buffer(raw, a.shape[0], a.shape[1], 3 if a.ndim == 3 else 1, a.itemsize * 8,
                                             lossy_error=near, interleave_mode=mode)
                syntax = JPEGLSNearLossless if near else JPEGLSLossless
                packed(f"jpegls_{n}_{near}_{mode}", a, syntax, data, "RGB")
    for bits in range(2, 17):
        a = rng.integers(0, 1 << bits, (40, 33)).astype("u1" if bits <= 8 else "u2")
        a[10:25] = np.minimum(np.arange(33), (1 << bits) - 1)
        data = jpeg_ls.encode_pixel_data(a.tobytes(), rows=40, columns=33, samples_per_pixel=1, bits_stored=bits)
        packed(f"jpegls_{bits}_bits", a, JPEGLSLossless, data, "", stored=bits)


if __name__ == "__main__":
    run_tiff()
    run_zarr()
    run_npy_png()
    run_nifti()
    run_fits()
    run_dicom()
    print(f"{checked - len(failures)} of {checked} hold")
    sys.exit(1 if failures or checked == 0 else 0)
