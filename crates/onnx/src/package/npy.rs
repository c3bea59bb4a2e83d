//! Arrays as NumPy's files have them.

use clearshot_tensor::Tensor;

/// A tensor of floats as an `.npy` file, version 1.
pub fn bytes(tensor: &Tensor) -> Vec<u8> {
    let sizes: Vec<String> = tensor.shape().iter().map(usize::to_string).collect();
    let mut header =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({},), }}", sizes.join(", "));
    // The values begin at a multiple of 64 bytes, behind magic, version, length and a line end.
    let used = 10 + header.len() + 1;
    header.extend(std::iter::repeat_n(' ', used.next_multiple_of(64) - used));
    header.push('\n');
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend((header.len() as u16).to_le_bytes());
    out.extend(header.as_bytes());
    out.extend(tensor.to_f64().iter().flat_map(|&v| (v as f32).to_le_bytes()));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_numpys() {
        let file = bytes(&Tensor::f32([1, 2], vec![1.0, -2.0]));
        assert_eq!(&file[..10], b"\x93NUMPY\x01\x00\x76\x00");
        assert_eq!((file.len(), file[127]), (136, b'\n'));
        assert!(String::from_utf8_lossy(&file[10..128]).contains("'shape': (1, 2,)"));
        assert_eq!(&file[128..132], 1f32.to_le_bytes());
    }
}
