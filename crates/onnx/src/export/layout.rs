//! The ONNX axes of our values: images have channels last here and second there. Values with four or five axes are images
//! or convolution weights, and both are converted in the same way.

/// Our axes in ONNX's order: axis `i` there is axis `order(rank)[i]` here.
pub(super) fn order(rank: usize) -> Vec<usize> {
    if is_image(rank) { [0, rank - 1].into_iter().chain(1..rank - 1).collect() } else { (0..rank).collect() }
}

/// ONNX's place of our axis.
pub(super) fn place(rank: usize, axis: usize) -> usize {
    match axis {
        _ if !is_image(rank) || axis == 0 => axis,
        _ if axis == rank - 1 => 1,
        _ => axis + 1,
    }
}

/// ONNX's axes in our order: the inverse of [`order`].
pub(super) fn back(rank: usize) -> Vec<usize> {
    (0..rank).map(|axis| place(rank, axis)).collect()
}

/// Whether the two orders differ.
pub(super) fn is_image(rank: usize) -> bool {
    rank == 4 || rank == 5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_orders_are_inverse() {
        for rank in 0..=6 {
            let (there, back) = (order(rank), back(rank));
            assert!((0..rank).all(|a| there[back[a]] == a && back[there[a]] == a), "{rank}");
        }
        assert_eq!(order(4), [0, 3, 1, 2]);
        assert_eq!(order(5), [0, 4, 1, 2, 3]);
    }
}
