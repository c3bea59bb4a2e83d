//! What carries values to other ranks and back through memory of the host, as executors see it.
//!
//! Executors hand a bucket over value by value and fetch it the same way; how the bucket travels meanwhile is the business of who implements this. The
//! memory on the way is the carrier's own, so nothing of a plan is touched by another thread. A carrier that fails keeps its error for who runs the
//! session, and gives back what it was given.

/// Averages buckets of values over ranks.
pub trait Exchange: Send + Sync {
    /// Takes one value of a bucket, whose elements begin at `at`.
    fn put(&self, bucket: u32, at: usize, values: &[f32]);

    /// All of a bucket is there: it may go.
    fn begin(&self, bucket: u32);

    /// Waits for a bucket and gives one value of it.
    fn take(&self, bucket: u32, at: usize, values: &mut [f32]);
}
