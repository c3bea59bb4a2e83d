//! What ranks of every kind are put through; what they come to is compared to the bit.

use clearshot_collectives::Collective;
use clearshot_collectives::threads::Threads;

/// Values of a rank whose sums depend on the order in which they are added.
pub fn values(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 37 + rank * 101) % 97) as f32 * 1.7e-3 * 10f32.powi((rank % 3) as i32)).collect()
}

/// What a rank of a group says, whatever the group is made of: bits of sums, and what was gathered.
pub fn exercise(ranks: &dyn Collective) -> Vec<u64> {
    let mut said = vec![];
    for len in [0, 1, 5, 1000, 40_009] {
        let mut own = values(ranks.rank(), len);
        ranks.sum_f32(&mut own).unwrap();
        said.extend(own.iter().map(|x| u64::from(x.to_bits())));
        let mut own: Vec<f64> = values(ranks.rank(), len).iter().map(|x| f64::from(*x) / 3.0).collect();
        ranks.sum_f64(&mut own).unwrap();
        said.extend(own.iter().map(|x| x.to_bits()));
        let mut own: Vec<half::bf16> =
            values(ranks.rank(), len).into_iter().map(half::bf16::from_f32).collect();
        ranks.sum_bf16(&mut own).unwrap();
        said.extend(own.iter().map(|x| u64::from(x.to_bits())));
    }
    let unequal = vec![ranks.rank() as u8; 3 * ranks.rank()];
    for bytes in ranks.all_gather(&unequal).unwrap() {
        said.push(bytes.len() as u64);
        said.extend(bytes.iter().map(|b| u64::from(*b)));
    }
    let last = ranks.size() - 1;
    let word = if ranks.rank() == last { &b"from the last"[..] } else { b"ignored" };
    assert_eq!(ranks.broadcast(last, word).unwrap(), b"from the last");
    ranks.barrier().unwrap();
    said
}

/// What threads of one process come to.
pub fn by_threads(size: usize) -> Vec<Vec<u64>> {
    std::thread::scope(|s| {
        let all: Vec<_> =
            Threads::group(size).into_iter().map(|rank| s.spawn(move || exercise(&rank))).collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// Not a test: what docs/scaling.md has its times of sums from.
pub fn timing(ranks: &dyn Collective) {
    for len in [1, 1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22] {
        let mut own = values(ranks.rank(), len);
        let mut seconds: Vec<f64> = (0..40)
            .map(|_| {
                ranks.barrier().unwrap();
                let begun = std::time::Instant::now();
                ranks.sum_f32(&mut own).unwrap();
                begun.elapsed().as_secs_f64()
            })
            .collect();
        seconds.sort_by(f64::total_cmp);
        if ranks.rank() == 0 {
            println!("{} ranks, {} bytes: {:.1} us", ranks.size(), 4 * len, 1e6 * seconds[20]);
        }
    }
}
