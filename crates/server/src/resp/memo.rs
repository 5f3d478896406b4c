//! Limits seen lately. Callers of `CL.THROTTLE` send the same few numbers over and over; checking them costs more than deciding.

use tollgate::redis_cell::Throttle;

use super::translate;

/// How many are remembered.
const SLOTS: usize = 64;

/// A few limits by their numbers.
#[derive(Debug)]
pub(super) struct Memo {
    slots: Vec<Option<([i64; 4], Throttle)>>,
}

/// Where a limit is kept, until it is replaced.
pub(super) type Slot = usize;

impl Memo {
    pub(super) fn new() -> Self {
        Self { slots: vec![None; SLOTS] }
    }

    /// Where the limit of these numbers is, if it is remembered.
    #[inline]
    pub(super) fn find(&self, numbers: [i64; 4]) -> Option<Slot> {
        let slot = slot(numbers);
        matches!(&self.slots[slot], Some((kept, _)) if *kept == numbers).then_some(slot)
    }

    /// Checks the numbers and remembers their limit in place of another.
    ///
    /// # Errors
    /// When they make no limit; the text is for the caller.
    pub(super) fn insert(&mut self, numbers: [i64; 4]) -> Result<Slot, String> {
        let throttle = translate::throttle(numbers)?;
        let slot = slot(numbers);
        self.slots[slot] = Some((numbers, throttle));
        Ok(slot)
    }

    /// The limit in a slot.
    #[inline]
    pub(super) fn get(&self, slot: Slot) -> Option<&Throttle> {
        self.slots[slot].as_ref().map(|(_, throttle)| throttle)
    }
}

#[inline]
fn slot(numbers: [i64; 4]) -> Slot {
    let mixed =
        numbers.iter().fold(0_u64, |mixed, number| (mixed ^ *number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    (mixed >> 58) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_found_by_its_numbers_only() {
        let mut memo = Memo::new();
        assert_eq!(memo.find([15, 30, 60, 1]), None);
        let slot = memo.insert([15, 30, 60, 1]).expect("a limit");
        assert_eq!(memo.find([15, 30, 60, 1]), Some(slot));
        assert_eq!(memo.get(slot), Throttle::new(15, 30, 60, 1).ok().as_ref());
        for burst in 0..1_000 {
            let other = [burst, 1, 1, 1];
            assert_eq!(memo.find(other), None);
            let slot = memo.insert(other).expect("a limit");
            assert_eq!(memo.find(other), Some(slot));
        }
        assert!(memo.insert([0, 0, 1, 1]).is_err());
    }
}
