//! Buckets of values on their way to other ranks and back.
//!
//! Over NCCL a bucket leaves the stream of the graph where its last value is made, is averaged on the communicator's stream, and is waited for where its values are
//! read; the way out and back are events, so that a recording has it too. Values whose memory nobody else reads meanwhile are averaged where they lie; others, and what
//! travels in 16 bits, go through memory of the bucket's own. By way of the host a bucket is copied to pinned memory and back, and whoever runs the launches hands it over in
//! between: such a run cannot be recorded. With nobody to carry them there is one rank, and every value is its own mean.

use super::arrival::Event;
use super::steps::Addresses;
use crate::context::Context;
use crate::error::CudaError;
use crate::lower::all_reduce::{pack, unpack};
use crate::lower::{Io, Kernel};
use crate::memory::{Buffer, Pinned};
use crate::nccl::Communicator;
use clearshot_graph::exchange::Exchange;
use clearshot_graph::train::is_of_gradients;
use clearshot_graph::{Graph, Op, Value};
use clearshot_tensor::DType;
use cudarc::driver::{result, sys};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// One value of a bucket.
struct Part {
    /// Elements of the bucket before this value's.
    at: usize,
    len: usize,
    from: u64,
    /// The value again, for when it does not travel, and where its mean goes; nowhere where nobody reads it.
    ends: Option<(u64, u64)>,
    /// Its memory is nobody else's until the mean is there.
    is_free: bool,
}

impl Part {
    fn bytes(&self) -> usize {
        self.len * size_of::<f32>()
    }
}

/// All buckets of a plan, and who carries them.
pub(super) struct Buckets {
    all: BTreeMap<u32, Vec<Part>>,
    carrier: Carrier,
    /// Whether gradients travel in the next run, or other numbers alone.
    pub gradients: bool,
}

enum Carrier {
    Nobody,
    Nccl { communicator: Arc<Communicator>, routes: BTreeMap<u32, Route>, overlaps: bool },
    Host { exchange: Arc<dyn Exchange>, routes: BTreeMap<u32, Landing>, under_way: UnderWay },
}

/// A bucket's way over NCCL.
struct Route {
    dtype: DType,
    /// What is averaged: addresses, and how many values.
    sent: Vec<(u64, usize)>,
    /// For values that are not averaged where they lie.
    staging: Option<Buffer>,
    /// By part: into the staging memory and out of it.
    copies: Vec<Option<[Kernel; 2]>>,
    ready: Event,
    done: Event,
}

/// A bucket's memory on the host.
struct Landing {
    pinned: Pinned,
    ready: Event,
}

/// Buckets by way of the host, from when they are copied to it until they are fetched. No lock leaves its functions, so that none is held while others are waited for.
#[derive(Default)]
struct UnderWay {
    /// Buckets that are copied to the host, in their order, and those that were handed over.
    copied: Mutex<Vec<u32>>,
    handed: Mutex<Vec<u32>>,
}

impl UnderWay {
    fn copied(&self, bucket: u32) {
        locked(&self.copied).push(bucket);
    }

    fn has(&self, bucket: u32) -> bool {
        locked(&self.copied).contains(&bucket) || locked(&self.handed).contains(&bucket)
    }

    /// What is to be handed over now, in its order.
    fn hand_over(&self) -> Vec<u32> {
        let copied = std::mem::take(&mut *locked(&self.copied));
        locked(&self.handed).extend(&copied);
        copied
    }

    fn fetched(&self, bucket: u32) {
        locked(&self.handed).retain(|n| *n != bucket);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|p| p.into_inner())
}

/// Lets a stream wait for an event.
fn wait(stream: sys::CUstream, event: &Event) -> Result<(), CudaError> {
    let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
    // SAFETY: an event and a stream of our own.
    Ok(unsafe { result::stream::wait_event(stream, event.0, flags) }?)
}

impl Buckets {
    pub fn of(at: &Addresses<'_>) -> Buckets {
        let graph = &at.plan.graph;
        let mut all: BTreeMap<u32, Vec<Part>> = BTreeMap::new();
        for (begin, node) in graph.nodes.iter().enumerate() {
            let Op::AllReduceBegin(a) = node.op else { continue };
            let mut before = 0;
            for v in &node.inputs {
                let len = graph.shape(*v).len();
                let from = at.of(*v);
                let end = graph.nodes.iter().position(
                    |n| matches!(n.op, Op::AllReduceEnd(e) if e.bucket == a.bucket && e.at == before),
                );
                let ends = end.map(|i| (at.of(graph.nodes[i].inputs[1]), at.of(Value::new(i, 0))));
                let is_free = ends == Some((from, from))
                    && end.is_some_and(|end| has_no_other_reader(graph, *v, [begin, end]));
                all.entry(a.bucket).or_default().push(Part { at: before, len, from, ends, is_free });
                before += len;
            }
        }
        Buckets { all, carrier: Carrier::Nobody, gradients: true }
    }

    /// The memory of a bucket that is written while it is under way, whatever carries it.
    pub fn written(&self, bucket: u32) -> Vec<std::ops::Range<u64>> {
        let free = self.all[&bucket].iter().filter(|p| p.is_free);
        free.map(|p| p.from..p.from + p.bytes() as u64).collect()
    }

    /// Buckets travel over NCCL, those of gradients in `dtype`; with `overlaps` beside what computes.
    pub fn over_nccl(
        &mut self,
        cx: &Arc<Context>,
        communicator: Arc<Communicator>,
        dtype: DType,
        overlaps: bool,
    ) -> Result<(), CudaError> {
        let mut routes = BTreeMap::new();
        for (number, parts) in &self.all {
            let dtype = if is_of_gradients(*number) { dtype } else { DType::F32 };
            routes.insert(*number, Route::new(cx, parts, dtype)?);
        }
        self.carrier = Carrier::Nccl { communicator, routes, overlaps };
        Ok(())
    }

    /// Buckets travel by way of the host.
    pub fn over_host(&mut self, exchange: Arc<dyn Exchange>) -> Result<(), CudaError> {
        let mut routes = BTreeMap::new();
        for (number, parts) in &self.all {
            let bytes = parts.iter().map(Part::bytes).sum();
            routes.insert(*number, Landing { pinned: Pinned::new(bytes)?, ready: Event::new()? });
        }
        self.carrier = Carrier::Host { exchange, routes, under_way: UnderWay::default() };
        Ok(())
    }

    /// Whether runs hand values to the host, and cannot be recorded.
    pub fn are_by_host(&self) -> bool {
        matches!(self.carrier, Carrier::Host { .. })
    }

    /// Whether a recording may put launches beside each other; else each bucket is waited for where it leaves.
    pub fn may_overlap(&self) -> bool {
        !matches!(self.carrier, Carrier::Nccl { overlaps: false, .. })
    }

    fn travels(&self, bucket: u32) -> bool {
        self.gradients || !is_of_gradients(bucket)
    }

    /// Whether what was computed may be used.
    ///
    /// # Errors
    /// Who is gone.
    pub fn check(&self) -> Result<(), CudaError> {
        match &self.carrier {
            Carrier::Nccl { communicator, .. } => communicator.check(),
            _ => Ok(()),
        }
    }

    /// The right to launch a recording, in which buckets may be.
    pub fn calls(&self) -> Result<Option<MutexGuard<'_, ()>>, CudaError> {
        match &self.carrier {
            Carrier::Nccl { communicator, .. } => communicator.calls().map(Some),
            _ => Ok(None),
        }
    }

    /// Lets a bucket leave, behind what made its values.
    pub fn begin(&self, cx: &Context, bucket: u32) -> Result<(), CudaError> {
        if !self.travels(bucket) {
            return Ok(());
        }
        let parts = &self.all[&bucket];
        match &self.carrier {
            Carrier::Nobody => Ok(()),
            Carrier::Nccl { communicator, routes, overlaps } => {
                let route = &routes[&bucket];
                route.copy(cx, parts)?;
                // SAFETY: events and streams of our own. The values stay in place until the end of the run, which waits for `done`.
                unsafe {
                    result::event::record(route.ready.0, cx.stream)?;
                    wait(communicator.stream, &route.ready)?;
                    communicator.average(&route.sent, route.dtype)?;
                    result::event::record(route.done.0, communicator.stream)?;
                }
                if *overlaps { Ok(()) } else { wait(cx.stream, &route.done) }
            }
            Carrier::Host { routes, under_way, .. } => {
                let landing = &routes[&bucket];
                for part in parts {
                    let to = &mut landing.pinned.floats()[part.at..part.at + part.len];
                    // SAFETY: the value has as many elements, and the pinned memory is left alone until `ready`.
                    unsafe { result::memcpy_dtoh_async(to, part.from, cx.stream) }?;
                }
                // SAFETY: an event and a stream of our own.
                unsafe { result::event::record(landing.ready.0, cx.stream) }?;
                under_way.copied(bucket);
                Ok(())
            }
        }
    }

    /// Puts the mean of one value, the one behind `at` elements of its bucket, in its place.
    pub fn end(&self, cx: &Context, bucket: u32, at: usize) -> Result<(), CudaError> {
        let parts = &self.all[&bucket];
        let Some((i, part)) = parts.iter().enumerate().find(|(_, p)| p.at == at) else { return Ok(()) };
        let Some((own, to)) = part.ends else { return Ok(()) };
        let own = || {
            if to == own {
                return Ok(());
            }
            // SAFETY: places of values of this size, in memory of the executor.
            Ok(unsafe { result::memcpy_dtod_async(to, own, part.bytes(), cx.stream) }?)
        };
        match &self.carrier {
            _ if !self.travels(bucket) => own(),
            Carrier::Nobody => own(),
            Carrier::Nccl { routes, .. } => {
                let route = &routes[&bucket];
                wait(cx.stream, &route.done)?;
                route.fetch(cx, i, to)
            }
            Carrier::Host { routes, .. } => {
                let from = &routes[&bucket].pinned.floats()[at..at + part.len];
                // SAFETY: the value has as many elements, and the pinned memory is written again behind this copy alone.
                Ok(unsafe { result::memcpy_htod_async(to, from, cx.stream) }?)
            }
        }
    }

    /// Whether a bucket is on the host and must be fetched before its values are put in place.
    pub fn must_be_fetched(&self, bucket: u32) -> bool {
        matches!(&self.carrier, Carrier::Host { under_way, .. } if under_way.has(bucket))
    }

    /// Hands over all buckets that are on their way to the host, and waits for one. Other sessions may use the context meanwhile.
    pub fn fetch(&self, bucket: u32) -> Result<(), CudaError> {
        let Carrier::Host { exchange, routes, under_way } = &self.carrier else { return Ok(()) };
        for number in under_way.hand_over() {
            let landing = &routes[&number];
            // SAFETY: an event of our own.
            unsafe { result::event::synchronize(landing.ready.0) }?;
            for part in &self.all[&number] {
                exchange.put(number, part.at, &landing.pinned.floats()[part.at..part.at + part.len]);
            }
            exchange.begin(number);
        }
        for part in &self.all[&bucket] {
            let to = &mut routes[&bucket].pinned.floats()[part.at..part.at + part.len];
            exchange.take(bucket, part.at, to);
        }
        under_way.fetched(bucket);
        Ok(())
    }
}

/// Whether nobody but these nodes reads a value, or what it is a view of.
fn has_no_other_reader(graph: &Graph, v: Value, readers: [usize; 2]) -> bool {
    let whole = graph.behind_views(v);
    let reads = |v: Value| graph.behind_views(v) == whole;
    let others = graph.nodes.iter().enumerate().filter(|(i, n)| !readers.contains(i) && !n.op.is_view());
    let is_kept =
        graph.outputs.iter().any(|o| reads(o.value)) || graph.updates.iter().any(|u| reads(u.value));
    !is_kept && !others.flat_map(|(_, n)| &n.inputs).any(|v| reads(*v))
}

impl Route {
    fn new(cx: &Arc<Context>, parts: &[Part], dtype: DType) -> Result<Route, CudaError> {
        let is_staged = |p: &Part| !p.is_free || dtype != DType::F32;
        let mut sent: Vec<(u64, usize)> =
            parts.iter().filter(|p| !is_staged(p)).map(|p| (p.from, p.len)).collect();
        let count: usize = parts.iter().filter(|p| is_staged(p)).map(|p| p.len).sum();
        let staging = if count > 0 { Some(Buffer::new(cx, count * dtype.bytes())?) } else { None };
        sent.extend(staging.as_ref().map(|s| (s.start(), count)));
        let (mut copies, mut at) = (vec![], 0);
        for part in parts {
            copies.push(match is_staged(part) {
                true => Some([pack(cx, part.len, at, dtype)?, unpack(cx, part.len, at, dtype)?]),
                false => None,
            });
            at += if is_staged(part) { part.len } else { 0 };
        }
        Ok(Route { dtype, sent, staging, copies, ready: Event::new()?, done: Event::new()? })
    }

    /// Copies the values that are not averaged where they lie.
    fn copy(&self, cx: &Context, parts: &[Part]) -> Result<(), CudaError> {
        let Some(staging) = &self.staging else { return Ok(()) };
        for (part, copy) in parts.iter().zip(&self.copies) {
            if let Some([pack, _]) = copy {
                let io = Io { inputs: &[part.from], outputs: &[staging.start()], workspace: 0 };
                // SAFETY: the value, and staging memory with room for all that are staged.
                unsafe { pack.launch(cx, &io) }?;
            }
        }
        Ok(())
    }

    /// Copies the mean of one value out, if it is not where it belongs.
    fn fetch(&self, cx: &Context, part: usize, to: u64) -> Result<(), CudaError> {
        if let (Some(staging), Some([_, unpack])) = (&self.staging, &self.copies[part]) {
            let io = Io { inputs: &[staging.start()], outputs: &[to], workspace: 0 };
            // SAFETY: as in `copy`.
            unsafe { unpack.launch(cx, &io) }?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::UnderWay;

    #[test]
    fn buckets_are_handed_over_once_in_their_order_and_fetched_in_any() {
        let way = UnderWay::default();
        way.copied(2);
        way.copied(1);
        assert!(way.has(1) && way.has(2) && !way.has(3));
        let mut handed = vec![];
        for bucket in way.hand_over() {
            // While one is handed over, others may be asked for.
            assert!(way.has(bucket));
            handed.push(bucket);
        }
        assert_eq!(handed, [2, 1]);
        way.copied(3);
        assert_eq!(way.hand_over(), [3]);
        way.fetched(1);
        assert!(!way.has(1) && way.has(2) && way.has(3));
    }
}
