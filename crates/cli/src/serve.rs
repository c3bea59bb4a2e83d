//! `clearshot serve`: a page in the browser and an HTTP interface.

use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot::DeviceName;
use clearshot_runtime::bytes;
use clearshot_serve::{Options, Server};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Args)]
pub struct Serve {
    /// Offer the images and training runs of this folder; nothing in it is changed. Default: none, files are dropped on the page.
    folder: Option<PathBuf>,
    /// Listen on this address and port; one that other machines can reach needs a token, and one is made and printed if none is given.
    #[arg(long, default_value = "127.0.0.1:8460", value_name = "ADDRESS:PORT")]
    address: SocketAddr,
    /// Require this token, of at least 16 characters; other users of this machine can see it in the list of processes. Default: no token for connections from this machine.
    #[arg(long, value_name = "TOKEN", conflicts_with = "token_file")]
    token: Option<String>,
    /// Require the token in the first line of this file. Default: no token for connections from this machine.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Answer to this host name too, in addition to addresses and localhost; may be given several times. Default: none.
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// Use TLS (https) with this certificate chain in PEM format. Default: http.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Use TLS with this private key in PEM format. Default: http.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Keep uploads, jobs and results in this folder; jobs that are waiting there continue.
    #[arg(long, default_value = "clearshot-serve", value_name = "FOLDER")]
    state: PathBuf,
    /// Refuse uploads that are larger.
    #[arg(long, default_value = "4GiB", value_parser = bytes::parse, value_name = "BYTES")]
    max_upload: usize,
    /// Refuse uploads and jobs when uploads and results take more than this.
    #[arg(long, default_value = "32GiB", value_parser = bytes::parse, value_name = "BYTES")]
    max_state: usize,
    /// Refuse jobs when this many are waiting.
    #[arg(long, default_value_t = 100, value_name = "N")]
    max_queue: usize,
    /// Restore by this model, as `restore --model`. Default: the built-in model.
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Run on cpu, cuda (the first GPU), cuda:N, or auto (a GPU if there is one).
    #[arg(long, default_value = "auto")]
    device: DeviceName,
    /// Use this many CPU threads. Default: one for each core.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

impl Serve {
    pub fn run(self) -> Result<()> {
        let token = match &self.token_file {
            Some(path) => {
                let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
                let first = text.lines().next().unwrap_or_default().trim().to_string();
                if first.is_empty() {
                    bail!("{}: the first line is empty; a token is needed there", path.display());
                }
                Some(first)
            }
            None => self.token,
        };
        let server = Server::bind(Options {
            address: self.address,
            folder: self.folder,
            state: self.state,
            token,
            hosts: self.host,
            tls: self.tls_cert.zip(self.tls_key),
            max_upload: self.max_upload as u64,
            max_state: self.max_state as u64,
            max_queue: self.max_queue,
            model: self.model,
            device: self.device,
            threads: self.threads.map(usize::from),
        })?;
        let scheme = if server.is_tls() { "https" } else { "http" };
        let fragment = server.made_token().map_or(String::new(), |t| format!("#token={t}"));
        say(&format!(
            "open {scheme}://{}/{fragment} (Ctrl-C stops the server; waiting jobs continue at the next start)",
            server.address()
        ));
        if !server.address().ip().is_loopback() && !server.is_tls() {
            eprintln!(
                "clearshot: others on the network can read what is sent; --tls-cert and --tls-key prevent that"
            );
        }
        if server.waiting() > 0 {
            say(&format!("{} jobs of an earlier run continue", server.waiting()));
        }
        server.run();
        Ok(())
    }
}

/// Prints a line; a server continues if nobody reads its output.
fn say(text: &str) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}
