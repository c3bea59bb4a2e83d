//! `clearshot serve`: a page and an HTTP interface for the library. Images of a folder or uploads are viewed by tiles,
//! restored by jobs in a queue on disk, and downloaded; training runs are followed; arrays are restored by the Open
//! Inference Protocol.
//!
//! A request goes from `http` (bytes) through `guard` (access) to `routes`; `store` is the only way from a name to a file,
//! `jobs` the only way to the single `worker`. The defaults are safe: it listens only on this machine, or requires a token.

mod camera;
mod colour;
mod guard;
mod http;
mod infer;
mod jobs;
mod metrics;
mod refusal;
mod routes;
mod runs;
mod server;
mod store;
mod view;
mod worker;

pub use server::{Handle, Server};

use clearshot::DeviceName;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The settings of a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen; port 0 takes a free one.
    pub address: SocketAddr,
    /// Images to look at and restore, and runs to watch; nothing in it is changed.
    pub folder: Option<PathBuf>,
    /// Where uploads, jobs and results are kept.
    pub state: PathBuf,
    /// What requests must show. Without one only this machine is listened to, or one is made.
    pub token: Option<String>,
    /// Names that the server is called by, besides its addresses and localhost.
    pub hosts: Vec<String>,
    /// A certificate chain and its private key, in PEM.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Bytes of an upload at most.
    pub max_upload: u64,
    /// Bytes of uploads and results together at most.
    pub max_state: u64,
    /// Jobs that wait at most.
    pub max_queue: usize,
    /// The model; none is the one that comes with the program.
    pub model: Option<PathBuf>,
    /// The device.
    pub device: DeviceName,
    /// Threads of the CPU; none is one for each core.
    pub threads: Option<usize>,
}

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A folder or file cannot be used.
    #[error("{}: {source}", path.display())]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The folder of images does not exist.
    #[error("{}: there is no such folder; name a folder with images, or leave it out", .0.display())]
    NoFolder(PathBuf),
    /// Another server has the folder.
    #[error("{}: another server keeps its jobs here; choose another folder", .0.display())]
    Taken(PathBuf),
    /// The address cannot be listened on.
    #[error("{address}: {source}; choose another address or port")]
    Address {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// The files for TLS.
    #[error("{}: {why}", path.display())]
    Tls {
        /// The file.
        path: PathBuf,
        /// The error.
        why: String,
    },
    /// The token is too short.
    #[error("a token of at least 16 letters, digits or signs, without spaces, is needed")]
    Token,
}

/// The result type of the functions here.
pub type Result<T, E = Error> = std::result::Result<T, E>;
