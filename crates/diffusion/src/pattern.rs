//! The terms of a program's mixes that are used at all; the others are not built.

use crate::sampler::{Call, KEPT, Program, TERM_NAMES, TERMS};

/// What a call makes: x, then what is kept.
const ROWS: usize = 1 + KEPT;

/// How a term stands in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Term {
    Absent,
    /// With a factor that is always 1.
    Plain,
    /// With a factor that the call sets.
    Scaled,
}

/// What all calls of a program have in common.
pub(crate) struct Pattern {
    terms: [[Term; TERMS]; ROWS],
    /// Noise is added before the denoiser is asked.
    pub(crate) raises: bool,
    /// There is noise at all.
    pub(crate) draws: bool,
    /// Noise is scaled by the denoiser's learned variance.
    pub(crate) learned: bool,
}

fn rows(call: &Call) -> [[f64; TERMS]; ROWS] {
    [call.x.terms(), call.kept[0].terms(), call.kept[1].terms()]
}

impl Pattern {
    pub(crate) fn of(program: &Program) -> Pattern {
        let term = |row: usize, term: usize| {
            let factors = || program.calls().iter().map(|c| rows(c)[row][term]);
            if factors().all(|f| f == 0.0) {
                Term::Absent
            } else if factors().all(|f| f == 1.0) {
                Term::Plain
            } else {
                Term::Scaled
            }
        };
        let terms = std::array::from_fn(|r| std::array::from_fn(|t| term(r, t)));
        let mut pattern = Pattern {
            terms,
            raises: program.calls().iter().any(|c| c.raise != 0.0),
            draws: program.stochastic(),
            learned: program.learned_variance() && program.stochastic(),
        };
        // What nobody reads is not kept; the later slot first, because it may be all that reads the other.
        for slot in (0..KEPT).rev() {
            if !pattern.keeps(slot) {
                pattern.terms[1 + slot] = [Term::Absent; TERMS];
            }
        }
        pattern
    }

    pub(crate) fn term(&self, row: usize, term: usize) -> Term {
        self.terms[row][term]
    }

    /// Whether anything reads this slot.
    pub(crate) fn keeps(&self, slot: usize) -> bool {
        self.terms.iter().any(|row| row[TERMS - KEPT + slot] != Term::Absent)
    }

    /// The factors that a call sets, by their inputs' names.
    pub(crate) fn factors(&self, call: &Call) -> Vec<(String, f64)> {
        let rows = rows(call);
        let all = (0..ROWS).flat_map(|row| (0..TERMS).map(move |term| (row, term)));
        all.filter(|&(row, term)| self.terms[row][term] == Term::Scaled)
            .map(|(row, term)| (factor_name(row, term), rows[row][term]))
            .collect()
    }
}

/// The input that a term's factor is set by.
pub(crate) fn factor_name(row: usize, term: usize) -> String {
    let to = ["x", TERM_NAMES[TERMS - KEPT], TERM_NAMES[TERMS - KEPT + 1]][row];
    format!("sample.{to}_from_{}", TERM_NAMES[term])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Levels;
    use crate::sampler::{Churn, DpmSolver, dpm_solver_pp, heun};

    #[test]
    fn a_solver_keeps_as_many_estimates_as_its_order_needs() {
        let levels = Levels::karras([0.1, 10.0], 7.0, 20).unwrap();
        for order in 1..=3 {
            let solver = DpmSolver { order, ..DpmSolver::default() };
            let pattern = Pattern::of(&dpm_solver_pp(&levels, &solver).unwrap());
            assert_eq!([0, 1].map(|slot| pattern.keeps(slot)), [order > 1, order > 2], "order {order}");
            assert!(!pattern.draws && !pattern.raises);
        }
        let pattern = Pattern::of(&heun(&levels, &Churn::NONE).unwrap());
        assert_eq!([0, 1].map(|slot| pattern.keeps(slot)), [true, false]);
    }
}
