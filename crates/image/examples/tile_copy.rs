//! An identity restore, for measuring time and memory on large files: cuts an image into overlapping tiles, stitches the
//! unchanged tiles and writes the result.

use clearshot_image::tiles::{Edge, TileSpec, Window, process};
use clearshot_image::{Axis, Image, Provenance, WriteOptions, Writer};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [input, output, tile, overlap] = &args[..] else {
        return Err("usage: tile_copy IN OUT TILE OVERLAP".into());
    };
    let (tile, overlap): (usize, usize) = (tile.parse()?, overlap.parse()?);
    let image = Image::open(input)?;
    let plane = |axis: Axis| matches!(axis, Axis::Y | Axis::X);
    let dims = &image.description.dims;
    let spec = TileSpec {
        tile: dims.iter().map(|d| if plane(d.axis) { tile } else { 1 }).collect(),
        overlap: dims.iter().map(|d| if plane(d.axis) { overlap } else { 0 }).collect(),
        edge: Edge::Shift,
        window: Window::Cosine,
    };
    let record = Provenance::new(
        "identity",
        &image.description,
        serde_json::json!({"tile": tile, "overlap": overlap}),
    );
    let options = WriteOptions { replace: true, provenance: Some(record.value()) };
    let mut writer = Writer::create(output, &image.description, &options)?;
    let report = process(&image, &mut writer, &spec, &mut |_, values| Ok(values))?;
    writer.finish()?;
    println!("{} tiles, {} values clipped", report.tiles, report.clipped);
    Ok(())
}
