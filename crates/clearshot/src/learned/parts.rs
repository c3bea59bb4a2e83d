//! The planes or volumes of a file for a model: their list, reading them in bands with channels last, and writing
//! restored ones back to their positions.

use crate::error::{Error, Result};
use crate::validity::Validity;
use clearshot_image::grid::strides;
use clearshot_image::{Axis, Channel, DType, Description, Dim, Image, Rescale};
use clearshot_restore::learned::Source;
use clearshot_restore::stream::Sink;
use std::ops::Range;

fn unsuited<T>(why: String) -> Result<T> {
    Err(Error::Unsuited(why))
}

/// The division of an image of any axes into planes or volumes for a model.
pub struct Parts {
    /// Positions of (Z,) Y, X among the file's axes.
    space: Vec<usize>,
    /// The position of the channels that the model takes together.
    channel: Option<usize>,
    /// The size of a part in pixels along (Z,) Y and X.
    pub size: Vec<usize>,
    /// Channels of a part, which the model needs together.
    pub channels: usize,
    /// The indices along all other axes, with one entry per part.
    pub all: Vec<Vec<usize>>,
    /// Transparency, which is copied.
    pub copied: Vec<Vec<usize>>,
}

impl Parts {
    /// # Errors
    /// If the file has not the axes or channels that the model needs.
    pub(crate) fn of(d: &Description, dims: usize, channels: usize) -> Result<Parts> {
        let axes = d.axes();
        let found = |axis: Axis| d.position(axis);
        let mut space = Vec::new();
        if dims == 3 {
            let Some(z) = found(Axis::Z) else {
                return unsuited(format!(
                    "the model restores volumes, and this image has no Z axis (its axes are {axes}); use a model for planes"
                ));
            };
            space.push(z);
        }
        let (Some(y), Some(x)) = (found(Axis::Y), found(Axis::X)) else {
            return unsuited(format!(
                "this file has the axes {axes}, and it does not say which of them are Y and X (rows and columns); save it as a picture or stack with named axes, an OME-TIFF for example"
            ));
        };
        space.extend([y, x]);
        let sets = [Axis::C, Axis::S].into_iter().filter_map(found);
        let channel = match channels {
            1 => None,
            n => match sets.clone().find(|&a| d.dims[a].len == n) {
                Some(axis) => Some(axis),
                None => {
                    let has = sets.map(|a| d.dims[a].len).max().unwrap_or(1);
                    return unsuited(format!(
                        "the model restores images of {n} channels together, and this one has {has} (axes {axes}); choose another model, or bring the channels together in one file"
                    ));
                }
            },
        };
        let size: Vec<usize> = space.iter().map(|&a| d.dims[a].len).collect();
        let mut outer: Vec<usize> =
            (0..d.dims.len()).filter(|a| !space.contains(a) && channel != Some(*a)).collect();
        // The samples of a pixel follow one another.
        outer.sort_by_key(|&a| d.dims[a].axis == Axis::S);
        let count: usize = outer.iter().map(|&a| d.dims[a].len).product();
        if count == 0 || size.contains(&0) {
            return unsuited(format!("an image of shape {:?} has no pixels", d.shape()));
        }
        // A second or fourth sample of a pixel is its transparency.
        let alpha = outer.iter().position(|&a| d.dims[a].axis == Axis::S && matches!(d.dims[a].len, 2 | 4));
        let (mut all, mut copied) = (Vec::new(), Vec::new());
        for number in 0..count {
            let (mut rest, mut index) = (number, vec![0; d.dims.len()]);
            for &a in outer.iter().rev() {
                index[a] = rest % d.dims[a].len;
                rest /= d.dims[a].len;
            }
            match alpha.map(|o| outer[o]) {
                Some(a) if index[a] + 1 == d.dims[a].len => copied.push(index),
                _ => all.push(index),
            }
        }
        Ok(Parts { space, channel, size, channels, all, copied })
    }

    /// Changes a description to this number of channels, in place of those that the model needs together.
    ///
    /// # Errors
    /// If the file has further channels, or colour samples, each of which would be multiplied.
    pub(crate) fn set_channels(&self, d: &mut Description, channels: usize, names: &[String]) -> Result<()> {
        let sets = [Axis::C, Axis::S].into_iter().filter_map(|a| d.position(a));
        let others: usize = sets.filter(|&a| self.channel != Some(a)).map(|a| d.dims[a].len).product();
        if others > 1 {
            return unsuited(format!(
                "the model makes {channels} channels from {}, and this image has {others} times as many (axes {}); save the channels that it takes as a file of their own",
                self.channels,
                d.axes()
            ));
        }
        match self.channel.or(d.position(Axis::C)) {
            Some(axis) => d.dims[axis] = Dim::new(Axis::C, channels),
            None => d
                .dims
                .insert(self.space[0].min(self.space[self.space.len() - 1]), Dim::new(Axis::C, channels)),
        }
        d.levels = vec![d.shape()];
        // What the file says of its own channels, and in its own way, is not true of others.
        (d.mosaic, d.native) = (None, None);
        let named = |name: &String| Channel { name: Some(name.clone()), ..Channel::default() };
        d.channels = names.iter().map(named).collect();
        Ok(())
    }

    fn region(
        &self,
        part: &[usize],
        z: Range<usize>,
        rows: Range<usize>,
        whole: &[usize],
    ) -> Vec<Range<usize>> {
        let mut region: Vec<Range<usize>> = part.iter().map(|&i| i..i + 1).collect();
        for (&axis, &len) in self.space.iter().zip(&self.size) {
            region[axis] = 0..len;
        }
        let n = self.space.len();
        region[self.space[n - 2]] = rows;
        if n == 3 {
            region[self.space[0]] = z;
        }
        if let Some(axis) = self.channel {
            region[axis] = 0..whole[axis];
        }
        region
    }

    /// All of a part.
    pub(crate) fn whole(&self, number: usize, form: &Form) -> Vec<Range<usize>> {
        self.region(&self.all[number], 0..self.planes(), 0..self.height(), &form.shape)
    }

    /// The part of a region along (Z,) Y and X.
    pub(crate) fn in_space(&self, region: &[Range<usize>]) -> Vec<Range<usize>> {
        self.space.iter().map(|&axis| region[axis].clone()).collect()
    }

    /// The axes of a part among those of the file: joint channels, and on request the spatial axes.
    pub(crate) fn axes(&self, space: bool) -> Vec<usize> {
        let space = self.space.iter().filter(|_| space).copied();
        space.chain(self.channel).collect()
    }

    /// Where in a region of the file the values of rows lie, for each in order: rows, columns, channels last.
    fn places(&self, region: &[Range<usize>]) -> Vec<usize> {
        let extent: Vec<usize> = region.iter().map(|r| r.len()).collect();
        let step = strides(&extent);
        let n = self.space.len();
        let (y, x) = (self.space[n - 2], self.space[n - 1]);
        let channel = self.channel.map_or(0, |a| step[a]);
        let mut places = Vec::with_capacity(extent.iter().product());
        for row in 0..extent[y] {
            for column in 0..extent[x] {
                places.extend((0..self.channels).map(|c| row * step[y] + column * step[x] + c * channel));
            }
        }
        places
    }

    /// Pixels of one part.
    pub fn pixels(&self) -> usize {
        self.size.iter().product()
    }

    fn planes(&self) -> usize {
        self.size[..self.size.len() - 2].iter().product()
    }

    /// Rows of a plane.
    pub fn height(&self) -> usize {
        self.size[self.size.len() - 2]
    }

    /// Columns of a plane.
    pub fn width(&self) -> usize {
        self.size[self.size.len() - 1]
    }

    /// The bands of a part's rows, each with its plane and where its values lie in the part.
    fn bands(&self) -> Vec<(usize, Range<usize>, Range<usize>)> {
        let row = self.width() * self.channels;
        let mut bands = Vec::new();
        for z in 0..self.planes() {
            for y in (0..self.height()).step_by(BAND) {
                let rows = y..(y + BAND).min(self.height());
                let start = (z * self.height() + rows.start) * row;
                bands.push((z, rows.clone(), start..start + rows.len() * row));
            }
        }
        bands
    }

    /// Writes a part with the type of the writer; returns the number of values that were clipped, NaN or infinite.
    pub(crate) fn write(
        &self,
        part: &[usize],
        values: &[f32],
        form: &Form,
        to: &mut dyn Sink,
    ) -> Result<usize> {
        let mut clipped = 0;
        for (z, rows, at) in self.bands() {
            let region = self.region(part, z..z + 1, rows, &form.shape);
            let (bytes, changed) = self.encoded(&region, &values[at], form);
            to.put(&region, &bytes)?;
            clipped += changed;
        }
        Ok(clipped)
    }

    /// The number of values of a part that will be clipped.
    pub(crate) fn clipped(&self, part: &[usize], values: &[f32], form: &Form) -> usize {
        let each = |(z, rows, at): (usize, Range<usize>, Range<usize>)| {
            let region = self.region(part, z..z + 1, rows, &form.shape);
            self.encoded(&region, &values[at], form).1
        };
        self.bands().into_iter().map(each).sum()
    }

    fn encoded(&self, region: &[Range<usize>], values: &[f32], form: &Form) -> (Vec<u8>, usize) {
        let mut stored = vec![0.0f64; values.len()];
        for (&place, &v) in self.places(region).iter().zip(values) {
            stored[place] = form.rescale.map_or(v.into(), |r| r.stored(v.into()));
        }
        let mut bytes = Vec::with_capacity(stored.len() * form.dtype.bytes());
        let changed = form.dtype.encode(&stored, &mut bytes);
        (bytes, changed)
    }

    /// Copies the parts that are not restored.
    pub(crate) fn copy(&self, image: &Image, form: &Form, to: &mut dyn Sink) -> Result<()> {
        for part in &self.copied {
            for (z, rows, _) in self.bands() {
                let region = self.region(part, z..z + 1, rows, &form.shape);
                let mut bytes = image.read(&region)?;
                if form.dtype != image.dtype() {
                    let mut values = Vec::new();
                    image.dtype().decode(&bytes, &mut values);
                    bytes.clear();
                    form.dtype.encode(&values, &mut bytes);
                }
                to.put(&region, &bytes)?;
            }
        }
        Ok(())
    }

    /// A part as read from the file, with marked pixels set to NaN.
    pub(crate) fn source<'a>(
        &'a self,
        image: &'a Image,
        part: &'a [usize],
        validity: &'a Validity,
    ) -> FilePart<'a> {
        FilePart { parts: self, image, part, validity }
    }

    /// Sets values of a restored part to NaN where those of the file are NaN or infinite. If the channels differ from
    /// those of the file, a pixel becomes NaN if any channel of the file is invalid there.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn give_back(&self, image: &Image, part: &[usize], restored: &mut [f32]) -> Result<()> {
        let channels = restored.len() / self.pixels().max(1);
        for (z, rows, at) in self.bands() {
            let region = self.region(part, z..z + 1, rows, &image.shape());
            let values = image.read_f64(&region)?;
            let places = self.places(&region);
            for (i, pixel) in places.chunks_exact(self.channels).enumerate() {
                let first = (at.start / self.channels + i) * channels;
                for (c, value) in restored[first..first + channels].iter_mut().enumerate() {
                    let none = match channels == self.channels {
                        true => !values[pixel[c]].is_finite(),
                        false => pixel.iter().any(|&p| !values[p].is_finite()),
                    };
                    if none {
                        *value = f32::NAN;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Rows that are read and written at once.
const BAND: usize = 256;

/// How values are stored.
pub(crate) struct Form {
    pub dtype: DType,
    rescale: Option<Rescale>,
    shape: Vec<usize>,
}

impl Form {
    pub(crate) fn of(d: &Description) -> Form {
        Form { dtype: d.dtype, rescale: d.rescale, shape: d.shape() }
    }
}

/// One part of a file.
pub(crate) struct FilePart<'a> {
    parts: &'a Parts,
    image: &'a Image,
    part: &'a [usize],
    validity: &'a Validity,
}

impl Source for FilePart<'_> {
    fn size(&self) -> Vec<usize> {
        self.parts.size.clone()
    }

    fn channels(&self) -> usize {
        self.parts.channels
    }

    fn rows(&self, z: usize, rows: Range<usize>) -> Result<Vec<f32>, String> {
        let region = self.parts.region(self.part, z..z + 1, rows, &self.image.shape());
        let mut values = self.image.read_f64(&region).map_err(|e| e.to_string())?;
        if let Some(marks) = self.validity.marks(&region, values.len())? {
            values.iter_mut().zip(marks).filter(|(_, marked)| *marked).for_each(|(v, _)| *v = f64::NAN);
        }
        Ok(self.parts.places(&region).iter().map(|&p| values[p] as f32).collect())
    }
}
