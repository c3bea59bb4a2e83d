//! The array that scenes are painted on: a volume `z, y, x` whose depth is 1 for a plane.

/// See the module.
#[derive(Clone)]
pub(crate) struct Canvas {
    pub size: [usize; 3],
    pub values: Vec<f64>,
}

impl Canvas {
    pub fn new(size: [usize; 3]) -> Canvas {
        Canvas { size, values: vec![0.0; size.iter().product()] }
    }

    pub fn is_volume(&self) -> bool {
        self.size[0] > 1
    }

    /// Calls with the index and the position of each pixel within `reach` of `centre` along every axis.
    pub fn near(&self, centre: [f64; 3], reach: f64, mut f: impl FnMut(usize, [f64; 3])) {
        let range = |a: usize| {
            let low = (centre[a] - reach).floor().max(0.0) as usize;
            let high = (centre[a] + reach).ceil().min(self.size[a] as f64 - 1.0);
            low..(high + 1.0).max(0.0) as usize
        };
        for z in range(0) {
            for y in range(1) {
                for x in range(2) {
                    f((z * self.size[1] + y) * self.size[2] + x, [z as f64, y as f64, x as f64]);
                }
            }
        }
    }

    /// Adds `amount` at a position between pixels, shared among its neighbours linearly.
    pub fn splat(&mut self, at: [f64; 3], amount: f64) {
        for corner in 0..8 {
            let (mut index, mut weight) = (0, amount);
            for a in 0..3 {
                let low = at[a].floor();
                let part = at[a] - low;
                let step = (corner >> a) & 1;
                let p = low + step as f64;
                weight *= if step == 1 { part } else { 1.0 - part };
                if weight == 0.0 || p < 0.0 || p >= self.size[a] as f64 {
                    weight = 0.0;
                    break;
                }
                index = index * self.size[a] + p as usize;
            }
            if weight != 0.0 {
                self.values[index] += weight;
            }
        }
    }

    /// A Gaussian of standard deviation `sigma` pixels along every axis longer than one, reaching four of
    /// them, mirrored at the edges: `scipy.ndimage.gaussian_filter` with its defaults.
    pub fn blur(&mut self, sigma: f64) {
        let reach = (4.0 * sigma + 0.5) as isize;
        let mut weights: Vec<f64> =
            (-reach..=reach).map(|i| libm::exp(-0.5 * (i as f64 / sigma) * (i as f64 / sigma))).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|w| *w /= sum);
        for axis in (0..3).filter(|&a| self.size[a] > 1) {
            let n = self.size[axis];
            let stride: usize = self.size[axis + 1..].iter().product();
            let mut line = vec![0.0; n];
            let source: Vec<usize> = (-reach..n as isize + reach)
                .map(|p| {
                    let q = p.rem_euclid(2 * n as isize) as usize;
                    if q < n { q } else { 2 * n - 1 - q }
                })
                .collect();
            for start in 0..self.values.len() / n {
                let first = start / stride * stride * n + start % stride;
                line.iter_mut().enumerate().for_each(|(i, v)| *v = self.values[first + i * stride]);
                for i in 0..n {
                    let sum: f64 = weights.iter().enumerate().map(|(k, w)| w * line[source[i + k]]).sum();
                    self.values[first + i * stride] = sum;
                }
            }
        }
    }

    /// The mean of each 2 x 2 (x 2) pixels; sizes are even along axes longer than one.
    pub fn halved(&self) -> Canvas {
        let factor = self.size.map(|n| if n > 1 { 2 } else { 1 });
        let size = [0, 1, 2].map(|a| self.size[a] / factor[a]);
        let mut out = Canvas::new(size);
        let share = 1.0 / factor.iter().product::<usize>() as f64;
        for (i, v) in self.values.iter().enumerate() {
            let (x, rest) = (i % self.size[2], i / self.size[2]);
            let (y, z) = (rest % self.size[1], rest / self.size[1]);
            let at = (z / factor[0] * size[1] + y / factor[1]) * size[2] + x / factor[2];
            out.values[at] += share * v;
        }
        out
    }

    /// Divides by the value that a share of the pixels stays below, and clips to [0, 1]. An image of which less
    /// than that is bright is divided by its largest value.
    pub fn normalise(&mut self, share: f64) {
        let mut values = self.values.clone();
        let position = share * (values.len() - 1) as f64;
        let (low, part) = (position as usize, position.fract());
        let (_, at_low, above) = values.select_nth_unstable_by(low, f64::total_cmp);
        let at_low = *at_low;
        let high = above.iter().copied().min_by(f64::total_cmp).unwrap_or(at_low);
        let largest = above.iter().copied().max_by(f64::total_cmp).unwrap_or(at_low);
        let at = at_low + part * (high - at_low);
        let scale = if at > 1e-3 * largest { at } else { largest };
        if scale > 0.0 {
            self.values.iter_mut().for_each(|v| *v = (*v / scale).clamp(0.0, 1.0));
        }
    }

    /// Mean 0 and variance 1.
    pub fn standardise(&mut self) {
        let n = self.values.len() as f64;
        let mean = self.values.iter().sum::<f64>() / n;
        let variance = self.values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
        let scale = 1.0 / variance.sqrt().max(1e-12);
        self.values.iter_mut().for_each(|v| *v = (*v - mean) * scale);
    }
}
