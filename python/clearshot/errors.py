"""Exceptions of the package. Each message says what is wrong, where, and what to do."""

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
    """Base class of all exceptions of this package."""


class FileError(ClearshotError, OSError):
    """A file cannot be read or written, or would be replaced."""


class ImageError(ClearshotError, ValueError):
    """An image or array does not have the required axes, channels or values."""


class SettingError(ClearshotError, ValueError):
    """An argument is invalid; the message begins with its name."""


class ModelError(ClearshotError, ValueError):
    """A model cannot be read."""


class EstimateError(ClearshotError, RuntimeError):
    """The camera's noise cannot be estimated from this image."""


class DeviceError(ClearshotError, RuntimeError):
    """The device cannot be used, for example because there is no GPU."""


class Cancelled(ClearshotError):
    """A callback raised this to stop the work."""


class ClearshotWarning(UserWarning):
    """A result that should be checked before it is trusted."""
