//! Values that depend on the progress of a run: the learning rate, the decay of the average, stages of growth.

use crate::config::{Count, GrowthConfig, RateShape, ScheduleConfig, TrainerConfig};

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// Iterations done.
    pub iteration: u64,
    /// Iterations in all, once they are known.
    pub total: Option<u64>,
    /// Iterations since a stage began, if it is not the first.
    pub since_switch: Option<u64>,
}

/// The share of the learning rate for the next iteration.
pub fn rate(config: &ScheduleConfig, growth: &GrowthConfig, at: &Place) -> f64 {
    let rising = |done: u64, over: u64| if done < over { (done + 1) as f64 / over as f64 } else { 1.0 };
    let warm = rising(at.iteration, config.warm_up);
    let again = at.since_switch.map_or(1.0, |since| rising(since, growth.warm_up));
    warm * again * main(config, at)
}

fn main(config: &ScheduleConfig, at: &Place) -> f64 {
    let Some(total) = at.total else { return 1.0 };
    let refinement = (total as f64 * config.refinement) as u64;
    let end = total - refinement.min(total);
    if refinement > 0 && at.iteration >= end {
        return config.refinement_rate;
    }
    // Cosines begin where warming up ends.
    let start = config.warm_up.min(end);
    let way = (at.iteration.saturating_sub(start)) as f64 / (end - start).max(1) as f64;
    let cosine = |way: f64| {
        let half = 0.5 + 0.5 * (std::f64::consts::PI * way.min(1.0)).cos();
        config.floor + (1.0 - config.floor) * half
    };
    match config.shape {
        RateShape::Constant => 1.0,
        RateShape::Cosine => cosine(way),
        RateShape::Restarts => cosine((way * config.cycles as f64).fract()),
    }
}

/// The share of the average that is kept in an iteration of so many images: half of it after `half_life` images, and
/// less in the beginning, min(d, (1 + n) / (10 + n)).
pub fn ema_decay(half_life: f64, images: usize, iteration: u64) -> f64 {
    let n = iteration as f64;
    0.5f64.powf(images as f64 / half_life).min((1.0 + n) / (10.0 + n))
}

/// The share of itself that a teacher keeps in the next iteration: from the first of these to the last, linearly over all iterations.
pub fn momentum([first, last]: [f64; 2], at: &Place) -> f64 {
    let way = at.total.map_or(0.0, |total| (at.iteration as f64 / total.max(1) as f64).min(1.0));
    first + (last - first) * way
}

/// Crops of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stage {
    pub size: usize,
    /// The share of all iterations at which it ends at the latest.
    pub end: f64,
}

/// The stages of a run; one, where crops do not grow.
pub fn stages(config: &TrainerConfig) -> Vec<Stage> {
    if config.growth.stages.is_empty() {
        return vec![Stage { size: config.crop, end: 1.0 }];
    }
    let mut end = 0.0;
    let mut stages: Vec<Stage> = config
        .growth
        .stages
        .iter()
        .map(|s| {
            end += s.share;
            Stage { size: s.size, end }
        })
        .collect();
    if let Some(last) = stages.last_mut() {
        last.end = 1.0;
    }
    stages
}

/// Images of an iteration at a stage: as many more as the crops' area is smaller than in the end.
pub fn batch_of(base: usize, config: &TrainerConfig, size: usize) -> usize {
    let factor = (config.crop as f64 / size as f64).powi(2);
    let wanted = ((base as f64 * factor).round() as usize).min(config.growth.most.max(base));
    (wanted / config.accumulate).max(1) * config.accumulate
}

/// The batch that was asked for, if it was a number.
pub fn asked_batch(config: &TrainerConfig) -> Option<usize> {
    match config.batch {
        Count::Number(n) => Some(n),
        Count::Word(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::StageConfig;

    fn at(iteration: u64, total: u64) -> Place {
        Place { iteration, total: Some(total), since_switch: None }
    }

    #[test]
    fn rates_rise_fall_and_refine() {
        let growth = GrowthConfig::default();
        let config = ScheduleConfig {
            warm_up: 10,
            floor: 0.1,
            refinement: 0.2,
            refinement_rate: 0.05,
            ..ScheduleConfig::default()
        };
        let rate_at = |c: &ScheduleConfig, i| rate(c, &growth, &at(i, 110));
        assert!((rate_at(&config, 0) - 0.1).abs() < 1e-12);
        assert!((rate_at(&config, 10) - 1.0).abs() < 1e-12);
        // Half of the way from 10 to 88, where refinement begins.
        assert!((rate_at(&config, 49) - 0.55).abs() < 1e-12);
        assert_eq!(rate_at(&config, 88), 0.05);
        let restarts = ScheduleConfig {
            shape: RateShape::Restarts,
            refinement: 0.0,
            warm_up: 0,
            cycles: 2,
            ..config.clone()
        };
        assert_eq!((rate_at(&restarts, 0), rate_at(&restarts, 55)), (1.0, 1.0));
        assert!(rate_at(&restarts, 54) < 0.11);
        let unknown = Place { iteration: 500, total: None, since_switch: None };
        assert_eq!(rate(&config, &growth, &unknown), 1.0);
        let switched = Place { since_switch: Some(4), total: None, ..unknown };
        assert_eq!(rate(&config, &growth, &switched), 0.25);
    }

    #[test]
    fn averages_halve_by_images_and_begin_faster() {
        let decay = ema_decay(1000.0, 10, 1_000_000);
        assert!((decay.powi(100) - 0.5).abs() < 1e-12);
        assert_eq!(ema_decay(1e6, 10, 0), 0.1);
        assert_eq!(ema_decay(1e6, 10, 8), 0.5);
    }

    #[test]
    fn batch_times_area_is_constant_up_to_the_most() {
        let growth = GrowthConfig {
            stages: [32, 64, 96, 128].map(|size| StageConfig { size, share: 0.25 }).into(),
            most: 512,
            ..GrowthConfig::default()
        };
        let config = TrainerConfig { crop: 128, growth, accumulate: 2, ..TrainerConfig::default() };
        let of = |size| batch_of(16, &config, size);
        assert_eq!([32, 64, 96, 128].map(of), [256, 64, 28, 16]);
        let few =
            TrainerConfig { growth: GrowthConfig { most: 100, ..config.growth.clone() }, ..config.clone() };
        assert_eq!(batch_of(16, &few, 32), 100);
        let stages = stages(&config);
        assert_eq!(stages.iter().map(|s| s.end).collect::<Vec<_>>(), [0.25, 0.5, 0.75, 1.0]);
    }
}
