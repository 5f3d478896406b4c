//! Interleaved timing: each repetition runs every contender once, so that disturbances affect all of them equally and
//! the medians of one race can be compared.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use core_affinity::CoreId;

use crate::contender::{CHUNK, Contender};

/// The expected outcome of every decision in a race. A contender with another outcome is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// All decisions allow.
    Allowed,
    /// All decisions deny.
    Denied,
}

/// The duration of a slice, and the number of repetitions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Number of repetitions, not counting the first repetition, which is a warm-up.
    pub(crate) repetitions: usize,
    /// Time per contender and repetition.
    pub(crate) slice: Duration,
}

/// A contender in a race, with one state per thread.
struct Entrant<'a> {
    name: &'static str,
    thread_states: Vec<ThreadState<'a>>,
    nanos: Vec<f64>,
}

/// A thread's handle and its position in the key sequence. The position continues across repetitions. Otherwise a
/// contender would use the same few keys each time and find them in the cache.
struct ThreadState<'a> {
    contender: &'a mut dyn Contender,
    cursor: usize,
}

/// Times `contenders` against each other, one thread per sequence, and returns their medians in nanoseconds per
/// decision. Contenders that cannot be shared between threads are left out of races with several threads.
pub(crate) fn race(
    plan: Plan,
    expect: Expect,
    contenders: &mut [Box<dyn Contender>],
    sequences: &[Vec<String>],
) -> Result<Vec<(&'static str, f64)>> {
    let cores = cores_to_bind(sequences.len())?;
    let mut shares: Vec<Option<Vec<Box<dyn Contender>>>> =
        contenders.iter().map(|contender| (1..sequences.len()).map(|_| contender.clone_handle()).collect()).collect();
    let mut entrants: Vec<Entrant<'_>> = contenders
        .iter_mut()
        .zip(&mut shares)
        .filter_map(|(contender, shares)| Some(Entrant::new(contender, shares.as_mut()?)))
        .collect();
    // Each contender starts at a different position. Otherwise a contender would find the previous contender's keys in
    // the cache.
    let count = entrants.len();
    for (index, entrant) in entrants.iter_mut().enumerate() {
        for (state, sequence) in entrant.thread_states.iter_mut().zip(sequences) {
            state.cursor = sequence.len() / CHUNK * index / count * CHUNK;
        }
    }
    for repetition in 0..=plan.repetitions {
        for entrant in &mut entrants {
            let nanos = entrant.run_slice_on_all(plan.slice, expect, sequences, &cores)?;
            if repetition > 0 {
                entrant.nanos.push(nanos);
            }
        }
    }
    Ok(entrants.into_iter().map(|entrant| (entrant.name, median(entrant.nanos))).collect())
}

impl<'a> Entrant<'a> {
    fn new(first: &'a mut Box<dyn Contender>, others: &'a mut [Box<dyn Contender>]) -> Self {
        Entrant {
            name: first.name(),
            thread_states: std::iter::once(first)
                .chain(others)
                .map(|contender| ThreadState { contender: contender.as_mut(), cursor: 0 })
                .collect(),
            nanos: Vec::new(),
        }
    }

    /// Runs one slice on all threads, and returns the wall time per decision of all threads together.
    fn run_slice_on_all(
        &mut self,
        slice: Duration,
        expect: Expect,
        sequences: &[Vec<String>],
        cores: &[CoreId],
    ) -> Result<f64> {
        let name = self.name;
        let waiting = AtomicUsize::new(self.thread_states.len());
        let per_nano = std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .thread_states
                .iter_mut()
                .zip(sequences)
                .zip(cores)
                .map(|((state, sequence), core)| {
                    let waiting = &waiting;
                    scope.spawn(move || {
                        core_affinity::set_for_current(*core);
                        state.decide_for_slice(slice, expect, sequence, waiting)
                    })
                })
                .collect();
            let mut per_nano = 0.0;
            for thread in threads {
                let rate = thread.join().ok().flatten();
                per_nano += rate.with_context(|| format!("{name}: an outcome is not {expect:?}"))?;
            }
            anyhow::Ok(per_nano)
        })?;
        Ok(1.0 / per_nano)
    }
}

impl ThreadState<'_> {
    /// Decides until `slice` has passed, and returns the decisions per nanosecond. Returns `None` if an outcome is
    /// not as expected.
    fn decide_for_slice(
        &mut self,
        slice: Duration,
        expect: Expect,
        sequence: &[String],
        waiting: &AtomicUsize,
    ) -> Option<f64> {
        // Starts all threads together. Relaxed: no other data depends on this counter.
        waiting.fetch_sub(1, Ordering::Relaxed);
        while waiting.load(Ordering::Relaxed) > 0 {
            std::hint::spin_loop();
        }
        // The first chunk is not timed: it loads code and stack into the cache.
        let mut as_expected = self.decide_chunk(expect, sequence);
        let mut decisions = 0;
        let start = Instant::now();
        let elapsed = loop {
            as_expected &= self.decide_chunk(expect, sequence);
            decisions += CHUNK;
            let elapsed = start.elapsed();
            if elapsed >= slice {
                break elapsed;
            }
        };
        as_expected.then(|| decisions as f64 / elapsed.as_nanos() as f64)
    }

    fn decide_chunk(&mut self, expect: Expect, sequence: &[String]) -> bool {
        let keys = &sequence[self.cursor..self.cursor + CHUNK];
        self.cursor = (self.cursor + CHUNK) % sequence.len();
        let allowed = self.contender.run(keys);
        match expect {
            Expect::Allowed => allowed == CHUNK,
            Expect::Denied => allowed == 0,
        }
    }
}

/// Returns one processor for each thread, for pinning.
fn cores_to_bind(threads: usize) -> Result<Vec<CoreId>> {
    let mut cores = core_affinity::get_core_ids().context("cannot list the processors")?;
    ensure!(cores.len() >= threads, "{threads} threads need {threads} processors; this machine has {}", cores.len());
    cores.truncate(threads);
    Ok(cores)
}

/// Returns the middle value, or the mean of the two middle values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(Vec::new()).is_nan());
    }
}
