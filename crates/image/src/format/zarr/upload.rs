//! Writes a Zarr hierarchy as objects of S3. Objects cannot be renamed, so there is no temporary name: chunks are written
//! first, each as a whole, and then the metadata, those of the root last. Until then, no reader takes the objects for an
//! image.
//!
//! The first object is a marker, which is removed at the end. A later run can therefore recognise an incomplete image and
//! may overwrite it; other objects without root metadata are left alone. If several writers make an image, the marker names
//! their run, and the last of them writes the metadata.

use super::NAME;
use super::array::join;
use super::store::{MARKERS, Store};
use crate::address::Address;
use crate::aside::Unfinished;
use crate::error::{Error, Fault, Parsed, Result, request};
use crate::grid::{Grid, volume};
use crate::image::Description;
use crate::remote::{AT_ONCE, LARGEST_OBJECT, Remote, side_by_side};
use std::collections::HashSet;
use std::sync::Arc;

/// The object that says that what lies beside it is not complete.
const MARK: &str = ".clearshot.unfinished";
const MOST_MARK: u64 = 1 << 10;
const UNFINISHED: &[u8] = b"An image is being written here, or was not completed.\n";

pub struct Upload {
    remote: Arc<Remote>,
    /// The same, to be read from.
    store: Store,
    unfinished: Unfinished,
}

impl Upload {
    /// Sees whether an image may be put at an address, by putting the mark and taking it away again.
    pub fn try_out(address: &Address, replace: bool) -> Result<()> {
        let fail = |fault: Fault| fault.at(&address.path(), NAME);
        let remote = Remote::new(address).map_err(fail)?;
        let there = Standing::at(&remote).map_err(fail)?;
        there.refuse(address, replace)?;
        remote.put(MARK, UNFINISHED).map_err(fail)?;
        if !there.marked {
            // A mark that stays does no harm.
            let _ = remote.delete(MARK);
        }
        Ok(())
    }

    /// Prepares the place: what is there is refused, or taken away as far as the new image does not replace it.
    pub fn begin(
        address: &Address,
        description: &Description,
        levels: &[(&str, &Grid)],
        width: usize,
        replace: bool,
    ) -> Result<Upload> {
        let fail = |fault: Fault| fault.at(&address.path(), NAME);
        let upload = Upload::at(address, description, levels, width)?;
        let there = Standing::at(&upload.remote).map_err(fail)?;
        there.refuse(address, replace)?;
        upload.prepare(&there, levels).map_err(fail)?;
        Ok(upload)
    }

    /// Begins or joins what several writers of one run make: nothing is taken away, and what is there is refused unless it is theirs.
    pub fn join(
        address: &Address,
        description: &Description,
        levels: &[(&str, &Grid)],
        width: usize,
        run: &str,
    ) -> Result<Upload> {
        let fail = |fault: Fault| fault.at(&address.path(), NAME);
        let upload = Upload::at(address, description, levels, width)?;
        let there = Standing::at(&upload.remote).map_err(fail)?;
        there.refuse(address, false)?;
        let mark = format!(
            "An image is being written here by several jobs of the run {run}, or was not completed.\n"
        );
        // Of several that begin at once one puts the mark, and all read the same.
        let is_first = upload.remote.put_new(MARK, mark.as_bytes()).map_err(fail)?;
        let found = if is_first { None } else { upload.remote.get(MARK, MOST_MARK).map_err(fail)? };
        if found.is_some_and(|found| found != mark.as_bytes()) {
            if there.others {
                return request(format!(
                    "{address}: an image was begun here by another run and not completed; remove what is there, or write to another name"
                ));
            }
            upload.remote.put(MARK, mark.as_bytes()).map_err(fail)?;
        }
        Ok(upload)
    }

    fn at(
        address: &Address,
        description: &Description,
        levels: &[(&str, &Grid)],
        width: usize,
    ) -> Result<Upload> {
        let path = address.path();
        let input = Address::of(&description.path)?.filter(|_| description.format == NAME);
        if input.is_some_and(|input| input.overlaps(address)) {
            return request(format!(
                "{address}: the image would be written over its own input; choose another address"
            ));
        }
        for (key, grid) in levels {
            let bytes = volume(&grid.chunk).and_then(|n| n.checked_mul(width)).unwrap_or(usize::MAX) as u64;
            if bytes > LARGEST_OBJECT {
                return request(format!(
                    "{address}: shards of {:?} pixels (level {key:?}) can be larger than the 5 GiB that one object may have; write to a local folder",
                    grid.chunk
                ));
            }
        }
        let remote = Arc::new(Remote::new(address).map_err(|fault| fault.at(&path, NAME))?);
        let store = Store::Remote(Arc::clone(&remote));
        Ok(Upload { remote, store, unfinished: Unfinished::address(&path) })
    }

    fn prepare(&self, there: &Standing, levels: &[(&str, &Grid)]) -> Parsed<()> {
        let remote = &self.remote;
        remote.put(MARK, UNFINISHED)?;
        if !there.complete && !there.others {
            return Ok(());
        }
        // The root's metadata go first: from then on there is no image.
        MARKERS.iter().try_for_each(|marker| remote.delete(marker))?;
        remote.list("", false, &mut |page| {
            let keys: Vec<String> = page.objects.into_iter().map(|o| o.key).collect();
            let old: Vec<&String> = keys.iter().filter(|k| *k != MARK && !is_chunk(k, levels)).collect();
            side_by_side(&old, AT_ONCE, |key| remote.delete(key)).map(|_| ())
        })
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    pub fn put(&self, key: &str, data: &[u8]) -> Parsed<()> {
        self.remote.put(key, data)
    }

    /// The keys of all objects of an array.
    pub fn found(&self, array: &str) -> Parsed<HashSet<String>> {
        let mut keys = HashSet::new();
        self.remote.list(array, false, &mut |page| {
            keys.extend(page.objects.into_iter().map(|o| join(array, &o.key)));
            Ok(())
        })?;
        Ok(keys)
    }

    /// Leaves it to the other writers.
    pub fn leave(&self) {
        self.unfinished.done();
    }

    /// Puts the metadata, in the order given, and takes the mark away.
    pub fn finish(&self, metadata: &[(String, String)]) -> Result<()> {
        let remote = &self.remote;
        let put = metadata.iter().try_for_each(|(key, text)| remote.put(key, text.as_bytes()));
        put.map_err(|fault| fault.at(&remote.address().path(), NAME))?;
        self.unfinished.done();
        // The image is complete, with a mark beside it or without.
        let _ = remote.delete(MARK);
        Ok(())
    }
}

/// The previous contents.
struct Standing {
    /// Something at the root says that there is an image.
    complete: bool,
    marked: bool,
    others: bool,
}

impl Standing {
    /// What is there stays unless it may be replaced or is what an earlier run did not complete.
    fn refuse(&self, address: &Address, replace: bool) -> Result<()> {
        let ours = self.marked && !self.complete;
        match replace || ours || !(self.complete || self.others) {
            true => Ok(()),
            false => Err(Error::Exists { path: address.path() }),
        }
    }

    fn at(remote: &Remote) -> Parsed<Standing> {
        let mut standing = Standing { complete: false, marked: false, others: false };
        remote.list("", true, &mut |page| {
            for object in &page.objects {
                let key = object.key.as_str();
                standing.complete |= MARKERS.contains(&key);
                standing.marked |= key == MARK;
                standing.others |= key != MARK;
            }
            standing.others |= !page.folders.is_empty();
            Ok(())
        })?;
        Ok(standing)
    }
}

/// Whether a key is that of a chunk that will be written.
fn is_chunk(key: &str, levels: &[(&str, &Grid)]) -> bool {
    levels.iter().any(|(level, grid)| {
        let below = if level.is_empty() {
            Some(key)
        } else {
            key.strip_prefix(level).and_then(|k| k.strip_prefix('/'))
        };
        let Some(parts) = below.and_then(|k| k.strip_prefix("c/")) else { return false };
        let parts: Vec<&str> = parts.split('/').collect();
        let counts = grid.counts();
        let inside = |(part, count): (&&str, &usize)| {
            part.parse::<usize>().is_ok_and(|n| n < *count && n.to_string() == **part)
        };
        parts.len() == counts.len() && parts.iter().zip(&counts).all(inside)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_that_stay_are_those_of_the_grid() {
        let grid = Grid::new(vec![4, 10], vec![2, 5]);
        let levels = [("0", &grid), ("deep/1", &grid)];
        for key in ["0/c/0/0", "0/c/1/1", "deep/1/c/1/0"] {
            assert!(is_chunk(key, &levels), "{key}");
        }
        for key in [
            "0/c/2/0",
            "0/c/0",
            "0/c/0/0/0",
            "0/c/00/0",
            "0/zarr.json",
            "c/0/0",
            "1/c/0/0",
            "0/c/-1/0",
            "00/c/0/0",
        ] {
            assert!(!is_chunk(key, &levels), "{key}");
        }
        assert!(is_chunk("c/0/1", &[("", &grid)]));
    }
}
