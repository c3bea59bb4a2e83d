//! `clearshot reconstruct`: reconstructs slices from the projections of a CT scanner with parallel beams.
//!
//! A file of projections has angles along Y and detector columns along X; sinograms of several slices are along a
//! preceding axis. Flats and darks have the same form, and their rows are averaged.

use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot_image::address::{exists, same_place, try_out};
use clearshot_image::grid::indices;
use clearshot_image::{Axis, DType, Description, Dim, Image, Provenance, WriteOptions, Writer};
use clearshot_physics::tomography::{
    Filter, FilteredBackprojection, binned_places, centre_of_rotation, line_integrals,
};
use serde_json::json;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Reconstruct {
    /// Read projections from this file: a row for each angle, a column for each pixel of the detector's line, and a plane for each slice.
    #[arg(value_name = "PROJECTIONS")]
    projections: PathBuf,
    /// Write slices to this file, as 32-bit floats: the attenuation (minus the logarithm of the transmitted light) in each pixel.
    #[arg(short, long, alias = "out", value_name = "OUT")]
    output: PathBuf,
    /// Read flat fields, taken without an object, from this file and average its rows. Default: the projections are line integrals already.
    #[arg(long, value_name = "FILE")]
    flats: Option<PathBuf>,
    /// Read dark fields, taken without light, from this file and average its rows. Default: zero.
    #[arg(long, value_name = "FILE", requires = "flats")]
    darks: Option<PathBuf>,
    /// Read angles in degrees from this text file, one per line. Default: evenly over half a turn.
    #[arg(long, value_name = "FILE")]
    angles: Option<PathBuf>,
    /// Set the column of the projections on which the axis of rotation falls, counted from 0; it may lie between two. Default: found from the projections.
    #[arg(long, value_name = "COLUMN", allow_negative_numbers = true)]
    centre: Option<f64>,
    /// Use only every Nth angle, starting with the first. Default: 1, all angles.
    #[arg(long, value_name = "N", default_value_t = 1, hide_default_value = true, value_parser = clap::value_parser!(u32).range(1..))]
    every: u32,
    /// Average N neighbouring columns of the projections: slices have N times fewer pixels along each axis. Default: 1, no averaging.
    #[arg(long, value_name = "N", default_value_t = 1, hide_default_value = true, value_parser = clap::value_parser!(u32).range(1..))]
    bin: u32,
    /// Filter projections by ramp, shepp-logan, cosine, hamming or hann; the later, the less noise and detail.
    #[arg(long, default_value = "ramp")]
    filter: String,
    /// Replace existing files. Default: an existing file is an error.
    #[arg(long)]
    force: bool,
    /// Print one JSON object. Default: text.
    #[arg(long)]
    json: bool,
}

/// A detector with fewer places shows nothing.
const FEWEST_PLACES: usize = 8;
/// Planes that are looked at for their axes, and the fewest rows; how much sums have to differ along rows, as a share of their mean, and the share of that variance that they have along planes at most.
const FEWEST_TURNED: usize = 8;
const TURNED_SPREAD: f64 = 0.05;
const TURNED_SHARE: f64 = 0.1;

/// What to do with axes in another order.
const TURN: &str = "if its axes are (angle, row, column), swap the first two: planes are slices and rows are angles (numpy: p.swapaxes(0, 1))";

/// A file of rows, of which one plane at a time is read.
struct Rows {
    path: PathBuf,
    image: Image,
    /// Where each plane is along the axes before the last two.
    planes: Vec<Vec<usize>>,
    rows: usize,
    places: usize,
}

impl Rows {
    fn open(path: &Path) -> Result<Rows> {
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
        let planes = indices(&before.iter().map(|&n| 0..n).collect::<Vec<_>>());
        Ok(Rows { path: path.to_path_buf(), image, planes, rows, places })
    }

    fn plane(&self, plane: usize) -> Result<Vec<f64>> {
        let place = self.planes[plane].iter().map(|&at| at..at + 1);
        let values = self.image.read_f64(&place.chain([0..self.rows, 0..self.places]).collect::<Vec<_>>())?;
        if let Some(i) = values.iter().position(|v| !v.is_finite()) {
            let (row, column) = (i / self.places, i % self.places);
            bail!(
                "{}: {} in plane {plane}, row {row}, column {column}; projections must be finite numbers",
                self.path.display(),
                values[i]
            );
        }
        Ok(values)
    }

    fn mean(&self, plane: usize) -> Result<Vec<f64>> {
        let mut mean = vec![0.0; self.places];
        for row in self.plane(plane)?.chunks_exact(self.places) {
            mean.iter_mut().zip(row).for_each(|(m, v)| *m += v / self.rows as f64);
        }
        Ok(mean)
    }
}

/// Means over the rows of flats or darks: of each plane, or of the only one for all.
struct Means {
    rows: Rows,
    only: Option<Vec<f64>>,
}

impl Means {
    /// # Errors
    /// If the file cannot be read, or its rows are not of the projections' detector.
    fn open(path: &Path, projections: &Rows) -> Result<Means> {
        let rows = Rows::open(path)?;
        let (got, slices) = (rows.planes.len(), projections.planes.len());
        if rows.places != projections.places || (got != 1 && got != slices) {
            bail!(
                "{}: {got} planes of {} columns, where the projections have {slices} of {}; one plane for all, or one for each, and as many columns are needed",
                path.display(),
                rows.places,
                projections.places
            );
        }
        let only = (got == 1).then(|| rows.mean(0)).transpose()?;
        Ok(Means { rows, only })
    }

    fn of(&self, plane: usize) -> Result<Vec<f64>> {
        self.only.clone().map_or_else(|| self.rows.mean(plane), Ok)
    }
}

/// Projections with what makes line integrals of them.
struct Projections {
    all: Rows,
    flats: Option<Means>,
    darks: Option<Means>,
}

impl Projections {
    fn count(&self) -> usize {
        self.all.planes.len()
    }

    /// Line integrals of a plane.
    fn sinogram(&self, plane: usize) -> Result<Vec<f64>> {
        let counts = self.all.plane(plane)?;
        let Some(flats) = &self.flats else { return Ok(counts) };
        let dark = match &self.darks {
            Some(darks) => darks.of(plane)?,
            None => vec![0.0; self.all.places],
        };
        line_integrals(&counts, &flats.of(plane)?, &dark)
            .with_context(|| format!("{}: plane {plane}", flats.rows.path.display()))
    }

    /// Whether planes look like angles and rows like slices. A row of a sinogram sums all that is in a slice, at every angle the same; so sums that differ along the rows,
    /// and hardly along the planes, are of rows that are slices.
    fn look_turned(&self) -> Result<bool> {
        let (count, rows) = (self.count(), self.all.rows);
        if count < FEWEST_TURNED || rows < FEWEST_TURNED {
            return Ok(false);
        }
        let mut sums = Vec::with_capacity(FEWEST_TURNED);
        for i in 0..FEWEST_TURNED {
            let plane = self.sinogram(i * count / FEWEST_TURNED)?;
            sums.push(plane.chunks_exact(self.all.places).map(|r| r.iter().sum()).collect::<Vec<f64>>());
        }
        let variance = |values: &mut dyn Iterator<Item = f64>| {
            let values: Vec<f64> = values.collect();
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64
        };
        let along_rows =
            sums.iter().map(|s| variance(&mut s.iter().copied())).sum::<f64>() / FEWEST_TURNED as f64;
        let along_planes =
            (0..rows).map(|r| variance(&mut sums.iter().map(|s| s[r]))).sum::<f64>() / rows as f64;
        let mean = sums.iter().flatten().sum::<f64>() / (FEWEST_TURNED * rows) as f64;
        Ok(along_rows > (TURNED_SPREAD * mean).powi(2) && along_planes < TURNED_SHARE * along_rows)
    }
}

/// How a slice is made.
struct Geometry {
    /// Of all rows, and the rows that slices are made of.
    angles: Vec<f64>,
    kept: Vec<usize>,
    filter: Filter,
    bin: usize,
    /// Places after binning, which is the side of a slice.
    side: usize,
}

impl Reconstruct {
    pub fn run(self) -> Result<()> {
        self.refuse_output()?;
        let all = Rows::open(&self.projections)?;
        let geometry = self.geometry(&all)?;
        let description = self.description(all.planes.len(), geometry.side);
        Writer::check(&self.output, &description)?;
        try_out(&self.output, self.force)?;
        let means = |path: &Option<PathBuf>| path.as_ref().map(|p| Means::open(p, &all)).transpose();
        let (flats, darks) = (means(&self.flats)?, means(&self.darks)?);
        let projections = Projections { all, flats, darks };
        if projections.look_turned()? {
            eprintln!("clearshot: {}: {TURN}", self.projections.display());
        }
        // All angles tell the centre, also where a slice is made of fewer.
        let centre = |plane: usize| match self.centre {
            Some(centre) => Ok(centre),
            None => {
                centre_of_rotation(&projections.sinogram(plane)?, projections.all.places, &geometry.angles)
                    .with_context(|| {
                        let path = self.projections.display();
                        format!("{path}: plane {plane}: no centre of rotation was found; give it by --centre")
                    })
            }
        };
        let centres: Vec<f64> = (0..projections.count()).map(centre).collect::<Result<_>>()?;
        self.write(&projections, &geometry, &description, &centres)?;
        self.say(&centres, geometry.kept.len(), geometry.side)
    }

    /// # Errors
    /// If the output is an input, or is there and may not be replaced.
    fn refuse_output(&self) -> Result<()> {
        let read = [Some(&self.projections), self.flats.as_ref(), self.darks.as_ref(), self.angles.as_ref()];
        if let Some(input) = read.into_iter().flatten().find(|path| same_place(path, &self.output)) {
            return Err(clearshot::Error::SameFile).with_context(|| input.display().to_string());
        }
        if !self.force && exists(&self.output)? {
            return Err(clearshot_image::Error::Exists { path: self.output.clone() }.into());
        }
        Ok(())
    }

    fn geometry(&self, all: &Rows) -> Result<Geometry> {
        let (path, places, bin) = (self.projections.display(), all.places, self.bin as usize);
        if places < FEWEST_PLACES {
            bail!(
                "{path}: {places} columns; at least {FEWEST_PLACES} are needed: a column for each pixel of the detector, along X"
            );
        }
        let side = places / bin;
        if side < FEWEST_PLACES {
            let most = places / FEWEST_PLACES;
            bail!(
                "--bin {bin}: leaves {side} of the {places} columns of {path}, and {FEWEST_PLACES} are needed; give {most} or less"
            );
        }
        let last = side * bin - 1;
        if let Some(centre) = self.centre.filter(|c| !(0.0..=last as f64).contains(c)) {
            bail!("--centre {centre}: not on the detector of {path}, whose columns go from 0 to {last}");
        }
        let kept = (0..all.rows).step_by(self.every as usize).collect();
        let filter = Filter::named(&self.filter).with_context(|| format!("--filter {}", self.filter))?;
        Ok(Geometry { angles: self.angles(all)?, kept, filter, bin, side })
    }

    fn angles(&self, all: &Rows) -> Result<Vec<f64>> {
        let rows = all.rows;
        let Some(path) = &self.angles else {
            return Ok((0..rows).map(|i| 180.0 * i as f64 / rows as f64).collect());
        };
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let number = |line: &str| {
            line.parse::<f64>().ok().filter(|a| a.is_finite()).with_context(|| {
                format!("{}: '{line}' is not an angle in degrees; write one angle per line", path.display())
            })
        };
        let angles: Vec<f64> = text.split_whitespace().map(number).collect::<Result<_>>()?;
        if angles.len() != rows {
            let turn = if angles.len() == all.planes.len() { format!("; {TURN}") } else { String::new() };
            bail!(
                "{}: {} angles, where {} has {rows} rows{turn}",
                path.display(),
                angles.len(),
                self.projections.display()
            );
        }
        Ok(angles)
    }

    fn description(&self, slices: usize, side: usize) -> Description {
        let axes = [(Axis::Z, slices), (Axis::Y, side), (Axis::X, side)];
        let dims = axes.iter().skip(usize::from(slices == 1)).map(|&(a, n)| Dim::new(a, n)).collect();
        Description::new("", &self.output, dims, DType::F32)
    }

    /// Makes slice after slice and writes each.
    fn write(
        &self,
        projections: &Projections,
        geometry: &Geometry,
        description: &Description,
        centres: &[f64],
    ) -> Result<()> {
        let Geometry { angles, kept, filter, bin, side } = geometry;
        let (side, places, few) = (*side, projections.all.places, kept.iter().map(|&i| angles[i]));
        let few: Vec<f64> = few.collect();
        let parameters = json!({
            "projections": self.projections, "flats": self.flats, "darks": self.darks, "angles": self.angles,
            "views": few.len(), "every": self.every, "bin": bin, "filter": self.filter, "centres": centres,
        });
        let mut provenance = Provenance::new("reconstruct", description, parameters);
        provenance.source = self.projections.display().to_string();
        let options = WriteOptions { replace: self.force, provenance: Some(provenance.value()) };
        let mut writer = Writer::create(&self.output, description, &options)?;
        for (plane, &centre) in centres.iter().enumerate() {
            let sinogram = projections.sinogram(plane)?;
            let rows: Vec<f64> =
                kept.iter().flat_map(|&i| sinogram[i * places..][..places].iter().copied()).collect();
            let centre = (centre + 0.5) / *bin as f64 - 0.5;
            let back = FilteredBackprojection::new(side, &few, side, centre, *filter)
                .with_context(|| format!("{}: plane {plane}", self.projections.display()))?;
            let slice = back.slice(&binned_places(&rows, places, *bin))?;
            let mut bytes = Vec::with_capacity(slice.len() * DType::F32.bytes());
            DType::F32.encode(&slice, &mut bytes);
            let region = [plane..plane + 1, 0..side, 0..side];
            writer.write(&region[usize::from(centres.len() == 1)..], &bytes)?;
        }
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
        let slices = if centres.len() == 1 { "1 slice".into() } else { format!("{} slices", centres.len()) };
        println!(
            "{}: {slices} of {side} x {side} pixels from {views} angles, centre of rotation {how}: {}",
            self.output.display(),
            places.join(", ")
        );
        Ok(())
    }
}
