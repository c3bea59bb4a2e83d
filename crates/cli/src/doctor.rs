//! `clearshot doctor`: describes the hardware and libraries of this machine, which of them are used, and why.

use crate::devices::{memory, model};
use anyhow::Result;
use clap::Args;
use clearshot_graph::plan::human;
use clearshot_model::Model;
use clearshot_runtime::{Device, Gpu, Unavailable, available_bytes, cache_folder, gpus};
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Doctor {
    /// Print one JSON object. Default: text.
    #[arg(long)]
    json: bool,
}

/// What was found of one thing, and what to do about it.
struct Finding {
    what: &'static str,
    /// `ok`, `note` or `problem`.
    state: &'static str,
    says: String,
    advice: Option<String>,
}

fn finding(what: &'static str, state: &'static str, says: String, advice: Option<&str>) -> Finding {
    Finding { what, state, says, advice: advice.map(str::to_string) }
}

impl Doctor {
    pub fn run(self) -> Result<()> {
        let gpus = gpus();
        let findings =
            [program(), processor(), memory_there(), graphics(&gpus), cache(), scratch(), default_model()];
        let (device, why) = choice(&gpus);
        let mut out = std::io::stdout().lock();
        if self.json {
            let list: Vec<_> = findings
                .iter()
                .map(|f| json!({"what": f.what, "state": f.state, "says": f.says, "advice": f.advice}))
                .collect();
            let cards: Vec<_> = gpus.iter().flatten().map(card).collect();
            let record = json!({
                "version": env!("CARGO_PKG_VERSION"),
                "device": device,
                "why": why,
                "cpu": { "model": model(), "threads": threads(), "instructions": level(),
                    "bf16": Device::cpu(None).has_bf16_products(), "memory_bytes": memory(), "available_bytes": available_bytes() },
                "gpus": cards,
                "gpu_unavailable": gpus.as_ref().err().map(|e| e.to_string()),
                "cache": cache_folder(),
                "findings": list,
            });
            writeln!(out, "{}", serde_json::to_string_pretty(&record)?)?;
            return Ok(());
        }
        for f in &findings {
            let mark = match f.state {
                "ok" => "ok     ",
                "note" => "note   ",
                _ => "PROBLEM",
            };
            writeln!(out, "{mark}  {}: {}", f.what, f.says)?;
            if let Some(advice) = &f.advice {
                writeln!(out, "         -> {advice}")?;
            }
        }
        writeln!(out, "\nWhat will be used: {device}. {why}")?;
        writeln!(
            out,
            "`--device cpu` or `--device cuda:N` chooses otherwise; `clearshot bench` measures this machine."
        )?;
        Ok(())
    }
}

fn card(gpu: &Gpu) -> serde_json::Value {
    json!({
        "ordinal": gpu.ordinal, "model": gpu.name, "memory_bytes": gpu.memory,
        "compute_capability": format!("{}.{}", gpu.capability.0, gpu.capability.1),
        "cuda": cuda_version(gpu), "bf16": gpu.has_bf16(), "tf32": gpu.has_tf32(),
    })
}

fn cuda_version(gpu: &Gpu) -> String {
    format!("{}.{}", gpu.driver / 1000, gpu.driver % 1000 / 10)
}

fn program() -> Finding {
    let version = env!("CARGO_PKG_VERSION");
    if cfg!(debug_assertions) {
        let says = format!("clearshot {version}, built without optimisation");
        return finding(
            "program",
            "problem",
            says,
            Some("build with `cargo build --release`; this one is many times slower"),
        );
    }
    finding("program", "ok", format!("clearshot {version}, built with optimisation"), None)
}

fn threads() -> usize {
    match Device::cpu(None) {
        Device::Cpu { threads, .. } => threads,
        Device::Cuda { .. } => 0,
    }
}

fn level() -> String {
    match Device::cpu(None) {
        Device::Cpu { level, .. } => level.name().to_string(),
        Device::Cuda { .. } => String::new(),
    }
}

fn processor() -> Finding {
    let name = model().unwrap_or_else(|| std::env::consts::ARCH.to_string());
    let threads = threads();
    let bytes = Device::cpu(None).has_byte_products();
    let bytes = if bytes { "8-bit products (VNNI)" } else { "no VNNI: models in 8 bits are slow here" };
    let bf16 = if Device::cpu(None).has_bf16_products() { "of bf16 too" } else { "none of bf16" };
    let says = format!("{name}, {threads} threads, {bytes}, {bf16}");
    match level().as_str() {
        "avx512" => finding("processor", "ok", format!("{says}, AVX-512: the fastest kernels"), None),
        "avx2" => finding("processor", "ok", format!("{says}, AVX2 with FMA: fast kernels"), None),
        _ => {
            let advice = "a processor with AVX2 is several times faster; results are the same";
            finding(
                "processor",
                "note",
                format!("{says}, neither AVX2 nor AVX-512: portable kernels"),
                Some(advice),
            )
        }
    }
}

fn memory_there() -> Finding {
    const LITTLE: usize = 1 << 30;
    let limit = container_limit();
    let (Some(all), Some(free)) = (memory(), available_bytes()) else {
        let advice = "set --memory where a verb has this option";
        return finding("memory", "note", "this system does not report its memory".into(), Some(advice));
    };
    let free = limit.map_or(free, |l| l.min(free));
    let mut says = format!("{} in total, {} available", human(all), human(free));
    if let Some(limit) = limit.filter(|l| *l < all) {
        says += &format!(" (this container may use {})", human(limit));
    }
    if free < LITTLE {
        let advice = "close other programs, or restore with smaller tiles (--tile 64)";
        return finding("memory", "problem", says, Some(advice));
    }
    finding("memory", "ok", says, None)
}

/// What a container allows, where there is one.
fn container_limit() -> Option<usize> {
    let text = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok()?;
    text.trim().parse().ok()
}

fn graphics(gpus: &Result<Vec<Gpu>, Unavailable>) -> Finding {
    match gpus {
        Ok(found) => {
            let list: Vec<String> = found.iter().map(|g| format!("cuda:{} {g}", g.ordinal)).collect();
            let says = format!("{}; driver, NVRTC, cuBLASLt and cuDNN were loaded", list.join("; "));
            finding("GPU", "ok", says, None)
        }
        Err(why) => {
            let advice = match why {
                Unavailable::NoDriver { .. } => {
                    "if this machine has an NVIDIA card, install its driver; otherwise nothing needs to be done"
                }
                Unavailable::OldDriver { .. } => "install a newer NVIDIA driver",
                Unavailable::NoLibrary { .. } => {
                    "install CUDA 12 or 13 and cuDNN 9, or point LD_LIBRARY_PATH to them (pip's nvidia-* packages serve)"
                }
                Unavailable::OldCard { .. } => "the card is too old for the kernels; the CPU is used",
                Unavailable::NoDevice(_) | Unavailable::NoSuchDevice { .. } => {
                    "check that `nvidia-smi` lists a card and that CUDA_VISIBLE_DEVICES does not hide it"
                }
            };
            let path = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
            let looked = if path.is_empty() {
                "LD_LIBRARY_PATH is not set".into()
            } else {
                format!("LD_LIBRARY_PATH is {path}")
            };
            finding("GPU", "note", format!("none can be used: {why}; {looked}"), Some(advice))
        }
    }
}

/// Whether a file can be made in a folder, which is made if need be.
fn writable(folder: &Path) -> Result<(), std::io::Error> {
    std::fs::create_dir_all(folder)?;
    let probe = folder.join(format!(".clearshot-doctor-{}", std::process::id()));
    std::fs::write(&probe, b"x")?;
    std::fs::remove_file(&probe)
}

fn cache() -> Finding {
    let advice = "set CLEARSHOT_CACHE to a folder that can be written; without one, GPU kernels are compiled again in every run";
    match cache_folder() {
        None => finding("cache", "note", "no folder for it was found".into(), Some(advice)),
        Some(folder) => match writable(&folder) {
            Ok(()) => {
                finding("cache", "ok", format!("{}, {} kept", folder.display(), human(size(&folder))), None)
            }
            Err(e) => finding("cache", "problem", format!("{}: {e}", folder.display()), Some(advice)),
        },
    }
}

fn size(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|e| e.metadata().ok()).filter(|m| m.is_file()).map(|m| m.len() as usize).sum()
}

fn scratch() -> Finding {
    let folder: PathBuf = std::env::temp_dir();
    match writable(&folder) {
        Ok(()) => finding(
            "working space",
            "ok",
            format!("{} for images larger than memory", folder.display()),
            None,
        ),
        Err(e) => {
            let says = format!("{}: {e}", folder.display());
            finding("working space", "problem", says, Some("set TMPDIR to a folder with room"))
        }
    }
}

fn default_model() -> Finding {
    match Model::builtin() {
        Ok(m) => {
            let about = &m.about;
            let weights: usize = m.weights.values().map(|t| t.shape().len()).sum();
            let says = format!(
                "{} ({}), {weights} weights, trained on {} pixels",
                about.name,
                about.task.name(),
                clearshot_image::lengths(&about.crop)
            );
            finding("default model", "ok", says, None)
        }
        Err(e) => finding(
            "default model",
            "problem",
            e.to_string(),
            Some("build the program again from a complete clone"),
        ),
    }
}

/// The device that `auto` means, and why.
fn choice(gpus: &Result<Vec<Gpu>, Unavailable>) -> (String, String) {
    match gpus.as_ref().ok().and_then(|g| g.first()) {
        Some(gpu) => {
            let narrow = if gpu.has_bf16() { "bf16" } else { "fp16" };
            let why = format!(
                "A GPU with all its libraries was found. Restoring uses the fastest precision whose error is far below the noise (often {narrow}); `--precision fp32` gives the same bits as the CPU."
            );
            (format!("cuda:{} ({})", gpu.ordinal, gpu.name), why)
        }
        None => {
            let why = "No usable GPU was found. Everything works on the CPU, in fp32; results differ from those of a GPU only by rounding.";
            (Device::cpu(None).to_string(), why.into())
        }
    }
}
