//! The folder in which compiled kernels and measured choices are kept from run to run.
//!
//! Entries are files named by a hash of everything that they depend on. They are written aside and
//! renamed, so processes that share the folder see whole entries; one that is damaged is made again.

use clearshot_tensor::Fnv1a;
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const MAGIC: &[u8; 8] = b"clrshot1";

/// A key's 128 bits.
fn digest(text: &str) -> [u64; 2] {
    [0u64, 0x9E37_79B9_7F4A_7C15].map(|salt| {
        let mut h = std::hash::DefaultHasher::new();
        salt.hash(&mut h);
        text.hash(&mut h);
        h.finish()
    })
}

/// `CLEARSHOT_CACHE`, or `clearshot` in the user's cache folder; nothing where there is neither.
pub fn folder() -> Option<PathBuf> {
    folder_by(|name| std::env::var_os(name).map(PathBuf::from))
}

/// As [`folder`], by the environment's variables. `CLEARSHOT_CACHE` that is empty wants no cache.
fn folder_by(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    if let Some(own) = variable("CLEARSHOT_CACHE") {
        return Some(own).filter(|p| !p.as_os_str().is_empty());
    }
    // By the XDG specification what is no absolute path counts as not set.
    let absolute = |name: &str| variable(name).filter(|p| p.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("clearshot"))
}

/// Where an entry lies.
pub(crate) fn path(kind: &str, key: &str) -> Option<PathBuf> {
    let [a, b] = digest(key);
    Some(folder()?.join(format!("{kind}-{a:016x}{b:016x}")))
}

/// An entry, if it is there and whole.
pub(crate) fn read(kind: &str, key: &str) -> Option<Vec<u8>> {
    let bytes = std::fs::read(path(kind, key)?).ok()?;
    let rest = bytes.strip_prefix(MAGIC)?;
    let (sum, rest) = rest.split_first_chunk::<8>()?;
    let (len, rest) = rest.split_first_chunk::<8>()?;
    let key_len = u64::from_le_bytes(*len) as usize;
    if key_len > rest.len() || u64::from_le_bytes(*sum) != Fnv1a::of(rest) {
        return None;
    }
    let (stored, payload) = rest.split_at(key_len);
    (stored == key.as_bytes()).then(|| payload.to_vec())
}

/// Keeps an entry. A folder that cannot be written to costs time, not correctness.
pub(crate) fn write(kind: &str, key: &str, payload: &[u8]) {
    if let Some(path) = path(kind, key) {
        put(&path, key, payload, |aside| std::fs::rename(aside, &path));
    }
}

/// Keeps an entry unless there is one, and gives the one that is there: processes that come to different
/// entries at the same time go on with the same.
pub(crate) fn agree(kind: &str, key: &str, payload: &[u8]) -> Vec<u8> {
    let Some(path) = path(kind, key) else { return payload.to_vec() };
    let mut kept = None;
    put(&path, key, payload, |aside| {
        // A link is refused where there is a file already; one that is damaged is replaced.
        if std::fs::hard_link(aside, &path).is_ok() {
            return std::fs::remove_file(aside);
        }
        kept = read(kind, key);
        if kept.is_some() { std::fs::remove_file(aside) } else { std::fs::rename(aside, &path) }
    });
    kept.unwrap_or_else(|| payload.to_vec())
}

/// Writes an entry aside, for `place` to move to its path.
fn put(path: &Path, key: &str, payload: &[u8], place: impl FnOnce(&Path) -> std::io::Result<()>) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let Some(folder) = path.parent() else { return };
    let aside = folder.join(format!(".{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    let mut body = key.as_bytes().to_vec();
    body.extend(payload);
    let whole = || -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        let mut file = std::fs::File::create(&aside)?;
        file.write_all(MAGIC)?;
        file.write_all(&Fnv1a::of(&body).to_le_bytes())?;
        file.write_all(&(key.len() as u64).to_le_bytes())?;
        file.write_all(&body)?;
        drop(file);
        place(&aside)
    };
    if whole().is_err() {
        let _ = std::fs::remove_file(&aside);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_the_users_and_never_the_current_one() {
        let folder = |set: &[(&str, &str)]| {
            folder_by(|name| set.iter().find(|(n, _)| *n == name).map(|(_, v)| PathBuf::from(v)))
        };
        let is = |path: &str| Some(PathBuf::from(path));
        assert_eq!(folder(&[("HOME", "/home/a")]), is("/home/a/.cache/clearshot"));
        assert_eq!(folder(&[("XDG_CACHE_HOME", "/c"), ("HOME", "/home/a")]), is("/c/clearshot"));
        assert_eq!(folder(&[("CLEARSHOT_CACHE", "here"), ("XDG_CACHE_HOME", "/c")]), is("here"));
        assert_eq!(folder(&[("CLEARSHOT_CACHE", ""), ("HOME", "/home/a")]), None);
        // Set and empty, or relative: as if it were not set.
        for unset in ["", "cache"] {
            assert_eq!(
                folder(&[("XDG_CACHE_HOME", unset), ("HOME", "/home/a")]),
                is("/home/a/.cache/clearshot")
            );
            assert_eq!(folder(&[("HOME", unset)]), None);
        }
    }

    /// The folder is taken from the environment, which tests share: one test does it all.
    #[test]
    fn entries_come_back_whole_or_not_at_all() {
        let folder = std::env::temp_dir().join(format!("clearshot-cache-{}", std::process::id()));
        // SAFETY: no other test of this crate reads the environment.
        unsafe { std::env::set_var("CLEARSHOT_CACHE", &folder) };
        assert_eq!(read("kernel", "a"), None);
        write("kernel", "a", b"payload");
        assert_eq!(read("kernel", "a").as_deref(), Some(&b"payload"[..]));
        assert_eq!(read("choice", "a"), None);
        write("kernel", "a", b"");
        assert_eq!(read("kernel", "a").as_deref(), Some(&b""[..]));
        // Every damage is noticed.
        write("kernel", "b", b"some longer payload");
        let path = path("kernel", "b").unwrap();
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(read("kernel", "b"), None, "cut at {cut}");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            std::fs::write(&path, &damaged).unwrap();
            assert_eq!(read("kernel", "b"), None, "damaged at {at}");
        }
        // Many writers at once leave one whole entry and nothing beside it.
        std::thread::scope(|s| {
            for t in 0..8u8 {
                s.spawn(move || (0..50).for_each(|_| write("kernel", "c", &[t; 1000])));
            }
            s.spawn(|| {
                for _ in 0..200 {
                    if let Some(entry) = read("kernel", "c") {
                        assert!(entry.len() == 1000 && entry.iter().all(|b| *b == entry[0]));
                    }
                }
            });
        });
        // Many that choose at once go on with the same, which is the one that is kept.
        let chosen: Vec<Vec<u8>> = std::thread::scope(|s| {
            let each: Vec<_> = (0..8u8).map(|t| s.spawn(move || agree("choice", "e", &[t; 100]))).collect();
            each.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(chosen.iter().all(|c| *c == chosen[0]));
        assert_eq!(read("choice", "e").as_ref(), Some(&chosen[0]));
        // A damaged one is nobody's choice.
        std::fs::write(super::path("choice", "e").unwrap(), b"damaged").unwrap();
        assert_eq!(agree("choice", "e", b"new"), b"new");
        assert_eq!(read("choice", "e").as_deref(), Some(&b"new"[..]));
        let names: Vec<String> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        assert!(names.iter().all(|n| !n.starts_with('.')), "{names:?}");
        // A folder that cannot be written to is no error.
        std::fs::remove_dir_all(&folder).unwrap();
        std::fs::write(&folder, b"a file").unwrap();
        write("kernel", "d", b"x");
        assert_eq!(read("kernel", "d"), None);
        assert_eq!(agree("choice", "d", b"x"), b"x");
        std::fs::remove_file(&folder).unwrap();
    }
}
