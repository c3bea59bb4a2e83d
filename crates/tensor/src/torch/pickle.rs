//! The part of Python's pickle language that is used for dictionaries of tensors.
//!
//! A pickle is a program for a stack machine that can call anything. This machine calls nothing: the few names that a state
//! dictionary needs are rows of a table and mean plain values, and a pickle with any other name is refused with that name.
//! Containers are stored in a list and referred to by number, so that references, cycles and depth cost nothing.

use crate::DType;
use std::collections::HashMap;
use std::rc::Rc;

/// More axes than any tensor of PyTorch has. A tuple may be given to many tensors, so a long one would fill the memory.
const MOST_AXES: usize = 64;

/// A value; containers by their number in [`Pickle::containers`].
#[derive(Clone, Debug)]
pub(super) enum Value {
    Int(i64),
    Text(Rc<str>),
    Container(usize),
    Name(Name),
    Storage(Rc<Storage>),
    Tensor(Rc<View>),
    /// What no tensor is made of: None, truth values, floats, bytes, devices, types.
    Other,
}

#[derive(Debug)]
pub(super) enum Container {
    List(Vec<Value>),
    Tuple(Vec<Value>),
    Dict(Vec<(Value, Value)>),
}

/// Memory that tensors look at: a member of the archive.
#[derive(Debug)]
pub(super) struct Storage {
    pub dtype: DType,
    pub key: Rc<str>,
    /// In elements.
    pub length: usize,
}

/// A tensor before its values are gathered: all in elements.
#[derive(Debug)]
pub(super) struct View {
    pub storage: Rc<Storage>,
    pub offset: usize,
    pub sizes: Vec<usize>,
    pub strides: Vec<usize>,
}

/// The meaning of a name for this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Name {
    OrderedDict,
    /// `torch.Size`: a tuple.
    Size,
    RebuildTensor,
    RebuildParameter,
    StorageOf(DType),
    /// Takes part in no tensor.
    Other,
}

const NAMES: &[(&str, &str, Name)] = &[
    ("collections", "OrderedDict", Name::OrderedDict),
    ("torch", "Size", Name::Size),
    ("torch._utils", "_rebuild_tensor_v2", Name::RebuildTensor),
    ("torch._utils", "_rebuild_parameter", Name::RebuildParameter),
    ("torch", "DoubleStorage", Name::StorageOf(DType::F64)),
    ("torch", "FloatStorage", Name::StorageOf(DType::F32)),
    ("torch", "HalfStorage", Name::StorageOf(DType::F16)),
    ("torch", "BFloat16Storage", Name::StorageOf(DType::BF16)),
    ("torch", "LongStorage", Name::StorageOf(DType::I64)),
    ("torch", "IntStorage", Name::StorageOf(DType::I32)),
    ("torch", "CharStorage", Name::StorageOf(DType::I8)),
    ("torch", "ByteStorage", Name::StorageOf(DType::U8)),
    ("torch", "BoolStorage", Name::StorageOf(DType::U8)),
    ("torch", "device", Name::Other),
    ("torch", "float64", Name::Other),
    ("torch", "float32", Name::Other),
    ("torch", "float16", Name::Other),
    ("torch", "bfloat16", Name::Other),
    ("torch", "int64", Name::Other),
];

/// A pickle that was read: what it says, and the containers it speaks of.
pub(super) struct Pickle {
    pub root: Value,
    containers: Vec<Container>,
}

impl Pickle {
    pub fn read(bytes: &[u8]) -> Result<Pickle, String> {
        let mut machine = Machine { bytes, ..Machine::default() };
        let root = machine.run()?;
        Ok(Pickle { root, containers: machine.containers })
    }

    /// The entries of a dictionary.
    pub fn dict(&self, value: &Value) -> Option<&[(Value, Value)]> {
        let Value::Container(id) = value else { return None };
        match &self.containers[*id] {
            Container::Dict(entries) => Some(entries),
            _ => None,
        }
    }
}

#[derive(Default)]
struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    /// Heights of the stack that were marked.
    marks: Vec<usize>,
    memo: HashMap<u64, Value>,
    containers: Vec<Container>,
}

type Done<T> = Result<T, String>;

impl<'a> Machine<'a> {
    fn run(&mut self) -> Done<Value> {
        loop {
            let op = self.number::<1>()? as u8;
            if op == b'.' {
                return self.pop();
            }
            self.step(op)?;
        }
    }

    fn step(&mut self, op: u8) -> Done<()> {
        match op {
            // PROTO, FRAME
            0x80 => drop(self.number::<1>()?),
            0x95 => drop(self.number::<8>()?),
            // NONE, NEWTRUE, NEWFALSE, BINFLOAT
            b'N' | 0x88 | 0x89 => self.stack.push(Value::Other),
            b'G' => self.skip(8)?,
            // BININT, BININT1, BININT2, LONG1
            b'J' => self.integer::<4>()?,
            b'K' => self.integer::<1>()?,
            b'M' => self.integer::<2>()?,
            0x8a => self.long()?,
            // BINUNICODE and its short and long forms; bytes likewise
            b'X' => self.text::<4>()?,
            0x8c => self.text::<1>()?,
            0x8d => self.text::<8>()?,
            b'B' => self.lump::<4>()?,
            b'C' => self.lump::<1>()?,
            0x8e => self.lump::<8>()?,
            b'(' => self.marks.push(self.stack.len()),
            b']' => self.hold(Container::List(vec![])),
            b'}' => self.hold(Container::Dict(vec![])),
            b')' => self.hold(Container::Tuple(vec![])),
            b't' => {
                let items = self.marked()?;
                self.hold(Container::Tuple(items));
            }
            // TUPLE1, TUPLE2, TUPLE3
            0x85..=0x87 => {
                let from = self.stack.len().checked_sub(usize::from(op - 0x84)).ok_or_else(underflow)?;
                let items = self.stack.split_off(from);
                self.hold(Container::Tuple(items));
            }
            b'a' => {
                let item = self.pop()?;
                self.append(vec![item])?;
            }
            b'e' => {
                let items = self.marked()?;
                self.append(items)?;
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set_items(vec![key, value])?;
            }
            b'u' => {
                let items = self.marked()?;
                self.set_items(items)?;
            }
            // BINPUT, LONG_BINPUT, MEMOIZE
            b'q' => self.remember::<1>()?,
            b'r' => self.remember::<4>()?,
            0x94 => {
                let top = self.stack.last().cloned().ok_or_else(underflow)?;
                self.memo.insert(self.memo.len() as u64, top);
            }
            b'h' => self.recall::<1>()?,
            b'j' => self.recall::<4>()?,
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.name(module, name)?;
            }
            0x93 => match (self.pop()?, self.pop()?) {
                (Value::Text(name), Value::Text(module)) => self.name(&module, &name)?,
                _ => return Err("its pickle names something by no text".into()),
            },
            b'Q' => self.persistent()?,
            // REDUCE, NEWOBJ
            b'R' | 0x81 => self.call()?,
            b'b' => self.build()?,
            b'0' => drop(self.pop()?),
            other => {
                return Err(format!(
                    "its pickle uses the instruction {other:#04x}, which no dictionary of tensors needs"
                ));
            }
        }
        Ok(())
    }

    fn take(&mut self, count: u64) -> Done<&'a [u8]> {
        let end = usize::try_from(count).ok().and_then(|n| self.at.checked_add(n));
        let found = end.and_then(|end| self.bytes.get(self.at..end));
        let found = found.ok_or("its pickle ends early")?;
        self.at += found.len();
        Ok(found)
    }

    fn number<const N: usize>(&mut self) -> Done<u64> {
        Ok(self.take(N as u64)?.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)))
    }

    /// Those of four bytes have a sign.
    fn integer<const N: usize>(&mut self) -> Done<()> {
        let n = self.number::<N>()?;
        self.stack.push(Value::Int(if N == 4 { i64::from(n as u32 as i32) } else { n as i64 }));
        Ok(())
    }

    fn long(&mut self) -> Done<()> {
        let length = self.number::<1>()?;
        let bytes = self.take(length)?;
        if length > 8 {
            return Err(format!("its pickle has an integer of {length} bytes"));
        }
        let negative = bytes.last().is_some_and(|b| b & 0x80 != 0);
        let mut wide = if negative { [0xff; 8] } else { [0; 8] };
        wide[..bytes.len()].copy_from_slice(bytes);
        self.stack.push(Value::Int(i64::from_le_bytes(wide)));
        Ok(())
    }

    fn skip(&mut self, count: u64) -> Done<()> {
        self.take(count)?;
        self.stack.push(Value::Other);
        Ok(())
    }

    fn lump<const N: usize>(&mut self) -> Done<()> {
        let length = self.number::<N>()?;
        self.skip(length)
    }

    fn text<const N: usize>(&mut self) -> Done<()> {
        let length = self.number::<N>()?;
        let bytes = self.take(length)?;
        let text = std::str::from_utf8(bytes).map_err(|_| "its pickle has a text that is none")?;
        self.stack.push(Value::Text(text.into()));
        Ok(())
    }

    fn line(&mut self) -> Done<&'a str> {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|&b| b == b'\n').ok_or("its pickle ends early")?;
        self.at += length + 1;
        std::str::from_utf8(&rest[..length]).map_err(|_| "its pickle names something by no text".into())
    }

    fn pop(&mut self) -> Done<Value> {
        // Values below a mark belong to the code that set it.
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err(underflow());
        }
        self.stack.pop().ok_or_else(underflow)
    }

    fn marked(&mut self) -> Done<Vec<Value>> {
        let mark = self.marks.pop().filter(|&m| m <= self.stack.len()).ok_or_else(underflow)?;
        Ok(self.stack.split_off(mark))
    }

    fn hold(&mut self, container: Container) {
        self.containers.push(container);
        self.stack.push(Value::Container(self.containers.len() - 1));
    }

    fn top(&mut self) -> Done<&mut Container> {
        match self.stack.last() {
            Some(Value::Container(id)) => Ok(&mut self.containers[*id]),
            _ => Err("its pickle puts items into what holds none".into()),
        }
    }

    fn append(&mut self, items: Vec<Value>) -> Done<()> {
        match self.top()? {
            Container::List(list) => list.extend(items),
            _ => return Err("its pickle appends to what is no list".into()),
        }
        Ok(())
    }

    fn set_items(&mut self, items: Vec<Value>) -> Done<()> {
        let Container::Dict(entries) = self.top()? else {
            return Err("its pickle sets items of what is no dictionary".into());
        };
        if items.len() % 2 == 1 {
            return Err("its pickle has a key without a value".into());
        }
        let mut items = items.into_iter();
        while let (Some(key), Some(value)) = (items.next(), items.next()) {
            entries.push((key, value));
        }
        Ok(())
    }

    fn remember<const N: usize>(&mut self) -> Done<()> {
        let slot = self.number::<N>()?;
        let top = self.stack.last().cloned().ok_or_else(underflow)?;
        self.memo.insert(slot, top);
        Ok(())
    }

    fn recall<const N: usize>(&mut self) -> Done<()> {
        let slot = self.number::<N>()?;
        let value = self.memo.get(&slot).cloned();
        self.stack.push(value.ok_or("its pickle recalls what it never kept")?);
        Ok(())
    }

    fn name(&mut self, module: &str, name: &str) -> Done<()> {
        let known = NAMES.iter().find(|(m, n, _)| (*m, *n) == (module, name));
        let known = known.ok_or_else(|| {
            let name = shown(&format!("{module}.{name}"));
            format!(
                "it speaks of {name}, and only tensors in dictionaries are read: nothing in a file is run. \
                 Save the weights alone: torch.save(model.state_dict(), ...)"
            )
        })?;
        self.stack.push(Value::Name(known.2));
        Ok(())
    }

    fn tuple(&self, value: &Value) -> Done<&[Value]> {
        if let Value::Container(id) = value
            && let Container::Tuple(items) = &self.containers[*id]
        {
            return Ok(items);
        }
        Err("its pickle has something else where a tuple is needed".into())
    }

    /// `('storage', type, key, place, length)` stands for memory in the archive.
    fn persistent(&mut self) -> Done<()> {
        let id = self.pop()?;
        let storage = match self.tuple(&id)? {
            [
                Value::Text(kind),
                Value::Name(Name::StorageOf(dtype)),
                Value::Text(key),
                Value::Text(_),
                Value::Int(length),
            ] if &**kind == "storage" => {
                let length =
                    usize::try_from(*length).map_err(|_| format!("a storage of {length} elements"))?;
                Storage { dtype: *dtype, key: key.clone(), length }
            }
            _ => return Err("its pickle refers to something outside that is no storage".into()),
        };
        self.stack.push(Value::Storage(storage.into()));
        Ok(())
    }

    fn call(&mut self) -> Done<()> {
        let (arguments, callee) = (self.pop()?, self.pop()?);
        let Value::Name(callee) = callee else {
            return Err("its pickle calls something that is no name".into());
        };
        let arguments = self.tuple(&arguments)?;
        let result = match (callee, arguments) {
            (Name::OrderedDict, []) => {
                self.hold(Container::Dict(vec![]));
                return Ok(());
            }
            (Name::Size, [sizes]) => sizes.clone(),
            (Name::RebuildParameter, [data @ Value::Tensor(_), ..]) => data.clone(),
            (Name::RebuildTensor, [Value::Storage(storage), Value::Int(offset), sizes, strides, ..]) => {
                let view = View {
                    storage: storage.clone(),
                    offset: usize::try_from(*offset)
                        .map_err(|_| format!("a tensor at {offset} of its storage"))?,
                    sizes: self.sizes(sizes)?,
                    strides: self.sizes(strides)?,
                };
                Value::Tensor(view.into())
            }
            (Name::Other, _) => Value::Other,
            _ => {
                return Err(format!(
                    "its pickle calls {callee:?} with other arguments than torch.save gives"
                ));
            }
        };
        self.stack.push(result);
        Ok(())
    }

    fn sizes(&self, value: &Value) -> Done<Vec<usize>> {
        let size = |v: &Value| match v {
            Value::Int(n) => usize::try_from(*n).map_err(|_| format!("a tensor has a size or step of {n}")),
            _ => Err("a tensor has a size that is no integer".into()),
        };
        let sizes = self.tuple(value)?;
        if sizes.len() > MOST_AXES {
            return Err(format!("a tensor of {} axes", sizes.len()));
        }
        sizes.iter().map(size).collect()
    }

    /// Attributes of a dictionary (versions of layers) say nothing of its tensors; nothing else has any.
    fn build(&mut self) -> Done<()> {
        self.pop()?;
        match self.top()? {
            Container::Dict(_) => Ok(()),
            _ => Err("its pickle gives attributes to what is no dictionary".into()),
        }
    }
}

/// A name out of a file, fit for a message.
pub(super) fn shown(name: &str) -> String {
    let short: String = name.chars().take(80).collect();
    format!("`{}`", short.escape_debug())
}

fn underflow() -> String {
    "its pickle takes more from its stack than is there".into()
}
