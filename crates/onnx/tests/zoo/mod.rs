//! A package of the BioImage Model Zoo with a small network, in both formats. Also used by the fuzz targets and the tests
//! of `restore`.

use clearshot_onnx::package::npy;
use clearshot_tensor::store::Store;
use clearshot_tensor::{Shape, Tensor};
use std::path::Path;

pub const FORMATS: [&str; 2] =
    [include_str!("../golden/package_0.5.yaml"), include_str!("../golden/package_0.4.yaml")];

/// The package's files by name, with a description of format 0.5 or 0.4. Its network was trained on `(raw - 3) / 2`, and what it gives goes
/// through `10 y + 1` and `20 y + 1`.
pub fn files(description: &str) -> Vec<(&'static str, Vec<u8>)> {
    let golden = include_bytes!("../golden/unet_opset17.safetensors");
    let tensors = Store::parse(golden, Path::new("unet_opset17.safetensors")).expect("a golden file").tensors;
    let mapped = |t: &Tensor, f: &dyn Fn(usize, f64) -> f64| {
        let shape: Shape = t.shape();
        let pixels = shape[2] * shape[3];
        let values = t.to_f64().into_iter().enumerate().map(|(i, v)| f(i / pixels % shape[1], v) as f32);
        npy::bytes(&Tensor::f32(shape, values.collect()))
    };
    vec![
        ("bioimageio.yaml", description.as_bytes().to_vec()),
        ("weights.onnx", include_bytes!("../golden/unet_opset17.onnx").to_vec()),
        ("test_input.npy", mapped(&tensors["in.x"], &|_, v| 3.0 + 2.0 * v)),
        ("test_output.npy", mapped(&tensors["out.y"], &|c, v| [10.0, 20.0][c] * v + 1.0)),
    ]
}
