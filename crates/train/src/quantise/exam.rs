//! A network in f32 and in 8 bits on the same images, beside each other and beside the truth.

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

/// Images, and the levels of noise that a network is asked at: the one where the measurement tells all, and one as in training.
pub struct Exam<'a> {
    batches: Vec<Batch>,
    questions: Vec<(usize, Option<Level>)>,
    truth: bool,
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

/// How near estimates in 8 bits are to those in f32, and both to the truth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores {
    /// L2 norm of the difference over that of the estimate in f32.
    pub error: f64,
    pub cosine: f64,
    /// PSNR between the two, a mean over images, in dB.
    pub psnr: f64,
    /// PSNR against the truth in f32 and in 8 bits, where there is a truth.
    pub truth: Option<[f64; 2]>,
    pub images: usize,
}

impl Scores {
    /// What 8 bits cost of PSNR against the truth.
    pub fn loss(&self) -> Option<f64> {
        self.truth.map(|[wide, narrow]| wide - narrow)
    }

    pub fn record(&self) -> serde_json::Value {
        json!({
            "images": self.images, "relative_error": self.error, "cosine": self.cosine, "psnr_to_fp32": self.psnr,
            "psnr_fp32": self.truth.map(|t| t[0]), "psnr_int8": self.truth.map(|t| t[1]),
        })
    }
}

impl<'a> Exam<'a> {
    /// # Errors
    /// If images cannot be had.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        data: &Data,
        part: Part,
        size: &'a [usize],
        count: usize,
        task: &'a Task,
        config: &'a RunConfig,
        device: Device,
        original: &'a Weights,
    ) -> Result<Exam<'a>> {
        let source = data.source(part, size, None)?;
        if let Some(bad) = source.warnings().into_iter().find(|w| w.contains("cannot be used")) {
            return setting(
                "calibration",
                bad,
                "images that can all be read; take the others out of the folder",
            );
        }
        let runs = count.div_ceil(AT_ONCE);
        let domain = |n: u64| data.in_turn(&*source, n);
        let batches = (0..runs)
            .map(|i| batch(&*source, (i * AT_ONCE) as u64, AT_ONCE, size, domain, |_| false))
            .collect::<Result<Vec<_>>>()?;
        let levels = |i: usize| match &task.diffusion {
            Some(d) => vec![Some(d.last_level()), Some(d.level(config.seed, i as u64))],
            None => vec![None],
        };
        let questions = (0..runs).flat_map(|i| levels(i).into_iter().map(move |l| (i, l))).collect();
        Ok(Exam {
            batches,
            questions,
            truth: data.has_truth(),
            channels: source.channels(),
            photons: data.photons(),
            size,
            task,
            config,
            device,
            original,
        })
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
        let made = judge.estimate(&self.batches[*i], level.as_ref(), self.config.seed, first)?;
        Ok(made.as_f32()?.to_vec())
    }

    /// Estimates in f32, and what went into convolutions on the way.
    ///
    /// # Errors
    /// What went wrong when running, or what `told` says.
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

    /// Scores of the network with the convolutions of a table in 8 bits, on the first so many images.
    ///
    /// # Errors
    /// If the table does not fit the network, or what went wrong when running.
    pub fn scores(
        &self,
        images: usize,
        network: &dyn Network,
        table: &Table,
        weights: &Weights,
        reference: &Reference,
    ) -> Result<Scores> {
        let runs = images.div_ceil(AT_ONCE).min(self.batches.len());
        let asked = self.questions.iter().filter(|(i, _)| *i < runs).count();
        let mut judge =
            Judge::changed(network, self.task, &self.shapes(), self.config, &self.device, |graph| {
                round(graph, table).or_else(|(layer, e)| setting("int8", layer, e.to_string()))
            })?;
        judge.load(weights, 1.0)?;
        let (mut difference, mut wide_square, mut narrow_square, mut product) = (0.0, 0.0, 0.0, 0.0);
        let (mut near, mut truths): (Vec<f64>, Vec<[f64; 2]>) = (vec![], vec![]);
        for question in 0..asked {
            let made = self.estimate(&mut judge, question)?;
            let wide = &reference.0[question];
            for (a, b) in wide.iter().zip(&made) {
                let (a, b) = (f64::from(*a), f64::from(*b));
                difference += (a - b).powi(2);
                wide_square += a * a;
                narrow_square += b * b;
                product += a * b;
            }
            let batch = &self.batches[self.questions[question].0];
            let clean = batch.clean.as_f32()?;
            let each = clean.len() / AT_ONCE;
            for k in 0..AT_ONCE {
                let part = k * each..(k + 1) * each;
                let (narrow, wide, truth) = (&made[part.clone()], &wide[part.clone()], &clean[part]);
                near.push(psnr(narrow, wide, batch.scales[k], None));
                truths.push([wide, narrow].map(|x| psnr(x, truth, batch.scales[k], None)));
            }
        }
        let mean = |of: &dyn Fn(&[f64; 2]) -> f64| truths.iter().map(of).sum::<f64>() / truths.len() as f64;
        Ok(Scores {
            error: (difference / wide_square).sqrt(),
            cosine: product / (wide_square * narrow_square).sqrt(),
            psnr: near.iter().sum::<f64>() / near.len() as f64,
            truth: self.truth.then(|| [mean(&|t| t[0]), mean(&|t| t[1])]),
            images: runs * AT_ONCE,
        })
    }
}
