//! Computes gain, offset and read noise from the noise line. Parameters that it does not determine are taken from known
//! ones or by a convention, with their possible range.

use super::blind::{BlindFit, DARKEST_NORMAL, Doubt, Known, NoiseLine, Point, SEEN};
use crate::correlation::Correlation;

/// Where no gain is seen: the assumed share of the steepest slope that fits.
const UNSEEN: f64 = 0.7;
/// The least share of the variance that shot noise could have at the brightest level.
const UNSEEN_SHARE: f64 = 0.01;

/// The most electrons that an estimated gain gives the range of an image. Without noise there would be no limit, and restorers could not compute with them.
const MOST_ELECTRONS: f64 = 1e10;

/// One level whose variance is known, with the offset under it: all that an evenly lit image tells.
struct Middle {
    /// Above the offset.
    level: f64,
    variance: f64,
    error: f64,
}

impl Middle {
    /// None where there is no light above the offset, or no noise.
    fn of(line: &NoiseLine, offset: f64, rounding: f64) -> Option<Middle> {
        let (level, variance) = (line.pivot - offset, line.at_pivot - rounding);
        (level > 0.0 && variance > 0.0).then_some(Middle { level, variance, error: line.at_pivot_error })
    }

    /// The growth that explains the variance beside this read noise in electrons, and its error: the positive root of
    /// `a level + a^2 read_noise^2 = variance`, written so that no read noise is no exception.
    fn slope(&self, read_noise: f64) -> (f64, f64) {
        let root = (self.level.powi(2) + 4.0 * read_noise.powi(2) * self.variance).sqrt();
        (2.0 * self.variance / (self.level + root), self.error / root)
    }
}

/// What the blocks have told.
pub(super) struct Seen {
    pub line: NoiseLine,
    /// The largest slope that fits equally well.
    pub steepest: f64,
    pub levels: [f64; 2],
    /// A value below which there is hardly a pixel: dark regions may be darker than all smooth ones.
    pub darkest: f64,
    pub brightest: f64,
    pub blocks: usize,
    /// The variance that rounding adds.
    pub rounding: f64,
    pub saturation: Option<f64>,
    pub correlation: Correlation,
    pub correlation_error: f64,
    pub points: Vec<Point>,
}

impl Seen {
    /// Fills in the parameters that the line does not determine.
    pub fn resolve(self, known: &Known, mut doubts: Vec<Doubt>) -> BlindFit {
        let Seen { line, steepest, levels, brightest, blocks, rounding, saturation, .. } = self;
        let darkest = (line.variance(levels[0]) - rounding).max(0.0);
        let grows = known.gain.is_some() || (line.slope > SEEN * line.slope_error && line.slope > 0.0);
        // Where noise does not grow measurably and the offset is known, shot noise is at most all noise of the middle level.
        let middle = known.offset.filter(|_| !grows).and_then(|offset| Middle::of(&line, offset, rounding));
        let alone = middle.as_ref().zip(known.read_noise).map(|(m, read_noise)| m.slope(read_noise));
        let slope_seen = grows || alone.is_some();
        // An offset above what is there cuts it off.
        let reach = DARKEST_NORMAL * line.deviation(levels[0]);
        let below = self.darkest - reach;
        let below = if self.darkest >= 0.0 { below.max(0.0) } else { below };
        // ADU per electron, and its error.
        let (a, a_error, gentlest, steepest) = if slope_seen {
            let (a, error) = alone.unwrap_or((line.slope, line.slope_error));
            (a, error, (a - 2.0 * error).max(a / 10.0), a + 2.0 * error)
        } else {
            doubts.push(Doubt::GainNotSeen);
            let variance = line.at_pivot.max(f64::MIN_POSITIVE);
            let least = UNSEEN_SHARE * variance / (brightest - levels[0]).max(variance.sqrt());
            // Slopes up to the steepest fit as well; without any such bound, all noise of the brightest place is shot noise.
            let most = if steepest.is_finite() { steepest } else { least / UNSEEN_SHARE }.max(2.0 * least);
            let most = middle.as_ref().map_or(most, |m| most.min(m.slope(0.0).0));
            // No more shot noise in the darkest smooth place than all the noise that is there.
            let light = levels[0] - known.offset.unwrap_or(below);
            let all = if light > 0.0 && darkest > 0.0 { darkest / light } else { f64::INFINITY };
            let a = all.min(most * UNSEEN);
            (a, 0.0, least.min(a), most)
        };
        let quietest =
            if known.gain.is_none() { (brightest - levels[0]).max(0.0) / MOST_ELECTRONS } else { 0.0 };
        let a = a.max(quietest);
        let gain = 1.0 / a;
        // The square of the read noise is the line's variance at the offset, in electrons, and has twice this error.
        let square = |offset: f64| {
            let at = match &middle {
                Some(middle) => middle.variance - a * middle.level,
                None => darkest - a * (levels[0] - offset),
            };
            gain * gain * at.max(0.0)
        };
        let spread = |offset: f64| {
            if !slope_seen {
                return 2.0 * gain * gain * line.at_pivot_error;
            }
            2.0 * (line.variance_error(offset) * gain * gain).hypot(2.0 * square(offset) * a_error / a)
        };
        // Between the level where the line says that there is no noise and the darkest level.
        let first = if slope_seen { levels[0] - darkest / a } else { levels[0] };
        let error = (line.variance_error(levels[0]) / a).hypot(darkest / (a * a) * a_error);
        let lowest = if slope_seen { first - 2.0 * error } else { levels[0] };
        let (offset, offset_range) = match (known.offset, known.read_noise) {
            (Some(offset), _) => (offset, [offset; 2]),
            (None, Some(sigma)) if slope_seen => {
                let offset = first + sigma * sigma * a;
                (offset, [offset - 2.0 * error, offset + 2.0 * error])
            }
            _ => {
                doubts.push(Doubt::OffsetAssumed);
                // No offset would be as good, but with it the line would have to be flatter: as near to that as it goes.
                let none = lowest <= 0.0 && levels[0] >= 0.0;
                let offset = match slope_seen {
                    true if none => first.max(0.0),
                    true => ((first + levels[0]) / 2.0).min(self.darkest + reach),
                    // Nothing tells it: below all pixels.
                    false => below,
                };
                (offset, [lowest.min(offset), levels[0]])
            }
        };
        let read_noise_range = match known.read_noise {
            Some(sigma) => [sigma; 2],
            None => {
                let [low, high] = offset_range;
                [square(low) - spread(low), square(high) + spread(high)].map(|s| s.max(0.0).sqrt())
            }
        };
        BlindFit {
            line,
            gain,
            gain_error: if slope_seen { gain * a_error / a } else { f64::INFINITY },
            gain_range: [1.0 / steepest, 1.0 / gentlest],
            offset,
            offset_range,
            read_noise: known.read_noise.unwrap_or_else(|| square(offset).sqrt()),
            read_noise_range,
            saturation,
            correlation: self.correlation,
            correlation_error: self.correlation_error,
            blocks,
            levels,
            points: self.points,
            doubts,
        }
    }
}
