//! `clearshot synth`: writes generated scenes and their simulated camera or scanner images.

mod scanner;

use crate::electrons;
use crate::progress::Line;
use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot_image::address::is_address;
use clearshot_image::{Axis, DType, Description, Dim, Provenance, WriteOptions, Writer};
use clearshot_scenes::{Camera, Converter, Scanner, Scene, mosaic};
use scanner::ScannerArgs;
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Synth {
    /// Choose a kind of scene: filaments, nuclei, stars, phantom or dead-leaves, as in the benchmark tables; or fibres, mitochondria, membranes,
    /// reticulum, vesicles, tissue or textures, as a microscope shows them at a random magnification. Several names, separated by commas, give mosaics: planes whose
    /// regions each show one of these kinds or nothing.
    #[arg(long)]
    scene: String,
    /// Generate this many scenes.
    #[arg(long, default_value_t = 1)]
    count: u32,
    /// Set the size in pixels, as YxX or ZxYxX; one number is the side of a square.
    #[arg(long, default_value = "128x128")]
    size: String,
    /// Set the mean electrons of the brightest value.
    #[arg(long, default_value_t = 20.0)]
    peak: f64,
    /// Set the mean electrons of the background. Default: typical for the peak.
    #[arg(long, value_parser = electrons::amount::<f64>, allow_negative_numbers = true)]
    background: Option<f64>,
    /// Set the standard deviation of the read noise in electrons. Default: typical for the peak.
    #[arg(long, value_parser = electrons::amount::<f64>, allow_negative_numbers = true)]
    read_noise: Option<f64>,
    /// Blur with a Gaussian of this standard deviation in pixels. Default: no blur.
    #[arg(long)]
    psf_sigma: Option<f64>,
    /// Multiply each pixel by a normal random number of mean 1 and this standard deviation, before the camera's noise. Default: 0.
    #[arg(long, default_value_t = 0.0, hide_default_value = true)]
    speckle: f64,
    /// Replace this share of the pixels by black and as many by white, in halves. Default: 0.
    #[arg(long, default_value_t = 0.0, hide_default_value = true, value_name = "SHARE")]
    salt_and_pepper: f64,
    /// Vary the sensitivity of pixels by up to this share. Default: 0.
    #[arg(long, default_value_t = 0.0, hide_default_value = true, value_name = "SHARE")]
    flat_field: f64,
    /// Make this share of the pixels hot. Default: 0.
    #[arg(long, default_value_t = 0.0, hide_default_value = true, value_name = "SHARE")]
    hot_pixels: f64,
    /// Write counts of an analogue-to-digital converter of this many bits (1 electron per count, offset 100). Default: electrons as 32-bit floats.
    #[arg(long, value_parser = clap::value_parser!(u32).range(8..=16))]
    bits: Option<u32>,
    /// Seed scenes and noise; the same seed gives the same files.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    scanner: ScannerArgs,
    /// Also write labels to the folder `labels`: of nuclei, 0 for the background and objects numbered from 1; of mosaics, 0 for nothing and kinds of scenes numbered from 1 in the order of `--scene`. Default: off.
    #[arg(long)]
    labels: bool,
    /// Write to this folder: scenes to its folder `truth` and camera images to `noisy`, with the same names and in the same unit.
    #[arg(long, short, alias = "output")]
    out: PathBuf,
    /// Write files with this extension.
    #[arg(long, default_value = "tif")]
    to: String,
    /// Replace existing files. Default: an existing file is an error.
    #[arg(long)]
    force: bool,
    /// Print one line of JSON for each scene. Default: text.
    #[arg(long)]
    json: bool,
}

impl Synth {
    pub fn run(self) -> Result<()> {
        let scenes: Vec<Scene> =
            self.scene.split(',').map(|name| Scene::by_name(name.trim())).collect::<Result<_, _>>()?;
        let shape = self.shape()?;
        let scanner = self.scanner.scanner()?;
        if scanner.is_some() && !matches!(shape[..], [y, x] if y == x) {
            bail!(
                "--size {}: scanners need square images; give one number, as in --size {}",
                self.size,
                shape[shape.len() - 1]
            );
        }
        let usual = Camera::for_peak(self.peak);
        let psf =
            self.psf_sigma.map(|s| clearshot::gaussian_psf(&vec![s; shape.len()], &shape)).transpose()?;
        if let Some((_, Some(said))) = &psf {
            eprintln!("clearshot: {said}");
        }
        let camera = Camera {
            background: self.background.unwrap_or(usual.background),
            read_noise: self.read_noise.unwrap_or(usual.read_noise),
            psf: psf.map(|(psf, _)| psf),
            flat_field: self.flat_field,
            hot_pixels: self.hot_pixels,
            speckle: self.speckle,
            salt_and_pepper: self.salt_and_pepper,
            converter: self.bits.map(|bits| Converter { gain: 1.0, offset: 100.0, bits }),
            ..usual
        };
        let parameters = self.parameters(&camera, scanner);
        let folders = ["truth", "noisy", "labels"].map(|name| self.out.join(name));
        for folder in folders.iter().take(if self.labels { 3 } else { 2 }) {
            if !is_address(folder) {
                std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
            }
        }
        let stem = if scenes.len() == 1 { &self.scene } else { "mosaic" };
        let mut line = Line::new(stem.to_string());
        let mut out = std::io::stdout().lock();
        for index in 0..self.count {
            let (mut truth, mut labels) = match scenes[..] {
                [scene] if self.labels => scene.generate_labelled(self.seed, index, &shape)?,
                [scene] => (scene.generate(self.seed, index, &shape)?, vec![]),
                _ => mosaic(&scenes, self.seed, index, &shape)?,
            };
            if let Some(scanner) = scanner {
                scanner.cut(&mut truth, &shape)?;
                if self.labels {
                    scanner.cut(&mut labels, &shape)?;
                }
            }
            let (values, truth) = self.looked_at(&camera, scanner, truth, &shape, index)?;
            let name = format!("{}_{index:04}.{}", stem, self.to.trim_start_matches('.'));
            let paths = folders.each_ref().map(|folder| folder.join(&name));
            let mut parameters = parameters.clone();
            parameters["index"] = index.into();
            self.write(&paths[0], &truth, &shape, DType::F32, &parameters)?;
            let dtype = if self.bits.is_some() { DType::U16 } else { DType::F32 };
            self.write(&paths[1], &values, &shape, dtype, &parameters)?;
            if self.labels {
                let labels: Vec<f32> = labels.into_iter().map(f32::from).collect();
                self.write(&paths[2], &labels, &shape, DType::U16, &parameters)?;
            }
            line.show(index as usize + 1, self.count as usize);
            if self.json {
                let labels = self.labels.then_some(&paths[2]);
                let record = json!({
                    "truth": paths[0], "noisy": paths[1], "labels": labels, "index": index,
                });
                writeln!(out, "{record}")?;
            }
        }
        line.end();
        if !self.json {
            let scenes = if self.count == 1 { "1 scene".into() } else { format!("{} scenes", self.count) };
            writeln!(out, "{scenes} in {}", self.out.display())?;
        }
        Ok(())
    }

    fn shape(&self) -> Result<Vec<usize>> {
        let shape: Option<Vec<usize>> = self.size.split('x').map(|n| n.parse().ok()).collect();
        match shape.as_deref() {
            Some([side]) => Ok(vec![*side; 2]),
            Some(shape @ ([_, _] | [_, _, _])) => Ok(shape.to_vec()),
            _ => bail!("--size {}: not a size; write YxX, ZxYxX or one number", self.size),
        }
    }

    /// How the images were made, for the record in them.
    fn parameters(&self, camera: &Camera, scanner: Option<Scanner>) -> Value {
        let (scene, seed, size) = (&self.scene, self.seed, &self.size);
        if let Some(scanner) = scanner {
            let scanner = scanner::record(&scanner);
            return json!({ "scene": scene, "seed": seed, "size": size, "scanner": scanner });
        }
        json!({
            "scene": scene, "seed": seed, "size": size, "peak": self.peak, "background": camera.background,
            "read_noise": camera.read_noise, "psf_sigma": self.psf_sigma, "bits": self.bits,
            "speckle": self.speckle, "salt_and_pepper": self.salt_and_pepper, "flat_field": self.flat_field,
            "hot_pixels": self.hot_pixels,
        })
    }

    /// What is seen of a scene, and the scene as it would be seen without noise and blur, so that the two can be scored.
    fn looked_at(
        &self,
        camera: &Camera,
        scanner: Option<Scanner>,
        scene: Vec<f32>,
        shape: &[usize],
        index: u32,
    ) -> Result<(Vec<f32>, Vec<f32>)> {
        if let Some(scanner) = scanner {
            return Ok((scanner.scan(&scene, shape, self.seed, index)?, scene));
        }
        let picture = camera.take(&scene, shape, self.seed, index)?;
        let offset = camera.converter.map_or(0.0, |c| c.offset);
        let level = |&v: &f32| (self.peak * f64::from(v) + camera.background + offset) as f32;
        Ok((picture.values, scene.iter().map(level).collect()))
    }

    fn write(
        &self,
        path: &Path,
        values: &[f32],
        shape: &[usize],
        dtype: DType,
        parameters: &Value,
    ) -> Result<()> {
        let axes = [Axis::Z, Axis::Y, Axis::X];
        let dims = axes[3 - shape.len()..].iter().zip(shape).map(|(&a, &n)| Dim::new(a, n)).collect();
        let description = Description::new("", path, dims, dtype);
        let mut provenance = Provenance::new("synth", &description, parameters.clone());
        provenance.source = String::new();
        let options = WriteOptions { replace: self.force, provenance: Some(provenance.value()) };
        let mut writer = Writer::create(path, &description, &options)?;
        let mut bytes = Vec::with_capacity(values.len() * dtype.bytes());
        dtype.encode(&values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>(), &mut bytes);
        let whole: Vec<_> = shape.iter().map(|&n| 0..n).collect();
        writer.write(&whole, &bytes)?;
        Ok(writer.finish()?)
    }
}
