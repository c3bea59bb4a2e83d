//! The program. There is one file per command; each command is a struct of its arguments and a `run`. It is a library
//! so that the Python package can include it ([`run`]); the binary only calls it.

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

const RESTORE_EXAMPLES: &str = "Examples:
  clearshot restore noisy.tif -o clean.tif
  clearshot restore 'raw/*.tif' -o restored --camera camera.json
  clearshot restore noisy.tif -o clean.tif --std --chi2
  clearshot restore movie.tif -o clean.tif --axes TYX";

const COMPARE_EXAMPLES: &str = "Examples:
  clearshot compare --out comparison
  clearshot compare gat+bm3d default auto --truth clean/ --noisy noisy/ --out comparison";

const TRAIN_EXAMPLES: &str = "Examples:
  clearshot train experiment=supervised --out runs/nuclei
  clearshot train experiment=supervised data=pairs data.inputs=noisy/ data.targets=clean/ --out runs/mine
  clearshot train experiment=splitting data.inputs=noisy/ --out runs/mine
  clearshot train --out runs/mine --resume
`clearshot train` alone lists the experiments, and `clearshot config experiment=NAME` prints all keys of one.";

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
    /// Run a demonstration (under three minutes): restore, compare methods, train briefly, and
    /// write pictures and a report.
    Demo(demo::Demo),
    /// Restore image files with a trained model.
    #[command(after_help = RESTORE_EXAMPLES)]
    Restore(Box<restore::Restore>),
    /// Remove noise from image files without a trained model.
    Denoise(denoise::Denoise),
    /// Remove blur from image files with Richardson-Lucy or Wiener.
    Deconvolve(deconvolve::Deconvolve),
    /// Measure a camera's noise from its own images, repeats, a movie, or flats and darks.
    Camera(Box<camera::Camera>),
    /// Average an image of beads into a point-spread function.
    Psf(psf::Psf),
    /// Segment or enlarge images with a trained model, or run an ONNX
    /// file or a BioImage Model Zoo package.
    Predict(predict::Predict),
    /// Print what image files contain: axes, sizes, units, type, statistics, provenance.
    Info(info::Info),
    /// Convert image files to another format, with all their metadata.
    Convert(convert::Convert),
    /// Score images against the truth.
    Measure(measure::Measure),
    /// Score methods side by side, and show where the trained ones do not win.
    #[command(after_help = COMPARE_EXAMPLES)]
    Compare(compare::Compare),
    /// Evaluate a method: scenes x light levels x metrics, next to the raw input and BM3D.
    Eval(eval::Eval),
    /// Check that a new model may replace an old one: no metric below 95 % of the old one's.
    Validate(validate::Validate),
    /// Train a model from a configuration, or resume a run.
    #[command(after_help = TRAIN_EXAMPLES)]
    Train(train::Train),
    /// Fine-tune the default model on your own noisy images (experimental).
    Adapt(adapt::Adapt),
    /// Calibrate the uncertainty of a model, so that 90 % intervals contain the truth 90 % of the time.
    Calibrate(calibrate::Calibrate),
    /// Quantize the convolutions of a model to 8 bits: smaller, and faster on CPUs with VNNI.
    Quantize(quantize::Quantize),
    /// Write a model as an ONNX file or a BioImage Model Zoo package, for other programs.
    Export(export::Export),
    /// Run the test that comes with a BioImage Model Zoo package, and nothing else.
    Check(check::Check),
    /// Serve a page for the browser and an HTTP interface; by default for this machine
    /// only.
    Serve(serve::Serve),
    /// Generate scenes, and simulated images of them by a camera or a CT or MR scanner.
    Synth(Box<synth::Synth>),
    /// Reconstruct slices from the projections of a CT scanner by filtered backprojection.
    Reconstruct(reconstruct::Reconstruct),
    /// List the files of a data set with their fingerprints, or check files against such a list.
    Manifest(manifest::Manifest),
    /// Print the resolved configuration of a training run, and where each value was set.
    Config(config::Config),
    /// Print what this machine has, what will be used of it, and why.
    Doctor(doctor::Doctor),
    /// List the devices that this machine can compute on.
    Devices(devices::Devices),
    /// Predict memory and operations of a network, or the number of jobs for a set of files.
    Plan(plan::PlanArgs),
    /// Find the fastest settings for training and restoring on this machine by measuring.
    Tune(tune::Tune),
    /// Time a network, as inference or as training iterations.
    Bench(bench::Bench),
    /// Show where time and memory go: in a network, in training (`profile train`) or in restoring (`profile restore`).
    Profile(profile::Profile),
    /// Print a network's graph or plan.
    Dump(dump::Dump),
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
