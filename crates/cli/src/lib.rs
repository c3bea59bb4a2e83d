//! The program. One file a verb; each verb is a struct of its arguments and a `run`. It is a library so that the Python package
//! carries it too ([`run`]); the binary calls it and nothing else.

mod about_model;
mod adapt;
mod bench;
mod calibrate;
mod camera;
mod check;
mod compare;
mod conditions;
mod config;
mod convert;
mod deconvolve;
mod demo;
mod denoise;
mod devices;
mod doctor;
mod dump;
mod electrons;
mod eval;
mod evaluating;
mod export;
mod failure;
mod info;
mod interrupt;
mod manifest;
mod measure;
mod network;
mod outputs;
mod part;
mod plan;
mod plan_jobs;
mod predict;
mod profile;
mod progress;
mod psf;
mod quantize;
mod ranks;
mod reconstruct;
#[cfg(test)]
mod reference;
mod restore;
mod restoring;
mod serve;
mod synth;
mod train;
mod training;
mod tune;
mod validate;
mod validity;
mod voice;

use clap::{Parser, Subcommand};
use std::ffi::OsString;

/// What a program ends with where all went well, and where not.
const SUCCESS: u8 = 0;
const FAILURE: u8 = 1;

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
    /// See it work, in under three minutes: a real image and noisy scenes restored by the default model and by classical
    /// methods, a short training, pictures and a report.
    Demo(demo::Demo),
    /// List what this machine can compute on.
    Devices(devices::Devices),
    /// Say what running or training a network takes, before running it, or into how many jobs to cut a set of files.
    Plan(plan::PlanArgs),
    /// Time a network, as inference or as training iterations.
    Bench(bench::Bench),
    /// Say where time and memory go: of a network node by node, of a training run (`profile train`), or of restoring (`profile restore`).
    Profile(profile::Profile),
    /// Find the fastest settings for a training run and for restoring on this machine by measuring, and write them for `train` and `restore`.
    Tune(tune::Tune),
    /// Print a network's graph or plan.
    Dump(dump::Dump),
    /// Say what image files are: axes, sizes, units, type, statistics, provenance.
    Info(info::Info),
    /// Convert image files, with everything they carry.
    Convert(convert::Convert),
    /// Generate scenes from a seed, and what a camera or a CT or MR scanner sees of them.
    Synth(Box<synth::Synth>),
    /// Reconstruct slices from the projections of a CT scanner by filtered backprojection.
    Reconstruct(reconstruct::Reconstruct),
    /// Write down which files a data set is made of, with their fingerprints, or check that they are what was written.
    Manifest(manifest::Manifest),
    /// Restore image files with a trained model.
    Restore(Box<restore::Restore>),
    /// Measure a camera's noise from its own images, repeats, a movie, or flats and darks.
    Camera(Box<camera::Camera>),
    /// Average an image of beads into a point-spread function.
    Psf(psf::Psf),
    /// Take the noise off image files, without a trained model.
    Denoise(denoise::Denoise),
    /// Take the blur off image files by Richardson-Lucy or Wiener.
    Deconvolve(deconvolve::Deconvolve),
    /// Score images beside the truth.
    Measure(measure::Measure),
    /// Say how good a method is: scenes x light levels x metrics, beside the raw input and BM3D.
    Eval(eval::Eval),
    /// Say whether a new model may take the old one's place: no metric under 95 % of the old one's.
    Validate(validate::Validate),
    /// Say what this machine has, what will be used of it, and why.
    Doctor(doctor::Doctor),
    /// Score methods side by side, and say where the trained ones do not win.
    Compare(compare::Compare),
    /// Train a model by a configuration, or resume a run.
    Train(train::Train),
    /// Fit the default model to your own noisy images, and keep it where its estimated gain is clear (an experiment).
    Adapt(adapt::Adapt),
    /// Calibrate the uncertainty of a model, so that 90 % intervals contain the truth 90 % of the time, on scenes like those that it was trained on.
    Calibrate(calibrate::Calibrate),
    /// Make a model's convolutions multiply in 8 bits: a smaller file, and faster on CPUs with VNNI; refused where it costs accuracy.
    Quantize(quantize::Quantize),
    /// Write a model as an ONNX file or a BioImage Model Zoo package, for Fiji, napari, ONNX Runtime and other programs.
    Export(export::Export),
    /// Segment images by a model of `train experiment=segmentation` or `experiment=instances`, enlarge them by one of `experiment=superres`, or run another model, an ONNX file or a BioImage Model Zoo package, on images or tensors.
    Predict(predict::Predict),
    /// Run the test that a BioImage Model Zoo package brings, and nothing else.
    Check(check::Check),
    /// Show a page in the browser, and an HTTP interface, to look at images, restore them and watch training runs; for this machine alone by default.
    Serve(serve::Serve),
    /// Print what a training run's configuration comes to, and where each value was written.
    Config(config::Config),
}

/// Runs the program with its name and arguments, and gives the status to end with. Help and wrong arguments end the process,
/// and so does Ctrl-C.
pub fn run(arguments: impl Iterator<Item = OsString>) -> u8 {
    // Secrets of addresses are taken out before anything can say them.
    let arguments = arguments.map(clearshot_image::address::without_secrets);
    let verb = Cli::parse_from(arguments).verb;
    interrupt::listen();
    let outcome = match verb {
        Verb::Demo(v) => v.run(),
        Verb::Config(v) => v.run(),
        Verb::Serve(v) => v.run(),
        Verb::Calibrate(v) => v.run(),
        Verb::Quantize(v) => v.run(),
        Verb::Export(v) => v.run(),
        Verb::Predict(v) => v.run(),
        Verb::Check(v) => v.run(),
        Verb::Devices(v) => v.run(),
        Verb::Plan(v) => v.run(),
        Verb::Bench(v) => v.run(),
        Verb::Profile(v) => v.run(),
        Verb::Tune(v) => v.run(),
        Verb::Dump(v) => v.run(),
        Verb::Info(v) => v.run(),
        Verb::Convert(v) => v.run(),
        Verb::Synth(v) => v.run(),
        Verb::Reconstruct(v) => v.run(),
        Verb::Manifest(v) => v.run(),
        Verb::Restore(v) => v.run(),
        Verb::Camera(v) => v.run(),
        Verb::Psf(v) => v.run(),
        Verb::Denoise(v) => v.run(),
        Verb::Deconvolve(v) => v.run(),
        Verb::Measure(v) => v.run(),
        Verb::Eval(v) => v.run(),
        Verb::Compare(v) => v.run(),
        Verb::Validate(v) => v.run(),
        Verb::Doctor(v) => v.run(),
        Verb::Adapt(v) => v.run(),
        Verb::Train(v) => match v.run() {
            Ok(code) => return code,
            Err(e) => Err(e),
        },
    };
    interrupt::hold_if_ending();
    match outcome {
        Ok(()) => SUCCESS,
        // A reader that has seen enough (`clearshot dump | head`) is no failure.
        Err(e) if is_broken_pipe(&e) => SUCCESS,
        Err(e) => {
            eprintln!("clearshot: {}", failure::worded(&e));
            FAILURE
        }
    }
}

fn is_broken_pipe(e: &anyhow::Error) -> bool {
    e.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    })
}
