//! What was compared, how far off it was, and the table at the end.
//!
//! Lines go to the error stream itself, not through the test harness's capture, so that a run that
//! passes also says what it did and what it left out.

use clearshot_tensor::Tensor;
use std::collections::BTreeMap;
use std::io::Write;

/// What kind of number was compared; each has its limit on the relative L2 error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    OpOutput,
    OpGradient,
    UNetOutput,
    UNetGradient,
    Loss,
    GradientNorm,
    TrainedParameters,
    /// What training added to parameters; the engine's precision has a say in its limit.
    TrainedChange,
    Schedule,
    Trajectory,
    /// The end of a trajectory that was computed in f64 on both sides.
    ExactEnd,
    Objective,
}

impl Class {
    pub fn limit(self) -> f64 {
        match self {
            Class::OpOutput => 2e-5,
            Class::OpGradient => 5e-5,
            Class::UNetOutput => 5e-5,
            Class::UNetGradient => 2e-4,
            Class::Loss => 1e-4,
            Class::GradientNorm => 1e-3,
            Class::TrainedParameters => 1e-3,
            Class::TrainedChange => 5e-3,
            Class::Schedule => 1e-6,
            Class::Trajectory => 2e-5,
            Class::ExactEnd => 1e-6,
            Class::Objective => 1e-6,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Class::OpOutput => "op output",
            Class::OpGradient => "op gradient",
            Class::UNetOutput => "unet output",
            Class::UNetGradient => "unet gradient",
            Class::Loss => "training loss",
            Class::GradientNorm => "gradient norm",
            Class::TrainedParameters => "trained parameters",
            Class::TrainedChange => "trained change",
            Class::Schedule => "schedule",
            Class::Trajectory => "trajectory",
            Class::ExactEnd => "exact end",
            Class::Objective => "objective",
        }
    }
}

/// The comparisons of one case.
#[derive(Default)]
pub struct Checks {
    /// Class, what, error, limit.
    done: Vec<(Class, String, f64, f64)>,
}

impl Checks {
    /// No limit is less than this.
    pub fn with_tolerance(mut self, tolerance: Option<f64>) -> Checks {
        self.done.iter_mut().for_each(|c| c.3 = c.3.max(tolerance.unwrap_or(0.0)));
        self
    }

    /// What is beyond its limit.
    pub fn failed(&self) -> Vec<&str> {
        // What is not a number is not within it.
        let beyond = |c: &&(Class, String, f64, f64)| c.2.is_nan() || c.2 > c.3;
        self.done.iter().filter(beyond).map(|c| c.1.as_str()).collect()
    }

    /// Records an error with a limit of its own.
    pub fn limited(&mut self, class: Class, what: impl Into<String>, error: f64, limit: f64) {
        self.done.push((class, what.into(), error, limit));
    }

    /// Records a relative error that was computed elsewhere.
    pub fn error(&mut self, class: Class, what: impl Into<String>, error: f64) {
        self.limited(class, what, error, class.limit());
    }

    /// Compares whole tensors; another shape is an infinite error.
    pub fn tensor(&mut self, class: Class, what: impl Into<String>, got: &Tensor, truth: &Tensor) {
        let same = got.shape() == truth.shape();
        let error = if same { relative_error(&got.to_f64(), &truth.to_f64(), 0.0) } else { f64::INFINITY };
        let what = what.into();
        let shapes = if same { String::new() } else { format!(" {} for {}", got.shape(), truth.shape()) };
        self.error(class, what + &shapes, error);
    }
}

/// L2 norm of the difference over the L2 norm of `truth`, or over `floor` where that is larger. Values
/// that are not numbers, or not as many, are an infinite error.
pub fn relative_error(got: &[f64], truth: &[f64], floor: f64) -> f64 {
    if got.len() != truth.len() {
        return f64::INFINITY;
    }
    let square = |it: &mut dyn Iterator<Item = f64>| it.map(|x| x * x).sum::<f64>();
    let difference = square(&mut got.iter().zip(truth).map(|(a, b)| a - b)).sqrt();
    let size = square(&mut truth.iter().copied()).sqrt().max(floor);
    match difference {
        0.0 => 0.0,
        d if d.is_finite() => d / size,
        _ => f64::INFINITY,
    }
}

/// One line of the table for each engine and kind, and the worst of each class.
#[derive(Default)]
pub struct Report {
    kinds: BTreeMap<(String, String), Counts>,
    worst: BTreeMap<(Class, String), (f64, String)>,
    failed: usize,
}

/// What the table has where an engine's name would be.
const NO_ENGINE: &str = "-";

#[derive(Default)]
struct Counts {
    run: usize,
    passed: usize,
    skipped: usize,
}

impl Report {
    /// Counts a case that was run, and prints what failed in it.
    pub fn case(&mut self, engine: &str, kind: &str, name: &str, outcome: crate::Result<Checks>) {
        let mut good = true;
        let mut fail = |what: &str| {
            say(&format!("FAILED {kind}/{name} by {engine}: {what}"));
            good = false;
        };
        match outcome {
            Err(e) => fail(&e.to_string()),
            Ok(checks) if checks.done.is_empty() => fail("nothing was compared"),
            Ok(checks) => {
                for (class, what, error, limit) in checks.done {
                    if error.is_nan() || error > limit {
                        fail(&format!("{what}: error {error:.2e}, limit {limit:.0e}"));
                    }
                    let worst = self.worst.entry((class, engine.into())).or_default();
                    if error >= worst.0 {
                        *worst = (error, format!("{kind}/{name} {what}"));
                    }
                }
            }
        }
        let counts = self.kinds.entry((kind.into(), engine.into())).or_default();
        counts.run += 1;
        counts.passed += usize::from(good);
        self.failed += usize::from(!good);
    }

    /// Counts a case that an engine leaves to the others.
    pub fn skip(&mut self, engine: &str, kind: &str) {
        self.kinds.entry((kind.into(), engine.into())).or_default().skipped += 1;
    }

    /// Counts a case that nothing runs yet.
    pub fn not_covered(&mut self, kind: &str) {
        self.skip(NO_ENGINE, kind);
    }

    /// Prints the table; the number of cases that failed.
    pub fn finish(&self) -> usize {
        let mut lines = vec![
            String::new(),
            format!("{:<12} {:<10} {:>5} {:>7} {:>8}", "kind", "engine", "run", "passed", "skipped"),
        ];
        for ((kind, engine), c) in &self.kinds {
            lines.push(format!(
                "{kind:<12} {engine:<10} {:>5} {:>7} {:>8}{}",
                c.run,
                c.passed,
                c.skipped,
                if engine == NO_ENGINE { "  not run here" } else { "" }
            ));
        }
        lines.push(String::new());
        lines.push(format!("{:<20} {:<10} {:>8} {:>6}  where", "class", "engine", "worst", "limit"));
        for ((class, engine), (error, place)) in &self.worst {
            lines.push(format!(
                "{:<20} {engine:<10} {error:>8.1e} {:>6.0e}  {place}",
                class.name(),
                class.limit()
            ));
        }
        say(&lines.join("\n"));
        self.failed
    }
}

/// A line past the test harness's capture.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
