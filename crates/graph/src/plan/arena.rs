//! Offsets: buffers that are alive at the same time side by side, others over each other.

use super::Buffer;

/// The sum of the buffers that are alive at each node.
fn alive(buffers: &[Buffer]) -> Vec<usize> {
    let end = buffers.iter().map(|b| b.last).max().unwrap_or(0);
    let mut change = vec![0i64; end + 2];
    for b in buffers {
        change[b.first] += b.bytes as i64;
        change[b.last + 1] -= b.bytes as i64;
    }
    let mut sum = 0;
    let running = change.iter().map(|c| {
        sum += c;
        sum as usize
    });
    running.collect()
}

/// The largest sum of buffers alive at one time, and the node at which it is first reached.
pub(super) fn largest_live(buffers: &[Buffer]) -> (usize, usize) {
    let mut most = (0, 0);
    for (i, sum) in alive(buffers).into_iter().enumerate() {
        if sum > most.0 {
            most = (sum, i);
        }
    }
    most
}

/// Arrangements tried for each first order, where none is tight at once.
const ATTEMPTS: usize = 40;

/// Gives every buffer an offset; the size of the arena.
///
/// Buffers are placed one by one, and the order makes the arrangement: by size, and by size times
/// lifetime. Where neither comes within 1 % of what is alive at one time, the buffers that lie too high
/// gain weight and all are placed again, some times over ("squeaky wheels").
pub(super) fn place_buffers(buffers: &mut [Buffer]) -> usize {
    let enough = largest_live(buffers).0 / 100 * 101;
    let size = |b: &Buffer| b.bytes as f64;
    let area = |b: &Buffer| b.bytes as f64 * (b.last - b.first + 1) as f64;
    let mut best = (usize::MAX, vec![0; buffers.len()]);
    let mut weights: [Vec<f64>; 2] = [buffers.iter().map(size).collect(), buffers.iter().map(area).collect()];
    for _ in 0..ATTEMPTS {
        for weights in &mut weights {
            let mut order: Vec<usize> = (0..buffers.len()).collect();
            order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]).then(a.cmp(&b)));
            let (total, offsets) = first_fit(buffers, &order);
            for (i, b) in buffers.iter().enumerate() {
                if offsets[i] + b.bytes > enough {
                    weights[i] *= 1.5;
                }
            }
            if total < best.0 {
                best = (total, offsets);
            }
            if best.0 <= enough {
                break;
            }
        }
        if best.0 <= enough {
            break;
        }
    }
    buffers.iter_mut().zip(&best.1).for_each(|(b, o)| b.offset = *o);
    best.0
}

/// Each buffer in turn at the tightest gap among those placed that are alive with it.
fn first_fit(buffers: &[Buffer], order: &[usize]) -> (usize, Vec<usize>) {
    let mut offsets = vec![0; buffers.len()];
    // Placed buffers, kept in order of offset.
    let mut placed: Vec<usize> = Vec::with_capacity(order.len());
    let mut total = 0;
    for &i in order {
        let b = &buffers[i];
        let mut at = 0;
        let mut gap = usize::MAX;
        let mut chosen = None;
        for &p in &placed {
            let other = &buffers[p];
            if other.first > b.last || b.first > other.last {
                continue;
            }
            if offsets[p] >= at + b.bytes && offsets[p] - at < gap {
                gap = offsets[p] - at;
                chosen = Some(at);
            }
            at = at.max(offsets[p] + other.bytes);
        }
        offsets[i] = chosen.unwrap_or(at);
        total = total.max(offsets[i] + b.bytes);
        let slot = placed.partition_point(|&p| offsets[p] < offsets[i]);
        placed.insert(slot, i);
    }
    (total, offsets)
}
