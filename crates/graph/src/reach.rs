//! How far a graph looks: from which pixels of an input image a pixel of the output is made.
//!
//! An image that is cut into tiles is computed exactly where every output pixel depends on a bounded
//! neighbourhood, and on its place only modulo the strides on the way. [`reach`] finds out by walking the
//! graph before it is fused, and is careful: what it has no rule for looks at everything.

use crate::graph::{Graph, Value};
use crate::ops::{Conv, Geometry, Int8, Op, ResizeMode};
use clearshot_tensor::Shape;

/// The neighbourhood along Z, Y, X; along Z of a plane nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Pixels on either side, at most.
    pub radius: [usize; 3],
    /// The pattern of dependence repeats after so many pixels: origins of tiles are to be multiples.
    pub stride: [usize; 3],
}

/// What a value depends on.
#[derive(Clone, Copy, PartialEq)]
enum Sees {
    /// Not on the image.
    Nothing,
    /// On a neighbourhood; pixels of the value are `step` pixels of the image apart.
    Near {
        radius: [usize; 3],
        step: [usize; 3],
    },
    Everything,
}

/// The reach of output `output` into input `input`, none where it is not bounded. An output that does not
/// depend on the input reaches nowhere.
pub fn reach(graph: &Graph, input: &str, output: &str) -> Option<Reach> {
    let image = graph.inputs().find(|(name, _)| *name == input).map(|(_, v)| v)?;
    let rank = graph.shape(image).rank();
    let mut seen: Vec<Sees> = Vec::with_capacity(graph.nodes.len());
    let mut stride = [1; 3];
    for (at, node) in graph.nodes.iter().enumerate() {
        let sees = if at == image.at() {
            Sees::Near { radius: [0; 3], step: [1; 3] }
        } else {
            let own = |v: &Value| seen.get(v.at()).copied().unwrap_or(Sees::Everything);
            let operands: Vec<Sees> = node.inputs.iter().map(own).collect();
            if operands.iter().all(|s| *s == Sees::Nothing) {
                Sees::Nothing
            } else {
                let shapes: Vec<Shape> = node.inputs.iter().map(|&v| graph.shape(v)).collect();
                let made = node.outs.first().map_or(Shape::SCALAR, |t| t.shape);
                through(&node.op, &operands, &shapes, made, rank)
            }
        };
        if let Sees::Near { step, .. } = sees {
            stride = std::array::from_fn(|a| least_common_multiple(stride[a], step[a]));
        }
        seen.push(sees);
    }
    match seen[graph.output(output)?.at()] {
        Sees::Nothing => Some(Reach { radius: [0; 3], stride }),
        Sees::Near { radius, step: [1, 1, 1] } => Some(Reach { radius, stride }),
        _ => None,
    }
}

fn through(op: &Op, operands: &[Sees], shapes: &[Shape], made: Shape, rank: usize) -> Sees {
    let image = |shape: &Shape| shape.rank() == rank;
    match op {
        Op::Unary(_)
        | Op::UnaryGrad(_)
        | Op::Binary(_)
        | Op::Pointwise(_)
        | Op::Cast(_)
        | Op::Dropout(_)
        | Op::StopGradient
            if image(&made) =>
        {
            // What is broadcast over pixels may depend on the image only if the image itself did.
            let spread = |(s, shape): (&Sees, &Shape)| {
                *s != Sees::Nothing && (!image(shape) || shape[1..rank - 1] != made[1..rank - 1])
            };
            if operands.iter().zip(shapes).any(spread) { Sees::Everything } else { joined(operands) }
        }
        Op::Concat(a) if image(&made) && a.axis + 1 == rank => joined(operands),
        Op::Slice(a) if image(&made) && a.axis + 1 == rank => operands[0],
        Op::Conv(a) if unfused(a) && operands[1..].iter().all(|s| *s == Sees::Nothing) => {
            windowed(operands[0], &a.geometry, spatial(&shapes[a.operands().weight]))
        }
        Op::Pool(a) => windowed(operands[0], &a.geometry, a.kernel),
        Op::Resize(a) => match operands[0] {
            Sees::Near { radius, step } => {
                let (from, to) = (spatial(&shapes[0]), spatial(&made));
                let whole =
                    (0..3).all(|x| to[x].is_multiple_of(from[x]) && step[x].is_multiple_of(to[x] / from[x]));
                if !whole || a.mode == ResizeMode::LinearAligned {
                    return Sees::Everything;
                }
                let finer: [usize; 3] = std::array::from_fn(|x| step[x] * from[x] / to[x]);
                // Nearest takes the pixel that begins before; linear also the next one.
                let more = |x: usize| if from[x] == to[x] { 0 } else { step[x] };
                Sees::Near { radius: std::array::from_fn(|x| radius[x] + more(x)), step: finer }
            }
            other => other,
        },
        _ => Sees::Everything,
    }
}

fn unfused(conv: &Conv) -> bool {
    let whole = conv.int8 == Some(Int8::Dynamic); // The range is that of the whole image.
    conv.parts == 1
        && conv.prologue.is_none()
        && !conv.upsample
        && !conv.residual
        && conv.side.is_none()
        && !whole
}

/// The least common multiple of two steps: branches side by side may step differently, and their pattern repeats where all do.
pub fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x.max(1) * b
}

/// What depends on all of them.
fn joined(operands: &[Sees]) -> Sees {
    operands.iter().fold(Sees::Nothing, |sum, &next| match (sum, next) {
        (Sees::Nothing, other) | (other, Sees::Nothing) => other,
        (Sees::Near { radius: a, step }, Sees::Near { radius: b, step: other }) if step == other => {
            Sees::Near { radius: std::array::from_fn(|x| a[x].max(b[x])), step }
        }
        _ => Sees::Everything,
    })
}

/// Through windows of `kernel` pixels.
fn windowed(operand: Sees, geometry: &Geometry, kernel: [usize; 3]) -> Sees {
    let Sees::Near { radius, step } = operand else { return operand };
    let side = |x: usize| {
        let width = geometry.dilation[x] * (kernel[x] - 1);
        let before = geometry.pad[x][0];
        before.max(width.saturating_sub(before)) * step[x]
    };
    Sees::Near {
        radius: std::array::from_fn(|x| radius[x] + side(x)),
        step: std::array::from_fn(|x| step[x] * geometry.stride[x]),
    }
}

/// The axes between the first and the last, as Z, Y, X.
fn spatial(shape: &Shape) -> [usize; 3] {
    match **shape {
        [_, y, x, _] => [1, y, x],
        [_, z, y, x, _] => [z, y, x],
        _ => [1; 3],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::{Precision, run};
    use crate::{Array, Builder, Type};
    use std::collections::BTreeMap;

    /// A network of two levels; `norm` makes it look at everything.
    fn network(size: usize, norm: bool) -> Graph {
        let mut b = Builder::new();
        let x = b.input("x", Type::f32([1, size, size, 1]));
        let [narrow, wide] = [2, 3].map(|k| {
            let values = (0..k * k).map(|i| 0.3 + 0.1 * i as f32).collect();
            b.constant(clearshot_tensor::Tensor::f32([1, k, k, 1], values))
        });
        let h = b.conv(x, wide, None, Geometry::new(2, 1, 1));
        let low = b.conv(h, narrow, None, Geometry::new(2, 2, 0));
        let low = b.conv(low, wide, None, Geometry::new(2, 1, 1));
        let up = b.upsample(low, ResizeMode::Nearest, 2);
        let held = b.stop_gradient(h);
        let mut y = b.add(up, held);
        if norm {
            let [gamma, beta] = [1.0, 0.0].map(|v| b.constant(clearshot_tensor::Tensor::full([1], v)));
            y = b.group_norm(y, gamma, beta, 1, 1e-5);
        }
        b.output("y", y);
        b.finish().unwrap()
    }

    fn result(graph: &Graph, image: &Array) -> Array {
        let mut values = BTreeMap::from([("x".to_string(), image.clone())]);
        run(graph, &mut values, Precision::F64).unwrap().remove("y").unwrap()
    }

    /// No pixel further away than the radius matters, and one nearly so far does.
    #[test]
    fn the_radius_holds_and_is_not_silly() {
        let size = 32;
        let graph = network(size, false);
        let Reach { radius, stride } = reach(&graph, "x", "y").unwrap();
        assert_eq!((stride, radius[0]), ([1, 2, 2], 0));
        let plain = Array::from_fn([1, size, size, 1], |i| ((i[1] * 7 + i[2] * 3) % 11) as f64);
        let before = result(&graph, &plain);
        let mut furthest = 0;
        for x in 0..size {
            let changed =
                Array::from_fn([1, size, size, 1], |i| plain.get(i) + f64::from(i[2] == x && i[1] == 16));
            let after = result(&graph, &changed);
            for out in 0..size {
                let differs =
                    (0..size).any(|row| after.get(&[0, row, out, 0]) != before.get(&[0, row, out, 0]));
                furthest = furthest.max(if differs { out.abs_diff(x) } else { 0 });
            }
        }
        assert!(furthest <= radius[2] && radius[2] <= furthest + 3, "{furthest} {radius:?}");
    }

    /// Branches of two and of three pixels to a step go together every six.
    #[test]
    fn steps_of_branches_are_met_by_all() {
        let mut b = Builder::new();
        let x = b.input("x", Type::f32([1, 12, 12, 1]));
        let [two, three] = [2, 3].map(|k| {
            let low = b.pool(x, crate::ops::PoolKind::Average, [1, k, k], Geometry::new(2, k, 0));
            b.upsample(low, ResizeMode::Nearest, k)
        });
        let y = b.add(two, three);
        b.output("y", y);
        assert_eq!(reach(&b.finish().unwrap(), "x", "y").unwrap().stride, [1, 6, 6]);
    }

    #[test]
    fn what_looks_at_everything_has_no_reach() {
        assert_eq!(reach(&network(8, true), "x", "y"), None);
        assert_eq!(reach(&network(8, false), "no such input", "y"), None);
    }
}
