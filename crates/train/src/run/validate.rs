//! Scores of the averaged weights on images outside the training set, the same every time.

use super::Run;
use super::judgement::{GIVEN, Judgement, Probed, Repeated};
use crate::checkpoint;
use crate::config::{ScoreKind, TaskKind};
use crate::data::split::{Cut, Side};
use crate::data::{Batch, ErrorsFrom, NUMBERS, Part, Sample, batch, camera, split};
use crate::distributed::Ranks;
use crate::engine::Judge;
use crate::error::Result;
use crate::errors;
use crate::instances;
use crate::iteration::{BEYOND, Shapes};
use crate::pretraining::{Scores, of_embeddings, of_hidden};
use crate::records::event_file::Png;
use crate::records::picture::Picture;
use crate::segmentation::agreement;
use crate::task::key;
use clearshot_diffusion::Level;
use clearshot_metrics::segment::Labels;
use clearshot_model::Photons;
use clearshot_runtime::Device;
use clearshot_tensor::Tensor;
use std::time::Instant;

/// Images that run at once, at most.
const JUDGED_AT_ONCE: usize = 16;
/// The share of `trainer.seconds` that a validation may take: one of many, or the first and the last alone. And the images that it has whatever they take.
const TIME_SHARE: f64 = 0.02;
const TIME_SHARE_OF_TWO: f64 = 0.1;
const LEAST_IMAGES: usize = 8;

/// What was measured, what was estimated and the truth, as planes for a picture.
type Panels = [Vec<f32>; 3];

/// The validation set with what scores it.
pub(super) struct Judged {
    judge: Judge,
    batches: Vec<Batch>,
    /// Splits of the same, where errors are estimated.
    probes: Vec<Probe>,
    domains: Vec<String>,
    size: Vec<usize>,
    at_once: usize,
    images: usize,
    /// The share of patches that are hidden, where they are to be restored.
    hidden: Option<f64>,
    /// How many crops there are that share no pixel.
    pub(super) distinct: Option<f64>,
}

impl Judged {
    /// Y, X of an image.
    fn plane(&self) -> [usize; 2] {
        let axes = self.size.len();
        [self.size[axes - 2], self.size[axes - 1]]
    }
}

/// A batch of the larger parts of split images; what is clean in it are the smaller parts.
struct Probe {
    batch: Batch,
    photons: Vec<Photons>,
}

impl Probe {
    fn of(batch: &Batch, size: &[usize], first: u64) -> Result<Probe> {
        let (measured, numbers) = (batch.measured.as_f32()?, batch.numbers.as_f32()?);
        let each = measured.len() / batch.domains.len();
        let (mut given, mut rest, mut of_parts, mut photons) = (vec![], vec![], vec![], vec![]);
        for (k, image) in measured.chunks_exact(each).enumerate() {
            let mut own = [0.0; NUMBERS];
            own.copy_from_slice(&numbers[k * NUMBERS..(k + 1) * NUMBERS]);
            photons.push(camera::photons(&own)?);
            let whole = Sample::plain(image.to_vec(), vec![], own);
            let key = key(0x5EED, first + k as u64, 0x9B0);
            let split = split::split(whole, size, Cut { share: GIVEN, key, side: Side::First })?;
            given.extend(split.measured);
            rest.extend(split.clean);
            of_parts.extend(split.numbers);
        }
        let batch = Batch {
            measured: Tensor::f32(batch.measured.shape(), given),
            clean: Tensor::f32(batch.clean.shape(), rest),
            numbers: Tensor::f32(batch.numbers.shape(), of_parts),
            scales: batch.scales.clone(),
            domains: batch.domains.clone(),
            domain_names: batch.domain_names.clone(),
            valid: None,
        };
        Ok(Probe { batch, photons })
    }
}

impl Run<'_> {
    /// The lengths of validation images.
    pub(super) fn judged_size(&self) -> Vec<usize> {
        self.size(match (self.is_growing(), self.config.validation.crop) {
            (true, _) => self.stages[self.progress.stage].size,
            (false, 0) => self.config.trainer.crop,
            (false, crop) => crop,
        })
    }

    /// The images that every validation scores: as many as are asked for, or as there is time for.
    fn judged(&mut self) -> Result<Judged> {
        let asked = self.worth_judging()?;
        let (None, Some(seconds)) = (self.progress.judged, self.config.trainer.seconds) else {
            return self.judged_on(self.progress.judged.unwrap_or(asked));
        };
        // On a GPU a graph for other images would have to be set up, and its first run is slower than others.
        let (probe, runs) = match self.device {
            Device::Cpu { .. } => (asked.min(LEAST_IMAGES), 1),
            Device::Cuda { .. } => (asked, 2),
        };
        let mut judged = self.judged_on(probe)?;
        let weights = self.working().engine.weights(&*self.working().network)?;
        judged.judge.load(&weights, self.alpha())?;
        let (level, mut each) = (self.judged_level(), 0.0);
        for _ in 0..runs {
            let start = Instant::now();
            judged.judge.estimate(&judged.batches[0], level.as_ref(), self.config.seed, 0)?;
            each = self.clocked(start)? / judged.at_once as f64;
        }
        let share = if self.config.validation.every == 0 { TIME_SHARE_OF_TWO } else { TIME_SHARE };
        // Where errors are estimated, parts of the images are looked at too.
        let looks = if judged.probes.is_empty() { 1.0 } else { 2.0 };
        let fits = (share * seconds / (looks * each).max(1e-9)) as usize;
        let images = fits.max(LEAST_IMAGES).min(asked);
        self.progress.judged = Some(images);
        if images < asked {
            self.records.watch.note(&format!("each validation scores only {images} images, to save time"));
        }
        if images == probe { Ok(judged) } else { self.judged_on(images) }
    }

    /// Images that are asked for. Crops that share most of their pixels tell nothing more of an estimated error.
    fn worth_judging(&self) -> Result<usize> {
        let asked = self.config.validation.images;
        if self.data.errors_from().is_none() {
            return Ok(asked);
        }
        let distinct = self.data.source(Part::Validation, &self.judged_size(), None)?.distinct();
        Ok(distinct.map_or(asked, |n| asked.min(((2.0 * n).ceil() as usize).max(LEAST_IMAGES))))
    }

    fn judged_level(&self) -> Option<Level> {
        self.task.diffusion.as_ref().map(|d| match self.task.kind {
            TaskKind::Prior => d.level_at(self.config.validation.sigma),
            _ => d.last_level(),
        })
    }

    fn judged_on(&self, images: usize) -> Result<Judged> {
        let size = self.judged_size();
        let whole = self.size(self.config.trainer.crop);
        let from = self.is_growing().then_some(&whole[..]);
        let source = self.data.source(Part::Validation, &size, from)?;
        let at_once = images.min(JUDGED_AT_ONCE);
        let photons = self.data.photons();
        let shapes = Shapes {
            batch: at_once,
            size: &size,
            channels: source.channels(),
            photons,
            domains: 0,
            masked: false,
        };
        let judge = Judge::new(&*self.working().network, &self.task, &shapes, &self.config, &self.device)?;
        let batches: Vec<Batch> = (0..images.div_ceil(at_once))
            .map(|i| {
                let domain = |n| self.data.in_turn(&*source, n);
                batch(&*source, (i * at_once) as u64, at_once, &size, domain, |_| false)
            })
            .collect::<Result<_>>()?;
        let probe = |(i, batch): (usize, &Batch)| Probe::of(batch, &size, (i * at_once) as u64);
        let probes = match self.data.errors_from() {
            Some(ErrorsFrom::Splits) => batches.iter().enumerate().map(probe).collect::<Result<_>>()?,
            _ => vec![],
        };
        let (domains, distinct) = (source.domains(), source.distinct());
        let hidden = self.working().network.masks(&size).map(|m| m.hidden as f64 / m.patches() as f64);
        Ok(Judged { judge, batches, probes, domains, size, at_once, images, hidden, distinct })
    }

    /// Scores the averaged weights.
    pub(super) fn validate(&mut self) -> Result<()> {
        let _validating = clearshot_timeline::span(clearshot_timeline::Phase::Validating);
        if self.working().judge.is_none() {
            let judged = self.judged()?;
            if let Some(work) = &mut self.work {
                work.judge = Some(judged);
            }
        }
        let start = Instant::now();
        let (own, pictures) = self.scored()?;
        let mut scored = Scored::of_all(&self.ranks, &own)?;
        let judged = self.working().judge.as_ref().expect("it was made above");
        scored.truncate(judged.images);
        let verdict = self.verdict(&scored, judged);
        self.note_verdict(verdict)?;
        if !pictures.is_empty() && self.ranks.is_first() {
            self.show(&pictures)?;
        }
        self.costs.validation = self.clocked(start)?;
        let found = checkpoint::list(&self.out)?;
        let (stage, score) = (self.progress.stage, self.last_full.unwrap_or(f64::NEG_INFINITY));
        let is_kept = checkpoint::is_among_best(&found, &self.config.checkpoint, stage, score);
        if self.ranks.decided(is_kept)? {
            self.save()?;
        }
        Ok(())
    }

    /// The scores of this rank's images, and what its first ones look like: measured, estimated, true.
    fn scored(&mut self) -> Result<(Vec<Scored>, Vec<Panels>)> {
        let level = self.judged_level();
        let (alpha, seed) = (self.alpha(), self.config.seed);
        let (kind, photons, errors_from) =
            (self.task.kind.score(), self.data.photons(), self.data.errors_from());
        let work = self.work.as_mut().expect("a run has a stage from its beginning on");
        let weights = work.engine.weights(&*work.network)?;
        let judged = work.judge.as_mut().expect("it is made before anything is scored");
        judged.judge.load(&weights, alpha)?;
        let how = Scoring { kind, photons, errors_from, hidden: judged.hidden, size: judged.size.clone() };
        let (mut scored, mut pictures) = (vec![], vec![]);
        // Ranks take turns; the scores of all are gathered.
        let (rank, ranks) = (self.ranks.rank(), self.ranks.size());
        for (i, batch) in judged.batches.iter().enumerate().filter(|(i, _)| i % ranks == rank) {
            let first = (i * judged.at_once) as u64;
            let estimate = judged.judge.estimate(batch, level.as_ref(), seed, first)?;
            if kind == ScoreKind::Explained {
                let wanted = judged.judge.output("wanted")?;
                let (made, width) = (estimate.as_f32()?, estimate.shape().channels());
                let each = made.len() / judged.at_once;
                let both = made.chunks_exact(each).zip(wanted.as_f32()?.chunks_exact(each));
                scored.extend(both.enumerate().map(|(k, (made, wanted))| {
                    let found = of_embeddings(made, wanted, width);
                    Scored::of(i * judged.at_once + k, batch.domains[k], found)
                }));
                continue;
            }
            let beyond = judged.judge.says_error().then(|| judged.judge.output(BEYOND)).transpose()?;
            let beyond = beyond.as_ref().map(Tensor::as_f32).transpose()?;
            let probe = judged.probes.get(i);
            let of_parts =
                probe.map(|p| judged.judge.estimate(&p.batch, level.as_ref(), seed, first)).transpose()?;
            for k in 0..judged.at_once {
                let look = Look { batch, k, estimate: &estimate, probe: probe.zip(of_parts.as_ref()) };
                let (mut image, panels) = look.scored(&how, i * judged.at_once + k)?;
                image.covered = beyond.map(|share| 1.0 - f64::from(share[k]));
                scored.push(image);
                if pictures.len() < self.config.records.pictures {
                    pictures.push(panels);
                }
            }
        }
        Ok((scored, pictures))
    }

    /// The summary of the scores of all images.
    fn verdict(&self, scored: &[Scored], judged: &Judged) -> Verdict {
        let kind = self.task.kind.score();
        let mean = |of: &mut dyn Iterator<Item = f64>| {
            let all: Vec<f64> = of.collect();
            all.iter().sum::<f64>() / all.len() as f64
        };
        let judgements: Vec<Judgement> = scored.iter().filter_map(|s| Some(s.by_noise?.0)).collect();
        let (score, noisy) = match judgements.is_empty() {
            true => (mean(&mut scored.iter().map(|s| s.score)), mean(&mut scored.iter().map(|s| s.noisy))),
            false => {
                // The PSNR that the estimated error has, of all images together: that of one may be below zero by chance.
                let each = judgements.iter().zip(scored).map(|(j, s)| j.error / s.scale.powi(2));
                let error = each.sum::<f64>() / judged.images as f64;
                let score =
                    if error.is_finite() { -10.0 * error.max(1e-7).log10() } else { f64::NEG_INFINITY };
                (score, mean(&mut scored.iter().filter_map(|s| Some(s.by_noise?.1))))
            }
        };
        let mut values = vec![(kind.name().to_string(), score), ("images".to_string(), judged.images as f64)];
        if let Some(name) = kind.beside() {
            values.push((name.to_string(), mean(&mut scored.iter().map(|s| s.beside))));
        }
        let covered: Vec<f64> = scored.iter().filter_map(|s| s.covered).collect();
        if !covered.is_empty() {
            // Of the truths, where the network says how large its error may be: nine in ten are to be.
            values.push(("covered".to_string(), mean(&mut covered.into_iter())));
        }
        if self.data.photons() {
            // What there is to gain: the first plane as it was measured.
            values.push(("measured_psnr".to_string(), noisy));
        }
        if judged.domains.len() > 1 && judgements.is_empty() {
            for (d, domain) in judged.domains.iter().enumerate() {
                let of = || scored.iter().filter(|s| s.domain == d).map(|s| s.score);
                if of().next().is_some() {
                    values.push((format!("{}.{domain}", kind.name()), mean(&mut of())));
                }
            }
        }
        Verdict { score, judgements, values }
    }

    /// Writes down what a validation came to, and whether it is the best so far.
    fn note_verdict(&mut self, verdict: Verdict) -> Result<()> {
        let Verdict { score, judgements, values } = verdict;
        self.last_full = Some(score);
        let growth = self.config.trainer.growth.threshold;
        // A network whose new layers are still being blended in is not a complete model: it needs the blending factor.
        let is_model = !self.is_growing() || self.alpha() >= 1.0;
        // Where the error alone is learned all images are alike, and the last one knows it best.
        let by = if errors::is_all(&self.config.model.only) { -1e-9 } else { 0.0 };
        let p = &mut self.progress;
        p.validations += 1;
        p.score = score.is_finite().then_some(score);
        if is_model {
            improve(&mut p.best, &mut p.stale, score, by);
            if p.stale == 0 {
                p.judged_at_best = judgements;
            }
        }
        improve(&mut p.stage_best, &mut p.stage_stale, score, growth);
        self.records.put("validation", p.iteration, &values)?;
        p.records = self.records.position();
        Ok(())
    }

    /// Writes a picture of the first images, a row each.
    fn show(&mut self, pictures: &[Panels]) -> Result<()> {
        let [height, width] = self.working().judge.as_ref().expect("it was asked").plane();
        let rows: Vec<Vec<Vec<f32>>> = pictures.iter().map(|panels| panels.to_vec()).collect();
        let picture = Picture::of(&rows, height, width);
        let iteration = self.progress.iteration;
        let path = self.out.join("pictures").join(format!("iteration-{iteration:09}.png"));
        let bytes = picture.write(&path)?;
        let png = Png { bytes: &bytes, width: picture.width, height: picture.height };
        self.records.picture(iteration, &png)
    }
}

/// What a validation comes to.
struct Verdict {
    /// The score for comparing models.
    score: f64,
    /// Where errors are estimated, those of all images.
    judgements: Vec<Judgement>,
    /// As they are recorded.
    values: Vec<(String, f64)>,
}

/// How images of a run are scored.
struct Scoring {
    kind: ScoreKind,
    photons: bool,
    errors_from: Option<ErrorsFrom>,
    /// The share of patches that are hidden, where they are to be restored.
    hidden: Option<f64>,
    size: Vec<usize>,
}

/// One image of a batch, beside what was estimated of it.
struct Look<'a> {
    batch: &'a Batch,
    k: usize,
    /// Of the whole batch.
    estimate: &'a Tensor,
    /// The batch's split, and what was estimated of its larger parts.
    probe: Option<(&'a Probe, &'a Tensor)>,
}

impl<'a> Look<'a> {
    /// This image's share of what a tensor has for its batch.
    fn own(&self, values: &'a [f32]) -> &'a [f32] {
        let each = values.len() / self.batch.domains.len();
        &values[self.k * each..(self.k + 1) * each]
    }

    /// The score of the image with this number, and its panels.
    fn scored(&self, how: &Scoring, image: usize) -> Result<(Scored, Panels)> {
        let (batch, k) = (self.batch, self.k);
        let (scale, domain) = (batch.scales[k], batch.domains[k]);
        let (estimate, truth) = (self.own(self.estimate.as_f32()?), self.own(batch.clean.as_f32()?));
        let channels = batch.clean.shape().channels();
        let valid = batch.valid.as_ref().map(|v| v.mask.as_f32()).transpose()?.map(|v| self.own(v));
        let plane = [how.size[how.size.len() - 2], how.size[how.size.len() - 1]];
        let pixels = plane[0] * plane[1];
        let mut panels = panels(batch, k, estimate, how.photons, pixels)?;
        if let Some(share) = how.hidden {
            let [seen, made, truly] = &mut panels;
            // What is hidden is dark.
            let hidden = seen.iter_mut().zip(made.iter().zip(truly)).filter(|(_, (m, t))| m != t);
            hidden.for_each(|(seen, _)| *seen = -1.0);
            return Ok((Scored::of(image, domain, of_hidden(estimate, truth, share, valid)), panels));
        }
        let (score, beside) = match how.kind {
            ScoreKind::Dice => {
                // Probabilities as bright as images are.
                panels[1..].iter_mut().flatten().for_each(|p| *p = 2.0 * *p - 1.0);
                let agreed = agreement(estimate, truth, channels, valid);
                (agreed.dice, agreed.iou)
            }
            ScoreKind::Precision => {
                let objects = instances::found_and_wanted(estimate, truth, &how.size, valid)?;
                panels[1..].iter_mut().zip(&objects).for_each(|(panel, o)| *panel = shades(o, pixels));
                (instances::average_precision(&objects)?, 0.0)
            }
            _ => (psnr(estimate, truth, scale, valid), 0.0),
        };
        let scored = Scored {
            image,
            domain,
            score,
            beside,
            noisy: psnr(&panels[0], &panels[2], scale, valid.map(|v| &v[..pixels])),
            covered: None,
            scale: f64::from(scale),
            by_noise: self.by_noise(how, estimate, truth, valid, plane)?,
        };
        Ok((scored, panels))
    }

    /// The estimated error, and the PSNR of the noise, where there is no truth to compare with.
    fn by_noise(
        &self,
        how: &Scoring,
        estimate: &[f32],
        target: &[f32],
        valid: Option<&[f32]>,
        size: [usize; 2],
    ) -> Result<Option<(Judgement, f64)>> {
        let squared_scale = f64::from(self.batch.scales[self.k]).powi(2);
        let channels = self.batch.clean.shape().channels();
        if let Some(ErrorsFrom::Repeats { averaged }) = how.errors_from {
            let measured = measured_like_clean(self.batch, self.k, how.photons)?;
            let repeated = Repeated { measured: &measured, target, estimate, valid, channels, averaged };
            let share = repeated.variance() / squared_scale;
            return Ok(Some((repeated.judgement(), -10.0 * share.max(1e-12).log10())));
        }
        let Some((probe, of_parts)) = self.probe else { return Ok(None) };
        let probed = Probed {
            measured: target,
            rest: self.own(probe.batch.clean.as_f32()?),
            estimate,
            of_part: self.own(of_parts.as_f32()?),
            valid,
            size,
            channels,
            photons: &probe.photons[self.k],
        };
        Ok(Some((probed.judgement(), -10.0 * (probed.variance() / squared_scale).log10())))
    }
}

/// The result for one validation image.
struct Scored {
    image: usize,
    domain: usize,
    score: f64,
    /// What is recorded beside the score; see [`ScoreKind::beside`].
    beside: f64,
    /// Of the image as it was measured.
    noisy: f64,
    /// The share of errors that the network says they stay below, where it does.
    covered: Option<f64>,
    scale: f64,
    /// Where errors are estimated: the estimate, and the PSNR of the noise.
    by_noise: Option<(Judgement, f64)>,
}

/// Numbers of an image, as they travel.
const NUMBERS_OF_IMAGE: usize = 9 + 8;

impl Scored {
    /// An image that has a score and no noise.
    fn of(image: usize, domain: usize, found: Scores) -> Scored {
        let Scores { score, beside } = found;
        Scored { image, domain, score, beside, noisy: 0.0, covered: None, scale: 1.0, by_noise: None }
    }

    /// Those of all ranks, in the order of images, however many each rank has: means over them are those of one process.
    fn of_all(ranks: &Ranks, own: &[Scored]) -> Result<Vec<Scored>> {
        let write = |s: &Scored| {
            let (judgement, by_noise) = s.by_noise.unwrap_or_default();
            let judged = f64::from(u8::from(s.by_noise.is_some()));
            let covered = s.covered.unwrap_or(f64::NAN);
            let place = [s.image as f64, s.domain as f64];
            let plain = [s.score, s.beside, s.noisy, covered, s.scale, judged, by_noise];
            let plain = place.into_iter().chain(plain);
            plain.chain(judgement.numbers())
        };
        let numbers: Vec<f64> = own.iter().flat_map(write).collect();
        let all = ranks.gathered(&numbers)?.concat();
        let read = |n: &[f64; NUMBERS_OF_IMAGE]| {
            let [image, domain, score, beside, noisy, covered, scale, judged, by_noise, judgement @ ..] = *n;
            let by_noise = (judged == 1.0).then(|| (Judgement::of_numbers(judgement), by_noise));
            let covered = Some(covered).filter(|c| !c.is_nan());
            let (image, domain) = (image as usize, domain as usize);
            Scored { image, domain, score, beside, noisy, covered, scale, by_noise }
        };
        let mut all: Vec<Scored> = all.as_chunks::<NUMBERS_OF_IMAGE>().0.iter().map(read).collect();
        all.sort_by_key(|s| s.image);
        Ok(all)
    }
}

/// A score that is not finite is never the best.
fn improve(best: &mut Option<f64>, stale: &mut usize, score: f64, by: f64) {
    if score.is_finite() && best.is_none_or(|b| score > b + by) {
        (*best, *stale) = (Some(score), 0);
    } else {
        *stale += 1;
    }
}

/// PSNR in dB for a range of 1, in the units of scenes, where the network's -1 is 0 and `scale` above it 1; the estimate is
/// clipped to [0, 1.5]. Pixels marked 0 are ignored. An estimate with NaN has the worst score.
pub(crate) fn psnr(estimate: &[f32], truth: &[f32], scale: f32, valid: Option<&[f32]>) -> f64 {
    let of = |x: f32| (f64::from(x) + 1.0) / f64::from(scale);
    let square = |(&e, &t): (&f32, &f32)| (of(e).clamp(0.0, 1.5) - of(t)).powi(2);
    let channels = truth.len() / valid.map_or(truth.len(), <[f32]>::len).max(1);
    let counts = |i: &usize| valid.is_none_or(|v| v[i / channels.max(1)] != 0.0);
    let kept: Vec<usize> = (0..truth.len()).filter(counts).collect();
    let mse = kept.iter().map(|&i| square((&estimate[i], &truth[i]))).sum::<f64>() / kept.len().max(1) as f64;
    if mse.is_finite() { -10.0 * mse.max(1e-12).log10() } else { f64::NEG_INFINITY }
}

/// The measurement of one image, on the scale of the clean image.
fn measured_like_clean(batch: &Batch, k: usize, photons: bool) -> Result<Vec<f32>> {
    let (measured, numbers) = (batch.measured.as_f32()?, batch.numbers.as_f32()?);
    let (each, own) = (measured.len() / batch.domains.len(), numbers.len() / batch.domains.len());
    let [slope, at_zero] = if photons { [numbers[k * own], numbers[k * own + 1]] } else { [1.0, 0.0] };
    Ok(measured[k * each..(k + 1) * each].iter().map(|v| slope * v + at_zero).collect())
}

/// What was measured, what was estimated and the truth, of the first channel (and plane).
fn panels(batch: &Batch, k: usize, estimate: &[f32], photons: bool, pixels: usize) -> Result<Panels> {
    let (measured, clean) = (batch.measured.as_f32()?, batch.clean.as_f32()?);
    let count = batch.domains.len();
    let each = |values: &[f32]| values.len() / count;
    let part = |values: &[f32]| {
        let each = each(values);
        values[k * each..(k + 1) * each].to_vec()
    };
    let first = |values: Vec<f32>, channels: usize| -> Vec<f32> {
        values.iter().step_by(channels).take(pixels).copied().collect()
    };
    let [from, to] = [batch.measured.shape().channels(), batch.clean.shape().channels()];
    let mut seen = first(part(measured), from);
    if photons {
        let numbers = part(batch.numbers.as_f32()?);
        seen.iter_mut().for_each(|v| *v = numbers[0] * *v + numbers[1]);
    }
    Ok([seen, first(estimate.to_vec(), to), first(part(clean), to)])
}

/// Objects of the first plane in greys of their own.
fn shades(labels: &Labels, pixels: usize) -> Vec<f32> {
    let shade = |l: &u32| if *l == 0 { -1.0 } else { (f64::from(*l) * 0.618_034).fract() as f32 * 1.5 - 0.5 };
    labels.data.iter().take(pixels).map(shade).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_estimates_are_never_the_best() {
        let truth = [0.0, 0.5, -0.5, 0.25];
        assert!((psnr(&[0.2, 0.7, -0.3, 0.45], &truth, 2.0, None) - 20.0).abs() < 1e-5);
        assert!((psnr(&truth, &truth, 2.0, None) - 120.0).abs() < 1e-9);
        let broken = psnr(&[0.0, f32::NAN, -0.5, 0.25], &truth, 2.0, None);
        assert_eq!(broken, f64::NEG_INFINITY);
        let (mut best, mut stale) = (None, 0);
        improve(&mut best, &mut stale, broken, 0.0);
        assert_eq!((best, stale), (None, 1));
        improve(&mut best, &mut stale, 20.0, 0.0);
        improve(&mut best, &mut stale, f64::NAN, 0.0);
        improve(&mut best, &mut stale, f64::INFINITY, 0.0);
        assert_eq!((best, stale), (Some(20.0), 2));
    }
}
