//! Folded stacks for flame graphs (flamegraph.pl, inferno, speedscope): one line for each stack, with its frames from the
//! outside in and its own microseconds.

use crate::attribution::{clipped, own_times};
use crate::{Timeline, lock};
use std::collections::BTreeMap;

impl Timeline {
    /// The stacks of all threads, and of the device's nodes by their layers.
    pub fn folded_stacks(&self) -> String {
        let mut sums: BTreeMap<String, f64> = BTreeMap::new();
        let windows = lock(&self.0.windows).clone();
        for row in lock(&self.0.rows).iter() {
            own_times(&clipped(&lock(&row.spans), &windows), |path, seconds| {
                let frames = std::iter::once(row.name.as_str()).chain(path.iter().map(|w| w.name()));
                let stack = frames.map(plain).collect::<Vec<_>>().join(";");
                *sums.entry(stack).or_default() += seconds;
            });
        }
        for span in lock(&self.0.nodes).iter() {
            let info = &span.nodes[span.node];
            let layers = info.scope.split('.').filter(|s| !s.is_empty());
            let frames = ["device", info.phase.name()].into_iter().chain(layers).chain([info.op]);
            let stack = frames.map(plain).collect::<Vec<_>>().join(";");
            *sums.entry(stack).or_default() += (span.end - span.start) as f64 * 1e-9;
        }
        let line = |(stack, seconds): (String, f64)| {
            let microseconds = (seconds * 1e6).round() as u64;
            (microseconds > 0).then(|| format!("{stack} {microseconds}\n"))
        };
        sums.into_iter().filter_map(line).collect()
    }
}

/// A frame without the signs that separate frames and counts.
fn plain(frame: &str) -> String {
    frame.replace([';', ' '], "_")
}
