//! The domain of each sample of a run if domains are balanced.
//!
//! Shares of domains that follow losses do so with a delay: the losses of one period of iterations decide the draws of the
//! period after the next. The domain of a sample is therefore known a whole period in advance, batches are prepared by any
//! number of threads, and a resumed run draws as if it had never stopped.

use super::Source;
use crate::config::DataConfig;
use crate::error::{Result, setting};
use clearshot_image::dataset::{Balance, Mix};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Where a run, or a stage of it, begins to draw.
#[derive(Clone, Copy, Debug)]
pub struct From {
    pub iteration: u64,
    /// The number of the first sample.
    pub sample: u64,
    /// Samples of an iteration.
    pub images: usize,
}

/// See the module.
pub struct Draws {
    law: Balance,
    files: Vec<usize>,
    least: usize,
    /// Iterations of a period.
    every: u64,
    from: From,
    /// By the number of the period; the one of 0 holds for all where shares do not follow anything.
    mixes: Mutex<BTreeMap<u64, Mix>>,
}

impl Draws {
    /// The draws of a data set, if there are domains to balance. `shares` are those of the present period and the next,
    /// where they follow the losses and the run has come that far; otherwise they become those to begin with.
    ///
    /// # Errors
    /// If a batch has no room for as many of each domain as are asked for.
    pub fn new(
        config: &DataConfig,
        source: &dyn Source,
        from: From,
        shares: &mut Vec<Vec<f64>>,
    ) -> Result<Option<Draws>> {
        let files = source.files_of_domains();
        let law = config.balance;
        let Some(first) = law.shares(&files, None).filter(|_| files.len() > 1) else { return Ok(None) };
        let every = config.balance_every;
        let follows = law == Balance::Adaptive;
        if follows && shares.iter().filter(|s| s.len() == files.len()).count() != 2 {
            *shares = vec![first.clone(); 2];
        }
        let (domains, images) = (files.len(), from.images);
        let least = match config.least {
            Some(least) if least * domains > images => {
                let needed = format!(
                    "{domains} domains in batches of {images}: a larger trainer.batch, or data.least={} or below",
                    images / domains
                );
                return setting("data.least", least, needed);
            }
            Some(least) => least,
            None => usize::from(domains <= images),
        };
        let mix = |shares: &[f64]| Mix::new(shares, images, least);
        let mixes = match &shares[..] {
            [present, next] if follows => {
                let period = from.iteration / every;
                [(period, mix(present)?), (period + 1, mix(next)?)].into()
            }
            _ => [(0, mix(&first)?)].into(),
        };
        Ok(Some(Draws { law, files, least, every, from, mixes: Mutex::new(mixes) }))
    }

    /// Domains whose losses draws follow.
    pub fn followed(&self) -> Option<usize> {
        (self.law == Balance::Adaptive).then_some(self.files.len())
    }

    /// How many iterations ahead domains are known at least.
    pub fn ahead(&self) -> u64 {
        if self.law == Balance::Adaptive { self.every } else { u64::MAX }
    }

    /// The domain of a sample.
    pub fn domain(&self, number: u64) -> usize {
        let images = self.from.images as u64;
        let since = number - self.from.sample;
        let iteration = self.from.iteration + since / images;
        let period = if self.law == Balance::Adaptive { iteration / self.every } else { 0 };
        let mixes = self.mixes.lock().unwrap_or_else(|p| p.into_inner());
        let mix = mixes.get(&period).expect("nothing is drawn before its period's shares are known");
        mix.domain(iteration, (since % images) as usize)
    }

    /// Whether `iteration` iterations end a period whose losses are to be followed.
    pub fn is_due(&self, iteration: u64) -> bool {
        self.law == Balance::Adaptive && iteration.is_multiple_of(self.every)
    }

    /// At the end of a period: draws of the next but one follow the mean losses of this one. Of a domain without any, or with
    /// one that is NaN, nothing is learned, and the shares of the next period are kept for that one too.
    ///
    /// # Errors
    /// None that could be known of beforehand.
    pub fn follow(&self, iteration: u64, losses: &[f64], shares: &mut Vec<Vec<f64>>) -> Result<()> {
        let known = losses.len() == self.files.len() && losses.iter().all(|l| l.is_finite() && *l >= 0.0);
        let next = shares.last().cloned().unwrap_or_default();
        let found =
            self.law.shares(&self.files, Some(losses)).filter(|_| known).unwrap_or_else(|| next.clone());
        let mix = Mix::new(&found, self.from.images, self.least)?;
        *shares = vec![next, found];
        let period = iteration / self.every;
        let mut mixes = self.mixes.lock().unwrap_or_else(|p| p.into_inner());
        mixes.retain(|p, _| *p >= period);
        mixes.insert(period + 1, mix);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Sample;

    /// Domains with so many files, without any image.
    struct Counted(Vec<usize>);

    impl Source for Counted {
        fn sample(&self, number: u64, _: Option<usize>) -> Result<Sample> {
            panic!("sample {number} is not asked for")
        }

        fn domains(&self) -> Vec<String> {
            self.0.iter().map(usize::to_string).collect()
        }

        fn files_of_domains(&self) -> Vec<usize> {
            self.0.clone()
        }

        fn channels(&self) -> [usize; 2] {
            [1, 1]
        }
    }

    fn config(balance: Balance, least: Option<usize>) -> DataConfig {
        DataConfig { balance, least, balance_every: 10, ..DataConfig::default() }
    }

    fn counts(draws: &Draws, numbers: std::ops::Range<u64>) -> Vec<usize> {
        let mut counts = vec![0; draws.files.len()];
        numbers.for_each(|n| counts[draws.domain(n)] += 1);
        counts
    }

    #[test]
    fn every_iteration_has_each_domain_and_shares_hold_over_many() {
        let source = Counted(vec![900, 90, 10]);
        let from = From { iteration: 7, sample: 56, images: 8 };
        for (balance, least, share) in [
            (Balance::Domains, None, [1.0 / 3.0; 3]),
            // 1/900 : 1/90 : 1/10, the first two raised to one of eight.
            (Balance::InverseFrequency, None, [0.125, 0.125, 0.75]),
            (Balance::InverseFrequency, Some(2), [0.25, 0.25, 0.5]),
            (Balance::InverseFrequency, Some(0), [1.0 / 101.0, 10.0 / 101.0, 90.0 / 101.0]),
        ] {
            let draws = Draws::new(&config(balance, least), &source, from, &mut vec![]).unwrap().unwrap();
            for i in 0..50 {
                let counts = counts(&draws, 56 + 8 * i..64 + 8 * i);
                assert!(counts.iter().all(|c| *c >= least.unwrap_or(1)), "{balance:?}: {counts:?}");
            }
            let counts = counts(&draws, 56..56 + 8000);
            assert!(
                counts.iter().zip(share).all(|(c, s)| (*c as f64 - 8000.0 * s).abs() < 5.0),
                "{counts:?}"
            );
        }
        assert!(Draws::new(&config(Balance::Files, None), &source, from, &mut vec![]).unwrap().is_none());
        let one = Counted(vec![5]);
        assert!(Draws::new(&config(Balance::Domains, None), &one, from, &mut vec![]).unwrap().is_none());
        let said = Draws::new(&config(Balance::Domains, Some(3)), &source, from, &mut vec![]).err().unwrap();
        assert!(
            said.to_string().contains("data.least") && said.to_string().contains("data.least=2"),
            "{said}"
        );
        // More domains than a batch has places take turns.
        let many = Counted(vec![1; 20]);
        let draws = Draws::new(&config(Balance::Domains, None), &many, from, &mut vec![]).unwrap().unwrap();
        assert!(counts(&draws, 56..56 + 8000).iter().all(|c| (395..=405).contains(c)));
    }

    #[test]
    fn draws_follow_losses_after_a_period_and_resuming_changes_none() {
        let (config, source) = (config(Balance::Adaptive, None), Counted(vec![5, 500]));
        let from = From { iteration: 0, sample: 0, images: 16 };
        let mut shares = vec![];
        let draws = Draws::new(&config, &source, from, &mut shares).unwrap().unwrap();
        assert_eq!(counts(&draws, 0..16 * 20), [160, 160]);
        assert!(!draws.is_due(9) && draws.is_due(10));
        draws.follow(10, &[3.0, 1.0], &mut shares).unwrap();
        assert_eq!(shares, [vec![0.5, 0.5], vec![0.625, 0.375]]);
        // The period under way is as it was; the one after it has 10 of 16.
        assert_eq!(counts(&draws, 16 * 10..16 * 20), [80, 80]);
        assert_eq!(counts(&draws, 16 * 20..16 * 30), [100, 60]);
        draws.follow(20, &[f64::NAN, 1.0], &mut shares).unwrap();
        assert_eq!(shares, [vec![0.625, 0.375], vec![0.625, 0.375]]);
        draws.follow(30, &[0.0, 1.0], &mut shares).unwrap();
        // Gone on with in the middle of a period, and with other batches.
        let again = From { iteration: 33, sample: 16 * 33, images: 16 };
        let later = Draws::new(&config, &source, again, &mut shares.clone()).unwrap().unwrap();
        assert!((16 * 33..16 * 50).all(|n| draws.domain(n) == later.domain(n)));
        assert_eq!(counts(&later, 16 * 40..16 * 50), [40, 120]);
        let small = From { iteration: 35, sample: 16 * 33 + 8, images: 4 };
        let later = Draws::new(&config, &source, small, &mut shares).unwrap().unwrap();
        let first = 16 * 33 + 8 + 4 * 5;
        assert_eq!(counts(&later, first..first + 40), [10, 30]);
    }
}
