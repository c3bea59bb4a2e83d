//! Blocked attention, forward and backward.
