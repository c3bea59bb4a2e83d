//! Available memory: the machine's, or what the limits of a container or job leave of it.
//!
//! Docker and Slurm set limits with control groups. Any group around a process may limit it, so all of them are checked,
//! from its own upwards. The usage of a group includes file caches that the system would release; these are not counted.

use clearshot_timeline::Memory;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Bytes of all compiled graphs on the CPU, which lie beside the heap.
static PLANNED: AtomicUsize = AtomicUsize::new(0);

/// Counts a compiled graph's bytes as long as it lives.
pub(crate) struct Planned(usize);

impl Planned {
    pub fn new(bytes: usize) -> Planned {
        PLANNED.fetch_add(bytes, Ordering::Relaxed);
        Planned(bytes)
    }
}

impl Drop for Planned {
    fn drop(&mut self) {
        PLANNED.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// What the process uses now: the heap, as the allocator counts it (the resident memory where it does not), and compiled graphs.
pub fn memory_in_use() -> Memory {
    let planned = PLANNED.load(Ordering::Relaxed);
    let [allocated, reserved] = match heap_bytes() {
        Some(heap) => heap.map(|bytes| bytes + planned),
        None => [kibibytes("/proc/self/status", "VmRSS:").unwrap_or(0); 2],
    };
    Memory { allocated, reserved, free: available_bytes().unwrap_or(0) }
}

/// Bytes of the heap in use, and those that the system gave for it, where the C library tells it.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn heap_bytes() -> Option<[usize; 2]> {
    // SAFETY: looked up by name, for libraries before 2.33 have none; its type is that of the C library's header.
    let info = unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, c"mallinfo2".as_ptr());
        if found.is_null() {
            return None;
        }
        std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> libc::mallinfo2>(found)()
    };
    // What is mapped for large values lies beside the arenas.
    Some([info.uordblks + info.hblkhd, info.arena + info.hblkhd])
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn heap_bytes() -> Option<[usize; 2]> {
    None
}

/// Measures what a stretch of a program takes: time, and memory that it keeps.
pub struct MemoryScope {
    name: String,
    begun: Instant,
    before: Memory,
}

/// What a [`MemoryScope`] found.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryChange {
    pub name: String,
    pub seconds: f64,
    /// More than before, in bytes; less is negative.
    pub bytes: i64,
    pub now: Memory,
}

impl MemoryScope {
    pub fn begin(name: &str) -> MemoryScope {
        MemoryScope { name: name.into(), begun: Instant::now(), before: memory_in_use() }
    }

    pub fn end(self) -> MemoryChange {
        let (seconds, now) = (self.begun.elapsed().as_secs_f64(), memory_in_use());
        MemoryChange {
            name: self.name,
            seconds,
            bytes: now.allocated as i64 - self.before.allocated as i64,
            now,
        }
    }
}

impl fmt::Display for MemoryChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (change, now) = (self.bytes as f64 * 1e-9, self.now.allocated as f64 * 1e-9);
        write!(f, "{}: {:.3} s, {change:+.3} GB (now {now:.3} GB)", self.name, self.seconds)
    }
}

/// The most memory that this process has had, where the system tells it.
pub fn peak_bytes() -> Option<usize> {
    kibibytes("/proc/self/status", "VmHWM:")
}

/// The memory that can be had without driving others out, where the system tells it.
pub fn available_bytes() -> Option<usize> {
    let machine = kibibytes("/proc/meminfo", "MemAvailable:");
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    machine.into_iter().chain(left_by_groups(Path::new("/sys/fs/cgroup"), &own)).min()
}

/// Where a version of control groups says what is allowed and used, and what of it are files.
struct Names {
    limit: &'static str,
    used: &'static str,
    files: &'static str,
}

const SECOND: Names = Names { limit: "memory.max", used: "memory.current", files: "inactive_file" };
const FIRST: Names =
    Names { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", files: "total_inactive_file" };

/// What each group that limits this process leaves; `own` is the text of /proc/self/cgroup.
fn left_by_groups(root: &Path, own: &str) -> Vec<usize> {
    let mut left = vec![];
    for line in own.lines() {
        // NUMBER:CONTROLLERS:PATH, without controllers in the second version.
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (names, root) = match controllers {
            "" => (SECOND, root.to_path_buf()),
            c if c.split(',').any(|c| c == "memory") => (FIRST, root.join("memory")),
            _ => continue,
        };
        // In a container the path may be one of the machine outside: its folders are not there, and the root is the limit.
        let own: PathBuf = root.join(path.trim_start_matches('/'));
        left.extend(own.ancestors().take_while(|p| p.starts_with(&root)).filter_map(|p| left_by(p, &names)));
    }
    left
}

fn left_by(group: &Path, names: &Names) -> Option<usize> {
    let text = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    let number = |name: &str| text(name)?.trim().parse::<usize>().ok();
    // Without a limit the file says `max`, or a number larger than any memory.
    let limit = number(names.limit)?;
    let stat = text("memory.stat").unwrap_or_default();
    let files = stat.lines().find_map(|l| l.strip_prefix(names.files)?.trim().parse::<usize>().ok());
    let used = number(names.used).unwrap_or(0).saturating_sub(files.unwrap_or(0));
    Some(limit.saturating_sub(used))
}

/// The number of a line of one of Linux's tables, in bytes.
fn kibibytes(table: &str, key: &str) -> Option<usize> {
    let text = std::fs::read_to_string(table).ok()?;
    let line = text.lines().find(|l| l.starts_with(key))?;
    let kib: usize = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn the_limit_of_a_job_counts_and_that_of_the_groups_around_it() {
        let root = std::env::temp_dir().join(format!("clearshot-cgroup-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        write(
            &root,
            &[
                ("slurm/job_7/step_0/memory.max", "max\n"),
                ("slurm/job_7/memory.max", "1000\n"),
                ("slurm/job_7/memory.current", "700\n"),
                ("slurm/job_7/memory.stat", "anon 400\ninactive_file 250\nactive_file 50\n"),
                ("slurm/memory.max", "5000\n"),
                ("memory/box/memory.limit_in_bytes", "900\n"),
                ("memory/box/memory.usage_in_bytes", "300\n"),
            ],
        );
        assert_eq!(left_by_groups(&root, "0::/slurm/job_7/step_0\n"), [550, 5000]);
        assert_eq!(left_by_groups(&root, "4:cpu,cpuacct:/\n3:memory:/box\n"), [600]);
        assert!(
            left_by_groups(&root, "0::/elsewhere\n").is_empty() && left_by_groups(&root, "odd").is_empty()
        );
        std::fs::remove_dir_all(root).unwrap();
    }
}
