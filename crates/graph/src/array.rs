//! The arrays of the reference interpreter: a shape and `f64` values, whatever the element type.
//!
//! Whole numbers up to 2^53 are exact in `f64`, so index and key tensors need no type of their own.

use clearshot_tensor::{DType, Data, MAX_RANK, Shape, Tensor};

#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    pub shape: Shape,
    pub data: Vec<f64>,
}

impl Array {
    /// # Panics
    /// If the number of values is not the shape's.
    pub fn new(shape: impl Into<Shape>, data: Vec<f64>) -> Array {
        let shape = shape.into();
        assert_eq!(shape.len(), data.len(), "values for shape {shape}");
        Array { shape, data }
    }

    pub fn zeros(shape: impl Into<Shape>) -> Array {
        let shape = shape.into();
        Array { shape, data: vec![0.0; shape.len()] }
    }

    pub fn scalar(x: f64) -> Array {
        Array { shape: Shape::SCALAR, data: vec![x] }
    }

    /// An array whose value at each index is `f(index)`.
    pub fn from_fn(shape: impl Into<Shape>, mut f: impl FnMut(&[usize]) -> f64) -> Array {
        let shape = shape.into();
        let mut data = Vec::with_capacity(shape.len());
        for_each_index(shape, |i| data.push(f(i)));
        Array { shape, data }
    }

    /// The value at an index; leading axes that the array lacks are skipped and axes of size 1
    /// repeat, as broadcasting has it.
    pub fn get(&self, index: &[usize]) -> f64 {
        let strides = self.shape.strides();
        let skip = index.len() - self.shape.rank();
        let at: usize = self
            .shape
            .iter()
            .enumerate()
            .map(|(a, &n)| if n == 1 { 0 } else { index[skip + a] * strides[a] })
            .sum();
        self.data[at]
    }

    pub fn map(&self, f: impl Fn(f64) -> f64) -> Array {
        Array { shape: self.shape, data: self.data.iter().map(|&x| f(x)).collect() }
    }

    pub fn reshaped(mut self, shape: Shape) -> Array {
        assert_eq!(shape.len(), self.data.len(), "{} as {shape}", self.shape);
        self.shape = shape;
        self
    }

    /// Seen as `[N, S, C]`: the first axis, all the middle ones, the last.
    pub fn rows(&self) -> [usize; 3] {
        rows(self.shape)
    }

    pub fn from_tensor(t: &Tensor) -> Array {
        Array { shape: t.shape(), data: t.to_f64() }
    }

    /// # Panics
    /// For a type that graphs do not hold.
    pub fn to_tensor(&self, dtype: DType) -> Tensor {
        let data = match dtype {
            DType::F64 => Data::F64(self.data.clone()),
            DType::F32 => Data::F32(self.data.iter().map(|&x| x as f32).collect()),
            DType::I32 => Data::I32(self.data.iter().map(|&x| x as i32).collect()),
            other => panic!("no array of {other}"),
        };
        Tensor::new(self.shape, data).expect("an array fills its shape")
    }

    /// L2 norm of the difference over the L2 norm of `truth`.
    pub fn relative_error(&self, truth: &Array) -> f64 {
        assert_eq!(self.shape, truth.shape);
        let square = |it: &mut dyn Iterator<Item = f64>| it.map(|x| x * x).sum::<f64>();
        let difference = square(&mut self.data.iter().zip(&truth.data).map(|(a, b)| a - b));
        let size = square(&mut truth.data.iter().copied());
        if difference == 0.0 { 0.0 } else { (difference / size).sqrt() }
    }
}

/// A shape seen as `[N, S, C]`.
pub fn rows(shape: Shape) -> [usize; 3] {
    match shape.rank() {
        0 => [1, 1, 1],
        1 => [1, 1, shape[0]],
        r => [shape[0], shape[1..r - 1].iter().product(), shape[r - 1]],
    }
}

/// Calls `f` with every index of `shape` in row-major order.
pub fn for_each_index(shape: Shape, mut f: impl FnMut(&[usize])) {
    if shape.is_empty() {
        return;
    }
    let rank = shape.rank();
    let mut at = [0usize; MAX_RANK];
    loop {
        f(&at[..rank]);
        let mut axis = rank;
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            at[axis] += 1;
            if at[axis] < shape[axis] {
                break;
            }
            at[axis] = 0;
        }
    }
}
