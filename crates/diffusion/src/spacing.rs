//! The timesteps of a schedule that a sampler uses.
//!
//! Every spacing returns exactly the requested number of distinct timesteps, descending and within the schedule, or an error.

use crate::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spacing {
    /// Multiples of T / S from `offset` on; the last is `offset`. diffusers' `leading`.
    Leading { offset: usize },
    /// From T - 1 to 0 in equal parts, rounded. diffusers' `linspace`, and what the ancestors call uniform.
    Linspace,
    /// From T - 1 down by T / S, rounded; never 0 unless S = T. diffusers' `trailing`.
    Trailing,
    /// As `Leading` for one more step, without the last: the step after the last one goes to no noise.
    /// diffusers' `leading` for DPM-Solver.
    LeadingOpen { offset: usize },
    /// As `Linspace` for one more step, without the last. diffusers' `linspace` for DPM-Solver.
    LinspaceOpen,
    /// As `Linspace`, not rounded. diffusers' `linspace` for Euler and Heun.
    LinspaceReal,
    /// Squares of equal parts from T - 1 to 0: small steps where there is little noise.
    Quadratic,
}

impl Spacing {
    /// `steps` timesteps of a schedule of `total`, descending.
    ///
    /// # Errors
    /// If there are no steps or more than the schedule has, or a timestep lies outside it.
    pub fn timesteps(self, total: usize, steps: usize) -> Result<Vec<f64>, Error> {
        let refuse =
            |got: String, must: String| Err(Error::Setting { what: "the number of steps", got, must });
        let open = matches!(self, Spacing::LeadingOpen { .. } | Spacing::LinspaceOpen);
        let most = if open { total.saturating_sub(1) } else { total };
        if steps == 0 || steps > most {
            return refuse(steps.to_string(), format!("from 1 to {most} for a schedule of {total}"));
        }
        let parts = |points: usize| {
            let last = points - 1;
            move |i: usize| if last == 0 { 0.0 } else { (total - 1) as f64 * i as f64 / last as f64 }
        };
        // Ascending; the most noise is last.
        let ascending: Vec<f64> = match self {
            Spacing::Leading { offset } => {
                (0..steps).map(|i| (i * (total / steps)) as f64 + offset as f64).collect()
            }
            Spacing::LeadingOpen { offset } => {
                (1..=steps).map(|i| (i * (total / (steps + 1))) as f64 + offset as f64).collect()
            }
            Spacing::Linspace => (0..steps).map(|i| parts(steps)(i).round_ties_even()).collect(),
            Spacing::LinspaceOpen => (1..=steps).map(|i| parts(steps + 1)(i).round_ties_even()).collect(),
            Spacing::LinspaceReal => (0..steps).map(parts(steps)).collect(),
            Spacing::Trailing => {
                let ratio = total as f64 / steps as f64;
                (0..steps).rev().map(|i| (total as f64 - i as f64 * ratio).round_ties_even() - 1.0).collect()
            }
            Spacing::Quadratic => quadratic(total, steps),
        };
        let last = ascending[steps - 1];
        if last > (total - 1) as f64 {
            let must = format!("such that timestep {last} lies below {total}; take a smaller offset");
            return refuse(format!("{steps} with an offset"), must);
        }
        Ok(ascending.into_iter().rev().collect())
    }
}

fn quadratic(total: usize, steps: usize) -> Vec<f64> {
    if steps == 1 {
        return vec![(total - 1) as f64];
    }
    let mut at = -1.0f64;
    (0..steps)
        .map(|i| {
            let part = i as f64 / (steps - 1) as f64;
            // Where squares are closer than whole numbers, each takes the next.
            at = ((total - 1) as f64 * part * part).round().max(at + 1.0);
            at
        })
        .collect()
}
