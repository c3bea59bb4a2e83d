//! The error type of the whole library.

use clearshot_restore::camera::CameraError;
use clearshot_restore::camera::file::CameraFileError;
use clearshot_restore::estimate::EstimateError;
use clearshot_restore::foreign::ForeignError;
use clearshot_restore::stream::{PieceError, StreamError};
use clearshot_restore::{RestoreError, learned};
use std::path::PathBuf;

/// See the module. Every message says what is wrong and, if possible, what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An image could not be read or written.
    #[error(transparent)]
    Image(#[from] clearshot_image::Error),
    /// A model could not be read.
    #[error(transparent)]
    Model(#[from] clearshot_model::ModelError),
    /// Restoring with a model failed.
    #[error(transparent)]
    Learned(learned::Error),
    /// A classical method refused its settings or the image.
    #[error(transparent)]
    Classical(#[from] RestoreError),
    /// A file could not be restored tile by tile.
    #[error(transparent)]
    Stream(StreamError),
    /// A network of another project cannot be read or run.
    #[error(transparent)]
    Foreign(ForeignError),
    /// The noise could not be estimated from an image.
    #[error(transparent)]
    Estimate(#[from] EstimateError),
    /// A camera or a point-spread function is impossible.
    #[error(transparent)]
    Physics(#[from] clearshot_physics::PhysicsError),
    /// A file is not a camera file.
    #[error(transparent)]
    CameraFile(#[from] CameraFileError),
    /// The device cannot be used.
    #[error(transparent)]
    Device(#[from] clearshot_runtime::Unavailable),
    /// Temporary files could not be written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// An invalid field of [`crate::Settings`].
    #[error("{key}: {why}")]
    Setting {
        /// The field.
        key: &'static str,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// An invalid value of a setting.
    #[error("{key} {value}: {why}")]
    Value {
        /// The field.
        key: &'static str,
        /// The value, or the part of it that is wrong.
        value: String,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// A setting, or a value of it, that requires another setting.
    #[error("{key}: {field}, {what}, is needed")]
    Missing {
        /// The field and its value.
        key: String,
        /// The field that is needed.
        field: &'static str,
        /// What that is.
        what: &'static str,
    },
    /// Images could not be scored.
    #[error(transparent)]
    Metric(#[from] clearshot_metrics::MetricError),
    /// Methods could not be evaluated.
    #[error(transparent)]
    Evaluate(clearshot_evaluate::EvaluateError),
    /// A camera could not be measured from images.
    #[error(transparent)]
    Camera(#[from] CameraError),
    /// An image without the required axes, channels or values.
    #[error("{0}")]
    Unsuited(String),
    /// The values of an array do not match its shape or axes.
    #[error("{0}")]
    Array(String),
    /// The output is there, and was not made of this input with these settings.
    #[error(
        "{} exists already, made of something else or with other settings; choose another name, or allow it to be replaced",
        path.display()
    )]
    Other {
        /// The output.
        path: PathBuf,
    },
    /// Output and input are the same file.
    #[error("the output would replace its own input; choose another name or folder")]
    SameFile,
    /// Training failed, or its settings or data are wrong.
    #[error(transparent)]
    Train(clearshot_train::TrainError),
    /// A configuration has an invalid key, value or file.
    #[error(transparent)]
    Config(#[from] clearshot_config::ConfigError),
    /// The request cannot be carried out, with the reason.
    #[error("{0}")]
    Refused(String),
    /// The observer stopped the work.
    #[error("stopped")]
    Stopped,
    /// An error with its location: a file, an image of a file, a setting.
    #[error("{place}: {source}")]
    At {
        /// The file, the image or the setting.
        place: String,
        /// Why.
        source: Box<Error>,
    },
}

/// The result type of the library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn setting(key: &'static str, why: impl Into<String>) -> Error {
        Error::Setting { key, why: why.into() }
    }

    pub(crate) fn value(key: &'static str, value: impl ToString, why: impl Into<String>) -> Error {
        Error::Value { key, value: value.to_string(), why: why.into() }
    }

    /// The same with its location prepended, unless it already begins with it.
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

impl From<clearshot_evaluate::EvaluateError> for Error {
    fn from(e: clearshot_evaluate::EvaluateError) -> Error {
        match e {
            clearshot_evaluate::EvaluateError::Stopped => Error::Stopped,
            other => Error::Evaluate(other),
        }
    }
}

impl From<clearshot_train::TrainError> for Error {
    fn from(e: clearshot_train::TrainError) -> Error {
        match e {
            clearshot_train::TrainError::Restore(e) => e.into(),
            clearshot_train::TrainError::Model(e) => Error::Model(e),
            clearshot_train::TrainError::Image(e) => Error::Image(e),
            clearshot_train::TrainError::Device(e) => Error::Device(e),
            other => Error::Train(other),
        }
    }
}

impl From<ForeignError> for Error {
    fn from(e: ForeignError) -> Error {
        match e {
            ForeignError::Stopped => Error::Stopped,
            other => Error::Foreign(other),
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
