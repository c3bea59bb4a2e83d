//! bf16 on the CPU: products and attention multiply it where that is asked for, and beside convolutions in 8 bits where nothing is; every
//! other processor, and every other use of it, is refused in words.

use clearshot_cpu::simd::Level;
use clearshot_cpu::simd::factors::Bf16;
use clearshot_graph::Graph;
use clearshot_graph::ops::int8::{Rounding, Table};
use clearshot_graph::passes::int8::{candidates, round};
use clearshot_nn::init::example;
use clearshot_nn::models::read;
use clearshot_nn::weights;
use clearshot_runtime::{CompileError, Device, Options, Precision, Session, compile};
use clearshot_tensor::Tensor;
use std::collections::BTreeMap;

/// With attention and its products, and what a network is told of the noise.
const CONFIG: &str = r#"{"_class_name": "UNet2DModel", "in_channels": 2, "out_channels": 1, "block_out_channels": [16, 32],
    "layers_per_block": 1, "norm_num_groups": 8, "attention_head_dim": 16,
    "down_block_types": ["DownBlock2D", "AttnDownBlock2D"], "up_block_types": ["AttnUpBlock2D", "UpBlock2D"]}"#;
const SIZE: [usize; 2] = [16, 24];

fn network(batch: usize) -> (Graph, BTreeMap<String, Tensor>) {
    let network = read(CONFIG).unwrap();
    let graph = network.inference(batch, &SIZE).unwrap();
    // Fresh weights end in zeros, after which nothing would be left to compare.
    let mut values: BTreeMap<String, Tensor> = weights::initial(&network.parameters().unwrap(), 3);
    for (i, w) in values.values_mut().enumerate() {
        let added = |(j, x): (usize, &f32)| x + 0.05 * ((i * 31 + j) as f32 * 0.7).sin();
        *w = Tensor::f32(w.shape(), w.as_f32().unwrap().iter().enumerate().map(added).collect());
    }
    let inputs = graph.inputs().map(|(name, v)| (name.to_string(), example(name, graph.ty(v), 1)));
    values.extend(inputs);
    (graph, values)
}

fn in_8_bits(graph: &Graph) -> Graph {
    let table: Table = candidates(graph).into_iter().map(|c| (c.name, Rounding::Dynamic)).collect();
    round(graph.clone(), &table).unwrap()
}

fn compiled(graph: &Graph, threads: usize, precision: Precision) -> Result<Session, CompileError> {
    let options = Options { precision, ..Options::default() };
    compile(graph.clone(), &Device::cpu(Some(threads)), &options)
}

fn computed(
    graph: &Graph,
    values: &BTreeMap<String, Tensor>,
    threads: usize,
    precision: Precision,
) -> (Vec<f32>, &'static str) {
    let mut session = compiled(graph, threads, precision).unwrap();
    values.iter().for_each(|(name, t)| session.set(name, t).unwrap());
    session.run().unwrap();
    (session.get("y").unwrap().as_f32().unwrap().to_vec(), session.arithmetic().name())
}

fn relative_error(got: &[f32], wanted: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let off: f64 = got.iter().zip(wanted).map(|(a, b)| square(f64::from(a - b))).sum();
    (off / wanted.iter().map(|x| square(f64::from(*x))).sum::<f64>()).sqrt()
}

/// Whether the processor multiplies bf16; where it does not, it must say so.
fn there() -> bool {
    let there = Bf16::detect(Level::detect()).is_some();
    if !there {
        let refused = compiled(&network(1).0, 1, Precision::Bf16).err().unwrap().to_string();
        assert!(refused.contains("AVX512_BF16") && refused.contains("fp32"), "{refused}");
        println!("skipped: this processor does not multiply bf16");
    }
    there
}

#[test]
fn bf16_is_near_fp32_and_the_same_for_any_number_of_threads() {
    if !there() {
        return;
    }
    let (graph, values) = network(2);
    let (exact, name) = computed(&graph, &values, 2, Precision::Auto);
    assert_eq!(name, "fp32", "nothing is rounded unless it is asked for");
    let (narrow, name) = computed(&graph, &values, 2, Precision::Bf16);
    assert_eq!(name, "bf16");
    // One rounding of a factor is off by 2^-9 at most.
    let error = relative_error(&narrow, &exact);
    assert!((1e-6..5e-3).contains(&error), "{error:e}");
    for threads in [1, 3] {
        assert_eq!(narrow, computed(&graph, &values, threads, Precision::Bf16).0, "{threads} threads");
    }
    // A sample's result does not depend on the others.
    let (alone, own) = network(1);
    let firsts = own.into_iter().map(|(name, t)| match &values[&name] {
        both if both.shape() != t.shape() => {
            (name, Tensor::f32(t.shape(), both.as_f32().unwrap()[..t.shape().len()].to_vec()))
        }
        same => (name, same.clone()),
    });
    let (first, _) = computed(&alone, &firsts.collect(), 2, Precision::Bf16);
    assert_eq!(first[..], narrow[..narrow.len() / 2]);
}

#[test]
fn products_beside_8_bits_are_bf16_unless_fp32_is_asked_for() {
    if !there() {
        return;
    }
    let (graph, values) = network(1);
    let (exact, _) = computed(&graph, &values, 2, Precision::F32);
    let graph = in_8_bits(&graph);
    let (open, name) = computed(&graph, &values, 2, Precision::Auto);
    assert_eq!(name, "bf16", "what was chosen is said");
    assert_eq!(open, computed(&graph, &values, 1, Precision::Bf16).0);
    let (wide, name) = computed(&graph, &values, 2, Precision::F32);
    assert_eq!(name, "fp32");
    assert_ne!(open, wide);
    // Behind roundings to 8 bits other last bits are other whole numbers, so the two are as far apart as 8 bits are from fp32; but
    // neither is farther from fp32.
    let (half, full) = (relative_error(&open, &exact), relative_error(&wide, &exact));
    assert!(half < 1.25 * full, "{half:e} with bf16, {full:e} without");
}

#[test]
fn what_the_cpu_does_not_compute_in_is_refused() {
    let (graph, _) = network(1);
    for precision in [Precision::Tf32, Precision::F16] {
        let refused = compiled(&graph, 1, precision).err().unwrap().to_string();
        assert!(refused.contains(precision.name()) && refused.contains("needs a GPU"), "{refused}");
    }
    // A level without such products is as a processor without them.
    let device = Device::Cpu { threads: 1, level: Level::Portable };
    let options = Options { precision: Precision::Bf16, ..Options::default() };
    let refused = compile(graph, &device, &options).err().unwrap().to_string();
    assert!(refused.contains("AVX512_BF16") && refused.contains("8 bits"), "{refused}");
}
