//! The common parts of commands that restore files without a model: files, tiling, and additional outputs.

use crate::outputs::{self, Paths, Walk};
use crate::part::PartArgs;
use crate::validity::ValidityArgs;
use crate::voice::{Style, Voice};
use anyhow::Result;
use clap::Args;
use clearshot::{KnownCamera, Restorer, Settings, Stacks, restore_file, restore_part};

#[derive(Args)]
pub struct Files {
    #[command(flatten)]
    paths: Paths,
    /// List the methods with their settings, and exit.
    #[arg(long, exclusive = true)]
    pub list: bool,
    /// Restore this image of files that contain several, by name or number. Default: all images.
    #[arg(long, value_name = "NAME")]
    item: Option<String>,
    /// Set what the axes of the files are, one letter each in the file's order: TYX for a movie, ZYX for a stack. Written files keep the axis names
    /// of the input. Default: as stated in the file.
    #[arg(long, value_name = "LETTERS")]
    axes: Option<String>,
    /// Restore volumes along Z, Y and X. Default: plane by plane.
    #[arg(long)]
    volume: bool,
    /// Cut large planes and volumes into pieces of this side in pixels; `auto` chooses by memory.
    #[arg(long, default_value = "auto", value_parser = tile_side)]
    tile: TileSide,
    #[command(flatten)]
    validity: ValidityArgs,
    /// Write 32-bit floats. Default: the input's pixel type.
    #[arg(long)]
    float: bool,
    /// Write a picture of the middle plane before and after, with a scale bar, next to each output (NAME.png). Default: none.
    #[arg(long)]
    png: bool,
    /// Replace existing files. Default: an existing file is an error.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    part: PartArgs,
    /// Print one line of JSON for each file. Default: text.
    #[arg(long)]
    json: bool,
}

/// Pixels along a side, or nothing for `auto`.
#[derive(Clone, Copy)]
struct TileSide(Option<usize>);

fn tile_side(text: &str) -> Result<TileSide, String> {
    match text.parse() {
        _ if text == "auto" => Ok(TileSide(None)),
        Ok(side) if side >= 8 => Ok(TileSide(Some(side))),
        _ => Err("`auto`, or a whole number of at least 8 pixels".into()),
    }
}

impl Files {
    /// What is decided about every file.
    pub fn settings(&self, camera: KnownCamera) -> Settings {
        let mut settings = Settings {
            camera,
            item: self.item.clone(),
            axes: self.axes.clone(),
            stacks: if self.volume { Stacks::Volumes } else { Stacks::Planes },
            tile: self.tile.0,
            float: self.float,
            picture: self.png,
            replace: self.force,
            ..Settings::default()
        };
        self.validity.set(&mut settings);
        settings
    }

    /// Restores each file.
    ///
    /// # Errors
    /// The only file's error, or how many of several failed, each having been reported.
    pub fn restore(&self, restorer: &Restorer, settings: &Settings) -> Result<()> {
        let (inputs, output) = self.paths.split()?;
        let pairs = outputs::pairs(inputs, output, None)?;
        restorer.check(settings)?;
        let mut voice = Voice::new(Style::Streamed, self.json, false);
        let jobs = self.part.open(&pairs, output, &restorer.work(settings)?)?;
        let walk = Walk { jobs, pairs: &pairs, replace: self.force, json: self.json, done: "restored" };
        walk.each(|turn| {
            voice.begin(turn.name, turn.input);
            let settings = Settings { replace: turn.replace, ..settings.clone() };
            let outcome = match turn.run {
                Some(run) => restore_part(turn.input, turn.output, restorer, &settings, run, &mut voice),
                None => restore_file(turn.input, turn.output, restorer, &settings, &mut voice),
            };
            voice.end(outcome).map(|_| ())
        })
    }
}
