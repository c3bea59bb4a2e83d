//! `clearshot info` and `clearshot convert` as a user types them.

mod program;

use program::{clearshot, folder, must, refused};
use std::path::Path;

fn words(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A unit of FITS: its first cards, the axes from the fastest on, and bytes as pixels.
fn unit(first: &str, axes: &[usize], pixels: &[u8]) -> Vec<u8> {
    let mut cards = vec![first.to_string(), "BITPIX  = 8".into(), format!("NAXIS   = {}", axes.len())];
    cards.extend(axes.iter().enumerate().map(|(i, n)| format!("NAXIS{:<3}= {n}", i + 1)));
    if first.starts_with("XTENSION") {
        cards.extend(["PCOUNT  = 0", "GCOUNT  = 1", "EXTNAME = 'DEEP'"].map(String::from));
    }
    cards.push("END".into());
    let mut out: Vec<u8> = cards.iter().flat_map(|c| format!("{c:<80}").into_bytes()).collect();
    out.resize(out.len().next_multiple_of(2880), b' ');
    out.extend(pixels);
    out.resize(out.len().next_multiple_of(2880), 0);
    out
}

/// A plane of 2 x 3, and behind it a volume of 2 x 2 x 2.
fn two_images(path: &Path) {
    let plane = unit("SIMPLE  = T", &[3, 2], &[1, 2, 3, 4, 5, 6]);
    let volume = unit("XTENSION= 'IMAGE   '", &[2, 2, 2], &[10, 20, 30, 40, 50, 60, 70, 80]);
    std::fs::write(path, [plane, volume].concat()).unwrap();
}

#[test]
fn one_image_of_several_is_converted_and_only_its_own_losses_are_reported() {
    let at = folder("convert-items");
    two_images(&at.join("two.fits"));
    // In the same format the others come along, and the first of them is not what was asked for.
    let done = clearshot("convert --json --item DEEP two.fits copy.fits", &at);
    assert!(done.status.success(), "{}", words(&done.stderr));
    assert_eq!(words(&done.stderr), "");
    let record: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(record["not_kept"], serde_json::json!([]));
    for (item, shape, mean) in [("0", "[2,3]", 3.5), ("1", "[2,2,2]", 45.0)] {
        let said = must(&format!("info --json --item {item} copy.fits"), &at);
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(said["shape"].to_string(), shape, "{said}");
        assert_eq!(said["statistics"]["mean"], mean, "{said}");
    }
    // In another format there is that one alone.
    must("convert --item DEEP two.fits deep.npy", &at);
    let said: serde_json::Value = serde_json::from_str(&must("info --json deep.npy", &at)).unwrap();
    assert_eq!(said["statistics"]["max"], 80.0, "{said}");
    let said = refused("convert --item WIDE two.fits x.npy", &at);
    assert!(said.contains("WIDE") && said.contains("DEEP"), "{said}");
}

#[test]
fn existing_files_are_kept_by_default_and_mistakes_are_named() {
    let at = folder("convert-mistakes");
    two_images(&at.join("a.fits"));
    must("convert a.fits b.npy", &at);
    let before = std::fs::read(at.join("b.npy")).unwrap();
    two_images(&at.join("a.fits"));
    let said = refused("convert a.fits b.npy", &at);
    assert!(said.contains("b.npy") && said.contains("--force"), "{said}");
    assert_eq!(std::fs::read(at.join("b.npy")).unwrap(), before);
    must("convert --force --axes XY a.fits b.npy", &at);
    for (line, word) in [
        ("convert --axes YXQ a.fits c.npy", "YXQ"),
        ("convert --axes YY a.fits c.npy", "YY"),
        ("convert nothing.fits c.npy", "nothing.fits"),
        ("info nothing.fits", "nothing.fits"),
    ] {
        let said = refused(line, &at);
        assert!(said.contains(word), "{line}: {said}");
        assert!(!at.join("c.npy").exists(), "{line}");
    }
}
