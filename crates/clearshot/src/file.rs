//! Restores one file: opens it, restores each of its images and writes them, with additional outputs.

use crate::classical::Classical;
use crate::error::{Error, Result};
use crate::foreign::Foreign;
use crate::items::{self, Spot};
use crate::learned::session::Standing;
use crate::learned::{Map, Session};
use crate::notice::Notice;
use crate::observer::{Ear, Event, Observer};
use crate::predictor::Predictor;
use crate::report::{ImageReport, Report, Status};
use crate::restorer::{Kind, Restorer, bytes_of};
use crate::settings::Settings;
use crate::shared_run::SharedRun;
use crate::target::{Destination, Made};
use crate::validity::{Mask, Validity, mask_path};
use clearshot_image::address::{exists, is_address, same_place};
use clearshot_image::collection::{self, Collection};
use clearshot_image::picture::{Panel, side_by_side};
use clearshot_image::{Description, Image, WriteOptions, fingerprint};
use clearshot_restore::stream::Frames;
use std::path::{Path, PathBuf};

/// Pixels of a picture's panel along its longer side, and its width at least.
const MOST_PICTURED: usize = 1024;
const LEAST_PICTURED: usize = 320;

/// Restores all images of a file, or the one selected by the settings, into a file whose ending selects the format. The
/// output keeps the axes, type and metadata of the input, and records how it was made.
///
/// An existing output of the same model, input and settings is kept ([`Status::AlreadyDone`]); an interrupted run over
/// a stack resumes where it ended.
///
/// # Errors
/// If the file cannot be read or restored, the output exists and may not be replaced, or the observer stops it. No
/// half-written file remains.
pub fn restore_file(
    input: impl AsRef<Path>,
    output: impl AsRef<Path>,
    restorer: &Restorer,
    settings: &Settings,
    observer: &mut dyn Observer,
) -> Result<Report> {
    let walk = Walk { input: input.as_ref(), output: output.as_ref(), restorer, settings, run: None };
    walk.checked(observer)
}

/// Restores one job's part of the only image of a file, or completes the work of all jobs. The output is one OME-Zarr,
/// of which each job makes whole chunks (or shards, if there are any). Decisions such as the camera are made for the
/// whole image.
///
/// # Errors
/// As [`restore_file`], or if the restorer or the settings need more than a part of the image.
pub fn restore_part(
    input: impl AsRef<Path>,
    output: impl AsRef<Path>,
    restorer: &Restorer,
    settings: &Settings,
    run: &SharedRun,
    observer: &mut dyn Observer,
) -> Result<Report> {
    let walk = Walk { input: input.as_ref(), output: output.as_ref(), restorer, settings, run: Some(run) };
    walk.checked(observer)
}

struct Walk<'a> {
    input: &'a Path,
    output: &'a Path,
    restorer: &'a Restorer,
    settings: &'a Settings,
    /// Where several jobs make the only image.
    run: Option<&'a SharedRun>,
}

/// What restores the images of the file.
enum Engine<'s> {
    Learned(Session<'s>),
    Foreign(&'s Foreign),
    /// With the fingerprint of the file.
    Predictor(&'s Predictor, String),
    Classical(&'s Classical),
}

impl Engine<'_> {
    fn written(&self, d: &Description, settings: &Settings) -> Result<Description> {
        match self {
            Engine::Learned(session) => session.written(d),
            Engine::Foreign(foreign) => foreign.written(d),
            Engine::Predictor(predictor, _) => predictor.written(d),
            Engine::Classical(_) => Ok(Classical::written(d, settings.float)),
        }
    }

    /// What is there of what would be made, for images whose files are named after `bases`.
    fn standing(&mut self, output: &Path, bases: &[PathBuf], settings: &Settings) -> Result<Standing> {
        let taken = |path: PathBuf| match !settings.replace && exists(&path)? {
            true => Err(Error::from(clearshot_image::Error::Exists { path })),
            false => Ok(()),
        };
        for base in bases.iter().filter(|_| settings.picture) {
            taken(picture_path(base))?;
        }
        match self {
            Engine::Learned(session) => session.standing(output, bases),
            Engine::Predictor(predictor, hash) => {
                for base in bases.iter().filter(|_| settings.save_mask) {
                    taken(mask_path(base))?;
                }
                predictor.standing(output, hash, settings)
            }
            Engine::Foreign(_) | Engine::Classical(_) => {
                for base in bases.iter().filter(|_| settings.save_mask) {
                    taken(mask_path(base))?;
                }
                taken(output.to_path_buf())?;
                Ok(if settings.replace { Standing::InPart } else { Standing::Missing })
            }
        }
    }
}

impl Walk<'_> {
    fn checked(&self, observer: &mut dyn Observer) -> Result<Report> {
        self.restorer.check(self.settings)?;
        let mut ear = Ear { observer, shown: self.input.to_path_buf() };
        self.run(&mut ear).map_err(|e| e.at(self.input.display()))
    }

    /// Refuses what cannot be done to a part of an image.
    fn refuse_cut(&self, d: &Description) -> Result<()> {
        let Settings { picture, save_mask, std, chi2, save_samples, allow_binning, max_seconds, .. } =
            self.settings;
        let asked = [
            ("picture", *picture),
            ("save_mask", *save_mask),
            ("std", *std),
            ("chi2", *chi2),
            ("save_samples", *save_samples),
            ("allow_binning", *allow_binning),
            ("max_seconds", max_seconds.is_some()),
        ];
        if let Some((key, _)) = asked.into_iter().find(|(_, asked)| *asked) {
            let why = "is about the whole image, which --part cuts between jobs; leave one of them out";
            return Err(Error::setting(key, why));
        }
        let why = match &self.restorer.kind {
            _ if d.items.len() > 1 && self.settings.item.is_none() => {
                "the file has several images, and --part cuts one between jobs; name it (--item)"
            }
            Kind::Foreign(_) | Kind::Predictor(_) => {
                "one image cannot be shared by jobs for networks of other projects and for segmentation; leave --part out"
            }
            Kind::Learned(_) | Kind::Classical(_) => return Ok(()),
        };
        Err(Error::Refused(why.into()))
    }

    fn run(&self, ear: &mut Ear<'_>) -> Result<Report> {
        if same_place(self.input, self.output) {
            return Err(Error::SameFile);
        }
        if self.settings.picture && is_address(self.output) {
            let output = self.output.display();
            let why = format!("pictures are written next to the output, and {output} is not a local folder");
            return Err(Error::setting("picture", why));
        }
        let mut first = Image::open_named(self.input, self.settings.item.as_deref())?;
        self.settings.name_axes(&mut first)?;
        let d = &first.description;
        if self.run.is_some() {
            self.refuse_cut(d)?;
        }
        let mut engine = match &self.restorer.kind {
            Kind::Learned(learned) => {
                let hash = fingerprint(self.input)?;
                Engine::Learned(learned.session(self.settings, d, hash, ear)?)
            }
            Kind::Foreign(foreign) => Engine::Foreign(foreign),
            Kind::Predictor(predictor) => Engine::Predictor(predictor, fingerprint(self.input)?),
            Kind::Classical(classical) => Engine::Classical(classical),
        };
        let written = engine.written(d, self.settings)?;
        let mut images = Vec::new();
        if d.items.len() == 1 || self.settings.item.is_some() {
            if Collection::brings_others(&written, self.output) {
                ear.notice(Notice::OthersCopied)?;
            }
            let spot = Spot::alone(self.input, self.output);
            images.push(self.image(&first, &spot, &mut engine, ear)?);
        } else {
            self.images(d, &written, &mut engine, ear, &mut images)?;
        }
        Ok(Report { input: self.input.to_path_buf(), images })
    }

    /// Restores every image of a file that has several.
    fn images(
        &self,
        d: &Description,
        written: &Description,
        engine: &mut Engine<'_>,
        ear: &mut Ear<'_>,
        images: &mut Vec<ImageReport>,
    ) -> Result<()> {
        let mut replace = self.settings.replace;
        if Collection::is_one_file(d, written, self.output) {
            let numbers = items::light(d).0;
            let bases: Vec<PathBuf> =
                numbers.iter().map(|&n| collection::apart(self.output, &d.items, n)).collect();
            match engine.standing(self.output, &bases, self.settings)? {
                Standing::Done => {
                    images.push(self.already_done(self.output, ear)?);
                    return Ok(());
                }
                standing => replace = standing == Standing::InPart,
            }
        }
        for notice in items::notices(self.output, d, written) {
            ear.notice(notice)?;
        }
        items::each(self.input, self.output, d, written, replace, |mut image, spot| {
            self.settings.name_axes(&mut image)?;
            images.push(self.image(&image, spot, engine, ear)?);
            Ok(())
        })
    }

    fn already_done(&self, output: &Path, ear: &mut Ear<'_>) -> Result<ImageReport> {
        let output = output.to_path_buf();
        let report = ImageReport { status: Status::AlreadyDone, output, ..ImageReport::default() };
        ear.event(&Event::Done(&report))?;
        Ok(report)
    }

    /// Restores one image of the file.
    fn image(
        &self,
        image: &Image,
        spot: &Spot,
        engine: &mut Engine<'_>,
        ear: &mut Ear<'_>,
    ) -> Result<ImageReport> {
        let mut ear = Ear { observer: &mut *ear.observer, shown: spot.shown.clone() };
        let settings = self.settings;
        // What is there of a file with several images is known already.
        let standing = match spot.is_shared {
            true => Standing::Missing,
            // Known from the notes of the jobs.
            false if self.run.is_some() && settings.replace => Standing::InPart,
            false if self.run.is_some() => Standing::Missing,
            false => engine.standing(&spot.output, std::slice::from_ref(&spot.base), settings)?,
        };
        if standing == Standing::Done {
            return self.already_done(&spot.output, &mut ear);
        }
        let mask = settings.mask.as_deref().map(|path| Mask::open(path, &image.description)).transpose()?;
        let saturation = settings.saturation();
        let mut validity = Validity { saturation, is_given: saturation.is_some(), mask };
        let binned = match engine {
            Engine::Learned(session) => session.binned(image, spot, &mut validity, &mut ear)?,
            Engine::Foreign(_) | Engine::Predictor(..) | Engine::Classical(_) => None,
        };
        let side = binned.as_ref().map_or(1, |b| b.side);
        let image = binned.as_ref().map_or(image, |b| &b.image);
        let replace = standing == Standing::InPart;
        let to = Destination::File { input: self.input, spot, replace, run: self.run };
        let (finished, validity) = match engine {
            Engine::Learned(session) => session.restore(image, side, validity, to, &mut ear)?,
            Engine::Foreign(foreign) => foreign.run(settings, image, validity, to, &mut ear)?,
            Engine::Predictor(predictor, hash) => {
                predictor.run(settings, hash, image, validity, to, &mut ear)?
            }
            Engine::Classical(classical) => classical.run(settings, image, validity, to, &mut ear)?,
        };
        let mut report = finished.report;
        report.item = image.description.item;
        report.output = spot.output.clone();
        report.bytes = bytes_of(image);
        report.written = finished.made.into_iter().filter_map(path_of).collect();
        // What is written aside has the output's name in the end.
        for path in report.written.iter_mut().filter(|path| **path == spot.write) {
            path.clone_from(&spot.output);
        }
        if settings.save_mask {
            let path = mask_path(&spot.base);
            validity.save(image, &path, &WriteOptions { replace: true, provenance: None })?;
            report.mask = Some(path);
        }
        if settings.picture {
            let path = picture_path(&spot.base);
            draw(image, &spot.write, &path, settings.replace)?;
            report.picture = Some(path);
        }
        ear.event(&Event::Done(&report))?;
        Ok(report)
    }
}

fn path_of((_, made): (Map, Made)) -> Option<PathBuf> {
    match made {
        Made::File(path) => Some(path),
        Made::Values(_) | Made::Given => None,
    }
}

fn picture_path(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_os_string();
    name.push(".png");
    PathBuf::from(name)
}

/// Draws the middle plane before and after, under one contrast.
fn draw(before: &Image, output: &Path, path: &Path, replace: bool) -> Result<()> {
    let after = collection::written(&before.description, output)?;
    let planes = Frames::of(&before.description, false)?.regions();
    let plane = &planes[planes.len() / 2];
    let mut panels = [
        Panel::of_image("before", before, plane, MOST_PICTURED)?,
        Panel::of_image("after", &after, plane, MOST_PICTURED)?,
    ];
    panels[0].stretch = panels[1].stretch;
    Ok(side_by_side(&panels, 2, LEAST_PICTURED).save(path, replace)?)
}
