"""Writes the files in this folder whose pixels are packed by JPEG-LS, JPEG 2000, LERC and WebP; see packed.rs.

    python make_packed.py      (needs numpy, pydicom, pyjpegls, imagecodecs, tifffile and Pillow)

CharLS, OpenJPEG, LERC and libwebp pack them. What is packed without loss has a closed form, which packed.rs knows; of what is packed with
loss, the values that those libraries read are kept beside it as .npy.
"""
import io
import pathlib

import imagecodecs
import jpeg_ls
import numpy as np
import pydicom
import tifffile
from PIL import Image
from pydicom.encaps import encapsulate
from pydicom.uid import (ExplicitVRBigEndian, ExplicitVRLittleEndian, JPEG2000, JPEG2000Lossless, JPEGLSLossless,
                         JPEGLSNearLossless)

HERE = pathlib.Path(__file__).parent


def scene(height, width, shift=0):
    """Flat squares, slopes and what looks like noise: 0 to 4095."""
    y, x = np.mgrid[:height, :width].astype("i8")
    x += shift
    flat, slope, rough = 900 + 0 * x, 40 * y + 11 * x, (x * y * 7 + 13 * (x ^ y) + x * x) % 4096
    return np.choose((x // 8 + y // 8) % 3, [flat, slope, rough])


def colours(height, width):
    return np.stack([scene(height, width, s) for s in (0, 3, 40)], -1) >> 4


def smooth(height, width):
    y, x = np.mgrid[:height, :width]
    waves = np.sin(x / 5.3) * np.cos(y / 7.1) + 0.6 * np.sin((x + 2 * y) / 11)
    return (waves + 2) / 4 + (scene(height, width) % 97) / 2000


def dicom(name, pixels, syntax, data, stored, photometric="MONOCHROME2", frames=1, vr="OB", allocated=None, signed=False):
    ds = pydicom.Dataset()
    ds.file_meta = pydicom.dataset.FileMetaDataset()
    ds.file_meta.TransferSyntaxUID = syntax
    ds.file_meta.MediaStorageSOPClassUID = ds.SOPClassUID = "1.2.840.10008.5.1.4.1.1.7"
    ds.file_meta.MediaStorageSOPInstanceUID = ds.SOPInstanceUID = "1.2.3.4"
    ds.file_meta.ImplementationClassUID = "1.2.3"
    ds.SamplesPerPixel = 3 if photometric != "MONOCHROME2" else 1
    ds.PhotometricInterpretation = photometric
    if ds.SamplesPerPixel == 3:
        ds.PlanarConfiguration = 0
    if frames > 1:
        ds.NumberOfFrames = frames
    ds.Rows, ds.Columns = pixels.shape[frames > 1:][:2]
    ds.BitsAllocated = allocated or pixels.itemsize * 8
    ds.BitsStored, ds.HighBit, ds.PixelRepresentation = stored, stored - 1, int(signed)
    packed = syntax.is_encapsulated
    ds.PixelData = encapsulate([bytes(data)]) if packed else data
    ds["PixelData"].VR = vr
    ds["PixelData"].is_undefined_length = packed
    path = HERE / name
    ds.save_as(path, enforce_file_format=True)
    read = pydicom.dcmread(path).pixel_array
    return read


def jpeg_ls_files():
    grey = scene(45, 61).astype("u2")
    data = jpeg_ls.encode_pixel_data(grey.tobytes(), rows=45, columns=61, samples_per_pixel=1, bits_stored=12)
    assert np.array_equal(dicom("ls_12.dcm", grey, JPEGLSLossless, data, 12), grey)
    wide = (scene(45, 61) * 16 + scene(45, 61, 9) % 16).astype("u2")
    data = jpeg_ls.encode_array(wide)
    assert np.array_equal(dicom("ls_16.dcm", wide, JPEGLSLossless, data, 16), wide)
    signed = (scene(45, 61) - 2048).astype("i2")
    data = jpeg_ls.encode_pixel_data((signed & 0xFFF).astype("u2").tobytes(), rows=45, columns=61, samples_per_pixel=1,
                                     bits_stored=12)
    assert np.array_equal(dicom("ls_signed.dcm", signed, JPEGLSLossless, data, 12, signed=True), signed)
    rgb = colours(30, 40).astype("u1")
    # CharLS takes planes for planes, and pixels for lines.
    for mode, ordered in enumerate([np.moveaxis(rgb, -1, 0), rgb, rgb]):
        data = jpeg_ls.encode_buffer(np.ascontiguousarray(ordered).tobytes(), 30, 40, 3, 8, interleave_mode=mode)
        read = dicom(f"ls_colour_{mode}.dcm", rgb, JPEGLSLossless, data, 8, "RGB")
        assert np.array_equal(read, rgb), mode
    near = (scene(45, 61) >> 4).astype("u1")
    data = jpeg_ls.encode_array(near, lossy_error=2)
    read = dicom("ls_near.dcm", near, JPEGLSNearLossless, data, 8)
    assert 0 < np.abs(read.astype("i4") - near).max() <= 2
    np.save(HERE / "ls_near.npy", read)


def jpeg2000_pillow(image, **options):
    out = io.BytesIO()
    Image.fromarray(image).save(out, format="JPEG2000", no_jp2=True, **options)
    return out.getvalue()


def jpeg2000_files():
    # Without loss: tiles, precincts, small blocks, and packets by position.
    grey = (scene(75, 83) >> 4).astype("u1")
    data = jpeg2000_pillow(grey, tile_size=(40, 32), progression="PCRL", num_resolutions=4)
    assert np.array_equal(dicom("j2k_tiles.dcm", grey, JPEG2000Lossless, data, 8), grey)
    grey = scene(75, 83).astype("u2")
    data = jpeg2000_pillow(grey, precinct_size=(64, 64), codeblock_size=(16, 8), progression="RPCL", num_resolutions=3)
    assert np.array_equal(dicom("j2k_precincts.dcm", grey, JPEG2000Lossless, data, 16), grey)
    signed = (scene(45, 61) * 8 - 16384).astype("i2")
    data = imagecodecs.jpeg2k_encode(signed, level=0, reversible=True, codecformat="j2k")
    assert np.array_equal(dicom("j2k_signed.dcm", signed, JPEG2000Lossless, data, 16, signed=True), signed)
    # With loss.
    wide = (smooth(64, 72) * 50000 + 3000).astype("u2")
    data = imagecodecs.jpeg2k_encode(wide, level=75, reversible=False, codecformat="j2k")
    np.save(HERE / "j2k_lossy_16.npy", dicom("j2k_lossy_16.dcm", wide, JPEG2000, data, 16))
    below = (smooth(64, 72) * 4000 - 2000).astype("i2")
    data = imagecodecs.jpeg2k_encode(below, level=60, reversible=False, codecformat="j2k")
    np.save(HERE / "j2k_lossy_signed.npy", dicom("j2k_lossy_signed.dcm", below, JPEG2000, data, 16, signed=True))
    rgb = np.stack([smooth(60, 50) * s for s in (255, 200, 120)], -1).astype("u1")
    data = jpeg2000_pillow(rgb, irreversible=True, mct=1, quality_mode="rates", quality_layers=[20, 8], tile_size=(32, 32))
    np.save(HERE / "j2k_lossy_colour.npy", dicom("j2k_lossy_colour.dcm", rgb, JPEG2000, data, 8, "YBR_ICT"))
    # In TIFF: Aperio's two kinds, and the usual one.
    tifffile.imwrite(HERE / "j2k_34712.tif", wide, compression=34712, tile=(32, 48), photometric="minisblack",
                     compressionargs={"level": 75, "reversible": False})
    np.save(HERE / "j2k_34712.npy", tifffile.imread(HERE / "j2k_34712.tif"))
    tifffile.imwrite(HERE / "j2k_33005.tif", rgb, compression=33005, tile=(32, 32), photometric="rgb",
                     compressionargs={"level": 40, "reversible": False, "codecformat": "j2k"})
    np.save(HERE / "j2k_33005.npy", tifffile.imread(HERE / "j2k_33005.tif"))
    # Luminance and differences, which the compression's number says: libraries give them as they are.
    ycbcr = np.asarray(Image.fromarray(rgb).convert("YCbCr"))
    tifffile.imwrite(HERE / "j2k_33003.tif", ycbcr, compression=33003, tile=(32, 32), photometric="rgb",
                     compressionargs={"level": 60, "reversible": False, "mct": False, "codecformat": "j2k"})
    read = tifffile.imread(HERE / "j2k_33003.tif")
    np.save(HERE / "j2k_33003.npy", np.asarray(Image.fromarray(read, "YCbCr").convert("RGB")))


def lerc_files():
    for name, data, options in [
        ("lerc_u16", scene(45, 61).astype("u2"), {}),
        ("lerc_i8_deflate", (scene(45, 61) % 256 - 128).astype("i1"), {"compression": "deflate"}),
        ("lerc_f32_zstd", scene(45, 61).astype("f4") / 64, {"compression": "zstd"}),
        ("lerc_colour", colours(45, 61).astype("u1"), {}),
    ]:
        photometric = "rgb" if data.ndim == 3 else "minisblack"
        tifffile.imwrite(HERE / f"{name}.tif", data, compression="lerc", tile=(32, 32), photometric=photometric,
                         compressionargs=options)
        assert np.array_equal(tifffile.imread(HERE / f"{name}.tif"), data), name
    lossy = (smooth(64, 72) * 100).astype("f4")
    tifffile.imwrite(HERE / "lerc_lossy.tif", lossy, compression="lerc", rowsperstrip=20, compressionargs={"level": 0.05})
    read = tifffile.imread(HERE / "lerc_lossy.tif")
    assert 0 < np.abs(read - lossy).max() <= 0.0501
    np.save(HERE / "lerc_lossy.npy", read)


def webp_files():
    rgb = colours(45, 61).astype("u1")
    tifffile.imwrite(HERE / "webp_lossless.tif", rgb, compression="webp", tile=(32, 32), photometric="rgb",
                     compressionargs={"lossless": True})
    assert np.array_equal(tifffile.imread(HERE / "webp_lossless.tif"), rgb)
    rgba = np.concatenate([rgb, 255 - rgb[..., :1] // 3], -1)
    tifffile.imwrite(HERE / "webp_alpha.tif", rgba, compression="webp", photometric="rgb", extrasamples=["unassalpha"],
                     compressionargs={"lossless": True})
    assert np.array_equal(tifffile.imread(HERE / "webp_alpha.tif"), rgba)
    lossy = np.stack([smooth(60, 50) * s for s in (255, 200, 120)], -1).astype("u1")
    tifffile.imwrite(HERE / "webp_lossy.tif", lossy, compression="webp", rowsperstrip=32, photometric="rgb",
                     compressionargs={"level": 80})
    np.save(HERE / "webp_lossy.npy", tifffile.imread(HERE / "webp_lossy.tif"))


def plain_files():
    bits = (scene(15, 21) % 2).astype("u1").reshape(3, 5, 21)
    data = np.packbits(bits.ravel(), bitorder="little").tobytes()
    data += b"\0" * (len(data) % 2)
    read = dicom("bits.dcm", bits, ExplicitVRLittleEndian, data, 1, frames=3, allocated=1)
    assert np.array_equal(read, bits)
    grey = (scene(15, 21) >> 4).astype("u1").reshape(3, 5, 21)
    words = np.frombuffer(grey.tobytes() + b"\0", "u2").byteswap().tobytes()
    read = dicom("words.dcm", grey, ExplicitVRBigEndian, words, 8, frames=3, vr="OW")
    assert np.array_equal(read, grey)


jpeg_ls_files()
jpeg2000_files()
lerc_files()
webp_files()
plain_files()
