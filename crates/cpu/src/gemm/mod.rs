//! Packed matrix products.
