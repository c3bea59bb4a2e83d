//! The walk that ARCHITECTURE.md describes is that of the code: every function that it names stands in the file that it names.

use std::path::Path;

#[test]
fn every_function_of_the_walk_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text =
        std::fs::read_to_string(root.join("ARCHITECTURE.md")).expect("the repository's ARCHITECTURE.md");
    let walk = text.split("## The walk of").nth(1).expect("the walk");
    let rows = walk.lines().skip_while(|l| !l.starts_with("|---")).skip(1).take_while(|l| l.starts_with('|'));
    let mut found = 0;
    for row in rows {
        let places = row.rsplit('|').nth(1).expect("a cell");
        for place in places.split(';') {
            let mut names = place.split('`').skip(1).step_by(2);
            let file = names.next().expect("a file");
            let code = std::fs::read_to_string(root.join("crates").join(file))
                .unwrap_or_else(|e| panic!("{file}: {e}"));
            for name in names {
                let starts = |end: &str| code.contains(&format!("fn {name}{end}"));
                assert!(starts("(") || starts("<"), "{file} has no function {name}");
                found += 1;
            }
        }
    }
    assert!(found > 30, "{found} functions");
}
