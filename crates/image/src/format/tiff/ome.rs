//! OME-XML: axes, sizes, channels and planes of an image, and the edits for writing. Edits are made in the text itself, so
//! everything else in it is unchanged.

use crate::error::{Fault, Parsed, damaged};
use crate::image::{Axis, Channel, Description, Dim};
use roxmltree::{Document, Node};

/// A plane's place: a directory of this file, or of another one of the set.
#[derive(Clone, Debug, PartialEq)]
pub struct PlaneAt {
    pub file: Option<String>,
    pub ifd: usize,
}

#[derive(Clone, Debug)]
pub struct OmeImage {
    pub name: String,
    /// T, C and Z (those longer than one) in the order in which the planes vary, slowest first.
    pub lead: Vec<Dim>,
    pub width: usize,
    pub height: usize,
    pub x: (Option<f64>, String),
    pub y: (Option<f64>, String),
    pub channels: Vec<Channel>,
    /// One a plane, in the order of `lead`.
    pub planes: Vec<Option<PlaneAt>>,
    pub tags: Vec<(String, String)>,
}

fn parse_document(xml: &str) -> Parsed<Document<'_>> {
    let options = roxmltree::ParsingOptions { nodes_limit: 4_000_000, ..Default::default() };
    Document::parse_with_options(xml, options).map_err(|e| Fault::Damaged(format!("OME-XML: {e}")))
}

pub fn is_ome(description: &str) -> bool {
    let head: String = description.chars().take(2000).collect();
    head.contains("<OME") || head.contains(":OME ")
}

/// The companion file that holds the metadata, where the text only points to it.
pub fn companion(xml: &str) -> Option<String> {
    let doc = parse_document(xml).ok()?;
    let node = children(doc.root_element(), "BinaryOnly").next()?;
    node.attribute("MetadataFile").map(str::to_string)
}

fn children<'a>(node: Node<'a, 'a>, name: &'static str) -> impl Iterator<Item = Node<'a, 'a>> {
    node.children().filter(move |n| n.is_element() && n.tag_name().name() == name)
}

fn number(node: Node, name: &str) -> Option<usize> {
    node.attribute(name)?.trim().parse().ok()
}

fn real(node: Node, name: &str) -> Option<f64> {
    node.attribute(name)?.trim().parse().ok().filter(|v: &f64| v.is_finite() && *v > 0.0)
}

/// The images of the text; planes without a file name, or of the file `own`, are in this file.
pub fn parse(xml: &str, directories: usize) -> Parsed<Vec<OmeImage>> {
    let doc = parse_document(xml)?;
    let root = doc.root_element();
    let own = root.attribute("UUID");
    let mut images = Vec::new();
    let mut used = 0;
    for image in children(root, "Image") {
        let Some(pixels) = children(image, "Pixels").next() else { continue };
        let parsed = parse_pixels(image, pixels, own, directories, used)?;
        used += parsed.planes.len();
        images.push(parsed);
    }
    Ok(images)
}

fn parse_pixels(
    image: Node,
    pixels: Node,
    own: Option<&str>,
    directories: usize,
    used: usize,
) -> Parsed<OmeImage> {
    let size = |name: &str| match number(pixels, name) {
        Some(n) if n > 0 && n < 1 << 31 => Ok(n),
        _ => damaged(format!("OME-XML: no {name}")),
    };
    let (width, height) = (size("SizeX")?, size("SizeY")?);
    let (z, c, t) = (size("SizeZ")?, size("SizeC")?, size("SizeT")?);
    let channel_nodes: Vec<Node> = children(pixels, "Channel").collect();
    let samples = channel_nodes.first().and_then(|n| number(*n, "SamplesPerPixel")).unwrap_or(1).max(1);
    let samples = if c % samples == 0 { samples } else { 1 };
    let planes_c = c / samples;
    let order = pixels.attribute("DimensionOrder").unwrap_or("XYCZT");
    let unit = |name: &str, default: &str| pixels.attribute(name).unwrap_or(default).to_string();
    let fastest_first: Vec<Axis> =
        order.chars().filter_map(Axis::from_letter).filter(|a| !matches!(a, Axis::X | Axis::Y)).collect();
    let mut sorted = fastest_first.clone();
    sorted.sort_by_key(|a| a.letter());
    if sorted != [Axis::C, Axis::T, Axis::Z] {
        return damaged(format!("OME-XML: dimension order {order}"));
    }
    let all: Vec<Dim> = fastest_first
        .iter()
        .rev()
        .map(|&axis| match axis {
            Axis::Z => Dim::stepped(axis, z, real(pixels, "PhysicalSizeZ"), &unit("PhysicalSizeZUnit", "µm")),
            Axis::T => Dim::stepped(axis, t, real(pixels, "TimeIncrement"), &unit("TimeIncrementUnit", "s")),
            _ => Dim::new(axis, planes_c),
        })
        .collect();
    let total = z.checked_mul(planes_c).and_then(|n| n.checked_mul(t)).filter(|&n| n <= 1 << 24);
    let Some(total) = total else { return damaged(format!("OME-XML: {z} x {c} x {t} planes")) };
    let lens: Vec<usize> = all.iter().map(|d| d.len).collect();
    let planes = locate_planes(pixels, &all, &lens, total, own, directories, used);
    let channels = channel_nodes
        .iter()
        .map(|n| Channel {
            name: n.attribute("Name").map(str::to_string),
            color: n.attribute("Color").and_then(|c| c.trim().parse::<i64>().ok()).map(|c| {
                let [r, g, b, _] = (c as u32).to_be_bytes();
                [r, g, b]
            }),
            emission_nm: real(*n, "EmissionWavelength"),
        })
        .collect();
    let mut tags = Vec::new();
    for name in ["PhysicalSizeZ", "TimeIncrement", "Type", "DimensionOrder", "SignificantBits"] {
        if let Some(value) = pixels.attribute(name) {
            tags.push((name.to_string(), value.to_string()));
        }
    }
    if let Some(date) = children(image, "AcquisitionDate").next().and_then(|n| n.text()) {
        tags.push(("AcquisitionDate".to_string(), date.trim().to_string()));
    }
    Ok(OmeImage {
        name: image.attribute("Name").or(image.attribute("ID")).unwrap_or("").to_string(),
        lead: all.into_iter().filter(|d| d.len > 1).collect(),
        width,
        height,
        x: (real(pixels, "PhysicalSizeX"), unit("PhysicalSizeXUnit", "µm")),
        y: (real(pixels, "PhysicalSizeY"), unit("PhysicalSizeYUnit", "µm")),
        channels,
        planes,
        tags,
    })
}

/// Which directory each plane is in, from the TiffData elements and their defaults.
fn locate_planes(
    pixels: Node,
    all: &[Dim],
    lens: &[usize],
    total: usize,
    own: Option<&str>,
    directories: usize,
    used: usize,
) -> Vec<Option<PlaneAt>> {
    let mut planes = vec![None; total];
    let mut any = false;
    for data in children(pixels, "TiffData") {
        any = true;
        let uuid = children(data, "UUID").next();
        let file = uuid
            .filter(|u| own.is_none() || u.text().map(str::trim) != own)
            .and_then(|u| u.attribute("FileName"))
            .map(str::to_string);
        let ifd = number(data, "IFD");
        let count = number(data, "PlaneCount").or(number(data, "NumPlanes"));
        let count = count.unwrap_or(if ifd.is_some() { 1 } else { directories });
        let first: usize = all.iter().zip(lens).fold(0, |n, (dim, &len)| {
            let name = format!("First{}", dim.axis.letter());
            n.saturating_mul(len).saturating_add(number(data, &name).unwrap_or(0))
        });
        for k in 0..count.min(total) {
            if let Some(plane) = planes.get_mut(first.saturating_add(k)) {
                *plane = Some(PlaneAt { file: file.clone(), ifd: ifd.unwrap_or(0).saturating_add(k) });
            }
        }
    }
    if !any {
        for (k, plane) in planes.iter_mut().enumerate() {
            *plane = Some(PlaneAt { file: None, ifd: used + k });
        }
    }
    planes
}

pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if (c as u32) < 32 && !matches!(c, '\t' | '\n' | '\r') => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

/// A fresh identifier.
pub fn new_uuid() -> String {
    use std::hash::{BuildHasher, Hasher};
    let half = || std::collections::hash_map::RandomState::new().build_hasher().finish();
    let (a, b) = (half(), half());
    format!(
        "urn:uuid:{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        a >> 32,
        a >> 16 & 0xFFFF,
        a & 0xFFF,
        (b >> 48 & 0x3FFF) | 0x8000,
        b & 0xFFFF_FFFF_FFFF
    )
}

/// The text for a file of another name: a new identifier, planes pointed at this file, provenance added.
/// `relocated` lists each image's planes by directory where they have moved.
pub fn edit(
    xml: &str,
    file_name: &str,
    provenance: Option<&str>,
    relocated: Option<(usize, &[usize])>,
) -> Parsed<String> {
    let doc = parse_document(xml)?;
    let root = doc.root_element();
    let uuid = new_uuid();
    let own = root.attribute("UUID");
    let mut edits: Vec<(std::ops::Range<usize>, String)> = Vec::new();
    if let Some(attribute) = root.attributes().find(|a| a.name() == "UUID") {
        edits.push((attribute.range_value(), uuid.clone()));
    }
    for (number, image) in children(root, "Image").enumerate() {
        let Some(pixels) = children(image, "Pixels").next() else { continue };
        match relocated {
            Some((which, directories)) if which == number => {
                edits.extend(relocate(xml, pixels, directories)?);
            }
            _ => {
                let uuids = pixels.descendants().filter(|n| n.tag_name().name() == "UUID");
                for node in uuids.filter(|u| own.is_some() && u.text().map(str::trim) == own) {
                    if let Some(name) = node.attributes().find(|a| a.name() == "FileName") {
                        edits.push((name.range_value(), escape(file_name)));
                    }
                    if let Some(text) = node.first_child() {
                        edits.push((text.range(), uuid.clone()));
                    }
                }
            }
        }
    }
    let modern = ["2013-06", "2015-01", "2016-06"];
    let schema = root.tag_name().namespace().unwrap_or("");
    if let Some(json) = provenance.filter(|_| modern.iter().any(|m| schema.contains(m))) {
        edits.extend(annotation(xml, root, json));
    }
    edits.sort_by_key(|(range, _)| std::cmp::Reverse(range.start));
    let mut out = xml.to_string();
    for (range, text) in edits {
        out.replace_range(range, &text);
    }
    Ok(out)
}

/// The prefix that elements of this document carry, with its colon.
fn prefix_of(xml: &str, node: Node) -> String {
    let tag = &xml[node.range().start + 1..];
    let name: String = tag.chars().take_while(|c| !c.is_whitespace() && !matches!(c, '>' | '/')).collect();
    name.rsplit_once(':').map_or(String::new(), |(p, _)| format!("{p}:"))
}

fn annotation(xml: &str, root: Node, json: &str) -> Option<(std::ops::Range<usize>, String)> {
    let prefix = prefix_of(xml, root);
    let taken = |id: &str| root.descendants().any(|n| n.attribute("ID") == Some(id));
    let id = (0..).map(|n| format!("Annotation:Clearshot:{n}")).find(|id| !taken(id))?;
    let body = format!(
        "<{prefix}CommentAnnotation ID=\"{id}\" Namespace=\"clearshot/provenance\"><{prefix}Value>{}</{prefix}Value></{prefix}CommentAnnotation>",
        escape(json)
    );
    let existing = root.children().find(|n| n.tag_name().name() == "StructuredAnnotations");
    if let Some(node) = existing.filter(|n| prefix_of(xml, *n) == prefix) {
        // Before the end tag, where there is one.
        let text = &xml[node.range()];
        let at = node.range().start + text.rfind("</").filter(|_| !text.ends_with("/>"))?;
        return Some((at..at, body));
    }
    if existing.is_some() {
        return None;
    }
    let last = root.children().rfind(|n| n.tag_name().name() == "Image")?;
    let at = last.range().end;
    Some((at..at, format!("<{prefix}StructuredAnnotations>{body}</{prefix}StructuredAnnotations>")))
}

/// Replaces the TiffData of one image by one element a plane.
fn relocate(xml: &str, pixels: Node, directories: &[usize]) -> Parsed<Vec<(std::ops::Range<usize>, String)>> {
    let prefix = prefix_of(xml, pixels);
    let order = pixels.attribute("DimensionOrder").unwrap_or("XYCZT");
    let samples =
        children(pixels, "Channel").next().and_then(|n| number(n, "SamplesPerPixel")).unwrap_or(1).max(1);
    let len = |axis: char| {
        let n = number(pixels, &format!("Size{axis}")).unwrap_or(1);
        if axis == 'C' { n / samples } else { n }
    };
    let mut list = String::new();
    for (plane, ifd) in directories.iter().enumerate() {
        let mut rest = plane;
        list.push_str(&format!("<{prefix}TiffData IFD=\"{ifd}\" PlaneCount=\"1\""));
        for axis in order.chars().filter(|c| matches!(c, 'Z' | 'C' | 'T')) {
            let n = len(axis).max(1);
            list.push_str(&format!(" First{axis}=\"{}\"", rest % n));
            rest /= n;
        }
        list.push_str("/>");
    }
    let old: Vec<Node> = children(pixels, "TiffData").collect();
    let Some(first) = old.first() else { return Ok(Vec::new()) };
    let mut edits = vec![(first.range(), list)];
    edits.extend(old[1..].iter().map(|n| (n.range(), String::new())));
    Ok(edits)
}

pub fn type_name(dtype: crate::DType) -> Option<&'static str> {
    use crate::DType::*;
    Some(match dtype {
        U8 => "uint8",
        I8 => "int8",
        U16 => "uint16",
        I16 => "int16",
        U32 => "uint32",
        I32 => "int32",
        F32 => "float",
        F64 => "double",
        _ => return None,
    })
}

/// Units of length that OME knows, by the names other formats use.
fn ome_unit(unit: &str) -> &str {
    match unit {
        "micrometer" | "micron" | "um" | "\u{b5}m" | "\u{3bc}m" | "\\u00B5m" => "µm",
        "nanometer" => "nm",
        "millimeter" => "mm",
        "centimeter" => "cm",
        "meter" => "m",
        "angstrom" => "Å",
        "second" | "sec" => "s",
        "millisecond" => "ms",
        "minute" => "min",
        "hour" => "h",
        other => other,
    }
}

/// OME-XML for an image that comes from another format.
pub fn compose(description: &Description, file_name: &str, provenance: Option<&str>) -> Parsed<String> {
    let Some(kind) = type_name(description.dtype) else {
        return crate::error::unsupported(format!("{} pixels", description.dtype));
    };
    let len = |axis| description.dim(axis).map_or(1, |d| d.len);
    let samples = len(Axis::S);
    let mut order: String = "XY".to_string();
    for d in description.dims.iter().rev().filter(|d| matches!(d.axis, Axis::T | Axis::C | Axis::Z)) {
        order.push(d.axis.letter());
    }
    for axis in ['C', 'Z', 'T'] {
        if !order.contains(axis) {
            order.push(axis);
        }
    }
    let mut sizes = String::new();
    for (axis, name) in [(Axis::X, "PhysicalSizeX"), (Axis::Y, "PhysicalSizeY"), (Axis::Z, "PhysicalSizeZ")] {
        if let Some(Dim { step: Some(step), unit, .. }) = description.dim(axis) {
            sizes.push_str(&format!(" {name}=\"{step}\""));
            if let Some(unit) = unit {
                sizes.push_str(&format!(" {name}Unit=\"{}\"", escape(ome_unit(unit))));
            }
        }
    }
    if let Some(Dim { step: Some(step), unit, .. }) = description.dim(Axis::T) {
        let unit = ome_unit(unit.as_deref().unwrap_or("s"));
        sizes.push_str(&format!(" TimeIncrement=\"{step}\" TimeIncrementUnit=\"{}\"", escape(unit)));
    }
    let mut channels = String::new();
    for i in 0..len(Axis::C) {
        let channel = description.channels.get(i).cloned().unwrap_or_default();
        channels.push_str(&format!("<Channel ID=\"Channel:0:{i}\" SamplesPerPixel=\"{samples}\""));
        if let Some(name) = &channel.name {
            channels.push_str(&format!(" Name=\"{}\"", escape(name)));
        }
        if let Some([r, g, b]) = channel.color {
            channels.push_str(&format!(" Color=\"{}\"", i32::from_be_bytes([r, g, b, 255])));
        }
        if let Some(nm) = channel.emission_nm {
            channels.push_str(&format!(" EmissionWavelength=\"{nm}\" EmissionWavelengthUnit=\"nm\""));
        }
        channels.push_str("/>");
    }
    let annotation = provenance.map_or(String::new(), |json| {
        format!(
            "<StructuredAnnotations><CommentAnnotation ID=\"Annotation:Clearshot:0\" Namespace=\"clearshot/provenance\"><Value>{}</Value></CommentAnnotation></StructuredAnnotations>",
            escape(json)
        )
    });
    Ok(format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><OME xmlns=\"http://www.openmicroscopy.org/Schemas/OME/2016-06\" \
         xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xsi:schemaLocation=\"http://www.openmicroscopy.org/Schemas/OME/2016-06 \
         http://www.openmicroscopy.org/Schemas/OME/2016-06/ome.xsd\" UUID=\"{}\" Creator=\"Clearshot {}\"><Image ID=\"Image:0\" Name=\"{}\">\
         <Pixels ID=\"Pixels:0\" DimensionOrder=\"{order}\" Type=\"{kind}\" SizeX=\"{}\" SizeY=\"{}\" SizeZ=\"{}\" SizeC=\"{}\" SizeT=\"{}\"{sizes}>\
         {channels}<TiffData IFD=\"0\" PlaneCount=\"{}\"/></Pixels></Image>{annotation}</OME>",
        new_uuid(),
        env!("CARGO_PKG_VERSION"),
        escape(file_name),
        len(Axis::X),
        len(Axis::Y),
        len(Axis::Z),
        len(Axis::C) * samples,
        len(Axis::T),
        len(Axis::Z) * len(Axis::C) * len(Axis::T),
    ))
}
