//! The files of a run, their relations, and their division (by files or rows) into training and validation.

use super::Part;
use crate::config::{DataConfig, DataKind, RunConfig};
use crate::error::{Result, setting};
use clearshot_image::dataset::{Entry, LastRows, Listing, Repeats, Rows, Split, Store};
use clearshot_image::{Axis, Description};
use std::path::Path;

/// The share of every image's rows that is kept for validation where no file is.
const KEPT_ROWS: f64 = 0.2;

/// The files of a configuration, and how they repeat where they do.
pub fn listed(data: &DataConfig, store: &Store) -> Result<(Listing, Option<Repeats>)> {
    let along_t = |listing: &Listing| {
        let repeats = |e: &Entry| store.description(&e.input).is_ok_and(|d| Repeats::T.inside(&d) > 1);
        listing.entries.iter().all(repeats)
    };
    let mut repeats = None;
    let listing = match (&data.manifest, &data.inputs, &data.targets) {
        (Some(manifest), ..) => Listing::manifest(manifest)?,
        (None, Some(inputs), Some(targets)) if data.kind == DataKind::Pairs => {
            Listing::pairs(inputs, targets)?
        }
        (None, Some(inputs), _) if data.kind == DataKind::Repeats => {
            let stacks = Listing::single(inputs).is_ok_and(|l| along_t(&l));
            let by = data.repeats.unwrap_or(if stacks { Repeats::T } else { Repeats::Files });
            repeats = Some(by);
            Listing::repeats(inputs, by)?
        }
        (None, Some(inputs), _) => Listing::single(inputs)?,
        (None, None, _) => {
            return setting("data.inputs", "nothing", "a folder, a pattern or data.manifest");
        }
    };
    if data.kind == DataKind::Repeats && repeats.is_none() {
        let by = if along_t(&listing) { Repeats::T } else { Repeats::Files };
        repeats = Some(data.repeats.unwrap_or(by));
    }
    let listing = match &data.masks {
        Some(masks) => listing.with_masks(masks)?,
        None => listing,
    };
    Ok((listing, repeats))
}

/// Whether pixels may hold no measurement: where a mask, a saturation or the key says so, or files could have any.
pub fn may_lack_pixels(data: &DataConfig, listing: &Listing, store: &Store) -> bool {
    let may_lack = |path: &Path| {
        let lacks = |d: &Description| d.dtype.is_float() || d.rescale.is_some_and(|r| r.blank.is_some());
        store.description(path).is_ok_and(|d| lacks(&d))
    };
    data.saturation.is_some()
        || listing.entries.iter().any(|e| e.mask.is_some())
        || data.invalid.unwrap_or_else(|| listing.files().into_iter().any(may_lack))
}

/// Which files, and which rows of them, are trained on and which are scored.
pub struct Division<'a> {
    config: &'a RunConfig,
    listing: &'a Listing,
    /// Every image is cut in two, its last rows being scored.
    by_rows: bool,
}

impl<'a> Division<'a> {
    pub fn of(config: &'a RunConfig, listing: &'a Listing, store: &Store) -> Division<'a> {
        let mut division = Division { config, listing, by_rows: false };
        // Of noisy images, a network that has seen an image knows its noise: scores need pixels of their own.
        division.by_rows = config.task.kind.is_of_noise()
            && division.own(Part::Validation).is_empty()
            && listing.entries.iter().all(|e| has_two_parts(store, &e.input, kept_rows(config)));
        division
    }

    /// The files that fall to a part.
    fn own(&self, part: Part) -> Vec<Entry> {
        let which = if part == Part::Training { Split::Train } else { Split::Validation };
        self.listing.split(which, self.config.data.validation, 0.0, self.config.seed)
    }

    /// The files of a part: all of them where there are so few that none falls to it.
    pub fn entries(&self, part: Part) -> Vec<Entry> {
        let own = self.own(part);
        if own.is_empty() { self.listing.entries.clone() } else { own }
    }

    pub fn rows(&self, part: Part) -> Rows {
        match (self.by_rows, part) {
            (false, _) => Rows::All,
            (true, Part::Training) => Rows::First(kept_rows(self.config)),
            (true, Part::Validation) => Rows::Last(kept_rows(self.config)),
        }
    }

    pub fn note(&self) -> Option<String> {
        self.by_rows.then(|| {
            format!(
                "none of {} files is kept for validation; the last {:.0} % of the rows of each are used instead",
                self.listing.entries.len(),
                100.0 * KEPT_ROWS
            )
        })
    }

    pub fn warnings(&self) -> impl Iterator<Item = String> {
        let empty = |part: &Part| self.own(*part).is_empty() && !self.by_rows;
        [Part::Training, Part::Validation].into_iter().filter(empty).map(|part| {
            let name = if part == Part::Training { "training" } else { "validation" };
            format!(
                "none of {} files belongs to {name} (data.validation: {}): all of them are used for training and for scoring, so \
                 scores say nothing about other images",
                self.listing.entries.len(),
                self.config.data.validation
            )
        })
    }
}

/// The rows that are kept, the same for training and for validation, whose crops may be larger.
fn kept_rows(config: &RunConfig) -> LastRows {
    LastRows { share: KEPT_ROWS, least: config.trainer.crop.max(config.validation.crop) }
}

/// Whether an image is large enough for crops of two parts of its rows.
fn has_two_parts(store: &Store, path: &Path, kept: LastRows) -> bool {
    let height = store.description(path).ok().and_then(|d| Some(d.dim(Axis::Y)?.len));
    height.is_some_and(|height| Rows::Last(kept).range(height, kept.least).is_some())
}
