//! Tiles for a network of another project: the sizes that it accepts, the width of the halo, and the largest size.

use super::{Foreign, ForeignError, Run, unsuited};
use crate::learned::layout::Layout;
use clearshot_graph::reach::least_common_multiple;
use clearshot_onnx::PackageError;
use clearshot_onnx::import::Imported;
use clearshot_onnx::package::read::{AxisKind, AxisSize, DescribedAxis, Package};
use clearshot_runtime::Options;

/// Pixels that a network sees along each side of a plane, and of a volume.
const SEEN: [usize; 2] = [512, 96];
/// Bytes that a network may take.
const MEMORY: usize = 1 << 30;
/// The part of a tile that overlaps where a network looks at everything.
const SHARE: usize = 4;
/// Sizes that networks are tried with: multiples of these.
const STEPS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// The axes of space of a network's input: (Z,) Y, X.
fn space(package: &Package) -> Vec<&DescribedAxis> {
    let axis = |kind: &AxisKind| package.input.axes.iter().find(|a| a.kind == *kind);
    AxisKind::SPACE.iter().filter_map(axis).collect()
}

/// A small size that a network probably takes.
pub(super) fn probe(package: &Package) -> Vec<usize> {
    let side = |a: &&DescribedAxis| match a.size {
        AxisSize::Fixed(n) => n,
        AxisSize::Open { least, step } => least + 64usize.saturating_sub(least).next_multiple_of(step),
        AxisSize::Unknown => 64,
    };
    space(package).iter().map(side).collect()
}

/// The network at a size, or at the next larger ones where it does not take that.
pub(super) fn smallest(package: &Package, size: &[usize]) -> Result<Imported, ForeignError> {
    let failed = match package.import(1, size) {
        Ok(imported) => return Ok(imported),
        Err(e) => e,
    };
    let larger: Vec<usize> = size.iter().map(|n| 2 * n).collect();
    package.import(1, &larger).map_err(|_| PackageError::from(failed).into())
}

/// One axis of an image and of what a network takes along it.
struct Line {
    size: usize,
    fixed: Option<usize>,
    least: usize,
    /// Tiles begin and end at multiples.
    align: usize,
    /// None where answers are blended.
    halo: Option<usize>,
}

impl Line {
    /// Core and alignment of tiles that keep so many pixels, if the network takes such.
    fn core(&self, wanted: usize) -> Option<(usize, usize)> {
        let halo = self.halo?;
        if let Some(fixed) = self.fixed {
            let is_possible = fixed > 2 * halo && fixed.is_multiple_of(self.align);
            let align = if self.size <= fixed { fixed } else { self.align };
            return is_possible.then_some((fixed - 2 * halo, align)).filter(|(core, _)| *core >= self.align);
        }
        if !self.least.is_multiple_of(self.align) {
            return None;
        }
        let all = self.size.next_multiple_of(self.align).max(self.least);
        let core = wanted.max(self.least).next_multiple_of(self.align);
        // One tile sees the image and nothing else.
        Some(if core + 2 * halo >= all { (all, all) } else { (core, self.align) })
    }

    /// The side of tiles that are blended.
    fn tile(&self, wanted: usize) -> usize {
        match self.fixed {
            Some(fixed) => fixed,
            None => {
                let above = self.size.min(wanted).saturating_sub(self.least);
                self.least + above.next_multiple_of(self.align)
            }
        }
    }
}

impl Foreign {
    /// Tiles for images of a size, and the network for them.
    pub(super) fn cut(&self, size: &[usize], run: &Run) -> Result<(Layout, Imported), ForeignError> {
        if size.len() != self.dims() || size.contains(&0) {
            return unsuited(format!("it takes images of {} axes, not of sizes {size:?}", self.dims()));
        }
        let lines = self.lines(size);
        let seen = SEEN[usize::from(size.len() == 3)];
        let limit = run.memory.unwrap_or(MEMORY);
        let mut wanted: Vec<usize> = match run.tile {
            Some(side) => vec![side; size.len()],
            None => {
                lines.iter().map(|l| seen.saturating_sub(2 * l.halo.unwrap_or(0)).max(seen / 2)).collect()
            }
        };
        loop {
            let layout = layout(&lines, &wanted);
            let imported = self.package.import(1, &layout.seen()).map_err(PackageError::from)?;
            let options = Options { precision: run.precision, ..Options::default() };
            let bytes = clearshot_runtime::plan(imported.graph.clone(), &self.device, &options)?.bytes();
            let smaller: Vec<usize> = wanted.iter().zip(&lines).map(|(w, l)| (w / 2).max(l.align)).collect();
            if bytes <= limit || run.tile.is_some() || smaller == wanted {
                return Ok((layout, imported));
            }
            wanted = smaller;
        }
    }

    fn lines(&self, size: &[usize]) -> Vec<Line> {
        let dims = size.len();
        let said: Vec<Option<usize>> = {
            let halo = |kind| self.package.output.axes.iter().find(|a| a.kind == kind).and_then(|a| a.halo);
            space(&self.package).iter().map(|a| halo(a.kind.clone())).collect()
        };
        let is_said = said.iter().any(|h| h.is_some_and(|h| h > 0));
        let unknown = self.reach.is_none().then(|| self.tried(size));
        let line = |(i, axis): (usize, &&DescribedAxis)| {
            let (fixed, least, step) = match axis.size {
                AxisSize::Fixed(n) => (Some(n), n, 1),
                AxisSize::Open { least, step } => (None, least, step),
                AxisSize::Unknown => (None, 1, 1),
            };
            let near = self.reach.as_ref().map(|r| (r.radius[3 - dims + i], r.stride[3 - dims + i]));
            let stride = near.map_or(unknown.unwrap_or(1), |(_, stride)| stride);
            let align =
                least_common_multiple(step, if fixed.is_some() && near.is_none() { 1 } else { stride });
            let halo = if is_said { Some(said[i].unwrap_or(0)) } else { near.map(|(radius, _)| radius) };
            // What the file leaves open may be of any size that its strides allow.
            let least = if step == 1 { least.next_multiple_of(align) } else { least };
            let least = fixed.unwrap_or(least);
            Line { size: size[i], fixed, least, align, halo: halo.map(|h| h.next_multiple_of(align)) }
        };
        space(&self.package).iter().enumerate().map(line).collect()
    }

    /// The least multiple that a network takes sizes of, for one that looks at everything.
    fn tried(&self, size: &[usize]) -> usize {
        let takes = |step: &usize| {
            let sizes: Vec<usize> = size.iter().map(|n| (*n).min(SEEN[0]).next_multiple_of(*step)).collect();
            self.package.import(1, &sizes).is_ok()
        };
        STEPS.into_iter().find(takes).unwrap_or(1)
    }
}

fn layout(lines: &[Line], wanted: &[usize]) -> Layout {
    let size: Vec<usize> = lines.iter().map(|l| l.size).collect();
    let cores: Option<Vec<(usize, usize)>> = lines.iter().zip(wanted).map(|(l, w)| l.core(*w)).collect();
    match cores {
        Some(cores) => {
            let (core, align): (Vec<usize>, Vec<usize>) = cores.into_iter().unzip();
            let halo: Vec<usize> = lines.iter().map(|l| l.halo.unwrap_or(0)).collect();
            Layout::cores(&size, &core, &halo, &vec![0; size.len()], &align)
        }
        None => {
            let tile: Vec<usize> = lines.iter().zip(wanted).map(|(l, w)| l.tile(*w)).collect();
            let overlap: Vec<usize> = lines
                .iter()
                .zip(&tile)
                .map(|(l, t)| l.halo.map_or(t / SHARE, |h| 2 * h).min(t / 2))
                .collect();
            Layout::windows(&size, &tile, &overlap)
        }
    }
}
