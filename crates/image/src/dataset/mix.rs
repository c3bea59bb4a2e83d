//! The number of crops of each domain in a batch.
//!
//! If nine thousand files show nuclei and three hundred show filaments, drawing file by file trains mostly on nuclei. A
//! [`Balance`] sets the share of the draws of each domain, and a [`Mix`] distributes the places of batches by these shares:
//! each batch has the share rounded down or up so that the shares hold over many batches, and never fewer than a given
//! number.

use crate::error::{Result, request};
use serde::{Deserialize, Serialize};

/// How often each domain is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Balance {
    /// Every file as often as every other.
    #[default]
    Files,
    /// Every domain as often as every other.
    Domains,
    /// Domains by one over the number of their files: the rarer, the more often.
    InverseFrequency,
    /// Half of the draws shared evenly, half by the domains' losses: the harder, the more often.
    Adaptive,
}

impl Balance {
    /// What share of the draws each domain has, by the number of its files and its mean loss. Losses that are not there
    /// yet, or of which one is NaN, count as equal. `None` if files are drawn independently of their domain.
    pub fn shares(self, files: &[usize], losses: Option<&[f64]>) -> Option<Vec<f64>> {
        let even = 1.0 / files.len() as f64;
        let proportional = |weights: Vec<f64>| {
            let sum: f64 = weights.iter().sum();
            let fits = sum.is_finite() && sum > 0.0 && weights.iter().all(|w| *w >= 0.0);
            if fits { weights.iter().map(|w| w / sum).collect() } else { vec![even; weights.len()] }
        };
        match self {
            Balance::Files => None,
            Balance::Domains => Some(vec![even; files.len()]),
            Balance::InverseFrequency => {
                Some(proportional(files.iter().map(|&n| 1.0 / n.max(1) as f64).collect()))
            }
            Balance::Adaptive => {
                let by_loss = proportional(losses.map_or_else(|| vec![1.0; files.len()], <[f64]>::to_vec));
                Some(by_loss.into_iter().map(|share| 0.5 * even + 0.5 * share).collect())
            }
        }
    }
}

/// A place of a batch, in the unit that shares are counted in. Whole numbers, so that nothing is lost to rounding.
const PLACE: u64 = 1 << 32;

/// Which domain each place of each batch is drawn from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Where each domain's part of a batch ends, in units of `1 / PLACE`.
    ends: Vec<u64>,
}

impl Mix {
    /// Batches of `batch` crops with domains in these shares, and `least` or more of each. A share of less than that is
    /// raised to it, and the others are lowered by one factor.
    ///
    /// # Errors
    /// If a batch has no room for as many of each, or a share is negative or NaN.
    pub fn new(shares: &[f64], batch: usize, least: usize) -> Result<Mix> {
        if shares.is_empty()
            || shares.iter().any(|s| !s.is_finite() || *s < 0.0)
            || shares.iter().sum::<f64>() <= 0.0
        {
            return request(format!(
                "shares of domains {shares:?}; they must be 0 or more, and one of them above 0"
            ));
        }
        if least.checked_mul(shares.len()).is_none_or(|all| all > batch) {
            let domains = shares.len();
            return request(format!(
                "{least} crops of each of {domains} domains do not fit into a batch of {batch}"
            ));
        }
        let mut quotas: Vec<u64> = raised(shares, batch as f64, least as f64)
            .into_iter()
            .map(|q| ((q * PLACE as f64) as u64).max(least as u64 * PLACE))
            .collect();
        // What rounding took or gave is the largest part's.
        let (all, sum) = (batch as u64 * PLACE, quotas.iter().sum::<u64>());
        if let Some(largest) = quotas.iter_mut().max() {
            *largest = (*largest + all).saturating_sub(sum);
        }
        let ends = quotas.iter().scan(0, |end, q| {
            *end += q;
            Some(*end)
        });
        Ok(Mix { ends: ends.collect() })
    }

    /// The domain of a place in batch `number`. Places lie one apart, from a beginning below one that multiples of the
    /// golden ratio spread evenly over batches.
    pub fn domain(&self, number: u64, place: usize) -> usize {
        let beginning = u64::from((number as u32).wrapping_mul(0x9E37_79B9));
        let at = place as u64 * PLACE + beginning;
        self.ends.partition_point(|end| *end <= at).min(self.ends.len() - 1)
    }
}

/// Parts of `batch` in the proportions of `shares`, none below `least`.
fn raised(shares: &[f64], batch: f64, least: f64) -> Vec<f64> {
    let mut is_raised = vec![false; shares.len()];
    loop {
        let of = |wanted: bool| shares.iter().zip(&is_raised).filter(move |(_, r)| **r == wanted);
        let left = batch - least * of(true).count() as f64;
        let sum: f64 = of(false).map(|(s, _)| s).sum();
        let part = |(s, raised): (&f64, &bool)| if *raised { least } else { s / sum * left };
        let parts: Vec<f64> = shares.iter().zip(&is_raised).map(part).collect();
        let low: Vec<bool> = parts.iter().zip(&is_raised).map(|(p, raised)| !raised && *p < least).collect();
        if !low.contains(&true) {
            return parts;
        }
        is_raised.iter_mut().zip(low).for_each(|(raised, low)| *raised |= low);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts(mix: &Mix, number: u64, batch: usize, domains: usize) -> Vec<usize> {
        let mut counts = vec![0; domains];
        (0..batch).for_each(|place| counts[mix.domain(number, place)] += 1);
        counts
    }

    #[test]
    fn shares_follow_their_law() {
        let files = [900, 90, 10];
        assert_eq!(Balance::Files.shares(&files, None), None);
        assert_eq!(Balance::Domains.shares(&files, None), Some(vec![1.0 / 3.0; 3]));
        let rare = Balance::InverseFrequency.shares(&files, None).unwrap();
        assert!((rare[2] / rare[1] - 9.0).abs() < 1e-12 && (rare[1] / rare[0] - 10.0).abs() < 1e-12);
        assert!((rare.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        let hard = Balance::Adaptive.shares(&files, Some(&[1.0, 2.0, 5.0])).unwrap();
        let want = [0.5 / 3.0 + 0.5 / 8.0, 0.5 / 3.0 + 1.0 / 8.0, 0.5 / 3.0 + 2.5 / 8.0];
        assert!(hard.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-12), "{hard:?}");
        for unknown in
            [None, Some(&[f64::NAN, 1.0, 1.0][..]), Some(&[0.0; 3]), Some(&[f64::INFINITY, 1.0, 1.0])]
        {
            let shares = Balance::Adaptive.shares(&files, unknown).unwrap();
            assert!(shares.iter().all(|s| (s - 1.0 / 3.0).abs() < 1e-12), "{unknown:?}: {shares:?}");
        }
    }

    #[test]
    fn a_batch_without_room_and_shares_without_meaning_are_refused() {
        let said = Mix::new(&[0.5, 0.5, 0.0], 5, 2).unwrap_err().to_string();
        assert!(said.contains("2 crops of each of 3 domains") && said.contains("batch of 5"), "{said}");
        for shares in [&[][..], &[0.0, 0.0], &[f64::NAN, 1.0], &[-0.1, 1.1], &[f64::INFINITY]] {
            assert!(Mix::new(shares, 8, 0).is_err(), "{shares:?}");
        }
    }

    proptest! {
        /// Every batch has its least of each domain and of no domain more than its part rounded up; over many batches each
        /// has its part to within what one batch can be off, which is far inside the bounds of a binomial draw.
        #[test]
        fn batches_have_their_share_of_each_domain(
            weights in prop::collection::vec(0.0f64..1.0, 1..7), spare in 0usize..20, least in 0usize..4, first in 0u64..u64::MAX / 2,
        ) {
            prop_assume!(weights.iter().sum::<f64>() > 1e-3);
            let (domains, batch) = (weights.len(), (weights.len() * least + spare).max(1));
            let mix = Mix::new(&weights, batch, least).unwrap();
            let parts = raised(&weights, batch as f64, least as f64);
            prop_assert!((parts.iter().sum::<f64>() - batch as f64).abs() < 1e-6);
            let (mut total, batches) = (vec![0; domains], 1000);
            for number in first..first + batches {
                let counts = counts(&mix, number, batch, domains);
                for (d, &count) in counts.iter().enumerate() {
                    prop_assert!(count >= least && count as f64 <= parts[d].ceil() + 1e-6, "{counts:?} for {parts:?}");
                    prop_assert!(count as f64 >= parts[d].floor() - 1e-6 - f64::from(parts[d].fract() < 1e-6), "{counts:?} for {parts:?}");
                    total[d] += count;
                }
            }
            for (count, part) in total.iter().zip(&parts) {
                let (mean, all) = (part * batches as f64, (batch * batches as usize) as f64);
                let deviation = (mean * (1.0 - mean / all)).sqrt();
                prop_assert!((*count as f64 - mean).abs() <= 3.0 * deviation + 8.0, "{count} for {mean}");
            }
        }
    }
}
