//! A run that takes no time: a network of a few channels on crops of a few pixels.

use clearshot_train::RunConfig;
use serde_json::{Value, json};

/// A network of a few channels; what it takes depends on the task.
pub fn network(inputs: usize) -> Value {
    json!({
        "_class_name": "UNet2DModel", "in_channels": inputs, "out_channels": 1, "sample_size": 16,
        "block_out_channels": [8, 8], "layers_per_block": 1, "norm_num_groups": 4, "attention_head_dim": 8,
        "down_block_types": ["DownBlock2D", "DownBlock2D"], "up_block_types": ["UpBlock2D", "UpBlock2D"],
    })
}

/// Changes laid over a configuration, key by key.
pub fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        // One network's keys are not another's.
        (Value::Object(into), Value::Object(from)) if !from.contains_key("_class_name") => {
            from.into_iter().for_each(|(k, v)| merge(into.entry(k).or_insert(Value::Null), v));
        }
        (into, from) => *into = from,
    }
}

pub fn config(changes: Value) -> RunConfig {
    let mut whole = json!({
        "name": "tiny", "seed": 3,
        "data": {"sizes": [32], "pool": 4, "camera": {"peak": [5.0, 50.0], "spread": 2.0, "blur": 0.3}},
        "model": {"network": network(0)},
        "task": {"drop": 0.15, "at_most": 0.25},
        "schedule": {"warm_up": 2},
        "trainer": {"device": "cpu", "iterations": 8, "crop": 16, "batch": 4},
        "validation": {"every": 3, "images": 6},
        "calibration": {"images": 0},
        "checkpoint": {"every": 0, "top": 1},
        "records": {"every": 2, "tensorboard": true, "pictures": 1},
    });
    merge(&mut whole, changes);
    serde_json::from_value(whole).expect("a configuration")
}
