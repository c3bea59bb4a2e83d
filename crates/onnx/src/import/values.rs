//! Values as operands: layouts, parameters, broadcasting, and the origin of a value.

use super::host::Host;
use super::node::Call;
use super::view::{self, View};
use super::{Importer, Item, Origin};
use crate::error::ImportError;
use clearshot_graph::ops::Unary;
use clearshot_graph::{Op, Value};
use clearshot_tensor::{DType, Shape, Tensor};

impl<'m, 'a> Importer<'m, 'a> {
    /// Operand `i`, which must be there.
    pub(super) fn item(&mut self, call: Call<'_, 'a>, i: usize) -> Result<Item, ImportError> {
        match self.optional(call, i)? {
            Some(item) => Ok(item),
            None => call.fail(format!("operand {i} is missing")),
        }
    }

    pub(super) fn optional(&mut self, call: Call<'_, 'a>, i: usize) -> Result<Option<Item>, ImportError> {
        match call.operand(i) {
            None => Ok(None),
            Some(name) => self.find(name).map(Some).or_else(|reason| call.fail(reason)),
        }
    }

    /// Operand `i` as a value to be computed with.
    pub(super) fn view(&mut self, call: Call<'_, 'a>, i: usize) -> Result<View, ImportError> {
        let item = self.item(call, i)?;
        Ok(self.computed(&item))
    }

    /// Operand `i`, which must be known ahead.
    pub(super) fn host(&mut self, call: Call<'_, 'a>, i: usize) -> Result<Option<Host>, ImportError> {
        match self.optional(call, i)? {
            None => Ok(None),
            Some(Item::Host(host)) => Ok(Some(host)),
            Some(Item::View(_)) => call
                .fail(format!("operand {i} is computed when the network runs; it must be a constant here")),
        }
    }

    /// A list of whole numbers: operand `i`, or the attribute that older opsets have for it.
    pub(super) fn list(
        &mut self,
        call: Call<'_, 'a>,
        i: usize,
        attribute: &str,
    ) -> Result<Option<Vec<i64>>, ImportError> {
        if let Some(values) = call.ints(attribute)? {
            return Ok(Some(values));
        }
        match self.host(call, i)? {
            None => Ok(None),
            Some(host) => match host.ints() {
                Some(values) => Ok(Some(values)),
                None => call.fail(format!("operand {i} is not of whole numbers")),
            },
        }
    }

    /// Gives result `i` a value.
    pub(super) fn give(&mut self, call: Call<'_, 'a>, i: usize, item: Item) {
        if let Some(name) = call.node.outputs.get(i).filter(|name| !name.is_empty()) {
            if let Item::Host(host) = &item {
                self.made = self.made.saturating_add(host.tensor.shape().len());
            }
            self.items.insert(name, item);
        }
    }

    /// Gives the first result what was made ahead, or says why it was not.
    pub(super) fn give_host(
        &mut self,
        call: Call<'_, 'a>,
        made: Result<Host, String>,
    ) -> Result<(), ImportError> {
        match made {
            Ok(host) => {
                self.give(call, 0, Item::Host(host));
                Ok(())
            }
            Err(reason) => call.fail(reason),
        }
    }

    pub(super) fn give_view(&mut self, call: Call<'_, 'a>, value: Value, order: Vec<usize>) {
        self.give(call, 0, Item::View(View { value, order }));
    }

    /// The file's sizes of a value.
    pub(super) fn sizes(&self, item: &Item) -> Vec<usize> {
        match item {
            Item::Host(h) => h.sizes(),
            Item::View(v) => v.sizes(self.b.shape(v.value)),
        }
    }

    pub(super) fn view_sizes(&self, view: &View) -> Vec<usize> {
        view.sizes(self.b.shape(view.value))
    }

    /// The value with its axes in this order in memory.
    pub(super) fn arranged(&mut self, view: &View, order: &[usize]) -> Value {
        if view.order == order {
            return view.value;
        }
        let sizes = self.view_sizes(view);
        // Axes of one element can be anywhere, so only the others have to move.
        let real = |order: &[usize]| order.iter().copied().filter(|&a| sizes[a] != 1).collect::<Vec<_>>();
        if real(&view.order) == real(order) {
            let memory: Vec<usize> = order.iter().map(|&a| sizes[a]).collect();
            return self.b.reshape(view.value, Shape::new(&memory));
        }
        let moves: Vec<usize> = order.iter().map(|&a| view.place(a)).collect();
        self.b.transpose(view.value, &moves)
    }

    /// In the file's own order.
    pub(super) fn plain(&mut self, view: &View) -> Value {
        self.arranged(view, &view::plain(view.rank()))
    }

    /// As a value of the graph; what is known becomes a parameter.
    pub(super) fn computed(&mut self, item: &Item) -> View {
        match item {
            Item::View(view) => view.clone(),
            Item::Host(host) => {
                let rank = host.tensor.shape().rank();
                let order = view::plain(rank);
                View { value: self.param_of(host, rank, &order), order }
            }
        }
    }

    /// A known value with `rank` axes in this order, as a parameter of the graph.
    pub(super) fn param_of(&mut self, host: &Host, rank: usize, order: &[usize]) -> Value {
        let wide = host.tensor.shape().padded_to(rank);
        let plain = order.iter().enumerate().all(|(i, a)| i == *a);
        let key = match plain && wide == host.tensor.shape() {
            true => host.name.to_string(),
            false => format!("{} {wide} {order:?}", host.name),
        };
        if let Some(value) = self.params.get(&key) {
            return *value;
        }
        let tensor =
            (*host.tensor).clone().reshaped(wide).expect("leading ones change no count").permuted(order);
        self.param(&key, tensor)
    }

    /// Adds a parameter; whole numbers become a constant of the graph.
    pub(super) fn param(&mut self, name: &str, tensor: Tensor) -> Value {
        let mut free = name.to_string();
        while self.weights.contains_key(&free) {
            free.push('\'');
        }
        let value = if tensor.dtype().is_float() {
            let value = self.b.param(&free, tensor.shape());
            self.weights.insert(free, tensor.to_f32());
            value
        } else {
            let values = tensor.to_f64().into_iter().map(|v| v as i32).collect();
            self.b.constant(Tensor::i32(tensor.shape(), values))
        };
        self.params.insert(name.to_string(), value);
        value
    }

    /// The values of a parameter.
    pub(super) fn param_values(&self, v: Value) -> Option<&Tensor> {
        match self.b.graph().op(v) {
            Op::State(s) => self.weights.get(&*s.name),
            _ => None,
        }
    }

    /// A value as operand of elementwise arithmetic over `rank` axes in this order.
    pub(super) fn operand(&mut self, item: &Item, rank: usize, order: &[usize]) -> Value {
        match item {
            Item::Host(host) if host.tensor.shape().rank() == 0 => self.param_of(host, 0, &[]),
            Item::Host(host) => {
                let value = self.param_of(host, rank, order);
                self.float(value)
            }
            Item::View(view) if view.rank() == rank => {
                let value = self.arranged(view, order);
                self.float(value)
            }
            Item::View(view) => {
                let sizes = self.view_sizes(view);
                let value = self.plain(view);
                let value = self.float(value);
                let wide = Shape::new(&sizes).padded_to(rank);
                let value = self.b.reshape(value, wide);
                self.arranged(&View::plain(value, rank), order)
            }
        }
    }

    /// Whole numbers as floats.
    pub(super) fn float(&mut self, value: Value) -> Value {
        self.b.cast(value, DType::F32)
    }

    /// `c v`, as one factor where v is such a product already.
    pub(super) fn scaled(&mut self, v: Value, c: f64) -> Value {
        let before = match *self.b.graph().op(v) {
            Op::Unary(Unary::MulScalar(d)) => Some((self.b.graph().nodes[v.at()].inputs[0], d)),
            _ => None,
        };
        let made = match before {
            Some((x, d)) if c * d == 1.0 => x,
            Some((x, d)) => self.b.mul_scalar(x, c * d),
            None => self.b.mul_scalar(v, c),
        };
        if let Some(Origin::Product { q, k, scale }) = self.origins.get(&v).cloned() {
            self.origins.insert(made, Origin::Product { q, k, scale: scale * c });
        }
        made
    }

    /// One value for each channel of a value with these sizes, where a constant is that.
    pub(super) fn per_channel(&self, host: &Host, sizes: &[usize]) -> Option<Vec<f32>> {
        let rank = sizes.len();
        let own = host.tensor.shape();
        if !host.is_float() || rank < 2 || own.rank() > rank {
            return None;
        }
        let wide = own.padded_to(rank);
        let along = (0..rank).all(|axis| wide[axis] == if axis == 1 { sizes[1] } else { 1 });
        along.then(|| host.floats())
    }
}
