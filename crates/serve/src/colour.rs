//! Colour maps: what the interface's pictures are coloured by, and what the page asks for. Viridis and the diverging map are told
//! apart by people of every kind of colour vision.

use serde_json::{Value, json};

type Rgb = [u8; 3];

/// Evenly spaced points of a map; between them it is linear.
pub struct Map {
    pub name: &'static str,
    points: &'static [Rgb],
}

pub const MAPS: &[Map] = &[
    Map { name: "gray", points: &[[0, 0, 0], [255, 255, 255]] },
    // matplotlib's viridis at 17 points.
    Map {
        name: "viridis",
        points: &[
            [68, 1, 84],
            [72, 21, 103],
            [72, 40, 120],
            [67, 57, 131],
            [62, 74, 137],
            [55, 90, 140],
            [49, 104, 142],
            [43, 118, 142],
            [38, 130, 142],
            [33, 145, 140],
            [31, 158, 137],
            [41, 175, 127],
            [74, 193, 109],
            [116, 208, 85],
            [160, 218, 57],
            [208, 225, 28],
            [253, 231, 37],
        ],
    },
    // Blue over white to orange, for differences.
    Map {
        name: "difference",
        points: &[[5, 48, 97], [67, 147, 195], [247, 247, 247], [224, 130, 20], [127, 59, 8]],
    },
];

impl Map {
    pub fn named(name: &str) -> Option<&'static Map> {
        MAPS.iter().find(|m| m.name == name)
    }

    /// The colour of a share in [0, 1].
    pub fn colour(&self, share: f32) -> Rgb {
        let at = share.clamp(0.0, 1.0) * (self.points.len() - 1) as f32;
        let first = (at as usize).min(self.points.len() - 2);
        let part = at - first as f32;
        let (a, b) = (self.points[first], self.points[first + 1]);
        std::array::from_fn(|i| (f32::from(a[i]) * (1.0 - part) + f32::from(b[i]) * part).round() as u8)
    }
}

/// Every map as 256 colours.
pub fn all() -> Value {
    let table = |map: &Map| -> Vec<Rgb> { (0..256).map(|i| map.colour(i as f32 / 255.0)).collect() };
    MAPS.iter().map(|map| (map.name.to_string(), json!(table(map)))).collect::<serde_json::Map<_, _>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_begin_and_end_where_they_should() {
        let gray = Map::named("gray").expect("a map");
        assert_eq!((gray.colour(0.0), gray.colour(1.0), gray.colour(0.5)), ([0; 3], [255; 3], [128; 3]));
        let viridis = Map::named("viridis").expect("a map");
        assert_eq!((viridis.colour(-1.0), viridis.colour(2.0)), ([68, 1, 84], [253, 231, 37]));
    }

    #[test]
    fn viridis_grows_brighter_all_the_way() {
        let viridis = Map::named("viridis").expect("a map");
        let light = |i: usize| {
            let [r, g, b] = viridis.colour(i as f32 / 255.0).map(f32::from);
            0.2126 * r + 0.7152 * g + 0.0722 * b
        };
        assert!((1..256).all(|i| light(i) + 0.75 > light(i - 1)), "brightness falls");
    }
}
