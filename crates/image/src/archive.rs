//! Files inside zip archives, for readers of packages of models; arrays in memory; and Zarr folders packed into one archive.

use crate::bytes::Bytes;
use crate::error::{Fault, Result};
use crate::format::npy;
use crate::format::zip::{Zip, ZipWriter, checksum};
use crate::image::Image;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A zip archive whose directory was read. Members are unpacked when they are asked for, and nothing is written.
pub struct Archive {
    path: PathBuf,
    zip: Zip,
}

impl Archive {
    /// # Errors
    /// If the file cannot be read or is not a zip archive.
    pub fn open(path: &Path) -> Result<Archive> {
        let zip = Zip::open(Bytes::open(path)?).map_err(|fault| fault.at(path, "zip"))?;
        Ok(Archive { path: path.to_path_buf(), zip })
    }

    /// In the order of the archive, as it has them.
    pub fn names(&self) -> &[String] {
        &self.zip.names
    }

    /// A member's bytes, of which there may be `most`; none if there is no such member.
    ///
    /// # Errors
    /// If the archive is damaged, or the member is larger than that.
    pub fn read(&self, name: &str, most: u64) -> Result<Option<Vec<u8>>> {
        let fail = |fault: Fault| fault.at(&self.path, "zip");
        if let Some(size) = self.zip.size(name).filter(|size| *size > most) {
            return Err(fail(Fault::Limit(format!("{name} has {size} bytes, and the limit is {most}"))));
        }
        self.zip.read(name).map_err(fail)
    }
}

/// A folder (Zarr) as one zip archive whose length is known before it is written. Members are stored uncompressed, since chunks
/// are compressed already, and named from within the folder, as readers of zipped Zarr expect it.
pub struct PackedFolder {
    /// Names, files and their sizes.
    members: Vec<(String, PathBuf, u64)>,
    len: u64,
}

impl PackedFolder {
    /// # Errors
    /// If the folder cannot be read.
    pub fn of(folder: &Path) -> std::io::Result<PackedFolder> {
        let mut waiting = vec![folder.to_path_buf()];
        let mut files = Vec::new();
        while let Some(next) = waiting.pop() {
            for entry in std::fs::read_dir(next)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    waiting.push(entry.path())
                } else {
                    files.push(entry.path())
                }
            }
        }
        // Metadata first, so that readers of streams find them.
        files.sort_by_key(|f| {
            (f.file_name() != Some("zarr.json".as_ref()), f.components().count(), f.clone())
        });
        let mut length = ZipWriter::new(std::io::sink());
        let mut members = Vec::with_capacity(files.len());
        for path in files {
            let name = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().replace('\\', "/");
            let size = std::fs::metadata(&path)?.len();
            length.add_without_data(&name, size)?;
            members.push((name, path, size));
        }
        Ok(PackedFolder { members, len: length.finish()? })
    }

    /// Bytes of the archive.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the folder has no files.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Writes the archive. Every file is read twice, for its checksum stands before its data.
    ///
    /// # Errors
    /// If a file cannot be read or has changed, or the archive cannot be written.
    pub fn write(&self, out: impl Write) -> std::io::Result<()> {
        let mut zip = ZipWriter::new(out);
        for (name, path, size) in &self.members {
            let (crc, _) = checksum(&mut File::open(path)?)?;
            zip.add(name, *size, crc, &mut File::open(path)?)?;
        }
        zip.finish().map(drop)
    }
}

/// The array of an NPY file whose bytes are at hand; `name` is what messages call it.
///
/// # Errors
/// If they are not a whole NPY file.
pub fn npy_array(name: &Path, bytes: Vec<u8>) -> Result<Image> {
    npy::of_bytes(name, Bytes::Memory(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_packed_into_as_many_bytes_as_it_says() {
        let folder = tempfile::TempDir::new().expect("a folder");
        std::fs::create_dir_all(folder.path().join("0/c/0")).expect("a folder");
        let files = [
            ("0/c/0/0", vec![7u8; 70_000]),
            ("0/zarr.json", b"{}".to_vec()),
            ("zarr.json", b"{\"a\":1}".to_vec()),
            ("empty", vec![]),
        ];
        for (name, data) in &files {
            std::fs::write(folder.path().join(name), data).expect("a file");
        }
        let packed = PackedFolder::of(folder.path()).expect("packed");
        let mut bytes = Vec::new();
        packed.write(&mut bytes).expect("written");
        assert_eq!(bytes.len() as u64, packed.len());
        let place = folder.path().join("all.zip");
        std::fs::write(&place, bytes).expect("a file");
        let archive = Archive::open(&place).expect("an archive");
        assert_eq!(archive.names(), ["zarr.json", "0/zarr.json", "empty", "0/c/0/0"]);
        for (name, data) in &files {
            assert_eq!(archive.read(name, 1 << 20).expect("read").as_ref(), Some(data), "{name}");
        }
        // A file that grows or shrinks meanwhile makes no archive of another length.
        std::fs::write(folder.path().join("zarr.json"), "{}").expect("a file");
        assert!(packed.write(std::io::sink()).is_err());
    }

    #[test]
    fn many_and_far_members_have_64_bits() {
        // A directory of more than 65535 rows, and members beyond 4 GiB, without their data.
        for (count, size) in [(70_000u64, 0u64), (3, 5 << 30)] {
            let mut bytes = Vec::new();
            let mut zip = ZipWriter::new(&mut bytes);
            for n in 0..count {
                zip.add_without_data(&format!("member {n}"), size).expect("added");
            }
            let whole = zip.finish().expect("finished");
            assert_eq!(whole, bytes.len() as u64 + count * size);
            // The end says where the 64-bit record is, and that how many rows there are and where they begin.
            let end = &bytes[bytes.len() - 22..];
            assert_eq!(&end[8..10], if count > 65534 { &[0xff, 0xff] } else { &[3, 0] });
            let locator = &bytes[bytes.len() - 42..bytes.len() - 22];
            assert_eq!(&locator[..4], b"PK\x06\x07");
            let number = |b: &[u8]| u64::from_le_bytes(b[..8].try_into().expect("eight bytes"));
            let record = &bytes[(number(&locator[8..]) - count * size) as usize..];
            assert_eq!((&record[..4], number(&record[32..])), (&b"PK\x06\x06"[..], count));
            let rows = &bytes[(number(&record[48..]) - count * size) as usize..];
            assert_eq!(&rows[..4], b"PK\x01\x02");
        }
    }
}
