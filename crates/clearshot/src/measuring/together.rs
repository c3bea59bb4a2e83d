//! Groups files: an image with its truth, the image of another method, its measurement and its run without a pattern.

use crate::error::{Error, Result};
use crate::observer::{Event, Observer, go_on};
use clearshot_image::dataset::list::{Listing, files};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The files of one image.
pub struct Set {
    pub image: PathBuf,
    pub truth: Option<PathBuf>,
    pub against: Option<PathBuf>,
    pub measured: Option<PathBuf>,
    pub without: Option<PathBuf>,
}

impl Set {
    /// For errors.
    pub fn name(&self) -> String {
        match &self.truth {
            Some(truth) => format!("{} and {}", self.image.display(), truth.display()),
            None => self.image.display().to_string(),
        }
    }
}

/// Pairs images with the files of every other source by name; two single files are paired whatever their names. Images
/// without a partner are reported and left out.
///
/// # Errors
/// If a source contains no images or nothing can be paired.
pub fn sets(images: &str, partners: [Option<&str>; 4], observer: &mut dyn Observer) -> Result<Vec<Set>> {
    let all = files(images)?;
    let mut found = Vec::new();
    for source in partners {
        found.push(source.map(|s| paired(images, &all, s, observer)).transpose()?);
    }
    let sets: Vec<Set> = all
        .into_iter()
        .filter_map(|image| {
            // None: left out. Some(None): no such source.
            let mut partner = found.iter().map(|of| match of {
                Some(map) => map.get(&image).cloned().map(Some),
                None => Some(None),
            });
            let mut next = || partner.next().flatten();
            let (truth, against, measured, without) = (next()?, next()?, next()?, next()?);
            Some(Set { image, truth, against, measured, without })
        })
        .collect();
    if sets.is_empty() {
        let why = format!("{images}: no image has a file of its name in all of the other folders");
        return Err(Error::Refused(why));
    }
    Ok(sets)
}

fn paired(
    images: &str,
    all: &[PathBuf],
    source: &str,
    observer: &mut dyn Observer,
) -> Result<BTreeMap<PathBuf, PathBuf>> {
    let partners = files(source)?;
    if let ([image], [partner]) = (all, &partners[..]) {
        return Ok([(image.clone(), partner.clone())].into());
    }
    let listing = Listing::pairs(images, source)?;
    for text in &listing.unpaired {
        go_on(observer.event(Path::new(source), &Event::Warning(text)))?;
    }
    Ok(listing.entries.into_iter().filter_map(|e| Some((e.input, e.target?))).collect())
}
