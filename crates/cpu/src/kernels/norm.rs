//! Group norm.
