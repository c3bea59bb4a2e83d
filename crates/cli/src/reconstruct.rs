//! `clearshot reconstruct`: slices from the projections of a CT scanner with parallel beams.
//!
//! A file of projections has angles along Y and the places of the detector along X, and sinograms of several slices along an axis in front. Flats and darks are read like it, and their rows are averaged.

use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot_image::{Axis, DType, Description, Dim, Image, Provenance, WriteOptions, Writer};
use clearshot_physics::tomography::{
    Filter, FilteredBackprojection, binned_places, centre_of_rotation, line_integrals,
};
use serde_json::json;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Reconstruct {
    /// Read projections from this file: a row for each angle, a column for each place of the detector, and a plane for each slice.
    #[arg(value_name = "PROJECTIONS")]
    projections: PathBuf,
    /// Write slices to this file, as 32-bit floats: what a pixel takes of the light (minus the logarithm), for each place of the detector.
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Average the rows of this file for what the detector sees without an object. Default: the projections are line integrals already.
    #[arg(long, value_name = "FILE")]
    flats: Option<PathBuf>,
    /// Average the rows of this file for what the detector shows without light. Default: zero.
    #[arg(long, value_name = "FILE", requires = "flats")]
    darks: Option<PathBuf>,
    /// Read angles in degrees from this text file, one a line. Default: evenly over half a turn.
    #[arg(long, value_name = "FILE")]
    angles: Option<PathBuf>,
    /// Set the place of the detector that the centre of rotation lies behind, counted from 0. Default: found from the projections.
    #[arg(long, value_name = "PLACE", allow_negative_numbers = true)]
    centre: Option<f64>,
    /// Take every so many angles only, the first being among them.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    every: u32,
    /// Average so many neighbouring places of the detector: slices have as many times fewer pixels.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    bin: u32,
    /// Filter projections by ramp, shepp-logan, cosine, hamming or hann; the later, the less noise and detail.
    #[arg(long, default_value = "ramp")]
    filter: String,
    /// Replace a file that is there already. Default: it is kept, and it is an error.
    #[arg(long)]
    force: bool,
    /// Print one JSON object. Default: text.
    #[arg(long)]
    json: bool,
}

/// Planes of rows.
struct Rows {
    planes: Vec<Vec<f64>>,
    rows: usize,
    places: usize,
}

impl Rows {
    fn read(path: &Path) -> Result<Rows> {
        let image = Image::open(path)?;
        let shape = image.shape();
        let (&[rows, places], before) =
            shape.split_last_chunk::<2>().map(|(b, l)| (l, b)).with_context(|| {
                format!(
                    "{}: an image of one axis; projections have angles along Y and the detector along X",
                    path.display()
                )
            })?;
        let named: Vec<Axis> = image.description.dims.iter().map(|d| d.axis).collect();
        if named[named.len() - 2..] != [Axis::Y, Axis::X] {
            let names: String = named.iter().map(|a| a.letter()).collect();
            bail!("{}: axes {names}; projections end with Y (angles) and X (the detector)", path.display());
        }
        let values = image.read_f64(&shape.iter().map(|&n| 0..n).collect::<Vec<_>>())?;
        if let Some(i) = values.iter().position(|v| !v.is_finite()) {
            bail!("{}: value {i} is {}; projections are finite numbers", path.display(), values[i]);
        }
        let count = before.iter().product::<usize>().max(1);
        let planes = values.chunks_exact(rows * places).take(count).map(<[f64]>::to_vec).collect();
        Ok(Rows { planes, rows, places })
    }

    /// The mean of a plane's rows; of all planes alike if there is one alone.
    fn mean(&self, plane: usize) -> Vec<f64> {
        let values = &self.planes[if self.planes.len() == 1 { 0 } else { plane }];
        let mut mean = vec![0.0; self.places];
        for row in values.chunks_exact(self.places) {
            mean.iter_mut().zip(row).for_each(|(m, v)| *m += v / self.rows as f64);
        }
        mean
    }

    /// # Errors
    /// If these rows are not of the projections' detector.
    fn fit(&self, projections: &Rows, path: &Path) -> Result<()> {
        let (got, slices) = (self.planes.len(), projections.planes.len());
        if self.places != projections.places || (got != 1 && got != slices) {
            bail!(
                "{}: {got} planes of {} places, where the projections have {slices} of {}",
                path.display(),
                self.places,
                projections.places
            );
        }
        Ok(())
    }
}

impl Reconstruct {
    pub fn run(self) -> Result<()> {
        let all = Rows::read(&self.projections)?;
        let angles = self.angles(all.rows)?;
        let filter = Filter::named(&self.filter)?;
        let bin = self.bin as usize;
        let places = all.places / bin;
        if places < 8 {
            bail!("--bin {bin}: {places} places are left of {}; take fewer together", all.places);
        }
        let kept: Vec<usize> = (0..all.rows).step_by(self.every as usize).collect();
        let few: Vec<f64> = kept.iter().map(|&i| angles[i]).collect();
        let mut slices = Vec::with_capacity(all.planes.len() * places * places);
        let mut centres = Vec::new();
        for (plane, sinogram) in self.sinograms(&all)?.into_iter().enumerate() {
            // All angles tell the centre, also where a slice is made of fewer.
            let centre = match self.centre {
                Some(centre) => centre,
                None => centre_of_rotation(&sinogram, all.places, &angles).with_context(|| {
                    format!("plane {plane}: no centre of rotation was found; say --centre")
                })?,
            };
            centres.push(centre);
            let rows: Vec<f64> =
                kept.iter().flat_map(|&i| sinogram[i * all.places..][..all.places].iter().copied()).collect();
            let rows = binned_places(&rows, all.places, bin);
            let centre = (centre + 0.5) / bin as f64 - 0.5;
            slices.extend(FilteredBackprojection::new(places, &few, places, centre, filter)?.slice(&rows)?);
        }
        self.write(&slices, &[all.planes.len(), places, places], &centres, few.len())?;
        self.say(&centres, few.len(), places)
    }

    fn angles(&self, rows: usize) -> Result<Vec<f64>> {
        let Some(path) = &self.angles else {
            return Ok((0..rows).map(|i| 180.0 * i as f64 / rows as f64).collect());
        };
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let number = |line: &str| {
            line.parse::<f64>().ok().filter(|a| a.is_finite()).with_context(|| {
                format!("{}: '{line}' is not an angle in degrees, one a line", path.display())
            })
        };
        let angles: Vec<f64> = text.split_whitespace().map(number).collect::<Result<_>>()?;
        if angles.len() != rows {
            bail!(
                "{}: {} angles, where {} has {rows} rows",
                path.display(),
                angles.len(),
                self.projections.display()
            );
        }
        Ok(angles)
    }

    /// Line integrals of every plane.
    fn sinograms(&self, all: &Rows) -> Result<Vec<Vec<f64>>> {
        let Some(flats_path) = &self.flats else { return Ok(all.planes.clone()) };
        let flats = Rows::read(flats_path)?;
        flats.fit(all, flats_path)?;
        let darks = match &self.darks {
            Some(path) => {
                let darks = Rows::read(path)?;
                darks.fit(all, path)?;
                Some(darks)
            }
            None => None,
        };
        let of_plane = |(i, counts): (usize, &Vec<f64>)| {
            let dark = darks.as_ref().map_or_else(|| vec![0.0; all.places], |d| d.mean(i));
            line_integrals(counts, &flats.mean(i), &dark).with_context(|| format!("plane {i}"))
        };
        all.planes.iter().enumerate().map(of_plane).collect()
    }

    fn write(&self, slices: &[f64], shape: &[usize; 3], centres: &[f64], views: usize) -> Result<()> {
        let skipped = usize::from(shape[0] == 1);
        let axes = [Axis::Z, Axis::Y, Axis::X];
        let dims = axes.iter().zip(shape).skip(skipped).map(|(&a, &n)| Dim::new(a, n)).collect();
        let description = Description::new("", &self.output, dims, DType::F32);
        let parameters = json!({
            "projections": self.projections, "flats": self.flats, "darks": self.darks, "angles": self.angles,
            "views": views, "every": self.every, "bin": self.bin, "filter": self.filter, "centres": centres,
        });
        let mut provenance = Provenance::new("reconstruct", &description, parameters);
        provenance.source = self.projections.display().to_string();
        let options = WriteOptions { replace: self.force, provenance: Some(provenance.value()) };
        let mut writer = Writer::create(&self.output, &description, &options)?;
        let mut bytes = Vec::with_capacity(slices.len() * DType::F32.bytes());
        DType::F32.encode(slices, &mut bytes);
        writer.write(&shape[skipped..].iter().map(|&n| 0..n).collect::<Vec<_>>(), &bytes)?;
        Ok(writer.finish()?)
    }

    fn say(&self, centres: &[f64], views: usize, side: usize) -> Result<()> {
        if self.json {
            let found = self.centre.is_none();
            println!(
                "{}",
                json!({"output": self.output, "slices": centres.len(), "side": side, "views": views, "centres": centres, "found": found})
            );
            return Ok(());
        }
        let how = if self.centre.is_none() { "found" } else { "given" };
        let places: Vec<String> = centres.iter().map(|c| format!("{c:.2}")).collect();
        println!(
            "{}: {} slices of {side} x {side} pixels from {views} angles, centre of rotation {how}: {}",
            self.output.display(),
            centres.len(),
            places.join(", ")
        );
        Ok(())
    }
}
