//! Assigns each moment of a thread to a phase.
//!
//! Spans are nested. A moment belongs to the innermost phase around it, unless an outer one includes everything inside it
//! (the forward pass of a validation is validation). Moments outside all phases belong to none.

use crate::{Phase, Span, What, Window};
use std::collections::BTreeMap;

/// Seconds of one row by phase, and how often each was entered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    pub by_phase: BTreeMap<Phase, (f64, usize)>,
}

impl Times {
    pub fn total(&self) -> f64 {
        self.by_phase.values().map(|(seconds, _)| seconds).sum()
    }
}

/// A span with its ends inside a window.
#[derive(Clone, Copy)]
pub(crate) struct Clipped {
    pub what: What,
    pub start: u64,
    pub end: u64,
    depth: u32,
}

/// The parts of spans that lie in windows, parents before children.
pub(crate) fn clipped(spans: &[Span], windows: &[Window]) -> Vec<Clipped> {
    let mut all: Vec<Clipped> = windows
        .iter()
        .filter_map(|w| Some((w.start, w.end?)))
        .flat_map(|(from, to)| {
            spans.iter().filter(move |s| s.end > from && s.start < to).map(move |s| Clipped {
                what: s.what,
                start: s.start.max(from),
                end: s.end.min(to),
                depth: s.depth,
            })
        })
        .collect();
    all.sort_by_key(|s| (s.start, s.depth, std::cmp::Reverse(s.end)));
    all
}

/// Calls `each` with the spans around every span, itself last, and the seconds that are its own and not its children's.
pub(crate) fn own_times(spans: &[Clipped], mut each: impl FnMut(&[What], f64)) {
    let mut open: Vec<(Clipped, u64)> = vec![];
    let close = |open: &mut Vec<(Clipped, u64)>, each: &mut dyn FnMut(&[What], f64)| {
        let path: Vec<What> = open.iter().map(|(s, _)| s.what).collect();
        let Some((span, inside)) = open.pop() else { return };
        let took = span.end - span.start;
        if let Some((_, parents)) = open.last_mut() {
            *parents += took;
        }
        each(&path, took.saturating_sub(inside) as f64 * 1e-9);
    };
    for span in spans {
        while open.last().is_some_and(|(s, _)| s.end <= span.start || s.depth >= span.depth) {
            close(&mut open, &mut each);
        }
        open.push((*span, 0));
    }
    while !open.is_empty() {
        close(&mut open, &mut each);
    }
}

/// The phase that a span inside these counts as.
fn belongs(path: &[What]) -> Option<Phase> {
    let mut phases = path.iter().filter_map(|w| match w {
        What::Phase(phase) => Some(*phase),
        What::Group(_) => None,
    });
    phases.clone().find(|p| p.takes_all()).or(phases.next_back())
}

/// The times of one row.
pub(crate) fn times(spans: &[Span], windows: &[Window]) -> Times {
    let mut times = Times::default();
    own_times(&clipped(spans, windows), |path, seconds| {
        if let Some(phase) = belongs(path) {
            let entry = times.by_phase.entry(phase).or_default();
            entry.0 += seconds;
            entry.1 += usize::from(matches!(path.last(), Some(What::Phase(p)) if *p == phase));
        }
    });
    times
}
