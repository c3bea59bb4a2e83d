//! Runs recorded as one CUDA graph.
//!
//! In the recording a step waits for those whose memory it shares and for no others ([`branches`]), so weight
//! gradients run beside the chain of the others.

use super::exchange::Buckets;
use super::steps::Launches;
use crate::branches::{self, Access};
use crate::context::Context;
use crate::error::CudaError;
use cudarc::driver::sys::{CUgraph, CUgraphExec, CUgraphNode};
use cudarc::driver::{result, sys};

/// The driver's CUDA version that lets a recording say what comes behind what.
const BRANCHES_SINCE: i32 = 12_030;

/// A recorded run.
pub(crate) struct Replay {
    graph: CUgraph,
    exec: CUgraphExec,
}

// SAFETY: recorded graphs belong to the process's context.
unsafe impl Send for Replay {}

impl Replay {
    pub fn launch(&self, cx: &Context) -> Result<(), CudaError> {
        // SAFETY: recorded on this context, on memory of the executor that owns it.
        Ok(unsafe { result::graph::launch(self.exec, cx.stream) }?)
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        // SAFETY: made by `record`.
        unsafe {
            let _ = result::graph::exec_destroy(self.exec);
            let _ = result::graph::destroy(self.graph);
        }
    }
}

/// A run recorded: in branches, or one launch behind the other where the driver cannot do that; nothing
/// where a library cannot be recorded.
pub(super) fn record_run(cx: &Context, launches: &Launches, buckets: &Buckets) -> Option<Replay> {
    let branches = cx.gpu.driver >= BRANCHES_SINCE && buckets.may_overlap();
    let recorded = if branches { record(cx, || launch_branches(cx, launches, buckets)).ok() } else { None };
    recorded.or_else(|| record(cx, || launches.launch(cx, buckets)).ok())
}

/// As [`Launches::launch`] while a recording is made: each step is put behind those that it must wait
/// for, not behind the one before it.
fn launch_branches(cx: &Context, launches: &Launches, buckets: &Buckets) -> Result<(), CudaError> {
    let steps = &launches.steps;
    launches.refresh(cx)?;
    let start = recorded(cx)?;
    let accesses: Vec<Access> = steps.iter().map(|s| s.access.clone()).collect();
    let mut is_last = vec![true; steps.len()];
    let mut ends: Vec<Vec<CUgraphNode>> = Vec::with_capacity(steps.len());
    for (i, waits) in branches::waits(&accesses).into_iter().enumerate() {
        let mut behind = if waits.is_empty() { start.clone() } else { vec![] };
        for w in waits {
            is_last[w] = false;
            behind.extend(ends[w].iter().filter(|n| !behind.contains(n)).copied().collect::<Vec<_>>());
        }
        record_behind(cx, &mut behind)?;
        steps[i].launch(cx, buckets)?;
        ends.push(recorded(cx)?);
    }
    let mut last: Vec<CUgraphNode> = vec![];
    for end in ends.iter().zip(&is_last).filter(|e| *e.1).flat_map(|e| e.0) {
        if !last.contains(end) {
            last.push(*end);
        }
    }
    record_behind(cx, &mut last)
}

/// The launches that the next one would be recorded behind.
fn recorded(cx: &Context) -> Result<Vec<CUgraphNode>, CudaError> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut nodes, mut edges, mut count) = (std::ptr::null(), std::ptr::null(), 0);
    // SAFETY: our own stream, and results that are copied before the next call.
    unsafe {
        sys::cuStreamGetCaptureInfo_v3(
            cx.stream,
            &mut status,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            &mut nodes,
            &mut edges,
            &mut count,
        )
        .result()?;
        Ok(if count == 0 { vec![] } else { std::slice::from_raw_parts(nodes, count).to_vec() })
    }
}

/// What is recorded next comes behind these launches and no others.
fn record_behind(cx: &Context, nodes: &mut [CUgraphNode]) -> Result<(), CudaError> {
    let set = sys::CUstreamUpdateCaptureDependencies_flags::CU_STREAM_SET_CAPTURE_DEPENDENCIES;
    // SAFETY: nodes of the recording that our own stream makes.
    unsafe {
        let count = nodes.len();
        sys::cuStreamUpdateCaptureDependencies_v2(
            cx.stream,
            nodes.as_mut_ptr(),
            std::ptr::null(),
            count,
            set as u32,
        )
        .result()?;
    }
    Ok(())
}

/// What is launched meanwhile, recorded.
pub(crate) fn record(
    cx: &Context,
    launch: impl FnOnce() -> Result<(), CudaError>,
) -> Result<Replay, CudaError> {
    // SAFETY: capture on our own stream; nothing else launches on it meanwhile.
    unsafe {
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        result::stream::begin_capture(cx.stream, mode)?;
        let launched = launch();
        let graph = result::stream::end_capture(cx.stream)?;
        let mut exec = std::ptr::null_mut();
        let made =
            launched.and_then(|()| Ok(sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0).result()?));
        if let Err(e) = made {
            let _ = result::graph::destroy(graph);
            return Err(e);
        }
        Ok(Replay { graph, exec })
    }
}
