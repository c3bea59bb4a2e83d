//! Compares a network in f32 and in 8 bits on the same images, with each other and with the truth.
//!
//! Images are scored one by one, because a mean over kinds of images hides large losses of single ones.

use super::ranges::Inputs;
use super::{watch, watched_name};
use crate::config::RunConfig;
use crate::data::{Batch, Data, Part, batch};
use crate::engine::Judge;
use crate::error::{Result, setting};
use crate::iteration::Shapes;
use crate::run::psnr;
use crate::task::Task;
use clearshot_diffusion::Level;
use clearshot_graph::ops::int8::Table;
use clearshot_graph::passes::int8::round;
use clearshot_nn::Weights;
use clearshot_nn::models::Network;
use clearshot_runtime::Device;
use serde_json::json;

/// Images of one run.
const AT_ONCE: usize = 2;

/// So many images of one source.
#[derive(Clone, Copy)]
pub struct Taken<'a> {
    pub data: &'a Data,
    pub part: Part,
    pub count: usize,
    /// Their names.
    pub name: &'static str,
}

/// Images of one run of the network.
struct Seen {
    batch: Batch,
    names: Vec<String>,
    truth: bool,
}

/// Images, and the levels of noise that a network is asked at: the one where the measurement tells all, and one as in training.
pub struct Exam<'a> {
    seen: Vec<Seen>,
    questions: Vec<(usize, Option<Level>)>,
    channels: [usize; 2],
    photons: bool,
    size: &'a [usize],
    task: &'a Task,
    config: &'a RunConfig,
    device: Device,
    original: &'a Weights,
}

/// Estimates in f32, in the questions' order.
pub struct Reference(Vec<Vec<f32>>);

/// One estimate of one image.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    pub name: String,
    /// PSNR between f32 and 8 bits, in dB.
    pub psnr: f64,
    /// PSNR against the truth in f32 and in 8 bits, where there is a truth.
    pub truth: Option<[f64; 2]>,
    run: usize,
}

impl Case {
    /// The loss of PSNR against the truth due to 8 bits.
    pub fn loss(&self) -> Option<f64> {
        self.truth.map(|[wide, narrow]| wide - narrow)
    }

    #[cfg(test)]
    pub(super) fn new(name: &str, psnr: f64, truth: Option<[f64; 2]>) -> Case {
        Case { name: name.into(), psnr, truth, run: 0 }
    }
}

/// How near estimates in 8 bits are to those in f32, and both to the truth.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// L2 norm of the difference over that of the estimate in f32.
    pub error: f64,
    pub cosine: f64,
    pub images: usize,
    pub cases: Vec<Case>,
}

fn mean(of: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = of.fold((0.0, 0usize), |(s, n), x| (s + x, n + 1));
    (count > 0).then(|| sum / count as f64)
}

impl Scores {
    /// PSNR between the two, a mean over estimates, in dB.
    pub fn psnr(&self) -> f64 {
        mean(self.cases.iter().map(|c| c.psnr)).unwrap_or(f64::NAN)
    }

    /// PSNR against the truth in f32 and in 8 bits, a mean over estimates with a truth.
    pub fn truth(&self) -> Option<[f64; 2]> {
        let of = |i: usize| mean(self.cases.iter().filter_map(|c| Some(c.truth?[i])));
        Some([of(0)?, of(1)?])
    }

    /// The loss of PSNR against the truth due to 8 bits.
    pub fn loss(&self) -> Option<f64> {
        self.truth().map(|[wide, narrow]| wide - narrow)
    }

    /// The estimate that 8 bits cost most; one that is not a number is as bad as can be.
    pub fn worst(&self) -> Option<&Case> {
        let cost = |c: &&Case| c.loss().map(|l| if l.is_nan() { f64::INFINITY } else { l });
        let with_truth = self.cases.iter().filter(|c| c.truth.is_some());
        with_truth.max_by(|a, b| cost(a).unwrap_or(0.0).total_cmp(&cost(b).unwrap_or(0.0)))
    }

    /// The largest share of an image's own error against the truth that 8 bits add to it, as energies; where there is no truth, their share of
    /// the estimates. What a convolution costs is judged by it: a dark image that is restored well feels what hides in the error of others.
    pub fn burden(&self) -> f64 {
        let share = |c: &Case| c.truth.map(|[wide, _]| 10f64.powf((wide - c.psnr) / 10.0));
        self.cases.iter().filter_map(share).reduce(f64::max).unwrap_or(self.error * self.error)
    }

    /// Which of the exam's runs holds the estimate that 8 bits cost most, or that is farthest from f32 where there is no truth.
    pub(super) fn hardest_run(&self) -> Option<usize> {
        let farthest = || self.cases.iter().min_by(|a, b| a.psnr.total_cmp(&b.psnr));
        self.worst().or_else(farthest).map(|c| c.run)
    }

    pub fn record(&self) -> serde_json::Value {
        let worst = self.worst().map(|c| {
            json!({ "image": c.name, "psnr_fp32": c.truth.map(|t| t[0]), "psnr_int8": c.truth.map(|t| t[1]) })
        });
        json!({
            "images": self.images, "relative_error": self.error, "cosine": self.cosine, "psnr_to_fp32": self.psnr(),
            "psnr_fp32": self.truth().map(|t| t[0]), "psnr_int8": self.truth().map(|t| t[1]), "worst": worst,
        })
    }
}

impl<'a> Exam<'a> {
    /// # Errors
    /// If images cannot be had.
    pub fn new(
        taken: &[Taken<'_>],
        size: &'a [usize],
        task: &'a Task,
        config: &'a RunConfig,
        device: Device,
        original: &'a Weights,
    ) -> Result<Exam<'a>> {
        let (mut seen, mut channels, mut photons) = (vec![], [1, 1], false);
        for of in taken {
            let source = of.data.source(of.part, size, None)?;
            if let Some(bad) = source.warnings().into_iter().find(|w| w.contains("cannot be used")) {
                return setting(
                    "calibration",
                    bad,
                    "images that can all be read; take the others out of the folder",
                );
            }
            (channels, photons) = (source.channels(), of.data.photons());
            let domain = |n: u64| of.data.in_turn(&*source, n);
            let domains = source.domains();
            for i in 0..of.count.div_ceil(AT_ONCE) {
                let first = i * AT_ONCE;
                let batch = batch(&*source, first as u64, AT_ONCE, size, domain, |_| false)?;
                let name = |(k, d): (usize, &usize)| {
                    let kind = domains.get(*d).filter(|n| !n.is_empty()).map_or("image", String::as_str);
                    format!("{kind}, number {} of {}", first + k, of.name)
                };
                let names = batch.domains.iter().enumerate().map(name).collect();
                seen.push(Seen { batch, names, truth: of.data.has_truth() });
            }
        }
        let levels = |i: usize| match &task.diffusion {
            Some(d) => vec![Some(d.last_level()), Some(d.level(config.seed, i as u64))],
            None => vec![None],
        };
        let questions = (0..seen.len()).flat_map(|i| levels(i).into_iter().map(move |l| (i, l))).collect();
        Ok(Exam { seen, questions, channels, photons, size, task, config, device, original })
    }

    /// The numbers of all runs.
    pub fn runs(&self) -> Vec<usize> {
        (0..self.seen.len()).collect()
    }

    fn shapes(&self) -> Shapes<'_> {
        Shapes {
            batch: AT_ONCE,
            size: self.size,
            channels: self.channels,
            photons: self.photons,
            domains: 0,
            masked: false,
        }
    }

    fn estimate(&self, judge: &mut Judge, question: usize) -> Result<Vec<f32>> {
        let (i, level) = &self.questions[question];
        let first = (i * AT_ONCE) as u64;
        let made = judge.estimate(&self.seen[*i].batch, level.as_ref(), self.config.seed, first)?;
        Ok(made.as_f32()?.to_vec())
    }

    /// Estimates in f32, and what went into convolutions on the way.
    ///
    /// # Errors
    /// Errors of running, or of `told`.
    pub fn watched(
        &self,
        network: &dyn Network,
        told: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> Result<(Reference, Vec<Inputs>)> {
        let mut found = vec![];
        let mut judge =
            Judge::changed(network, self.task, &self.shapes(), self.config, &self.device, |graph| {
                let (graph, names) = watch(graph);
                found = names;
                Ok(graph)
            })?;
        judge.load(self.original, 1.0)?;
        let mut inputs: Vec<Inputs> = found.into_iter().map(|(name, c)| Inputs::new(name, c)).collect();
        let (mut reference, all) = (vec![], self.questions.len());
        for question in 0..all {
            told(question, all)?;
            reference.push(self.estimate(&mut judge, question)?);
            for input in &mut inputs {
                let seen = judge.output(&watched_name(&input.name))?;
                input.see(seen.as_f32()?, all);
            }
        }
        Ok((Reference(reference), inputs))
    }

    /// Scores of the network with the convolutions of a table in 8 bits, on some of the runs.
    ///
    /// # Errors
    /// If the table does not fit the network, or what went wrong when running.
    pub fn scores(
        &self,
        runs: &[usize],
        network: &dyn Network,
        table: &Table,
        weights: &Weights,
        reference: &Reference,
    ) -> Result<Scores> {
        let mut judge =
            Judge::changed(network, self.task, &self.shapes(), self.config, &self.device, |graph| {
                round(graph, table).or_else(|(layer, e)| setting("int8", layer, e.to_string()))
            })?;
        judge.load(weights, 1.0)?;
        let (mut difference, mut wide_square, mut narrow_square, mut product) = (0.0, 0.0, 0.0, 0.0);
        let mut cases = vec![];
        for question in (0..self.questions.len()).filter(|q| runs.contains(&self.questions[*q].0)) {
            let made = self.estimate(&mut judge, question)?;
            let wide = &reference.0[question];
            for (a, b) in wide.iter().zip(&made) {
                let (a, b) = (f64::from(*a), f64::from(*b));
                difference += (a - b).powi(2);
                wide_square += a * a;
                narrow_square += b * b;
                product += a * b;
            }
            let (run, level) = &self.questions[question];
            let Seen { batch, names, truth } = &self.seen[*run];
            let clean = batch.clean.as_f32()?;
            let each = clean.len() / AT_ONCE;
            for (k, name) in names.iter().enumerate() {
                let part = k * each..(k + 1) * each;
                let (narrow, wide, clean) = (&made[part.clone()], &wide[part.clone()], &clean[part]);
                let against = |x: &[f32]| psnr(x, clean, batch.scales[k], None);
                let at = level.as_ref().map_or(String::new(), |l| format!(" at noise {:.3}", l.ratio()));
                cases.push(Case {
                    name: format!("{name}{at}"),
                    psnr: psnr(narrow, wide, batch.scales[k], None),
                    truth: truth.then(|| [against(wide), against(narrow)]),
                    run: *run,
                });
            }
        }
        Ok(Scores {
            error: (difference / wide_square).sqrt(),
            cosine: product / (wide_square * narrow_square).sqrt(),
            images: runs.len() * AT_ONCE,
            cases,
        })
    }
}
