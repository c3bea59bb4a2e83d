//! Why there is no result: one error for everything that the library does.

use clearshot_restore::camera::file::CameraFileError;
use clearshot_restore::estimate::EstimateError;
use clearshot_restore::stream::{PieceError, StreamError};
use clearshot_restore::{RestoreError, learned};
use std::path::PathBuf;

/// See the module. Every text says what is wrong and, where something can be done about it, what.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An image could not be read or written.
    #[error(transparent)]
    Image(#[from] clearshot_image::Error),
    /// A model could not be read.
    #[error(transparent)]
    Model(#[from] clearshot_model::ModelError),
    /// The network, or what goes on around it, failed.
    #[error(transparent)]
    Learned(learned::Error),
    /// A classical method refused its settings or the image.
    #[error(transparent)]
    Classical(#[from] RestoreError),
    /// A file could not be restored piece by piece.
    #[error(transparent)]
    Stream(StreamError),
    /// The noise could not be estimated from an image.
    #[error(transparent)]
    Estimate(#[from] EstimateError),
    /// A camera or a point-spread function is impossible.
    #[error(transparent)]
    Physics(#[from] clearshot_physics::PhysicsError),
    /// A file does not describe a camera.
    #[error(transparent)]
    CameraFile(#[from] CameraFileError),
    /// The device cannot be used.
    #[error(transparent)]
    Device(#[from] clearshot_runtime::Unavailable),
    /// Working files could not be written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A field of [`crate::Settings`] that cannot be as it is.
    #[error("{key}: {why}")]
    Setting {
        /// The field.
        key: &'static str,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// An image that has not the axes, channels or values that are needed.
    #[error("{0}")]
    Unsuited(String),
    /// The numbers of an array do not fit its shape or axes.
    #[error("{0}")]
    Array(String),
    /// The output is there, and was not made of this input with these settings.
    #[error(
        "{} exists already, made of something else or with other settings; choose another name, or allow that it is replaced",
        path.display()
    )]
    Other {
        /// The output.
        path: PathBuf,
    },
    /// The output is the input.
    #[error("the output would replace its own input; choose another name or folder")]
    SameFile,
    /// The observer said to stop.
    #[error("stopped")]
    Stopped,
    /// Where it happened, and what: a file, an image of a file, a setting.
    #[error("{place}: {source}")]
    At {
        /// The file, the image or the setting.
        place: String,
        /// Why.
        source: Box<Error>,
    },
}

/// What functions of the library give.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn setting(key: &'static str, why: impl Into<String>) -> Error {
        Error::Setting { key, why: why.into() }
    }

    /// The same with a place before it, unless it begins with that already.
    pub(crate) fn at(self, place: impl std::fmt::Display) -> Error {
        let place = place.to_string();
        match self {
            Error::Stopped => Error::Stopped,
            other if other.to_string().starts_with(&place) => other,
            other => Error::At { place, source: other.into() },
        }
    }
}

impl From<learned::Error> for Error {
    fn from(e: learned::Error) -> Error {
        match e {
            learned::Error::Stopped => Error::Stopped,
            learned::Error::Classical(e) => Error::Classical(e),
            other => Error::Learned(other),
        }
    }
}

impl From<StreamError> for Error {
    fn from(e: StreamError) -> Error {
        match e {
            StreamError::Stopped => Error::Stopped,
            StreamError::Image(e) => Error::Image(e),
            StreamError::Part { part: 1, parts: 1, source: PieceError::Restore(e) } => Error::Classical(e),
            other => Error::Stream(other),
        }
    }
}
