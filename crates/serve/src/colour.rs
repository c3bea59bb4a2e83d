//! Colour maps of the program's pictures and of the page. Viridis, the diverging map and the colours of channels are safe
//! for all kinds of colour vision.

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

/// Colours of two channels that are shown in one picture, and of more, in their order; a file's own are often red and green. On black
/// they add up.
pub const TWO_CHANNELS: &[Rgb] = &[[0, 255, 0], [255, 0, 255]];
pub const CHANNELS: &[Rgb] =
    &[[0, 255, 255], [255, 0, 255], [255, 255, 0], [204, 0, 0], [102, 102, 102], [153, 51, 153]];

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

    /// Linear RGB as people see it who have all cones, or lack those for long, middle or short waves (Machado, Oliveira and Fernandes
    /// 2009, severity 1).
    const VISION: [[[f64; 3]; 3]; 4] = [
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    ];

    fn times(m: &[[f64; 3]; 3], v: [f64; 3]) -> [f64; 3] {
        m.map(|row| row.iter().zip(v).map(|(a, b)| a * b).sum())
    }

    /// CIE L*a*b* of a colour as perceived.
    fn lab(colour: Rgb, vision: &[[f64; 3]; 3]) -> [f64; 3] {
        let linear = colour.map(|v| {
            let v = f64::from(v) / 255.0;
            if v <= 0.04045 { v / 12.92 } else { ((v + 0.055) / 1.055).powf(2.4) }
        });
        let xyz = [
            [0.4124564, 0.3575761, 0.1804375],
            [0.2126729, 0.7151522, 0.0721750],
            [0.0193339, 0.1191920, 0.9503041],
        ];
        let seen = times(&xyz, times(vision, linear).map(|v| v.clamp(0.0, 1.0)));
        let f = |v: f64| if v > 216.0 / 24389.0 { v.cbrt() } else { (24389.0 / 27.0 * v + 16.0) / 116.0 };
        let [x, y, z] = [f(seen[0] / 0.95047), f(seen[1]), f(seen[2] / 1.08883)];
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    /// The distance of the two nearest colours, for the kind of colour vision in which it is smallest.
    fn nearest(colours: &[Rgb]) -> f64 {
        let apart = |a: Rgb, b: Rgb, vision| -> f64 {
            let (a, b) = (lab(a, vision), lab(b, vision));
            (0..3).map(|i| (a[i] - b[i]).powi(2)).sum::<f64>().sqrt()
        };
        let pairs = (0..colours.len()).flat_map(|i| (0..i).map(move |j| (colours[i], colours[j])));
        pairs.flat_map(|(a, b)| VISION.iter().map(move |v| apart(a, b, v))).fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn channel_colours_are_safe_for_colour_blindness() {
        let red_and_green = nearest(&[[255, 0, 0], [0, 255, 0]]);
        assert!(red_and_green < 30.0, "{red_and_green}");
        let least = [nearest(TWO_CHANNELS), nearest(&CHANNELS[..5]), nearest(CHANNELS)];
        assert!(least[0] > 100.0 && least[1] > 40.0 && least[2] > 30.0, "{least:?}");
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
