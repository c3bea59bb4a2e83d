"""Writes the files in this folder that other programs' compressions are tested with; see old_writers.rs.

    python make_old_writers.py      (needs Pillow, which has libtiff, and numpy)

Fax is written by libtiff. No program writes LZW as it was before TIFF 6.0 any more, so it is packed here, and libtiff must read it.
"""
import pathlib
import struct

import numpy as np
from PIL import Image, TiffImagePlugin

HERE = pathlib.Path(__file__).parent


def bilevel():
    y, x = np.mgrid[:45, :203]
    return (((x * x + 3 * y * y) // 700 % 3 == 0) | (y == 7)) & (y != 20)


def fax():
    picture = Image.fromarray(bilevel())
    for name, compression, options in [("huffman", "tiff_ccitt", 0), ("group3", "group3", 0),
                                       ("group3_2d", "group3", 1), ("group4", "group4", 0)]:
        tags = TiffImagePlugin.ImageFileDirectory_v2()
        if options:
            tags[292] = options
        tags[278] = 16
        picture.save(HERE / f"fax_{name}.tif", compression=compression, tiffinfo=tags)


def old_lzw(data):
    """Codes from the lowest bit on; a code becomes longer when the table has outgrown it, not one code before."""
    bits, count, out = 0, 0, bytearray()

    def put(code, width):
        nonlocal bits, count
        bits |= code << count
        count += width
        while count >= 8:
            out.append(bits & 255)
            bits >>= 8
            count -= 8

    table = {bytes([i]): i for i in range(256)}
    width, following, held = 9, 258, b""
    put(256, 9)
    for value in data:
        longer = held + bytes([value])
        if longer in table:
            held = longer
            continue
        put(table[held], width)
        table[longer] = following
        following += 1
        if following > 1 << width and width < 12:
            width += 1
        if following == 4094:
            put(256, width)
            table = {bytes([i]): i for i in range(256)}
            width, following = 9, 258
        held = bytes([value])
    put(table[held], width)
    put(257, width)
    put(0, 7)
    return bytes(out)


def lzw():
    y, x = np.mgrid[:80, :90]
    values = ((x * y + 7 * (x ^ y)) % 251).astype("u1")
    packed = old_lzw(values.tobytes())
    tags = [(256, 90), (257, 80), (258, 8), (259, 5), (262, 1), (273, 8 + 2 + 12 * 9 + 4), (277, 1), (278, 80),
            (279, len(packed))]
    head = b"II*\0" + struct.pack("<IH", 8, len(tags))
    head += b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags) + bytes(4)
    path = HERE / "lzw_old.tif"
    path.write_bytes(head + packed)
    assert np.array_equal(np.asarray(Image.open(path)), values)


fax()
lzw()
