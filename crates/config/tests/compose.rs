//! Composition as Hydra's users know it, the errors that a wrong line gives, and trees that print and read back.

use clearshot_config::{Groups, Tree, compose, reference};
use proptest::prelude::*;
use serde::Deserialize;

const FILES: &[(&str, &str)] = &[
    (
        "train.yaml",
        "defaults:\n  - _self_\n  - trainer: default\n  - performance: default\n  - optimizer: adam\n  - model: small\n  - optional local: mine\n  - experiment: null\nseed: 7  # what randomness follows from\nname: run-${seed}\n",
    ),
    ("trainer/default.yaml", "# Steps in all.\nsteps: 100\ndevice: auto\nlimits: {memory: null}\n"),
    ("trainer/gpu_optimized.yaml", "defaults:\n  - default\ndevice: cuda\nprecision: bf16\n"),
    ("performance/default.yaml", "channels_last: true\n"),
    ("performance/gpu_optimized.yaml", "defaults:\n  - default\ntf32: true\n"),
    ("optimizer/adam.yaml", "kind: adam\nlr: 1e-3\nbetas: [0.9, 0.999]\n"),
    ("optimizer/adamw_fused.yaml", "kind: adamw\nlr: 2e-4\nweight_decay: 0.01\n"),
    ("model/small.yaml", "channels: [32, 64]\ncompile_mode: default\n"),
    ("model/dynunet.yaml", "channels: [16, 32, 64]\ncompile_mode: default\n"),
    (
        "experiment/im2im/labelfree.yaml",
        "# @package _global_\ndefaults:\n  - override /model: dynunet\n  - override /optimizer: adam\ntask: labelfree\ntrainer:\n  steps: 5000\n",
    ),
    ("experiment/chain.yaml", "# @package _global_\ndefaults:\n  - override /trainer: turns\n"),
    ("trainer/turns.yaml", "defaults:\n  - override /model: dynunet\nsteps: 1\n"),
];

fn made(overrides: &[&str]) -> Result<Tree, String> {
    let overrides: Vec<String> = overrides.iter().map(|s| s.to_string()).collect();
    compose(&Groups::embedded(FILES), "train", &overrides).map_err(|e| e.to_string())
}

fn said(overrides: &[&str]) -> String {
    made(overrides).expect_err("a wrong line")
}

fn value(tree: &Tree, path: &str) -> serde_json::Value {
    tree.read_at(path).unwrap_or_else(|e| panic!("{e}"))
}

fn origin(tree: &Tree, path: &str) -> String {
    tree.get(path).unwrap_or_else(|| panic!("{path}")).origin.to_string()
}

#[test]
fn defaults_are_merged_in_their_order() {
    let tree = made(&[]).unwrap();
    let whole: serde_json::Value = tree.read().unwrap();
    assert_eq!(
        whole,
        serde_json::json!({
            "seed": 7, "name": "run-7",
            "trainer": {"steps": 100, "device": "auto", "limits": {"memory": null}},
            "performance": {"channels_last": true},
            "optimizer": {"kind": "adam", "lr": 1e-3, "betas": [0.9, 0.999]},
            "model": {"channels": [32, 64], "compile_mode": "default"},
        })
    );
    assert_eq!(origin(&tree, "trainer.steps"), "trainer/default.yaml:2");
    assert_eq!(origin(&tree, "seed"), "train.yaml:9");
}

#[test]
fn the_literal_line() {
    let line = "experiment=im2im/labelfree trainer=gpu_optimized performance=gpu_optimized optimizer=adamw_fused model.compile_mode=max-autotune";
    let tree = made(&line.split(' ').collect::<Vec<_>>()).unwrap();
    assert_eq!(value(&tree, "model.compile_mode"), "max-autotune");
    assert_eq!(origin(&tree, "model.compile_mode"), "command line");
    assert_eq!(value(&tree, "model.channels"), serde_json::json!([16, 32, 64]));
    // The command line's option counts, not the experiment's override.
    assert_eq!(value(&tree, "optimizer.kind"), "adamw");
    assert_eq!(tree.get("optimizer.betas"), None);
    assert_eq!(
        value(&tree, "trainer"),
        serde_json::json!({
        "steps": 5000, "device": "cuda", "limits": {"memory": null}, "precision": "bf16"})
    );
    assert_eq!(origin(&tree, "trainer.steps"), "experiment/im2im/labelfree.yaml:7");
    assert_eq!(value(&tree, "performance"), serde_json::json!({"channels_last": true, "tf32": true}));
}

#[test]
fn overrides_of_overrides() {
    let tree = made(&["experiment=chain"]).unwrap();
    assert_eq!(value(&tree, "trainer.steps"), 1);
    assert_eq!(value(&tree, "model.channels"), serde_json::json!([16, 32, 64]));
    let tree = made(&["experiment=chain", "model=small"]).unwrap();
    assert_eq!(value(&tree, "model.channels"), serde_json::json!([32, 64]));
}

#[test]
fn keys_are_set_added_and_deleted() {
    let tree = made(&[
        "seed=9",
        "+trainer.note='a: b'",
        "~optimizer.betas",
        "trainer.limits.memory=2e9",
        "optimizer={lr: 0.5}",
        "model.channels=[1,2,3]",
        "model.channels.1=20",
        "++fresh.deep.key=[x]",
        "~performance",
    ])
    .unwrap();
    assert_eq!(value(&tree, "name"), "run-9");
    assert_eq!(value(&tree, "trainer.note"), "a: b");
    assert_eq!(value(&tree, "optimizer"), serde_json::json!({"kind": "adam", "lr": 0.5}));
    assert_eq!(value(&tree, "model.channels"), serde_json::json!([1, 20, 3]));
    assert_eq!(value(&tree, "fresh.deep.key"), serde_json::json!(["x"]));
    assert_eq!(tree.get("performance"), None);
    assert_eq!(tree.read_at::<u64>("trainer.limits.memory"), Ok(2_000_000_000));
}

#[test]
fn errors_in_lines_name_the_nearest_key() {
    assert_eq!(
        said(&["trainer=gpu_optimised"]),
        "command line: group 'trainer' has no option 'gpu_optimised'; the nearest is 'gpu_optimized'"
    );
    assert!(
        said(&["optimizer=sgd"]).ends_with("there are adam, adamw_fused"),
        "{}",
        said(&["optimizer=sgd"])
    );
    assert!(said(&["+seed=1"]).contains("seed exists already"));
    assert!(
        said(&["~trainer.stepz"]).ends_with("there is no key trainer.stepz; the nearest is 'trainer.steps'")
    );
    assert!(said(&["~seed=8"]).contains("another value"));
    assert!(said(&["seed.x=1"]).contains("seed is a single value, and has no keys"));
    assert!(said(&["model.channels.7=1"]).contains("a list of 2, and has no item 7"));
    assert!(said(&["name=${sead}"]).contains("sead, which does not exist; the nearest is 'seed'"));
    assert!(said(&["name=${name}"]).contains("refers to itself"));
    // Every link doubles the references, and none of them adds a letter.
    let mut chain: Vec<String> = (0..30).map(|i| format!("+k{i}=${{k{0}}}${{k{0}}}", i + 1)).collect();
    chain.push("+k30=''".into());
    let chain: Vec<&str> = chain.iter().map(String::as_str).collect();
    assert!(said(&chain).contains("references"));
    assert!(said(&["name=${trainer}x"]).contains("a group of keys into a text"));
    assert!(said(&["trainer=../secret"]).contains("no option"));
    assert!(said(&["/nowhere/my.yaml"]).contains("/nowhere/my.yaml: "));
    let missing = compose(&Groups::embedded(FILES), "trian", &[]).unwrap_err().to_string();
    assert_eq!(missing, "there is no configuration 'trian'; the nearest is 'train'");
}

#[test]
fn a_users_folder_and_file_come_in_front() {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("in_front");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(folder.join("model")).unwrap();
    std::fs::create_dir_all(folder.join("local")).unwrap();
    std::fs::write(folder.join("model/small.yaml"), "channels: [8]\n").unwrap();
    std::fs::write(folder.join("local/mine.yaml"), "here: true\n").unwrap();
    let own = folder.join("own.yaml");
    std::fs::write(&own, "defaults:\n  - optimizer: adamw_fused\nseed: 3\ntrainer: {steps: 2}\n").unwrap();
    let groups = Groups::embedded(FILES).in_front(&folder).unwrap();
    let tree = compose(&groups, "train", &[own.display().to_string(), "trainer.device=cpu".into()]).unwrap();
    assert_eq!(value(&tree, "model"), serde_json::json!({"channels": [8]}));
    assert_eq!(value(&tree, "optimizer.kind"), "adamw");
    assert_eq!(value(&tree, "local"), serde_json::json!({"here": true}));
    assert_eq!((value(&tree, "seed"), value(&tree, "trainer.steps")), (3.into(), 2.into()));
    assert_eq!(origin(&tree, "seed"), format!("{}:3", own.display()));
    assert_eq!(groups.options("model"), ["dynunet", "small"]);
    assert!(groups.clone().in_front(&own).unwrap_err().to_string().contains("this is a file"));
    assert!(groups.in_front(&folder.join("no")).is_err());
}

#[derive(Debug, Deserialize, PartialEq)]
struct Trainer {
    steps: u64,
    device: Device,
    #[serde(default)]
    precision: Option<String>,
    limits: Limits,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Device {
    Auto,
    Cpu { threads: usize },
    Cuda,
}

#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
struct Limits {
    memory: Option<f64>,
    hours: f32,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
enum Optimizer {
    Adam { lr: f64, betas: [f64; 2] },
    Adamw { lr: f64, weight_decay: f64 },
}

fn unread<T: serde::de::DeserializeOwned + std::fmt::Debug>(path: &str, overrides: &[&str]) -> String {
    made(overrides).unwrap().read_at::<T>(path).unwrap_err().to_string()
}

#[test]
fn typed_structs_read() {
    let tree =
        made(&["trainer.device={cpu: {threads: 2}}", "trainer.precision=32", "trainer.limits=null"]).unwrap();
    let trainer: Trainer = tree.read_at("trainer").unwrap();
    assert_eq!(
        trainer,
        Trainer {
            steps: 100,
            device: Device::Cpu { threads: 2 },
            precision: Some("32".into()),
            limits: Limits::default()
        }
    );
    assert_eq!(tree.read_at::<Optimizer>("optimizer"), Ok(Optimizer::Adam { lr: 1e-3, betas: [0.9, 0.999] }));
    // A key that no file has, and the struct has: no plus is needed.
    let tree = made(&["trainer.limits.hours=1"]).unwrap();
    assert_eq!(tree.read_at::<Trainer>("trainer").unwrap().limits.hours, 1.0);
}

#[test]
fn typed_structs_refuse_with_key_file_and_nearest() {
    // Without deny_unknown_fields too.
    assert_eq!(
        unread::<Trainer>("trainer", &["trainer.stesp=3"]),
        "trainer.stesp (command line): there is no such key; the nearest is 'trainer.steps'"
    );
    assert_eq!(
        unread::<Trainer>("trainer", &["trainer.limits.hors=3"]),
        "trainer.limits.hors (command line): there is no such key; the nearest is 'trainer.limits.hours'"
    );
    assert_eq!(
        unread::<Optimizer>("optimizer", &["optimizer.betaz=3"]),
        "optimizer.betaz (command line): there is no such key; the nearest is 'optimizer.betas'"
    );
    assert_eq!(
        unread::<Trainer>("trainer", &["trainer.steps=many"]),
        "trainer.steps (command line): found 'many', and a whole number of 0 or more is needed"
    );
    assert_eq!(
        unread::<Trainer>("trainer", &["trainer.device=cudda"]),
        "trainer.device (command line): 'cudda' is not a choice; the nearest is 'cuda'"
    );
    assert!(
        unread::<Trainer>("trainer", &["trainer.device={cpu: {thread: 1}}"])
            .starts_with("trainer.device.cpu.thread (command line): there is no such key; the nearest is")
    );
    assert_eq!(
        unread::<Trainer>("trainer", &["~trainer.steps"]),
        "trainer.steps (train.yaml:3): the key is missing; give it as trainer.steps=VALUE"
            .replace("train.yaml:3", "trainer/default.yaml:2")
    );
    assert_eq!(
        unread::<Trainer>("trainer", &["trainer.steps=???"]),
        "trainer.steps (command line): a value must be given, as trainer.steps=VALUE"
    );
    assert!(unread::<Optimizer>("optimizer", &["optimizer.kind=sgd"]).contains("'sgd' is not a choice"));
    assert!(
        unread::<Vec<u32>>("model.channels", &["model.channels=[1,-2]"])
            .starts_with("model.channels.1 (command line): found -2")
    );
    assert!(unread::<u64>("seed", &["seed=1.5"]).starts_with("seed (command line): found 1.5"));
}

#[test]
fn the_reference_lists_keys_with_their_comments() {
    let text = reference(&Groups::embedded(FILES), "train").unwrap();
    assert!(text.contains("| `seed` | `7` | what randomness follows from |"), "{text}");
    assert!(text.contains("| `trainer.steps` | `100` | Steps in all. |"), "{text}");
    assert!(text.contains("### `optimizer=adamw_fused`"), "{text}");
}

#[test]
fn origins_stand_beside_the_values() {
    let text = made(&["seed=1"]).unwrap().yaml_with_origins();
    let line = text.lines().find(|l| l.starts_with("seed:")).unwrap();
    assert!(line.ends_with("# command line"), "{line}");
    assert!(text.contains("# trainer/default.yaml:2"));
}

/// Values as they may come: nested, quoted, with every letter that means something in YAML.
fn values() -> impl Strategy<Value = serde_json::Value> {
    let text = prop_oneof![
        "[ -~]{0,12}",
        "\\PC{0,6}",
        Just("null".to_string()),
        Just("1e3".to_string()),
        Just("a\nb\t\"c\"\\".to_string())
    ];
    let leaf = prop_oneof![
        any::<i32>().prop_map(|n| n.into()),
        any::<bool>().prop_map(|b| b.into()),
        (-1e6..1e6f64).prop_map(|x| x.into()),
        text.prop_map(|s| s.into()),
        Just(serde_json::Value::Null),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|v| v.into()),
            prop::collection::btree_map("[ -~]{1,8}", inner, 0..4)
                .prop_map(|m| serde_json::Value::Object(m.into_iter().collect())),
        ]
    })
}

/// Keys that exclude one another: what is written later takes the place of the others, two at one place are refused.
#[test]
fn the_last_of_keys_that_exclude_one_another_stays() {
    const FILES: &[(&str, &str)] = &[
        (
            "train.yaml",
            "defaults:\n  - _self_\n  - experiment: null\ntrainer: {steps: null, seconds: null, crop: 4}\n",
        ),
        ("experiment/short.yaml", "# @package _global_\ntrainer:\n  seconds: 290\n"),
        ("experiment/both.yaml", "# @package _global_\ntrainer:\n  seconds: 290\n  steps: 3\n"),
    ];
    let made = |overrides: &[&str]| {
        let groups =
            Groups::embedded(FILES).exclusive(&[&["trainer.steps", "trainer.seconds", "trainer.rounds"]]);
        let overrides: Vec<String> = overrides.iter().map(|s| s.to_string()).collect();
        compose(&groups, "train", &overrides).map_err(|e| e.to_string())
    };
    let lengths = |overrides: &[&str]| {
        let tree = made(overrides).unwrap();
        ["trainer.steps", "trainer.seconds"].map(|key| value(&tree, key))
    };
    use serde_json::json;
    assert_eq!(lengths(&["experiment=short"]), [json!(null), json!(290)]);
    for later in ["trainer.steps=200", "trainer={steps: 200}", "++trainer.steps=200"] {
        assert_eq!(lengths(&["experiment=short", later]), [json!(200), json!(null)], "{later}");
        assert_eq!(lengths(&[later, "experiment=short"]), [json!(200), json!(null)], "{later}");
    }
    assert_eq!(lengths(&["experiment=short", "trainer.seconds=10"]), [json!(null), json!(10)]);
    assert_eq!(
        lengths(&["trainer.steps=5", "trainer.steps=null", "trainer.seconds=1"]),
        [json!(null), json!(1)]
    );
    // Without another length nothing is taken back, and `null` takes back what it names alone.
    assert_eq!(lengths(&["experiment=short", "trainer.crop=8"]), [json!(null), json!(290)]);
    assert_eq!(lengths(&["experiment=short", "trainer.steps=null"]), [json!(null), json!(290)]);

    let file = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("exclusive.yaml");
    std::fs::write(&file, "trainer: {rounds: 7}\n").unwrap();
    let mine = made(&["experiment=short", &file.display().to_string()]).unwrap();
    assert_eq!(["seconds", "rounds"].map(|k| value(&mine, &format!("trainer.{k}"))), [json!(null), json!(7)]);

    assert_eq!(
        made(&["experiment=short", "trainer.steps=200", "trainer.seconds=60"]).unwrap_err(),
        "trainer.steps (command line) and trainer.seconds (command line) are given together; only one of trainer.steps, \
         trainer.seconds and trainer.rounds can be used: leave out the others"
    );
    // A file is one place, whatever comes after it.
    let both = made(&["experiment=both", "trainer.steps=9"]).unwrap_err();
    assert!(both.starts_with(
        "trainer.steps (experiment/both.yaml:4) and trainer.seconds (experiment/both.yaml:3) are"
    ));
}

proptest! {
    /// JSON is YAML: what is read from it prints as YAML that reads back as the same values.
    #[test]
    fn printed_trees_read_back(value in values(), number in 0u32..u32::MAX) {
        let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("print");
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(format!("{number}.yaml"));
        let read = |text: &str| -> Tree {
            std::fs::write(&path, text).unwrap();
            compose(&Groups::embedded(&[("e.yaml", "")]), "e", &[path.display().to_string()]).unwrap()
        };
        let is_reference = |text: &str| text.contains("${") || text.contains("???");
        let json = serde_json::json!({ "v": value }).to_string();
        prop_assume!(!is_reference(&json) && !json.contains("\"<<\""));
        let first = read(&json);
        let again = read(&first.yaml());
        prop_assert_eq!(first.read::<serde_json::Value>().unwrap(), again.read::<serde_json::Value>().unwrap());
        prop_assert_eq!(first.read_at::<serde_json::Value>("v").unwrap(), value);
        std::fs::remove_file(&path).unwrap();
    }
}
