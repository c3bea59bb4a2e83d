"""Exceptions of the package. Each text says what is wrong, where, and what to do."""

__all__ = [
    "Cancelled",
    "ClearshotError",
    "ClearshotWarning",
    "DeviceError",
    "EstimateError",
    "FileError",
    "ImageError",
    "ModelError",
    "SettingError",
]


class ClearshotError(Exception):
    """What every exception of this package is."""


class FileError(ClearshotError, OSError):
    """A file cannot be read or written, or would be replaced."""


class ImageError(ClearshotError, ValueError):
    """An image or array does not have the axes, channels or numbers that are needed."""


class SettingError(ClearshotError, ValueError):
    """An argument cannot be as it is; the text begins with its name."""


class ModelError(ClearshotError, ValueError):
    """A model cannot be read."""


class EstimateError(ClearshotError, RuntimeError):
    """The camera's noise cannot be estimated from this image."""


class DeviceError(ClearshotError, RuntimeError):
    """The device cannot be used: no GPU, say."""


class Cancelled(ClearshotError):
    """A callback raised this to stop the work."""


class ClearshotWarning(UserWarning):
    """A result that should not be trusted before one has looked into it."""
