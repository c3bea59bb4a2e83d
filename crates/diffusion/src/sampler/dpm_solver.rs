//! Lu et al. 2022, DPM-Solver++: multistep orders 1 to 3, and its stochastic form of orders 1 and 2.
//!
//! The exponential integrator in lambda = ln(alpha / sigma): the linear part is exact, x0 along the way is
//! extrapolated from the estimates of earlier steps. The first steps have fewer of those and are of lower
//! order, as are the last ones where the steps are few.

use super::{Call, KEPT, Mix, Program};
use crate::Error;
use crate::level::{Level, Levels};

/// How the second order uses the slope of x0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Second {
    #[default]
    Midpoint,
    Heun,
}

/// How the third order uses the curvature of x0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Third {
    /// With half its weight, as the authors' multistep code and diffusers have it: a step then errs by h^3.
    #[default]
    Published,
    /// With all of it: a step errs by h^4, which is what third order means.
    Exact,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DpmSolver {
    pub order: usize,
    pub second: Second,
    pub third: Third,
    /// Solves the stochastic equation: SDE-DPM-Solver++.
    pub stochastic: bool,
    /// With fewer than 15 steps, the last two are of orders 2 and 1.
    pub lower_order_final: bool,
    /// The last step is always of order 1; one to no noise is anyway.
    pub euler_at_final: bool,
}

impl Default for DpmSolver {
    /// 2M, the usual choice.
    fn default() -> DpmSolver {
        DpmSolver {
            order: 2,
            second: Second::Midpoint,
            third: Third::Published,
            stochastic: false,
            lower_order_final: true,
            euler_at_final: false,
        }
    }
}

/// Fewer steps than this are few.
const FEW: usize = 15;

impl DpmSolver {
    /// The order of step `i` of `steps`.
    fn order_at(&self, i: usize, steps: usize, to: &Level) -> usize {
        let few = self.lower_order_final && steps < FEW;
        let left = steps - 1 - i;
        let most = match left {
            0 if self.euler_at_final || few || to.sigma == 0.0 => 1,
            1 if few => self.order.min(2),
            _ => self.order,
        };
        most.min(i + 1)
    }
}

/// # Errors
/// If the order is not from 1 to 3, or 3 and stochastic.
pub fn dpm_solver_pp(levels: &Levels, options: &DpmSolver) -> Result<Program, Error> {
    let most = if options.stochastic { 2 } else { 3 };
    if !(1..=most).contains(&options.order) {
        let what =
            if options.stochastic { "the order of SDE-DPM-Solver++" } else { "the order of DPM-Solver++" };
        let must = format!("from 1 to {most}");
        return Err(Error::Setting { what, got: options.order.to_string(), must });
    }
    let steps = levels.steps();
    let lambda = |i: usize| steps[i].from.lambda();
    let calls = steps.iter().enumerate().map(|(i, step)| {
        let (from, to) = (&step.from, &step.to);
        let h = to.lambda() - from.lambda();
        let order = options.order_at(i, steps.len(), to);
        // Ratios of earlier steps in lambda to this one.
        let r = |back: usize| (lambda(i + 1 - back) - lambda(i - back)) / h;
        let (decay, noise) = match options.stochastic {
            false => ((-h).exp(), 0.0),
            true => ((-2.0 * h).exp(), to.sigma * (1.0 - (-2.0 * h).exp()).sqrt()),
        };
        // What x0, its first and its second difference are multiplied by.
        let whole = to.alpha * (1.0 - decay);
        // Twice the way in lambda where half of it is noise.
        let way = if options.stochastic { 2.0 * h } else { h };
        let first = match (order, options.second) {
            (1, _) => 0.0,
            (2, Second::Midpoint) => 0.5 * whole,
            _ => to.alpha * (1.0 - (1.0 - decay) / way),
        };
        let weight = if options.third == Third::Exact { 2.0 } else { 1.0 };
        let second = if order == 3 { -weight * to.alpha * ((decay - 1.0 + h) / (h * h) - 0.5) } else { 0.0 };
        let mut x = Mix {
            x: to.sigma / from.sigma * if options.stochastic { (-h).exp() } else { 1.0 },
            x0: whole,
            noise,
            ..Mix::default()
        };
        match order {
            1 => {}
            2 => {
                let d = first / r(1);
                x.x0 += d;
                x.kept[0] -= d;
            }
            _ => {
                let (r0, r1) = (r(1), r(2));
                // D1_0 = (m0 - m1) / r0 and D1_1 = (m1 - m2) / r1, and what each is multiplied by.
                let more = (first * r0 + second) / (r0 + r1);
                let (d0, d1) = ((first + more) / r0, -more / r1);
                x.x0 += d0;
                x.kept[0] += d1 - d0;
                x.kept[1] -= d1;
            }
        }
        let mut kept = [Mix::default(); KEPT];
        kept[0].x0 = 1.0;
        kept[1].kept[0] = 1.0;
        Call { kept, ..Call::new(i, *from, *to, x) }
    });
    Ok(Program::new(levels, calls.collect()))
}
