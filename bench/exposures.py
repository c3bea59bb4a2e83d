"""How far pairs of exposures of one field are apart, without their truth: shift in pixels with its standard error, and brightness of the first over the second.

    python exposures.py FIRST.tif SECOND.tif [FIRST.tif SECOND.tif ...]

Means of 4 x 4 pixels, of which the difference goes with the gradient where the second exposure is shifted. Gradients of the two are multiplied with each other, so that the noise of neither has a part in it.
"""
import sys

import numpy as np
import tifffile


def blocks(image, side=4):
    height, width = (n // side * side for n in image.shape)
    return image[:height, :width].reshape(height // side, side, width // side, side).mean((1, 3))


def smooth(image, reach=6):
    padded, side = np.pad(image, reach, mode="reflect"), 2 * reach + 1
    sums = np.pad(padded.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    return (sums[side:, side:] - sums[:-side, side:] - sums[side:, :-side] + sums[:-side, :-side]) / side**2


def shift(first, second, axis):
    off = first - second
    off = off - smooth(off)
    slopes = [np.gradient(image, axis=axis) / 4 for image in (first, second)]
    mean, power = sum(slopes) / 2, np.mean(slopes[0] * slopes[1])
    if power <= 0:
        return np.nan, np.nan
    return -np.mean(off * mean) / power, np.sqrt(np.mean(off**2) * np.mean(mean**2) / off.size) / power


for names in zip(sys.argv[1::2], sys.argv[2::2]):
    images = [tifffile.imread(name).astype(float) for name in names]
    if np.array_equal(*images):
        print(f"{names[0]}: the same image twice")
        continue
    (y, dy), (x, dx) = (shift(*map(blocks, images), axis) for axis in (0, 1))
    print(f"{names[0]}: shift {y:+.2f} ({dy:.2f}) along Y, {x:+.2f} ({dx:.2f}) along X; brightness {images[0].mean() / images[1].mean():.3f}")
