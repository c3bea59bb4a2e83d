//! Visible and hidden patches of an image, as pure functions of a key.
//!
//! Their numbers are the same for every image, so that graphs have known shapes. Masked autoencoders hide patches one by
//! one; joint embeddings hide blocks, so that neighbours do not determine what is hidden, and use only some of the rest.

use clearshot_tensor::Tensor;
use clearshot_tensor::noise::Key;

/// How hidden patches lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Hidden {
    /// Anywhere.
    Scattered,
    /// In so many blocks, whose Y over X is within these bounds.
    Blocks { count: usize, aspect: [f64; 2] },
}

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Masks {
    /// Patches along (Z,) Y, X.
    pub grid: Vec<usize>,
    /// Patches that are seen, and that are asked for.
    pub visible: usize,
    pub hidden: usize,
    pub law: Hidden,
}

/// The patches of one image, each list in rising order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drawn {
    pub visible: Vec<usize>,
    pub hidden: Vec<usize>,
}

/// Random numbers of a key, one after the other.
struct Draws {
    key: Key,
    next: u64,
}

impl Draws {
    fn unit(&mut self) -> f64 {
        self.next += 1;
        f64::from(self.key.uniform(self.next - 1))
    }

    fn below(&mut self, n: usize) -> usize {
        ((self.unit() * n as f64) as usize).min(n - 1)
    }

    /// So many of them, in rising order.
    fn some(&mut self, from: &[usize], count: usize) -> Vec<usize> {
        let mut ranked: Vec<(f64, usize)> = from.iter().map(|t| (self.unit(), *t)).collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut chosen: Vec<usize> = ranked.into_iter().take(count).map(|(_, t)| t).collect();
        chosen.sort_unstable();
        chosen
    }
}

impl Masks {
    /// How many patches there are.
    pub fn patches(&self) -> usize {
        self.grid.iter().product()
    }

    /// The patches of the image with this key.
    pub fn draw(&self, key: Key) -> Drawn {
        let mut draws = Draws { key, next: 0 };
        let mut is_hidden = vec![false; self.patches()];
        if let Hidden::Blocks { count, aspect } = self.law {
            self.hide_blocks(&mut draws, &mut is_hidden, count, aspect);
        }
        let with = |is_hidden: &[bool], which: bool| -> Vec<usize> {
            (0..is_hidden.len()).filter(|t| is_hidden[*t] == which).collect()
        };
        let lacking = self.hidden.saturating_sub(with(&is_hidden, true).len());
        if lacking > 0 {
            let open = with(&is_hidden, false);
            draws.some(&open, lacking).into_iter().for_each(|t| is_hidden[t] = true);
        }
        let rest = with(&is_hidden, false);
        let visible = if rest.len() == self.visible { rest } else { draws.some(&rest, self.visible) };
        Drawn { visible, hidden: with(&is_hidden, true) }
    }

    /// Blocks until as many patches are hidden as should be; of the last block the first patches alone.
    fn hide_blocks(&self, draws: &mut Draws, is_hidden: &mut [bool], count: usize, aspect: [f64; 2]) {
        let side = (self.hidden as f64 / count as f64).powf(1.0 / self.grid.len() as f64);
        let mut left = self.hidden;
        // Blocks overlap: some more may be needed than were asked for, and what those leave is scattered.
        for _ in 0..4 * count {
            let shape = (aspect[0] + (aspect[1] - aspect[0]) * draws.unit()).sqrt();
            let of_axis = |a: usize| match self.grid.len() - a {
                2 => side * shape,
                1 => side / shape,
                _ => side,
            };
            let lengths: Vec<usize> =
                (0..self.grid.len()).map(|a| (of_axis(a).round() as usize).clamp(1, self.grid[a])).collect();
            let first: Vec<usize> =
                (0..self.grid.len()).map(|a| draws.below(self.grid[a] - lengths[a] + 1)).collect();
            for t in 0..is_hidden.len() {
                let mut rest = t;
                let inside = (0..self.grid.len()).rev().all(|a| {
                    let at = rest % self.grid[a];
                    rest /= self.grid[a];
                    (first[a]..first[a] + lengths[a]).contains(&at)
                });
                if inside && !is_hidden[t] && left > 0 {
                    is_hidden[t] = true;
                    left -= 1;
                }
            }
        }
    }

    /// The rows of a batch: of what is seen, `[N, visible]`; of what is hidden, `[N, hidden]`; and where each patch stands when both lie behind each other,
    /// `[N, T]`. All count the rows of the samples before.
    pub fn rows(&self, keys: impl Iterator<Item = Key>) -> Rows {
        let (each, mut samples) = (self.patches(), 0);
        let (mut visible, mut hidden, mut order) = (vec![], vec![], vec![]);
        for key in keys {
            let (drawn, first) = (self.draw(key), samples * each);
            let mut at = vec![0; each];
            let both = drawn.visible.iter().chain(&drawn.hidden);
            both.enumerate().for_each(|(place, t)| at[*t] = (first + place) as i32);
            order.extend(at);
            visible.extend(drawn.visible.iter().map(|t| (first + t) as i32));
            hidden.extend(drawn.hidden.iter().map(|t| (first + t) as i32));
            samples += 1;
        }
        Rows {
            visible: Tensor::i32([samples, self.visible], visible),
            hidden: Tensor::i32([samples, self.hidden], hidden),
            order: Tensor::i32([samples, each], order),
        }
    }
}

/// See [`Masks::rows`].
pub struct Rows {
    pub visible: Tensor,
    pub hidden: Tensor,
    pub order: Tensor,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(step: u32) -> Key {
        Key { seed: 3, step, stream: 1 }
    }

    #[test]
    fn counts_are_fixed_sets_are_disjoint_and_a_key_determines_them() {
        let blocks = Hidden::Blocks { count: 4, aspect: [0.75, 1.5] };
        for (grid, visible, hidden, law) in [
            (vec![8, 8], 16, 48, Hidden::Scattered),
            (vec![4, 6, 5], 30, 90, Hidden::Scattered),
            (vec![8, 8], 24, 32, blocks),
            (vec![4, 4, 4], 20, 40, blocks),
            (vec![1, 3], 1, 2, blocks),
        ] {
            let masks = Masks { grid, visible, hidden, law };
            for step in 0..50 {
                let drawn = masks.draw(key(step));
                assert_eq!((drawn.visible.len(), drawn.hidden.len()), (visible, hidden), "{masks:?}");
                assert!(drawn.visible.iter().all(|t| !drawn.hidden.contains(t) && *t < masks.patches()));
                assert!(drawn.visible.is_sorted() && drawn.hidden.is_sorted());
                assert_eq!(drawn, masks.draw(key(step)));
            }
            // Two keys may agree where there are few patches; all do not.
            assert!((1..50).any(|step| masks.draw(key(step)) != masks.draw(key(0))), "{masks:?}");
        }
    }

    /// Scattered patches are hidden equally often; hidden neighbours of a hidden patch are more in blocks.
    #[test]
    fn scattered_patches_are_even_and_blocks_hold_together() {
        let masks = Masks { grid: vec![8, 8], visible: 16, hidden: 48, law: Hidden::Scattered };
        let mut often = [0.0; 64];
        (0..4000).for_each(|i| masks.draw(key(i)).hidden.iter().for_each(|t| often[*t] += 1.0 / 4000.0));
        assert!(often.iter().all(|share: &f64| (share - 0.75).abs() < 0.035), "{often:?}");
        let together = |law| {
            let masks = Masks { grid: vec![8, 8], visible: 24, hidden: 24, law };
            let pairs = |i: u32| {
                let hidden = masks.draw(key(i)).hidden;
                hidden.iter().filter(|t| *t % 8 < 7 && hidden.contains(&(*t + 1))).count()
            };
            (0..200).map(pairs).sum::<usize>() as f64 / (200.0 * 24.0)
        };
        let blocks = Hidden::Blocks { count: 4, aspect: [0.75, 1.5] };
        let (apart, close) = (together(Hidden::Scattered), together(blocks));
        assert!(apart < 0.37 && close > 0.55, "{apart} {close}");
    }

    #[test]
    fn rows_count_all_samples_and_the_order_brings_patches_back() {
        let masks = Masks { grid: vec![3, 4], visible: 4, hidden: 8, law: Hidden::Scattered };
        let rows = masks.rows([key(1), key(2)].into_iter());
        let of = |t: &Tensor| t.to_f64().iter().map(|v| *v as usize).collect::<Vec<_>>();
        let (visible, hidden, order) = (of(&rows.visible), of(&rows.hidden), of(&rows.order));
        for sample in 0..2 {
            let both: Vec<usize> =
                visible[sample * 4..][..4].iter().chain(&hidden[sample * 8..][..8]).copied().collect();
            for t in 0..12 {
                assert_eq!(both[order[sample * 12 + t] - sample * 12], sample * 12 + t);
            }
        }
    }
}
