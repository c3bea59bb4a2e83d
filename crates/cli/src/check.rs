//! `clearshot check`: runs the test of a package of the BioImage Model Zoo.

use crate::network::ComputeArgs;
use anyhow::{Result, bail};
use clap::Args;
use clearshot_onnx::package::read::Package;
use clearshot_restore::foreign::Foreign;
use serde_json::json;
use std::path::PathBuf;

#[derive(Args)]
pub struct Check {
    /// Check this package: a folder, a zip archive, or its bioimageio.yaml.
    #[arg(value_name = "PACKAGE")]
    package: PathBuf,
    /// Print one line of JSON. Default: text.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compute: ComputeArgs,
}

impl Check {
    pub fn run(self) -> Result<()> {
        if !self.package.exists() {
            bail!(
                "{}: there is no such file or folder; a package is a folder or zip with an rdf.yaml",
                self.package.display()
            );
        }
        let package = Package::open(&self.package)?;
        let (name, hash) = (package.name.clone(), package.hash.clone());
        let mut foreign = Foreign::new(package, self.compute.device()?)?;
        let Some(checked) = foreign.check()? else {
            bail!("{}: the package contains no test", self.package.display());
        };
        match self.json {
            true => println!("{}", json!({"name": name, "sha256": hash, "difference": checked.difference})),
            false => println!(
                "{name}: the package's own test passes (largest difference {:.1e} of the largest value)",
                checked.difference
            ),
        }
        Ok(())
    }
}
