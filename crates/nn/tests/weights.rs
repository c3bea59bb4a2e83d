//! Weights on disk: both ways, and everything that can be wrong with them.

use clearshot_graph::reference::{Precision, run};
use clearshot_graph::{Array, Builder, Type};
use clearshot_nn::models::unet2d::{Extras, UNet2DConfig};
use clearshot_nn::{Error, Init, Weights, weights};
use clearshot_tensor::noise::Key;
use clearshot_tensor::store::Store;
use clearshot_tensor::{Data, Shape, Tensor};
use std::collections::BTreeMap;
use std::path::PathBuf;

fn config() -> UNet2DConfig {
    UNet2DConfig {
        in_channels: 2,
        out_channels: 1,
        block_out_channels: vec![8, 16],
        down_block_types: vec!["DownBlock2D".into(), "AttnDownBlock2D".into()],
        up_block_types: vec!["AttnUpBlock2D".into(), "UpBlock2D".into()],
        layers_per_block: 1,
        norm_num_groups: 4,
        ..UNet2DConfig::default()
    }
}

fn fresh(seed: u64) -> Weights {
    weights::initial(&config().resolve().unwrap().parameters().unwrap(), seed)
}

/// A folder of this test's own, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        Folder(std::env::temp_dir().join(format!("clearshot-nn-{name}-{}", std::process::id())))
    }

    fn file(&self) -> PathBuf {
        self.0.join(weights::WEIGHTS_FILE)
    }

    /// Writes the network, changes its file and gives the error of reading it.
    fn broken(&self, change: impl FnOnce(&mut Store)) -> Error {
        weights::save(&self.0, &config(), &fresh(1)).unwrap();
        let mut store = Store::read(&self.file()).unwrap();
        change(&mut store);
        store.write(&self.file()).unwrap();
        weights::load(&self.0).unwrap_err()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_folder_comes_back_as_it_was() {
    let folder = Folder::new("round");
    let mut config = config();
    config.bookkeeping.insert("_diffusers_version".into(), "0.42.1".into());
    weights::save(&folder.0, &config, &fresh(3)).unwrap();
    let (read, held) = weights::load(&folder.0).unwrap();
    assert_eq!(held, fresh(3));
    assert_eq!(read.bookkeeping["_class_name"], "UNet2DModel");
    assert_eq!(UNet2DConfig { bookkeeping: config.bookkeeping.clone(), ..read }, config);
    let store = Store::read(&folder.file()).unwrap();
    assert_eq!(store.tensors["conv_in.weight"].shape(), Shape::from([8, 2, 3, 3]), "PyTorch's layout");
    assert_eq!(held["conv_in.weight"].shape(), Shape::from([8, 3, 3, 2]), "ours");
    assert_eq!(store.metadata["format"], "pt");
}

#[test]
fn old_names_of_attention_are_read() {
    let folder = Folder::new("old");
    weights::save(&folder.0, &config(), &fresh(1)).unwrap();
    let mut store = Store::read(&folder.file()).unwrap();
    let old = |name: String| {
        [("to_q.", "query."), ("to_k.", "key."), ("to_v.", "value."), ("to_out.0.", "proj_attn.")]
            .iter()
            .fold(name, |name, (new, old)| name.replace(new, old))
    };
    store.tensors = store.tensors.into_iter().map(|(name, t)| (old(name), t)).collect();
    assert!(store.tensors.contains_key("mid_block.attentions.0.proj_attn.bias"));
    store.write(&folder.file()).unwrap();
    assert_eq!(weights::load(&folder.0).unwrap().1, fresh(1));
}

#[test]
fn all_that_does_not_fit_is_named() {
    let folder = Folder::new("misfit");
    let error = folder.broken(|store| {
        let tensors = &mut store.tensors;
        tensors.remove("conv_in.weight");
        tensors.insert("conv_in.scale".into(), Tensor::zeros([3]));
        tensors.insert("conv_out.weight".into(), Tensor::zeros([1, 8, 1, 1]));
    });
    let text = error.to_string();
    for part in [
        "1 missing (conv_in.weight [8,2,3,3])",
        "1 not in the network (conv_in.scale [3])",
        "1 misshapen (conv_out.weight is [1,8,1,1], expected [1,8,3,3])",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let Error::Weights(misfit) = folder.broken(|store| store.tensors.clear()) else { panic!() };
    assert_eq!(misfit.missing.len(), fresh(1).len());
    assert!(misfit.to_string().contains(&format!(", and {} more)", fresh(1).len() - 5)), "{misfit}");
    let mut few = fresh(1);
    few.remove("conv_in.bias");
    assert!(matches!(weights::save(&folder.0, &config(), &few), Err(Error::Weights(_))));
}

#[test]
fn damaged_and_absent_files_are_named() {
    let folder = Folder::new("damaged");
    let error = weights::load(&folder.0).unwrap_err();
    assert!(matches!(&error, Error::Io { path, .. } if path.ends_with("config.json")), "{error}");
    weights::save(&folder.0, &config(), &fresh(1)).unwrap();
    let bytes = std::fs::read(folder.file()).unwrap();
    std::fs::write(folder.file(), &bytes[..bytes.len() / 2]).unwrap();
    let error = weights::load(&folder.0).unwrap_err();
    assert!(matches!(error, Error::Store(_)) && error.to_string().contains(weights::WEIGHTS_FILE), "{error}");
    std::fs::remove_file(folder.file()).unwrap();
    let error = weights::load(&folder.0).unwrap_err().to_string();
    assert!(error.contains(weights::WEIGHTS_FILE), "{error}");
}

#[test]
fn weights_of_another_float_type_are_converted() {
    let wide = |t: &Tensor| Tensor::new(t.shape(), Data::F64(t.to_f64())).unwrap();
    let tensors = fresh(1).iter().map(|(n, t)| (n.clone(), wide(&t.channels_second()))).collect();
    let params = config().resolve().unwrap().parameters().unwrap();
    assert_eq!(weights::from_torch(tensors, &params).unwrap(), fresh(1));
}

#[test]
fn fresh_weights_are_pytorchs_law_for_each_layer() {
    let params = config().resolve().unwrap().parameters().unwrap();
    let init = |name: &str| params.iter().find(|p| p.name == name).unwrap().init;
    assert_eq!(init("conv_in.weight"), Init::fan_in(18));
    assert_eq!(init("conv_in.bias"), Init::fan_in(18));
    assert_eq!(init("time_embedding.linear_1.bias"), Init::fan_in(8));
    assert_eq!(init("conv_norm_out.weight"), Init::Constant(1.0));
    assert_eq!(init("conv_norm_out.bias"), Init::Constant(0.0));
    assert!(params.iter().all(|p| p.trainable));
}

/// The network's output on a fixed image, with dropout under a key or without.
fn output(config: &UNet2DConfig, key: Option<Key>) -> Vec<f64> {
    let mut b = Builder::new();
    let (x, t) = (b.input("x", Type::f32([1, 4, 4, 2])), b.input("t", Type::f32([1])));
    let dropout_key = key.map(|_| b.input("key", Type::i32([4])));
    let y = config.resolve().unwrap().build(&mut b, x, t, Extras { class: None, dropout_key });
    b.output("y", y);
    let mut values: BTreeMap<String, Array> =
        fresh(1).iter().map(|(n, w)| (n.clone(), Array::from_tensor(w))).collect();
    values.insert("x".into(), Array::from_fn([1, 4, 4, 2], |i| (i[1] * 3 + i[2]) as f64 / 9.0 - i[3] as f64));
    values.insert("t".into(), Array::new([1], vec![20.0]));
    if let Some(key) = key {
        values.insert("key".into(), Array::new([4], key.words().map(f64::from).to_vec()));
    }
    run(&b.finish().unwrap(), &mut values, Precision::Stored).unwrap().remove("y").unwrap().data
}

#[test]
fn dropout_needs_a_key_and_follows_it() {
    let dropping = UNet2DConfig { dropout: 0.2, ..config() };
    let key = |step| Some(Key { seed: 5, step, stream: 0 });
    assert_eq!(output(&dropping, None), output(&config(), None), "inference drops nothing");
    assert_eq!(output(&config(), key(0)), output(&config(), None), "a rate of 0 drops nothing");
    assert_ne!(output(&dropping, key(0)), output(&dropping, None));
    assert_ne!(output(&dropping, key(0)), output(&dropping, key(1)));
    assert_eq!(output(&dropping, key(1)), output(&dropping, key(1)));
}

#[test]
fn nodes_belong_to_their_layers() {
    let mut b = Builder::new();
    let (x, t) = (b.input("x", Type::f32([1, 4, 4, 2])), b.input("t", Type::f32([1])));
    config().build(&mut b, x, t);
    let graph = b.finish().unwrap();
    let places: Vec<&str> = graph.nodes.iter().map(|n| &*n.scope).collect();
    for place in ["conv_in", "down_blocks.1.attentions.0.to_q", "mid_block.resnets.1.conv2", "up_blocks.0"] {
        assert!(places.contains(&place), "{place}");
    }
}

/// A folder as diffusers wrote it before safetensors, and what its network says there.
#[test]
fn a_checkpoint_of_pytorch_gives_its_authors_output() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../refs/unet2d/diffusers_bin");
    assert!(
        folder.join("diffusion_pytorch_model.bin").exists() && !folder.join(weights::WEIGHTS_FILE).exists()
    );
    let (network, held) = weights::load(&folder).unwrap();
    let truth = Store::read(&folder.join("output.safetensors")).unwrap().tensors;
    let mut b = Builder::new();
    let (x, t) = (b.input("x", Type::f32([2, 8, 8, 1])), b.input("t", Type::f32([2])));
    let y = network.build(&mut b, x, t);
    b.output("y", y);
    let mut values: BTreeMap<String, Array> =
        held.iter().map(|(n, w)| (n.clone(), Array::from_tensor(w))).collect();
    for name in ["x", "t"] {
        values.insert(name.into(), Array::from_tensor(&truth[name].channels_last()));
    }
    let got = run(&b.finish().unwrap(), &mut values, Precision::Stored).unwrap().remove("y").unwrap().data;
    let expected = truth["y"].channels_last().to_f64();
    let norm = expected.iter().map(|v| v * v).sum::<f64>().sqrt();
    let off = got.iter().zip(&expected).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
    assert!(off < 1e-5 * norm, "{}", off / norm);
}
