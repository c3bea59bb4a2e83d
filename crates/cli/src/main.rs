//! The program. One file a verb; each verb is a struct of its arguments and a `run`.

mod bench;
mod convert;
mod deconvolve;
mod denoise;
mod devices;
mod dump;
mod info;
mod interrupt;
mod mask;
mod measure;
mod network;
mod outputs;
mod plan;
mod profile;
mod progress;
mod restoring;
mod size;
mod synth;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Restores scientific images with diffusion models and the physics of the camera, and trains those
/// models.
#[derive(Parser)]
#[command(name = "clearshot", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// List what this machine can compute on.
    Devices(devices::Devices),
    /// Say what running or training a network takes, before running it.
    Plan(plan::PlanArgs),
    /// Time a network, as inference or as training iterations.
    Bench(bench::Bench),
    /// Say where a network's time goes, node by node.
    Profile(profile::Profile),
    /// Print a network's graph or plan.
    Dump(dump::Dump),
    /// Say what image files are: axes, sizes, units, type, statistics, provenance.
    Info(info::Info),
    /// Convert image files, with everything they carry.
    Convert(convert::Convert),
    /// Generate scenes from a seed, and what a camera sees of them.
    Synth(synth::Synth),
    /// Take the noise off image files, without a trained model.
    Denoise(denoise::Denoise),
    /// Take the blur off image files by Richardson-Lucy or Wiener.
    Deconvolve(deconvolve::Deconvolve),
    /// Score images beside the truth.
    Measure(measure::Measure),
}

fn main() -> ExitCode {
    let verb = Cli::parse().verb;
    interrupt::listen();
    let outcome = match verb {
        Verb::Devices(v) => v.run(),
        Verb::Plan(v) => v.run(),
        Verb::Bench(v) => v.run(),
        Verb::Profile(v) => v.run(),
        Verb::Dump(v) => v.run(),
        Verb::Info(v) => v.run(),
        Verb::Convert(v) => v.run(),
        Verb::Synth(v) => v.run(),
        Verb::Denoise(v) => v.run(),
        Verb::Deconvolve(v) => v.run(),
        Verb::Measure(v) => v.run(),
    };
    interrupt::hold_if_ending();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // A reader that has seen enough (`clearshot dump | head`) is no failure.
        Err(e) if is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("clearshot: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(e: &anyhow::Error) -> bool {
    e.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    })
}
