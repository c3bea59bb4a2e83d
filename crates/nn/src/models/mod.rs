//! Networks, one file each.

pub mod unet2d;
