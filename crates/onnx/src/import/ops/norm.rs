//! Norms: batch norm, which is a factor and a term of each channel, and the others, which are all our group norm.

use crate::error::ImportError;
use crate::import::host::Host;
use crate::import::node::Call;
use crate::import::view::{View, channels_last, plain};
use crate::import::{Importer, Item, Origin};
use clearshot_graph::ops::{Bias, Conv, Norm};
use clearshot_graph::{Op, Value};
use clearshot_tensor::{Shape, Tensor};

impl<'m, 'a> Importer<'m, 'a> {
    /// Group norm of a view `[N, C, ...]`.
    pub(super) fn normalised(
        &mut self,
        x: &View,
        groups: usize,
        eps: f64,
        [gamma, beta]: [Vec<f32>; 2],
        name: &str,
    ) -> View {
        let order = channels_last(x.rank());
        let value = self.arranged(x, &order);
        let value = self.float(value);
        let c = gamma.len();
        let gamma = self.param(&format!("{name} gamma"), Tensor::f32([c], gamma));
        let beta = self.param(&format!("{name} beta"), Tensor::f32([c], beta));
        View { value: self.b.group_norm(value, gamma, beta, groups, eps), order }
    }

    /// A norm's result times and plus constants of each channel, as another norm; nothing where `v` is not a norm's result.
    pub(super) fn norm_with(&mut self, v: Value, factor: &[f32], term: &[f32]) -> Option<Value> {
        let node = &self.b.graph().nodes[v.at()];
        let Op::Norm(Norm { groups, eps, .. }) = node.op else { return None };
        let (x, gamma, beta) = (node.inputs[0], node.inputs[1], node.inputs[2]);
        let scope = node.scope.clone();
        let values = |v: Value| Some(self.param_values(v)?.as_f32().ok()?.to_vec());
        let (gamma, beta) = (values(gamma)?, values(beta)?);
        if gamma.len() != factor.len() || self.b.shape(v).rank() < 3 {
            return None;
        }
        let c = gamma.len();
        let new_gamma = gamma.iter().zip(factor).map(|(g, f)| g * f).collect();
        let new_beta = beta.iter().zip(factor).zip(term).map(|((b, f), t)| b * f + t).collect();
        let gamma = self.param(&format!("{scope} gamma"), Tensor::f32([c], new_gamma));
        let beta = self.param(&format!("{scope} beta"), Tensor::f32([c], new_beta));
        Some(self.b.group_norm(x, gamma, beta, groups, eps))
    }

    /// A convolution's result times and plus constants of each channel, as another convolution; nothing where `v` is not a
    /// convolution's result.
    pub(super) fn conv_with(&mut self, v: Value, factor: &[f32], term: &[f32]) -> Option<Value> {
        let node = &self.b.graph().nodes[v.at()];
        let Op::Conv(conv) = node.op else { return None };
        let plain = Conv::plain(conv.geometry, conv.bias == Bias::Channel);
        let (x, weight, bias) = (node.inputs[0], node.inputs[1], node.inputs.get(2).copied());
        let scope = node.scope.clone();
        let weight = self.param_values(weight)?.clone();
        let k = weight.shape()[0];
        if conv != plain || factor.len() != k {
            return None;
        }
        let bias = match bias {
            None => vec![0.0; k],
            Some(bias) => self.param_values(bias)?.as_f32().ok()?.to_vec(),
        };
        let per = weight.shape().len() / k;
        let scaled = weight.as_f32().ok()?.iter().enumerate().map(|(i, w)| w * factor[i / per]).collect();
        let bias = bias.iter().zip(factor).zip(term).map(|((b, f), t)| b * f + t).collect();
        let weight = self.param(&format!("{scope} weight"), Tensor::f32(weight.shape(), scaled));
        let bias = self.param(&format!("{scope} bias"), Tensor::f32([k], bias));
        Some(self.b.conv(x, weight, Some(bias), conv.geometry))
    }
}

/// Constants of each channel, as many as there have to be.
fn constants<'a>(
    im: &mut Importer<'_, 'a>,
    call: Call<'_, 'a>,
    i: usize,
    count: usize,
) -> Result<Vec<f32>, ImportError> {
    match im.host(call, i)? {
        Some(host) if host.tensor.shape().len() == count => Ok(host.floats()),
        Some(host) => call.fail(format!("operand {i} has sizes {:?} for {count} channels", host.sizes())),
        None => call.fail(format!("operand {i} is missing")),
    }
}

/// The operand of a norm and its channels.
fn image<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Result<(View, Vec<usize>), ImportError> {
    let view = im.view(call, 0)?;
    let sizes = im.view_sizes(&view);
    if sizes.len() < 2 || sizes.contains(&0) {
        return call.fail(format!("a value of sizes {sizes:?}"));
    }
    Ok((view, sizes))
}

pub(super) fn batch_norm<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Result<(), ImportError> {
    if call.int_or("training_mode", 0)? != 0 {
        return call.fail("it is in training mode; export the network for inference");
    }
    let (view, sizes) = image(im, call)?;
    let c = sizes[1];
    let eps = call.float_or("epsilon", 1e-5)?;
    let mut each = |i| constants(im, call, i, c);
    let (gamma, beta, mean, variance) = (each(1)?, each(2)?, each(3)?, each(4)?);
    let factor: Vec<f32> =
        (0..c).map(|i| (f64::from(gamma[i]) / (f64::from(variance[i]) + eps).sqrt()) as f32).collect();
    let term: Vec<f32> =
        (0..c).map(|i| (f64::from(beta[i]) - f64::from(mean[i]) * f64::from(factor[i])) as f32).collect();
    let view = im.affine(&view, &factor, &term, call.node.outputs.first().copied().unwrap_or(""));
    im.give(call, 0, Item::View(view));
    Ok(())
}

impl<'m, 'a> Importer<'m, 'a> {
    /// A view `[N, C, ...]` times and plus constants of each channel.
    fn affine(&mut self, view: &View, factor: &[f32], term: &[f32], name: &str) -> View {
        let last = channels_last(view.rank());
        if view.order == last
            && let Some(value) = self.conv_with(view.value, factor, term)
        {
            return View { value, order: last };
        }
        let mut sizes = vec![1; view.rank()];
        sizes[1] = factor.len();
        let per_channel = |what: &str, values: &[f32]| {
            Item::Host(Host::new(&format!("{name} {what}"), Tensor::f32(Shape::new(&sizes), values.to_vec())))
        };
        let factor = self.operand(&per_channel("factor", factor), view.rank(), &view.order);
        let term = self.operand(&per_channel("term", term), view.rank(), &view.order);
        let value = self.float(view.value);
        let scaled = self.b.mul(value, factor);
        View { value: self.b.add(scaled, term), order: view.order.clone() }
    }
}

pub(super) fn instance_norm<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Result<(), ImportError> {
    let (view, sizes) = image(im, call)?;
    let c = sizes[1];
    let eps = call.float_or("epsilon", 1e-5)?;
    let (gamma, beta) = (constants(im, call, 1, c)?, constants(im, call, 2, c)?);
    let source = match im.origins.get(&view.value) {
        Some(Origin::Reshape(x)) => Some(x.clone()),
        _ => None,
    };
    let name = call.node.outputs.first().copied().unwrap_or("");
    let y = im.normalised(&view, c, eps, [gamma.clone(), beta.clone()], name);
    if let Some(x) = source {
        let from = im.view_sizes(&x);
        if from.len() > 2 && from[0] == sizes[0] && from[1].is_multiple_of(c) {
            im.origins.insert(y.value, Origin::Groups { x, groups: c, eps, gamma, beta });
        }
    }
    im.give(call, 0, Item::View(y));
    Ok(())
}

impl<'m, 'a> Importer<'m, 'a> {
    /// Normalised groups that are reshaped back to the image that they came from: a group norm.
    pub(super) fn ungrouped(&mut self, v: Value, to: &[usize], name: &str) -> Option<View> {
        let Some(Origin::Groups { x, groups, eps, gamma, beta }) = self.origins.get(&v).cloned() else {
            return None;
        };
        if self.view_sizes(&x) != to {
            return None;
        }
        let each = to[1] / groups;
        let repeated = |v: &[f32]| v.iter().flat_map(|&x| std::iter::repeat_n(x, each)).collect();
        Some(self.normalised(&x, groups, eps, [repeated(&gamma), repeated(&beta)], name))
    }
}

pub(super) fn group_norm<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Result<(), ImportError> {
    let (view, sizes) = image(im, call)?;
    let c = sizes[1];
    let groups = call.int_or("num_groups", 0)?;
    let Some(groups) = usize::try_from(groups).ok().filter(|g| *g > 0 && c.is_multiple_of(*g)) else {
        return call.fail(format!("{groups} groups of {c} channels"));
    };
    let eps = call.float_or("epsilon", 1e-5)?;
    // Until opset 20 there was one factor and term for each group.
    let mut each = |i| -> Result<Vec<f32>, ImportError> {
        let count = if call.opset < 21 { groups } else { c };
        let values = constants(im, call, i, count)?;
        Ok(values.iter().flat_map(|&v| std::iter::repeat_n(v, c / count)).collect())
    };
    let affine = [each(1)?, each(2)?];
    let y = im.normalised(&view, groups, eps, affine, call.node.outputs.first().copied().unwrap_or(""));
    im.give(call, 0, Item::View(y));
    Ok(())
}

pub(super) fn layer_norm<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Result<(), ImportError> {
    let view = im.view(call, 0)?;
    let sizes = im.view_sizes(&view);
    let axis = call.axis(call.int_or("axis", -1)?, sizes.len())?;
    if call.node.outputs.len() > 1 && call.node.outputs[1..].iter().any(|name| !name.is_empty()) {
        return call.fail("mean and deviation are asked for");
    }
    let width: usize = sizes[axis..].iter().product();
    let eps = call.float_or("epsilon", 1e-5)?;
    let gamma = constants(im, call, 1, width)?;
    let beta = if call.operand(2).is_some() { constants(im, call, 2, width)? } else { vec![0.0; width] };
    // Rows may lie in any order as long as each lies together.
    let whole = axis + 1 == sizes.len() && view.order.last() == Some(&axis);
    let order = if whole { view.order.clone() } else { plain(sizes.len()) };
    let value = im.arranged(&view, &order);
    let value = im.float(value);
    let memory = im.b.shape(value);
    let rows = im.b.reshape(value, Shape::from([sizes[..axis].iter().product(), width]));
    let name = call.node.outputs.first().copied().unwrap_or("");
    let gamma = im.param(&format!("{name} gamma"), Tensor::f32([width], gamma));
    let beta = im.param(&format!("{name} beta"), Tensor::f32([width], beta));
    let y = im.b.group_norm(rows, gamma, beta, 1, eps);
    let y = im.b.reshape(y, memory);
    im.give_view(call, y, order);
    Ok(())
}
