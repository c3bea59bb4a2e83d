//! Benchmarks attention alone: the fused kernel, which does not store the attention matrix, and two products with a
//! softmax between them, whose matrix grows with the square of the tokens.

use super::timing::{Times, round};
use super::{Bench, beside, extend, kind, measured};
use anyhow::Result;
use clearshot_graph::plan::human;
use clearshot_graph::{Builder, Graph, Type};
use clearshot_nn::init::example;
use clearshot_runtime::{Device, Session, compile};
use clearshot_tensor::Shape;
use serde_json::json;
use std::io::Write;

/// Heads and channels of each, as the benchmark networks have them.
const HEADS: usize = 8;
const CHANNELS: usize = 64;
const OUTPUT: &str = "out";

/// Measures both ways for each number of tokens.
///
/// # Errors
/// If a device or memory is not there.
pub fn run(bench: &Bench, tokens: &[u32]) -> Result<()> {
    let device = bench.network.device()?;
    let mut out = std::io::stdout().lock();
    if !bench.json {
        writeln!(out, "attention, {HEADS} heads of {CHANNELS} channels, on {device}")?;
        writeln!(
            out,
            "  {:>6} {:>14} {:>14} {:>10} {:>14} {:>14} {:>11}",
            "tokens", "kernel ms", "products ms", "speed-up", "kernel bytes", "product bytes", "rel. error"
        )?;
    }
    for &tokens in tokens {
        let [one, parts] = [kernel, products].map(|build| way(bench, &device, build, tokens as usize));
        let ((one, one_times), (parts, parts_times)) = (one?, parts?);
        let (a, b) = (one.get(OUTPUT)?, parts.get(OUTPUT)?);
        let [error, _] = beside(a.as_f32()?, b.as_f32()?);
        let bytes = [&one, &parts].map(|s| s.plan().bytes());
        let ratio = parts_times.median() / one_times.median();
        if bench.json {
            for (name, session, times) in
                [("attention kernel", &one, &one_times), ("products and softmax", &parts, &parts_times)]
            {
                let mut record = json!({
                    "net": name, "device": kind(&device), "tokens": tokens, "heads": HEADS, "channels": CHANNELS,
                    "planned_bytes": session.plan().bytes(), "relative_error": error, "speed_up": round(ratio),
                });
                extend(&mut record, times.record(1));
                writeln!(out, "{record}")?;
            }
        } else {
            writeln!(
                out,
                "  {tokens:>6} {:>14.3} {:>14.3} {ratio:>10.2} {:>14} {:>14} {error:>11.1e}",
                one_times.median(),
                parts_times.median(),
                human(bytes[0]),
                human(bytes[1])
            )?;
        }
        out.flush()?;
    }
    Ok(())
}

type Build = fn(&mut Builder, tokens: usize);

fn way(bench: &Bench, device: &Device, build: Build, tokens: usize) -> Result<(Session, Times)> {
    let mut b = Builder::new();
    build(&mut b, tokens);
    let graph: Graph = b.finish()?;
    let mut session = compile(graph.clone(), device, &bench.network.options())?;
    for (name, v) in graph.inputs() {
        session.set(name, &example(name, graph.ty(v), 0))?;
    }
    session.run()?;
    session.wait()?;
    let times = measured(&mut session, bench)?;
    Ok((session, times))
}

fn kernel(b: &mut Builder, tokens: usize) {
    let shape = Shape::from([1, tokens, HEADS * CHANNELS]);
    let [q, k, v] = ["q", "k", "v"].map(|name| b.input(name, Type::f32(shape)));
    let made = b.attention(q, k, v, HEADS, None);
    b.output(OUTPUT, made);
}

fn products(b: &mut Builder, tokens: usize) {
    let shape = Shape::from([1, tokens, HEADS * CHANNELS]);
    let [q, k, v] = ["q", "k", "v"].map(|name| b.input(name, Type::f32(shape)));
    // [1, tokens, heads, channels] -> [1, heads, tokens, channels]
    let mut split = |x| {
        let x = b.reshape(x, [1, tokens, HEADS, CHANNELS]);
        b.transpose(x, &[0, 2, 1, 3])
    };
    let [q, k, v] = [split(q), split(k), split(v)];
    let scores = b.matmul(q, k, false, true);
    let scores = b.mul_scalar(scores, 1.0 / (CHANNELS as f64).sqrt());
    let weights = b.softmax(scores);
    let made = b.matmul(weights, v, false, false);
    let made = b.transpose(made, &[0, 2, 1, 3]);
    let made = b.reshape(made, [1, tokens, HEADS * CHANNELS]);
    b.output(OUTPUT, made);
}
