//! Checks of values, refused with their key before anything is computed.

use super::{ConditionPart, Count, DataKind, PredictionKind, RunConfig, SignalKind, TaskKind};
use crate::error::{Result, require, setting};
use crate::task::Term;
use clearshot_image::dataset::Balance;
use clearshot_nn::models::enlarged;
use clearshot_scenes::Scene;

/// Classes that a byte can number.
const MOST_CLASSES: usize = 255;

/// Ranks of PowerSGD beyond which nothing is won.
const MOST_RANK: usize = 64;

pub(super) fn positive(x: f64) -> bool {
    x.is_finite() && x > 0.0
}

pub(super) fn share(x: f64) -> bool {
    (0.0..=1.0).contains(&x)
}

/// Two rising numbers above zero.
pub(super) fn range([low, high]: [f64; 2]) -> bool {
    positive(low) && high.is_finite() && high >= low
}

impl RunConfig {
    /// # Errors
    /// Names the first key whose value cannot be meant.
    pub fn check(&self) -> Result<()> {
        self.check_cameras()?;
        self.check_data()?;
        self.check_kind()?;
        self.check_noise()?;
        self.check_task()?;
        self.check_segmentation()?;
        self.check_gan()?;
        self.check_pretraining()?;
        self.check_optimizer()?;
        self.check_length()?;
        self.check_trainer()?;
        self.check_growth()?;
        self.check_judging()?;
        self.check_debug()?;
        self.options()?;
        self.memory()?;
        self.file_memory()?;
        self.given_bucket()?;
        Ok(())
    }

    /// The values observed while it runs.
    fn check_debug(&self) -> Result<()> {
        let d = &self.debug;
        require(d.active > 0, "debug.active", d.active, "at least 1")?;
        require(d.repeat > 0, "debug.repeat", d.repeat, "at least 1")
    }

    /// What goes for data of every kind.
    fn check_data(&self) -> Result<()> {
        let data = &self.data;
        require(
            (0.0..1.0).contains(&data.validation),
            "data.validation",
            data.validation,
            "a share from 0 to below 1",
        )?;
        let fits = (0.0..1.0).contains(&data.intensity);
        require(fits, "data.intensity", data.intensity, "a share from 0 to below 1")?;
        require(
            data.noise.is_finite() && data.noise >= 0.0,
            "data.noise",
            data.noise,
            "a number of 0 or more",
        )?;
        if let Some(full) = data.saturation {
            require(full.is_finite(), "data.saturation", full, "a number")?;
        }
        for (key, given) in [
            ("data.masks", data.masks.is_some()),
            ("data.saturation", data.saturation.is_some()),
            ("data.invalid", data.invalid == Some(true)),
        ] {
            if data.kind == DataKind::Scenes && given {
                return setting(key, "given", "for files only: every pixel of generated scenes is valid");
            }
        }
        if let Some(mean) = data.least_mean {
            require((-1.0..1.0).contains(&mean), "data.least_mean", mean, "a number from -1 to below 1")?;
            let needed = "for files only: crops of generated scenes are taken as they come";
            require(data.kind != DataKind::Scenes, "data.least_mean", mean, needed)?;
        }
        if data.kind == DataKind::Scenes && data.intensity > 0.0 {
            let needed = "for files only: the brightness of generated scenes is that of data.camera.peak";
            return setting("data.intensity", data.intensity, needed);
        }
        if let Some(needed) = self.why_nothing_is_clipped().filter(|_| data.clip) {
            return setting("data.clip", true, format!("false: {needed}"));
        }
        if data.kind != DataKind::Pairs && data.noise > 0.0 {
            let needed = "for pairs only: clean images get their noise from data.camera";
            return setting("data.noise", data.noise, needed);
        }
        Ok(())
    }

    /// The reason if `data.normalise` does not apply.
    fn why_nothing_is_clipped(&self) -> Option<&'static str> {
        let (data, task) = (&self.data, &self.task);
        let is_clean = data.kind == DataKind::Clean;
        Some(match data.kind {
            _ if task.kind.knows_no_camera() => "each image is scaled between its own dark and bright end",
            DataKind::Scenes => "data.normalise does not apply to generated scenes",
            _ if !is_clean
                && (data.signal == Some(SignalKind::Photons) || task.kind == TaskKind::Splitting) =>
            {
                "data.normalise does not apply to images in electrons"
            }
            _ if !is_clean && self.model.init.is_some() => {
                "values are scaled and clipped as in the training of the model in model.init"
            }
            _ => return None,
        })
    }

    /// Checks of scenes and of files.
    fn check_kind(&self) -> Result<()> {
        let (data, trainer) = (&self.data, &self.trainer);
        require(data.balance_every > 0, "data.balance_every", 0, "one iteration or more")?;
        match data.kind {
            DataKind::Scenes => {
                if data.balance == Balance::InverseFrequency {
                    let needed =
                        "generated scenes are not counted as files; give them weights in data.scenes";
                    return setting("data.balance", "inverse_frequency", needed);
                }
                let weights: f64 = data.scenes.values().sum();
                let fits = data.scenes.values().all(|w| w.is_finite() && *w >= 0.0) && weights > 0.0;
                require(fits, "data.scenes", &data.scenes, "kinds of scenes with weights, one above zero")?;
                require(!data.sizes.is_empty(), "data.sizes", &data.sizes, "one side length or more")?;
                require(data.pool > 0, "data.pool", data.pool, "one scene or more")?;
                require(
                    data.refresh.is_finite() && data.refresh >= 0.0,
                    "data.refresh",
                    data.refresh,
                    "0 or more",
                )?;
                if trainer.epochs.is_some() {
                    let needed =
                        "generated scenes never end: give trainer.iterations or trainer.seconds instead";
                    return setting("trainer.epochs", "given", needed);
                }
            }
            _ if data.inputs.is_none() && data.manifest.is_none() => {
                return setting("data.inputs", "nothing", "files need a folder, a pattern or data.manifest");
            }
            DataKind::Pairs if data.targets.is_none() && data.manifest.is_none() => {
                return setting("data.targets", "nothing", "pairs need the targets' folder or data.manifest");
            }
            _ => {}
        }
        Ok(())
    }

    /// What is learnt.
    /// Terms that compare the estimate with the measurement.
    fn check_measurement_terms(&self) -> Result<()> {
        let task = &self.task;
        for (key, term) in
            [("task.poisson.weight", task.poisson), ("task.consistency.weight", task.consistency)]
        {
            if term.weight <= 0.0 {
                continue;
            }
            // A target that is noise itself, compared with the input, would teach a network to copy it.
            let compares = matches!(task.kind, TaskKind::Conditional | TaskKind::Supervised);
            require(compares, key, term.weight, "for task.kind=conditional and supervised only")?;
            let needed = "for measurements that are not blurred: set data.camera.blur=0";
            require(!self.data.is_simulated() || self.data.is_sharp(), key, term.weight, needed)?;
        }
        Ok(())
    }

    /// What goes with the timesteps of a schedule.
    fn check_timesteps(&self) -> Result<()> {
        let task = &self.task;
        require(positive(task.finer), "task.finer", task.finer, "a number above zero")?;
        let edm = task.prediction == PredictionKind::Edm;
        let is_diffusion = matches!(task.kind, TaskKind::Conditional | TaskKind::Prior);
        let needed = "for schedules of timesteps (task.prediction=epsilon, say); for edm raise task.mean by its logarithm";
        require(task.finer == 1.0 || (is_diffusion && !edm), "task.finer", task.finer, needed)?;
        let needed = "for diffusion with a schedule of timesteps (task.prediction=epsilon, say)";
        let learned = task.learned_variance;
        require(!learned || (is_diffusion && !edm), "task.learned_variance", learned, needed)?;
        let needed = "for a learned variance: set task.learned_variance=true";
        require(learned || task.bound.weight <= 0.0, "task.bound.weight", task.bound.weight, needed)?;
        let needed = "above zero: nothing else teaches the learned variance; 0.001 is usual";
        require(!learned || task.bound.weight > 0.0, "task.bound.weight", task.bound.weight, needed)
    }

    /// The conditions of the network other than the measurement.
    fn check_conditions(&self) -> Result<()> {
        let task = &self.task;
        let dropped = task.drop_class;
        require((0.0..1.0).contains(&dropped), "task.drop_class", dropped, "a share from 0 to below 1")?;
        let classes = task.class || task.context.is_some() || task.vector.contains(&ConditionPart::Domain);
        let needed =
            "0, or a class to drop: set task.class=true, task.vector=[domain] or task.context=FOLDER";
        require(classes || dropped == 0.0, "task.drop_class", dropped, needed)?;
        let twice = (1..task.vector.len()).any(|i| task.vector[..i].contains(&task.vector[i]));
        require(!twice, "task.vector", format!("{:?}", task.vector), "each part once")
    }

    fn check_task(&self) -> Result<()> {
        let task = &self.task;
        for (key, value) in
            [("task.drop", task.drop), ("task.at_most", task.at_most), ("task.balance", task.balance)]
        {
            require(share(value), key, value, "a share from 0 to 1")?;
        }
        self.check_conditions()?;
        require(positive(task.sigma_data), "task.sigma_data", task.sigma_data, "a number above zero")?;
        let sigmas = [task.sigma_min, task.sigma_max];
        require(
            range(sigmas) && sigmas[1] > sigmas[0],
            "task.sigma_max",
            sigmas,
            "above task.sigma_min, both above zero",
        )?;
        self.check_measurement_terms()?;
        self.check_timesteps()?;
        require(positive(task.bend), "task.bend", task.bend, "a number above zero")?;
        for ([weight, from], term) in [
            (["task.intensity.weight", "task.intensity.from"], task.intensity),
            (["task.gradient.weight", "task.gradient.from"], task.gradient),
            (["task.frequency.weight", "task.frequency.from"], task.frequency),
            (["task.wavelet.weight", "task.wavelet.from"], task.wavelet),
            (["task.poisson.weight", "task.poisson.from"], task.poisson),
            (["task.consistency.weight", "task.consistency.from"], task.consistency),
            (["task.bound.weight", "task.bound.from"], task.bound),
        ] {
            let fits = term.weight.is_finite() && term.weight >= 0.0;
            require(fits, weight, term.weight, "a number not below 0")?;
            require(share(term.from), from, term.from, "a share from 0 to 1")?;
        }
        Ok(())
    }

    /// Training without labels, and what does not go with it.
    fn check_pretraining(&self) -> Result<()> {
        let (data, task) = (&self.data, &self.task);
        let [first, last] = task.momentum;
        let fits = first >= 0.0 && first <= last && last <= 1.0;
        require(fits, "task.momentum", task.momentum, "two rising shares from 0 to 1")?;
        require(share(task.partner), "task.partner", task.partner, "a share from 0 to 1")?;
        if !task.kind.is_pretraining() {
            return Ok(());
        }
        let named = |kind: TaskKind| format!("{kind:?}").to_lowercase();
        let is_paired = task.kind == TaskKind::Iwm;
        let fits = match data.kind {
            DataKind::Scenes => true,
            DataKind::Pairs => is_paired,
            DataKind::Clean | DataKind::Noisy => !is_paired,
            DataKind::Repeats => false,
        };
        let needed = match is_paired {
            true => "images with partners, for task=iwm: generated scenes, or data=pairs",
            false => "images by themselves: generated scenes, or files by data=noisy data.inputs=IMAGES",
        };
        require(fits, "data.kind", format!("{:?}", data.kind).to_lowercase(), needed)?;
        if data.signal == Some(SignalKind::Photons) {
            let needed = "nothing: each image is scaled between its own dark and bright end";
            return setting("data.signal", "photons", needed);
        }
        let needed = "0: each image is scaled between its own dark and bright end";
        require(data.intensity == 0.0, "data.intensity", data.intensity, needed)?;
        require(data.fit != Some(true), "data.fit", true, "false: targets are images of their own")?;
        let conditioned = task.class || !task.vector.is_empty() || task.context.is_some();
        let needed = format!("false for task={}: leave out class, vector and context", named(task.kind));
        require(!conditioned, "task.class", true, &needed)?;
        if let Some(term) = Term::ALL.into_iter().find(|term| term.config(task).weight > 0.0) {
            let needed = format!("0 for task={}, whose loss is only of hidden patches", named(task.kind));
            return setting(term.key(), term.config(task).weight, needed);
        }
        let growth = self.trainer.growth.stages.len();
        require(growth == 0, "trainer.growth.stages", growth, "none: crops of one size")?;
        let from = self.model.init.as_ref().map_or(String::new(), |p| p.display().to_string());
        let needed = "nothing: a run without labels is resumed with --resume, or begins from an encoder (model.encoder)";
        require(self.model.init.is_none(), "model.init", from, needed)
    }

    /// Labels, and what goes with them.
    fn check_segmentation(&self) -> Result<()> {
        let (data, task) = (&self.data, &self.task);
        let is_asked = task.kind.is_of_labels();
        let classes = task.classes;
        let fits = (1..=MOST_CLASSES).contains(&classes);
        require(fits, "task.classes", classes, "a number from 1 to 255")?;
        let conditioned = task.class || !task.vector.is_empty() || task.context.is_some();
        require(
            !(is_asked && conditioned),
            "task.class",
            true,
            "no condition for segmentation: leave out class, vector and context",
        )?;
        let has_classes = task.kind == TaskKind::Segmentation;
        require(has_classes || classes == 1, "task.classes", classes, "for task.kind=segmentation only")?;
        if !is_asked {
            return Ok(());
        }
        match data.kind {
            DataKind::Pairs => {}
            DataKind::Scenes => {
                let has_labels = |name: &str| Scene::by_name(name).is_ok_and(Scene::has_labels);
                let without = data.scenes.iter().find(|(name, weight)| **weight > 0.0 && !has_labels(name));
                if let Some((name, _)) = without {
                    let needed = "scenes whose objects are known, for segmentation: set data=nuclei, or data=pairs for files with labels";
                    return setting("data.scenes", name, needed);
                }
                let needed =
                    "1 for generated scenes, which have only a foreground; files (data=pairs) may have more";
                require(classes == 1, "task.classes", classes, needed)?;
            }
            _ => {
                let needed =
                    "images with labels, for segmentation: data=nuclei, or data=pairs with labels as targets";
                return setting("data.kind", format!("{:?}", data.kind).to_lowercase(), needed);
            }
        }
        let class = self.model.network.get("_class_name").and_then(|name| name.as_str());
        let needed = "a network of one size for task=instances, for objects are not shrunk";
        let grows = task.kind == TaskKind::Instances && class == Some("Growing");
        require(!grows, "model.network", "Growing", needed)?;
        if data.signal == Some(SignalKind::Photons) {
            let needed = "nothing: each image is scaled between its own dark and bright end";
            return setting("data.signal", "photons", needed);
        }
        let needed = "0 for segmentation: each image is scaled between its own dark and bright end";
        require(data.intensity == 0.0, "data.intensity", data.intensity, needed)?;
        require(data.fit != Some(true), "data.fit", true, "false for segmentation: targets are labels")?;
        let term = Term::ALL.into_iter().find(|term| term.config(task).weight > 0.0);
        if let Some(term) = term {
            let needed = "0 for segmentation, which has a loss of its own";
            return setting(term.key(), term.config(task).weight, needed);
        }
        let needed = "0 for segmentation: its images know no camera";
        require(task.balance == 0.0, "task.balance", task.balance, needed)
    }

    /// The discriminator, and images on a finer grid.
    fn check_gan(&self) -> Result<()> {
        let (data, task, gan) = (&self.data, &self.task, &self.task.gan);
        for (key, given, most) in [
            ("task.gan.scales", gan.scales, 4),
            ("task.gan.layers", gan.layers, 5),
            ("task.gan.filters", gan.filters, 512),
        ] {
            require((1..=most).contains(&given), key, given, &format!("a number from 1 to {most}"))?;
        }
        for (key, weight) in [
            ("task.gan.adversarial", gan.adversarial),
            ("task.gan.features", gan.features),
            ("task.gan.reconstruction", gan.reconstruction),
        ] {
            require(weight.is_finite() && weight >= 0.0, key, weight, "a number not below 0")?;
        }
        let enlarge = task.enlarge;
        require((1..=8).contains(&enlarge), "task.enlarge", enlarge, "a number from 1 to 8")?;
        let class = self.model.network.get("_class_name").and_then(|name| name.as_str());
        let enlarges = class == Some(enlarged::CLASS_NAME);
        let factor = self.model.network.get("factor").and_then(|f| f.as_u64()).unwrap_or(4);
        let fits = enlarges == (enlarge > 1) && (!enlarges || factor == enlarge as u64);
        let needed = "as model.network.factor of a network that enlarges (model=superres), and 1 for others";
        require(fits || class.is_none(), "task.enlarge", enlarge, needed)?;
        if task.kind == TaskKind::Gan && task.balance > 0.0 {
            let needed = "0 for task=gan: the parts of its loss count alike for all images";
            return setting("task.balance", task.balance, needed);
        }
        if enlarge == 1 {
            return Ok(());
        }
        let needed = "1 for this task: images on a finer grid are learned by task=gan";
        require(task.kind == TaskKind::Gan, "task.enlarge", enlarge, needed)?;
        let needed = "generated scenes (data=filaments, say), whose finer grid is known, for task.enlarge";
        require(data.kind == DataKind::Scenes, "data.kind", format!("{:?}", data.kind).to_lowercase(), needed)
    }

    /// How weights are changed, and how fast.
    fn check_optimizer(&self) -> Result<()> {
        let o = &self.optimizer;
        require(positive(o.rate), "optimizer.rate", o.rate, "a number above zero")?;
        let betas = o.betas.iter().all(|b| (0.0..1.0).contains(b));
        require(betas, "optimizer.betas", o.betas, "two numbers from 0 to below 1")?;
        require(positive(o.eps), "optimizer.eps", o.eps, "a number above zero")?;
        require(
            o.weight_decay >= 0.0 && o.weight_decay.is_finite(),
            "optimizer.weight_decay",
            o.weight_decay,
            "0 or more",
        )?;
        require(
            positive(o.encoder_rate),
            "optimizer.encoder_rate",
            o.encoder_rate,
            "a share above zero; to leave the encoder as it is, say model.only=[decoder]",
        )?;
        let decays = o.layer_decay > 0.0 && o.layer_decay <= 1.0;
        require(decays, "optimizer.layer_decay", o.layer_decay, "a share above 0 and up to 1")?;
        require(o.clip >= 0.0, "optimizer.clip", o.clip, "0 or more")?;
        let s = &self.schedule;
        for (key, value) in [
            ("schedule.floor", s.floor),
            ("schedule.refinement", s.refinement),
            ("schedule.refinement_rate", s.refinement_rate),
        ] {
            require(share(value), key, value, "a share from 0 to 1")?;
        }
        require(s.cycles > 0, "schedule.cycles", s.cycles, "one or more")?;
        Ok(())
    }

    /// The length of training, which is set by exactly one key.
    fn check_length(&self) -> Result<()> {
        let trainer = &self.trainer;
        let lengths = [
            ("trainer.iterations", trainer.iterations.is_some()),
            ("trainer.seconds", trainer.seconds.is_some()),
            ("trainer.epochs", trainer.epochs.is_some()),
        ];
        let given: Vec<&str> = lengths.iter().filter(|(_, given)| *given).map(|(key, _)| *key).collect();
        match given[..] {
            [_] => {}
            [] => {
                let needed = "the length of training is missing: set it, or trainer.seconds, or for files trainer.epochs";
                return setting("trainer.iterations", "nothing", needed);
            }
            [first, ref others @ ..] => {
                let needed = "only one of them can be used: leave out the others";
                return setting(first, format!("given beside {}", others.join(" and ")), needed);
            }
        }
        require(trainer.iterations != Some(0), "trainer.iterations", 0, "one or more")?;
        let seconds = trainer.seconds.unwrap_or(1.0);
        require(positive(seconds), "trainer.seconds", seconds, "a number above zero")?;
        Ok(())
    }

    /// Batches, crops, and what is done about outliers.
    fn check_trainer(&self) -> Result<()> {
        let trainer = &self.trainer;
        require(trainer.crop > 0, "trainer.crop", trainer.crop, "one pixel or more")?;
        require(trainer.depth != Some(0), "trainer.depth", 0, "one plane or more")?;
        require(trainer.nodes > 0, "trainer.nodes", trainer.nodes, "one machine or more")?;
        let rank = self.distributed.rank;
        let is_rank = (1..=MOST_RANK).contains(&rank);
        require(is_rank, "distributed.rank", rank, "a number from 1 to 64")?;
        require(trainer.accumulate > 0, "trainer.accumulate", trainer.accumulate, "one run or more")?;
        let guard = trainer.guard;
        require(
            guard == 0.0 || (guard.is_finite() && guard > 1.0),
            "trainer.guard",
            guard,
            "a number above 1, or 0",
        )?;
        require(trainer.skips > 0, "trainer.skips", trainer.skips, "one iteration or more")?;
        match &trainer.batch {
            Count::Number(n) => {
                let fits = *n > 0 && n.is_multiple_of(trainer.accumulate);
                require(fits, "trainer.batch", n, "a multiple of trainer.accumulate, above zero")?;
            }
            Count::Word(word) => require(word == "auto", "trainer.batch", word, "a number, or auto")?,
        }
        Ok(())
    }

    /// Crops that grow.
    fn check_growth(&self) -> Result<()> {
        let trainer = &self.trainer;
        let growth = &trainer.growth;
        let rising = growth.stages.is_sorted_by(|a, b| a.size < b.size);
        let sizes: Vec<usize> = growth.stages.iter().map(|s| s.size).collect();
        require(rising, "trainer.growth.stages", sizes, "sizes that rise")?;
        if let Some(last) = growth.stages.last() {
            require(
                last.size == trainer.crop,
                "trainer.growth.stages",
                last.size,
                "the last size is trainer.crop",
            )?;
            let shares: f64 = growth.stages.iter().map(|s| s.share).sum();
            let fits = growth.stages.iter().all(|s| positive(s.share)) && (shares - 1.0).abs() < 1e-6;
            require(fits, "trainer.growth.stages", shares, "shares above zero whose sum is 1")?;
        }
        require(
            growth.blend.is_finite() && share(growth.blend),
            "trainer.growth.blend",
            growth.blend,
            "a share from 0 to 1",
        )?;
        Ok(())
    }

    /// Averages, validations, calibration and records.
    fn check_judging(&self) -> Result<()> {
        let trainer = &self.trainer;
        require(trainer.ema_half_life >= 0.0, "trainer.ema_half_life", trainer.ema_half_life, "0 or more")?;
        let v = &self.validation;
        require(v.images > 0, "validation.images", v.images, "one or more")?;
        require(positive(v.sigma), "validation.sigma", v.sigma, "a number above zero")?;
        let c = &self.calibration;
        require(c.images != 1, "calibration.images", c.images, "0, or two or more")?;
        require(c.samples > 1, "calibration.samples", c.samples, "two or more")?;
        require(c.steps > 0, "calibration.steps", c.steps, "one or more")?;
        require(self.records.every > 0, "records.every", self.records.every, "one or more")?;
        Ok(())
    }

    /// What goes with learning from noisy files and what does not.
    fn check_noise(&self) -> Result<()> {
        let (data, task) = (&self.data, &self.task);
        let has_truth = matches!(data.kind, DataKind::Scenes | DataKind::Clean | DataKind::Pairs);
        if !has_truth && !task.kind.is_of_noise() && !task.kind.is_pretraining() {
            let needed = "a task that learns from noise, since these data have no clean image: noise2noise, noise2void or splitting";
            return setting("task.kind", format!("{:?}", task.kind).to_lowercase(), needed);
        }
        if task.kind == TaskKind::Noise2noise && data.kind == DataKind::Noisy {
            let needed = "repeats of each scene (data=repeats), or pairs of noisy files (data=pairs)";
            return setting("data.kind", "noisy", needed);
        }
        if task.kind != TaskKind::Noise2noise && data.kind == DataKind::Repeats {
            return setting(
                "data.kind",
                "repeats",
                "for task=noise2noise; data=noisy takes every file by itself",
            );
        }
        if let Some(averaged) = data.averaged {
            let fits = averaged > 0 && task.kind == TaskKind::Noise2noise && data.kind == DataKind::Pairs;
            require(fits, "data.averaged", averaged, "one or more, for data=pairs and task=noise2noise")?;
        }
        if task.kind == TaskKind::Splitting && data.signal == Some(SignalKind::Fixed) {
            return setting("data.signal", "fixed", "photons: electrons are what is split");
        }
        if data.signal == Some(SignalKind::Fixed) && matches!(data.kind, DataKind::Scenes | DataKind::Clean) {
            return setting("data.signal", "fixed", "photons: a simulated camera counts electrons");
        }
        if data.signal == Some(SignalKind::Photons) && (data.intensity > 0.0 || data.noise > 0.0) {
            let key = if data.intensity > 0.0 { "data.intensity" } else { "data.noise" };
            return setting(
                key,
                "given",
                "0 with data.signal=photons: the noise follows from the number of electrons",
            );
        }
        if let Some(gain) = data.gain {
            require(positive(gain), "data.gain", gain, "electrons per count, a number above zero")?;
        }
        if let Some(offset) = data.offset {
            require(offset.is_finite(), "data.offset", offset, "a number")?;
        }
        if let Some(noise) = data.read_noise {
            require(
                noise.is_finite() && noise >= 0.0,
                "data.read_noise",
                noise,
                "electrons, a number of 0 or more",
            )?;
        }
        let blind = &task.blind;
        let fits = blind.share > 0.0 && blind.share <= 0.25;
        require(fits, "task.blind.share", blind.share, "a share above 0, at most 0.25")?;
        require(blind.radius > 0, "task.blind.radius", 0, "one pixel or more")?;
        let [low, high] = task.split;
        let fits = low > 0.0 && low <= high && high < 1.0;
        require(fits, "task.split", task.split, "two rising shares above 0 and below 1")
    }
}
