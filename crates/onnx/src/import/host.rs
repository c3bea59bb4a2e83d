//! Values of the file that are known before anything runs: weights, and the arithmetic on sizes that exporters leave in
//! graphs.
//!
//! They are computed in f64. Values that would exceed [`MOST`] elements are refused, because a few bytes of a file may ask
//! for a constant of any size.

use clearshot_graph::array::Array;
use clearshot_graph::{Op, Type};
use clearshot_tensor::{DType, Data, Shape, Tensor};
use std::rc::Rc;

/// More elements than arithmetic on sizes, position codes and masks have.
pub(super) const MOST: usize = 1 << 24;

#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub tensor: Rc<Tensor>,
    /// Its name in the file, which identifies weights.
    pub name: Rc<str>,
}

impl Host {
    pub fn new(name: &str, tensor: Tensor) -> Host {
        Host { tensor: Rc::new(tensor), name: name.into() }
    }

    pub fn sizes(&self) -> Vec<usize> {
        self.tensor.shape().to_vec()
    }

    /// The only value that there is.
    pub fn single(&self) -> Option<f64> {
        if self.tensor.shape().len() == 1 { self.tensor.to_f64().first().copied() } else { None }
    }

    pub fn is_float(&self) -> bool {
        self.tensor.dtype().is_float()
    }

    pub fn ints(&self) -> Option<Vec<i64>> {
        match self.tensor.data() {
            Data::I64(v) => Some(v.clone()),
            Data::I32(v) => Some(v.iter().map(|&x| x.into()).collect()),
            Data::I8(v) => Some(v.iter().map(|&x| x.into()).collect()),
            Data::U8(v) => Some(v.iter().map(|&x| x.into()).collect()),
            _ => None,
        }
    }

    pub fn floats(&self) -> Vec<f32> {
        self.tensor.to_f32().as_f32().map(<[f32]>::to_vec).unwrap_or_default()
    }

    /// The same with no elements along an axis.
    pub fn emptied(&self, axis: usize) -> Host {
        let array = Array::new(self.tensor.shape().with(axis, 0), vec![]);
        Host { tensor: Rc::new(tensor(&array, self.tensor.dtype())), name: self.name.clone() }
    }

    /// What an operation makes of such values, of the type of the first.
    ///
    /// # Errors
    /// If the operands do not fit, or the result is too large.
    pub fn apply(name: &str, op: &Op, operands: &[&Host]) -> Result<Host, String> {
        // Types only matter where operations insist on floats.
        let types: Vec<Type> = operands.iter().map(|h| Type::f32(h.tensor.shape())).collect();
        let outs = op.infer(&types).map_err(|e| e.to_string())?;
        check(outs[0].shape)?;
        let arrays: Vec<Array> = operands.iter().map(|h| Array::from_tensor(&h.tensor)).collect();
        let made = op.eval(&arrays.iter().collect::<Vec<_>>()).remove(0);
        Ok(Host::new(name, tensor(&made, operands[0].tensor.dtype())))
    }

    /// A function of two such values, broadcast.
    ///
    /// # Errors
    /// As [`Host::apply`].
    pub fn zip(
        name: &str,
        [a, b]: [&Host; 2],
        dtype: DType,
        f: impl Fn(f64, f64) -> f64,
    ) -> Result<Host, String> {
        let (sa, sb) = (a.tensor.shape(), b.tensor.shape());
        let shape = sa.broadcast(&sb).ok_or_else(|| format!("{sa} and {sb} do not fit"))?;
        check(shape)?;
        let (a, b) = (Array::from_tensor(&a.tensor), Array::from_tensor(&b.tensor));
        Ok(Host::new(name, tensor(&Array::from_fn(shape, |i| f(a.get(i), b.get(i))), dtype)))
    }

    /// `a` where the condition holds, else `b`.
    ///
    /// # Errors
    /// As [`Host::apply`].
    pub fn choose(name: &str, condition: &Host, a: &Host, b: &Host) -> Result<Host, String> {
        let shapes = [condition, a, b].map(|h| h.tensor.shape());
        let shape = shapes[0].broadcast(&shapes[1]).and_then(|s| s.broadcast(&shapes[2]));
        let shape = shape.ok_or_else(|| format!("{shapes:?} do not fit"))?;
        check(shape)?;
        let [c, p, q] = [condition, a, b].map(|h| Array::from_tensor(&h.tensor));
        let made = Array::from_fn(shape, |i| if c.get(i) != 0.0 { p.get(i) } else { q.get(i) });
        Ok(Host::new(name, tensor(&made, a.tensor.dtype())))
    }

    pub fn map(&self, name: &str, dtype: DType, f: impl Fn(f64) -> f64) -> Host {
        Host::new(name, tensor(&Array::from_tensor(&self.tensor).map(f), dtype))
    }

    /// # Errors
    /// If the number of elements differs.
    pub fn reshaped(&self, sizes: &[usize]) -> Result<Host, String> {
        let tensor = (*self.tensor).clone().reshaped(Shape::new(sizes)).map_err(|e| e.to_string())?;
        Ok(Host { tensor: Rc::new(tensor), name: self.name.clone() })
    }
}

/// Refuses what is too large to be computed ahead.
pub(super) fn check(shape: Shape) -> Result<(), String> {
    match shape.checked_len() {
        Some(n) if n <= MOST => Ok(()),
        _ => Err(format!("a constant of shape {shape}; {MOST} elements are the most that are made ahead")),
    }
}

/// Whole numbers are rounded toward zero.
pub(super) fn tensor(array: &Array, dtype: DType) -> Tensor {
    let data = match dtype {
        DType::I64 => Data::I64(array.data.iter().map(|&x| x as i64).collect()),
        DType::I32 => Data::I32(array.data.iter().map(|&x| x as i32).collect()),
        DType::I8 => Data::I8(array.data.iter().map(|&x| x as i8).collect()),
        DType::U8 => Data::U8(array.data.iter().map(|&x| x as u8).collect()),
        _ => Data::F32(array.data.iter().map(|&x| x as f32).collect()),
    };
    Tensor::new(array.shape, data).expect("an array fills its shape")
}
