//! Batch norm compared with torch.nn.BatchNorm2d (refs/make_batch_norm.py): results, gradients and running averages, in
//! training and inference.

use clearshot_graph::grad::grad;
use clearshot_graph::ops::ReduceKind;
use clearshot_graph::reference::{Precision, run};
use clearshot_graph::{Array, Builder, Graph, Type};
use clearshot_nn::layers::{Scope, batch_norm};
use clearshot_nn::models::Learning;
use clearshot_tensor::Shape;
use serde_json::Value as Json;
use std::collections::BTreeMap;

fn list(v: &Json) -> Vec<f64> {
    v.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
}

#[track_caller]
fn close(got: &Array, want: &Json, what: &str) {
    let want = list(want);
    assert_eq!(got.data.len(), want.len(), "{what}");
    let size = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
    for (g, w) in got.data.iter().zip(&want) {
        assert!((g - w).abs() <= 1e-5 * size, "{what}: {g} for {w}");
    }
}

/// The norm, with gradients where it learns.
fn graph(shape: Shape, learning: Option<Learning>) -> Graph {
    let mut b = Builder::new();
    let x = b.input("x", Type::f32(shape));
    let mut params = vec![];
    let y = batch_norm(&mut Scope::new(&mut b, &mut params), x, learning);
    let trained: Vec<&str> = params.iter().filter(|p| p.trainable).map(|p| p.name.as_str()).collect();
    assert_eq!(trained, ["weight", "bias"]);
    b.output("y", y);
    if learning.is_some() {
        let upstream = b.input("upstream", Type::f32(shape));
        let product = b.mul(y, upstream);
        let loss = b.reduce_all(ReduceKind::Sum, product);
        let c = shape.channels();
        let by = [x, b.param("weight", [c]), b.param("bias", [c])];
        for (name, g) in ["x", "weight", "bias"].iter().zip(grad(&mut b, loss, None, &by).expect("gradients"))
        {
            b.output(&format!("d{name}"), g);
        }
    }
    b.finish().expect("a graph")
}

#[test]
fn batch_norm_is_that_of_pytorch() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../refs/train/batch_norm.json");
    let Ok(text) = std::fs::read(path) else { return eprintln!("skipped: {path} is not there") };
    let of: Json = serde_json::from_slice(&text).expect("JSON");
    let sizes: Vec<usize> = list(&of["shape"]).iter().map(|&n| n as usize).collect();
    let (shape, c) = (Shape::new(&sizes), sizes[3]);
    let array = |shape: Shape, v: &Json| Array { shape, data: list(v) };
    let per_channel = Shape::new(&[c]);
    let mut values = BTreeMap::from([
        ("weight".to_string(), array(per_channel, &of["weight"])),
        ("bias".to_string(), array(per_channel, &of["bias"])),
        ("upstream".to_string(), array(shape, &of["upstream"])),
        ("running_mean".to_string(), Array { shape: per_channel, data: vec![0.0; c] }),
        ("running_var".to_string(), Array { shape: per_channel, data: vec![1.0; c] }),
    ]);
    let learns = graph(shape, Some(Learning { ranks: 1 }));
    let mut made = BTreeMap::new();
    for batch in [0, 1] {
        values.insert("x".into(), array(shape, &of["batches"][batch]));
        made = run(&learns, &mut values, Precision::Stored).expect("a run");
    }
    close(&made["y"], &of["y"], "y");
    for name in ["x", "weight", "bias"] {
        close(&made[&format!("d{name}")], &of["gradients"][name], name);
    }
    for name in ["running_mean", "running_var"] {
        close(&values[name], &of[name], name);
    }
    let after = run(&graph(shape, None), &mut values, Precision::Stored).expect("a run");
    close(&after["y"], &of["y_after"], "y after training");
    // A batch that is not finite does not change the averages.
    let before = values.clone();
    values.insert("x".into(), Array { shape, data: vec![f64::NAN; shape.len()] });
    run(&learns, &mut values, Precision::Stored).expect("a run");
    for name in ["running_mean", "running_var"] {
        assert_eq!(values[name].data, before[name].data, "{name}");
    }
}
