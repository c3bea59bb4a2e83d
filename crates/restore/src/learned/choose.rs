//! Chooses tile size and batch: the layout with the least work whose plan fits the memory limit.

use super::Error;
use super::layout::Layout;
use super::tiles::{Asked, TileGraph};
use clearshot_graph::reach::least_common_multiple;
use clearshot_runtime::{Device, Options};

/// How a network can be tiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Every output pixel depends on this many pixels to each side, and on its position modulo the stride, axis by
    /// axis.
    Local { radius: Vec<usize>, stride: Vec<usize> },
    /// Outputs depend on the whole tile, which should have the size of the training crops.
    Whole { tile: Vec<usize> },
}

impl Cut {
    /// The same with at most this many pixels around a tile: nearly the same result, at lower cost.
    pub fn within(&self, margin: usize) -> Cut {
        match self {
            Cut::Local { radius, stride } => {
                Cut::Local { radius: radius.iter().map(|&r| r.min(margin)).collect(), stride: stride.clone() }
            }
            whole => whole.clone(),
        }
    }
}

/// The user's settings; the rest is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Pixels along each side of a core, or of a tile of a network that is not local.
    pub tile: Option<usize>,
    pub batch: Option<usize>,
    /// Memory limit of the graph in bytes.
    pub limit: usize,
}

/// The chosen layout, before anything is compiled.
pub struct Chosen {
    pub layout: Layout,
    pub graph: TileGraph,
    pub batch: usize,
    /// The memory of the graph on the device in bytes.
    pub bytes: usize,
}

/// Cores begin at multiples of this and of the network's stride, so that kernels that work on small squares
/// cut them at the same places in every tile.
const ALIGN: usize = 16;
/// Reflected pixels that a network sees beyond the edges of an image.
const MARGIN: usize = 32;
/// Sides of cores that are tried.
const CORES: [usize; 12] = [32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048];
/// Pixels of a batch beyond which a device gains nothing from more.
const BUSY_CPU: usize = 256 * 256;
const BUSY_GPU: usize = 2048 * 2048;
const MOST_AT_ONCE: usize = 64;

/// # Errors
/// If nothing fits, or the network does not accept the requested tile.
pub fn choose(
    asked: &Asked<'_>,
    cut: &Cut,
    size: &[usize],
    images: usize,
    wanted: &Wanted,
    device: &Device,
    options: &Options,
) -> Result<Chosen, Error> {
    let mut least = usize::MAX;
    for layout in layouts(cut, size, wanted.tile) {
        let mut batch = wanted.batch.unwrap_or_else(|| usual_batch(&layout, images, device));
        loop {
            let graph = TileGraph::new(asked, &layout, batch)?;
            let bytes = graph.plan(device, options)?.bytes();
            if bytes <= wanted.limit {
                return Ok(Chosen { layout, graph, batch, bytes });
            }
            least = least.min(bytes);
            if batch == 1 || wanted.batch.is_some() {
                break;
            }
            batch = batch.div_ceil(2);
        }
    }
    Err(Error::NoRoom { needed: least, limit: wanted.limit })
}

/// Candidates, those with the least work first.
fn layouts(cut: &Cut, size: &[usize], tile: Option<usize>) -> Vec<Layout> {
    match cut {
        Cut::Whole { tile: trained } => {
            let tile: Vec<usize> = trained.iter().map(|&t| tile.unwrap_or(t).max(1)).collect();
            let overlap: Vec<usize> = tile.iter().map(|t| t / 4).collect();
            vec![Layout::windows(size, &tile, &overlap)]
        }
        Cut::Local { radius, stride } => {
            // Thin axes need no alignment beyond the stride's.
            let align = |a: usize| match size.len() == 3 && a == 0 {
                true => stride[a],
                false => least_common_multiple(ALIGN, stride[a]),
            };
            let aligns: Vec<usize> = (0..size.len()).map(align).collect();
            let halo: Vec<usize> = aligns.iter().zip(radius).map(|(&a, r)| r.next_multiple_of(a)).collect();
            let margin: Vec<usize> = aligns.iter().map(|&a| MARGIN.next_multiple_of(a)).collect();
            let cores = |side: usize| -> Vec<usize> {
                let core = |a: usize| {
                    let most = size[a].next_multiple_of(aligns[a]);
                    side.max(1).next_multiple_of(aligns[a]).min(most)
                };
                (0..size.len()).map(core).collect()
            };
            let sides = tile.map_or(CORES.to_vec(), |t| vec![t]);
            let mut all: Vec<Layout> = sides
                .into_iter()
                .map(|side| Layout::cores(size, &cores(side), &halo, &margin, &aligns))
                .collect();
            all.dedup();
            all.sort_by(|a, b| a.work().total_cmp(&b.work()));
            all
        }
    }
}

fn usual_batch(layout: &Layout, images: usize, device: &Device) -> usize {
    let busy = if matches!(device, Device::Cpu { .. }) { BUSY_CPU } else { BUSY_GPU };
    let tile: usize = layout.seen().iter().product();
    (busy / tile).clamp(1, MOST_AT_ONCE).min((images * layout.count()).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_aligned_wide_enough_and_sorted() {
        let cut = Cut::Local { radius: vec![37; 2], stride: vec![4; 2] };
        let all = layouts(&cut, &[300, 1000], None);
        assert!(all.windows(2).all(|w| w[0].work() <= w[1].work()));
        for layout in &all {
            assert!(layout.seen().iter().all(|seen| seen % 16 == 0));
            let whole = [300usize, 1000].map(|n| n.next_multiple_of(16));
            for (a, around) in layout.around().into_iter().enumerate() {
                // A single tile sees all there is.
                assert!(around >= 37 || layout.seen()[a] == whole[a] + 2 * MARGIN, "{layout:?}");
            }
        }
        assert_eq!(all[0].counts(), [1, 1]);
        assert_eq!(layouts(&cut, &[300, 1000], Some(64))[0].counts(), [5, 16]);
        assert_eq!(layouts(&cut.within(10), &[300, 1000], None)[0].around(), [16, 16]);
        assert_eq!(cut.within(50), cut);
        let odd = layouts(&Cut::Local { radius: vec![1; 2], stride: vec![12; 2] }, &[300, 1000], Some(64));
        assert!(odd[0].seen().iter().all(|seen| seen % 48 == 0), "{:?}", odd[0].seen());
    }
}
