//! Means and maxima over squares around each pixel, in time independent of the size of the square.

/// How many pixels of a square about each pixel are inside the image.
pub(super) fn counts([height, width]: [usize; 2], side: usize) -> impl Fn(usize) -> f32 {
    let reach = side / 2;
    let along = move |i: usize, n: usize| ((i + reach).min(n - 1) - i.saturating_sub(reach) + 1) as f32;
    move |i| along(i / width, height) * along(i % width, width)
}

/// Means over squares of an odd side, of the pixels inside the image. Running sums in f64: the same bits for any number of threads.
pub(super) fn means(values: &[f32], [height, width]: [usize; 2], side: usize) -> Vec<f32> {
    if side == 1 {
        return values.to_vec();
    }
    let reach = side / 2;
    let mut across = vec![0f64; values.len()];
    let mut before = vec![0f64; width.max(height) + 1];
    for (row, out) in values.chunks(width).zip(across.chunks_mut(width)) {
        (0..width).for_each(|x| before[x + 1] = before[x] + f64::from(row[x]));
        for (x, o) in out.iter_mut().enumerate() {
            *o = before[(x + reach + 1).min(width)] - before[x.saturating_sub(reach)];
        }
    }
    let inside = counts([height, width], side);
    let mut sums = vec![0f64; width];
    let mut out = vec![0f32; values.len()];
    for y in 0..reach.min(height) {
        sums.iter_mut().zip(&across[y * width..]).for_each(|(s, v)| *s += v);
    }
    for y in 0..height {
        if y + reach < height {
            sums.iter_mut().zip(&across[(y + reach) * width..]).for_each(|(s, v)| *s += v);
        }
        if y > reach {
            sums.iter_mut().zip(&across[(y - reach - 1) * width..]).for_each(|(s, v)| *s -= v);
        }
        for x in 0..width {
            out[y * width + x] = (sums[x] / f64::from(inside(y * width + x))) as f32;
        }
    }
    out
}

/// The largest value within so many pixels.
pub(super) fn widest(values: &[f32], [height, width]: [usize; 2], reach: usize) -> Vec<f32> {
    let mut across = values.to_vec();
    for (row, out) in values.chunks(width).zip(across.chunks_mut(width)) {
        for (x, o) in out.iter_mut().enumerate() {
            let range = x.saturating_sub(reach)..(x + reach + 1).min(width);
            *o = row[range].iter().copied().fold(0.0, f32::max);
        }
    }
    let mut out = across.clone();
    for y in 0..height {
        for other in y.saturating_sub(reach)..(y + reach + 1).min(height) {
            let (to, from) = (&mut out[y * width..(y + 1) * width], &across[other * width..]);
            to.iter_mut().zip(from).for_each(|(o, v)| *o = o.max(*v));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_over_squares_are_those_of_their_pixels() {
        let (size, values) = ([7, 9], (0..63).map(|i| (i * 37 % 11) as f32).collect::<Vec<_>>());
        let got = means(&values, size, 5);
        for i in 0..63usize {
            let near = (0..63usize).filter(|j| (j / 9).abs_diff(i / 9) <= 2 && (j % 9).abs_diff(i % 9) <= 2);
            let (sum, n) = near.fold((0.0, 0.0), |(s, n), j| (s + values[j], n + 1.0));
            assert!((got[i] - sum / n).abs() < 1e-4, "{i}");
        }
    }
}
