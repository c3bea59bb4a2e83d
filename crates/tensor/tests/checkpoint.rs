//! PyTorch checkpoints: equal to what PyTorch reads from them, and refused by name if they contain anything else.
//!
//! The files in `checkpoint/` were written by torch.save; `refs/make_checkpoints.py` makes them. Malicious ones are made
//! here, byte by byte.

mod archive;

use archive::archive;
use clearshot_tensor::store::{Store, StoreError};
use clearshot_tensor::{DType, Shape};
use std::path::{Path, PathBuf};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoint").join(name)
}

fn read(name: &str) -> Store {
    Store::read(&file(name)).unwrap_or_else(|e| panic!("{e}"))
}

fn parse(bytes: &[u8]) -> Result<Store, StoreError> {
    Store::parse(bytes, Path::new("x.pt"))
}

fn refusal(bytes: &[u8]) -> String {
    parse(bytes).expect_err("must be refused").to_string()
}

#[test]
fn every_type_and_stride_is_read_as_pytorch_reads_it() {
    let truth = read("values.safetensors").tensors;
    assert_eq!(truth.len(), 19);
    for name in ["plain.pt", "protocol3.pt", "protocol4.pt", "protocol5.pt"] {
        assert_eq!(read(name).tensors, truth, "{name}");
    }
    assert_eq!(truth["bf16"].dtype(), DType::BF16);
    assert_eq!(truth["scalar"].shape(), Shape::SCALAR);
    assert_eq!(truth["transposed"].shape(), Shape::from([7, 6]));
}

#[test]
fn weights_are_found_in_checkpoints_of_training_programs() {
    let truth = read("layer.safetensors").tensors;
    for name in ["layer.pt", "training.pth", "wrapped.pth"] {
        assert_eq!(read(name).tensors, truth, "{name}");
    }
    let averaged = read("averaged.pth").tensors;
    assert_eq!(averaged.keys().collect::<Vec<_>>(), truth.keys().collect::<Vec<_>>());
    for (name, tensor) in averaged {
        let off = tensor.to_f64().into_iter().zip(truth[&name].to_f64());
        assert!(off.into_iter().all(|(a, b)| (a - b - 1.0).abs() < 1e-6), "{name}: the averages come first");
    }
}

#[test]
fn other_pickles_are_refused_by_name() {
    for (name, says) in [
        ("attack.pt", "eval`"),
        ("whole_module.pt", "`torch.nn.modules.container.Sequential`"),
        ("list.pt", "no dictionary"),
        ("legacy.pt", "torch.save(torch.load(OLD"),
        ("two_networks.pth", "`generator`, `critic`"),
    ] {
        let error = Store::read(&file(name)).unwrap_err();
        assert!(matches!(error, StoreError::Checkpoint { .. }), "{name}: {error}");
        let text = error.to_string();
        assert!(text.contains(says) && text.contains(name), "{name}: {text}");
    }
}

/// Every byte of a value is under a checksum: no value ever changes unseen.
#[test]
fn damaged_files_are_refused_or_read_as_they_were() {
    let whole = std::fs::read(file("training.pth")).unwrap();
    let truth = read("training.pth").tensors;
    for length in 0..whole.len() {
        // The last two bytes are the length of a comment, and there is none.
        assert!(parse(&whole[..length]).is_err() || length + 2 >= whole.len(), "{length} bytes");
    }
    let mut refused = 0;
    for at in 0..whole.len() {
        for bit in [0, 3, 7] {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            match parse(&bytes) {
                Ok(store) => assert_eq!(store.tensors, truth, "bit {bit} of byte {at}"),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > whole.len(), "{refused} of {} flips were refused", 3 * whole.len());
}

fn pickled(pickle: &[u8]) -> Vec<u8> {
    archive(&[("x/data.pkl", pickle), ("x/data/0", &[0; 16])])
}

fn text(t: &str) -> Vec<u8> {
    [b"X".as_slice(), &(t.len() as u32).to_le_bytes(), t.as_bytes()].concat()
}

fn int(n: i64) -> Vec<u8> {
    [&[0x8a, 8], n.to_le_bytes().as_slice()].concat()
}

/// The call that makes a tensor: a storage of so many floats, looked at from `offset` by sizes and steps.
fn tensor(length: i64, offset: i64, sizes: &[i64], steps: &[i64]) -> Vec<u8> {
    let tuple =
        |all: &[i64]| [b"(".to_vec(), all.iter().flat_map(|&n| int(n)).collect(), b"t".to_vec()].concat();
    let kind = b"ctorch\nFloatStorage\n".to_vec();
    let id = [b"(".to_vec(), text("storage"), kind, text("0"), text("cpu"), int(length)];
    let storage = [id.concat(), b"tQ".to_vec()].concat();
    let arguments = [storage, int(offset), tuple(sizes), tuple(steps), b"\x89}".to_vec()].concat();
    [b"ctorch._utils\n_rebuild_tensor_v2\n(".to_vec(), arguments, b"tR".to_vec()].concat()
}

/// A dictionary of this tensor alone.
fn holding(name: &str, tensor: &[u8]) -> Vec<u8> {
    [b"}q\x00".to_vec(), text(name), tensor.to_vec(), b"s".to_vec()].concat()
}

#[test]
fn tensors_that_reach_beyond_their_storage_are_refused() {
    let of = |tensor: Vec<u8>| pickled(&[holding("w", &tensor), b".".to_vec()].concat());
    let fine = parse(&of(tensor(4, 0, &[2, 2], &[1, 2]))).unwrap();
    assert_eq!(fine.tensors["w"].shape(), Shape::from([2, 2]));
    let fine = parse(&of(tensor(4, 4, &[0, 9], &[9, 1]))).unwrap();
    assert_eq!(fine.tensors["w"].shape(), Shape::from([0, 9]), "nothing is read of an empty one");
    let fine = parse(&of(tensor(4, 0, &[0, 1 << 40, 1 << 40], &[1, 1, 1]))).unwrap();
    assert!(fine.tensors["w"].shape().is_empty(), "sizes whose product is too large, beside none");
    for (bad, says) in [
        (tensor(4, 1, &[4], &[1]), "beyond its storage"),
        (tensor(4, 0, &[2], &[4]), "beyond its storage"),
        (tensor(4, 0, &[2, 2], &[i64::MAX, 1]), "beyond its storage"),
        (tensor(5, 0, &[4], &[1]), "should have 5 elements and has 16 bytes"),
        (tensor(i64::MAX, 0, &[4], &[1]), "should have"),
        (tensor(4, 0, &[1 << 40], &[0]), "larger than the file"),
        (tensor(4, 0, &[1 << 32, 1 << 32], &[0, 0]), "too many elements"),
        (tensor(4, 0, &[2, 2], &[1]), "2 sizes and 1 steps"),
        (tensor(4, 0, &[1; 7], &[1; 7]), "7 axes"),
        (tensor(4, -1, &[2], &[1]), "at -1"),
        (tensor(4, 0, &[-2], &[1]), "of -2"),
        (tensor(4, 0, &[2], &[-1]), "of -1"),
        (tensor(-4, 0, &[2], &[1]), "of -4"),
    ] {
        let said = refusal(&of(bad));
        assert!(said.contains(says), "{says}: {said}");
    }
}

#[test]
fn pickles_that_want_more_than_tensors_are_refused() {
    let call =
        |name: &str| [b"\x80\x02c".as_slice(), name.as_bytes(), b"\n(", &text("true"), b"tR."].concat();
    for name in
        ["os\nsystem", "builtins\nexec", "torch\nload", "torch._utils\n_rebuild_tensor", "numpy\nload"]
    {
        let said = refusal(&pickled(&call(name)));
        let dotted = format!("`{}`", name.replace('\n', "."));
        assert!(said.contains(&dotted) && said.contains("nothing in a file is run"), "{said}");
    }
    let stack_global = [text("posix"), text("system"), b"\x93.".to_vec()].concat();
    assert!(refusal(&pickled(&stack_global)).contains("`posix.system`"));
    for (pickle, says) in [
        (b"".to_vec(), "ends early"),
        (b"\x80\x02}".to_vec(), "ends early"),
        (b".".to_vec(), "stack"),
        (b"(0.".to_vec(), "stack"),
        (b"K\x01(0.".to_vec(), "stack"),
        (b"t.".to_vec(), "stack"),
        (b"\x87.".to_vec(), "stack"),
        (b"h\x07.".to_vec(), "never kept"),
        (b"K\x01K\x02a.".to_vec(), "holds none"),
        (b"}(K\x01u.".to_vec(), "key without"),
        (b"ctorch\nSize\nK\x01R.".to_vec(), "tuple"),
        (b"K\x01)R.".to_vec(), "no name"),
        (b"ccollections\nOrderedDict\n(K\x01tR.".to_vec(), "OrderedDict"),
        (b"K\x01Q.".to_vec(), "tuple"),
        (b")Q.".to_vec(), "no storage"),
        (b"I01\n.".to_vec(), "0x49"),
        (b"i__main__\nX\n.".to_vec(), "0x69"),
        ([b"\x8e".as_slice(), &[0xff; 8]].concat(), "ends early"),
        ([b"\x8a\x09".as_slice(), &[1; 9], b"."].concat(), "9 bytes"),
        (b"X\x02\x00\x00\x00\xff\xfe.".to_vec(), "text that is none"),
    ] {
        let said = refusal(&pickled(&pickle));
        assert!(said.contains(says), "{pickle:?}: {said}");
    }
}

/// Dictionaries that hold each other, or themselves, or the same one over and over.
#[test]
fn tangled_dictionaries_are_refused_in_time() {
    let whole = tensor(4, 0, &[4], &[1]);
    let own = [b"}q\x00".to_vec(), text("model"), b"h\x00s.".to_vec()].concat();
    assert!(refusal(&pickled(&own)).contains("deep"));
    let cycle = [holding("w", &whole), text("sub"), b"h\x00s.".to_vec()].concat();
    assert!(refusal(&pickled(&cycle)).contains("deep"));
    // Each level holds the one below sixteen times.
    let mut laughs = [holding("w", &whole), b"0".to_vec()].concat();
    for level in 1..8u8 {
        laughs.extend([b'}', b'q', level]);
        for i in 0..16 {
            laughs.extend([text(&format!("k{i}")), vec![b'h', level - 1, b's']].concat());
        }
        laughs.extend([text("w"), whole.clone(), b"s0".to_vec()].concat());
    }
    laughs.extend(b"h\x07.");
    assert!(refusal(&pickled(&laughs)).contains("entries"));
    let deep = [b")".to_vec(), vec![0x85; 500_000], b".".to_vec()].concat();
    assert!(refusal(&pickled(&deep)).contains("no dictionary"));
    let long = [holding(&"w".repeat(4000), &whole), b".".to_vec()].concat();
    assert!(refusal(&pickled(&long)).contains("4000 bytes"));
    // One long tuple as the sizes and steps of many tensors.
    let ones = [b"(".to_vec(), b"K\x01".repeat(100_000), b"tq\x01".to_vec()].concat();
    let storage = [b"(".to_vec(), text("storage"), b"ctorch\nFloatStorage\n".to_vec()];
    let storage = [storage.concat(), text("0"), text("cpu"), int(4), b"tQq\x02".to_vec()].concat();
    let call = b"ctorch._utils\n_rebuild_tensor_v2\n(h\x02K\x00h\x01h\x01\x89}tR".repeat(100_000);
    assert!(refusal(&pickled(&[ones, storage, call].concat())).contains("100000 axes"));
    // A small storage looked at by many tensors.
    let mut many = b"}(".to_vec();
    for i in 0..20_000 {
        many.extend([text(&format!("w{i}")), tensor(4, 0, &[4000], &[0])].concat());
    }
    many.extend(b"u.");
    assert!(refusal(&pickled(&many)).contains("larger than the file"));
}

#[test]
fn damaged_archives_are_refused() {
    let pickle = b"}.".as_slice();
    assert!(parse(&archive(&[("x/data.pkl", pickle)])).unwrap().tensors.is_empty());
    for (members, says) in [
        (vec![("x/other", pickle)], "data.pkl"),
        (vec![("x/data.pkl", pickle), ("y/data.pkl", pickle)], "several"),
        (vec![("x/data.pkl", pickle), ("x/data.pkl", pickle)], "two members"),
        (vec![("x/data.pkl", pickle), ("x/byteorder", b"big".as_slice())], "big-endian"),
    ] {
        let said = refusal(&archive(&members));
        assert!(said.contains(says), "{said}");
    }
    let lonely = [holding("w", &tensor(4, 0, &[4], &[1])), b".".to_vec()].concat();
    assert!(refusal(&archive(&[("x/data.pkl", &lonely)])).contains("x/data/0"));
    let good = archive(&[("x/data.pkl", pickle)]);
    let changed = |at: usize, value: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        refusal(&bytes)
    };
    let directory = good.len() - 22 - 46 - "x/data.pkl".len();
    assert!(changed(directory + 10, &[8]).contains("compressed"));
    assert!(changed(directory + 8, &[1]).contains("encrypted"));
    assert!(changed(directory + 20, &[0xfe; 8]).contains("speaks of"));
    assert!(changed(directory + 42, &[9]).contains("not where"));
    assert!(changed(good.len() - 10, &[0xff; 4]).contains("speaks of"));
    assert!(changed(good.len() - 6, &[0xff; 4]).contains("speaks of"));
}
