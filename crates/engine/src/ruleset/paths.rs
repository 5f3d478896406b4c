//! Many path patterns at once, as a tree of segments: how long a search takes depends on the path, hardly on how many
//! patterns there are.
//!
//! Each pattern is a way down from the root, one step per segment, and patterns that begin alike share their way. A search
//! keeps the set of places it can be at and moves all of them on with each segment of the path: along the literal step
//! of that name, which one look into a table finds; along `*`; along those of the steps like `a*b` that fit, which are
//! found by what they begin and end with; and a place behind `**` also stays where it is. A path of a few segments so costs
//! a few looks, and however the stars lie, at most one step per segment and place.
//!
//! Where only one pattern is left, what remains of it is not spread over further places but compared as a whole. Most patterns
//! soon have a name of their own in them, so a search mostly ends there. And as long as nothing but names leads on, a search
//! can only be at one place, and nothing has to be kept of it but that.

mod build;

use std::hash::Hasher;

use rustc_hash::{FxHashMap, FxHasher};

use super::lookup::{Lookup, same};
use crate::rules::{Glob, matches_rest, segment_matches, split_segment};
use build::{Builder, Way};

/// Patterns with what they stand for. The literal steps are in a [`Lookup`] that is shared with others.
#[derive(Debug)]
pub(crate) struct Paths {
    /// The space of the root's literal steps.
    first_space: u32,
    /// Where a slash at the beginning leads, if all patterns begin with one, as those of paths do.
    rooted: Option<Next>,
    places: Box<[Place]>,
    tails: Box<[Tail]>,
    steps: Box<[Step]>,
    texts: Box<[u8]>,
    shapes: Box<[Box<[Shape]>]>,
    found: Box<[u32]>,
}

/// A place in the tree. The first one is the root.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The only name that leads on, if it is one: where its text is, and where it leads. Several are in the table.
    only: (u32, u32, Next),
    /// Whether nothing but names leads on from here, so that a search can be at one place only.
    names_only: bool,
    any: Next,
    /// Behind `**`: reached without a segment, and by any number of them.
    deep: Next,
    /// Which shapes of segments with stars inside lead on from here.
    shapes: u32,
    /// Which of what was found belongs to the patterns that end here.
    found: (u32, u32),
    /// Whether a search that is here may also stay.
    stays: bool,
}

/// Where a step leads: nowhere, to a place, or to the only pattern that is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Next(u32);

impl Next {
    const NOWHERE: Self = Self(u32::MAX);
    const TAIL: u32 = 1 << 31;

    fn tail(self) -> Option<usize> {
        (self != Self::NOWHERE && self.0 & Self::TAIL != 0).then_some((self.0 & !Self::TAIL) as usize)
    }
}

/// What remains of a pattern, and what it stands for.
#[derive(Clone, Copy, Debug)]
struct Tail {
    remains: Remains,
    what: u32,
}

#[derive(Clone, Copy, Debug)]
enum Remains {
    /// Steps that are taken one by one.
    Steps(u32, u32),
    /// A text that can only be tried: there is a star in a name, or `**` before the end.
    Text(u32, u32),
}

/// A step of what remains of a pattern.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A segment of this name: where its text is.
    Name(u32, u32),
    Any,
    /// Everything else, and the last step.
    Deep,
}

/// The steps whose names have the same hash.
type Steps = Vec<(Box<[u8]>, Next)>;

/// Segments with stars inside that are alike in how much stands before the first and behind the last star.
#[derive(Debug)]
struct Shape {
    before: usize,
    behind: usize,
    /// By the hash of both texts; what is found there still has to be compared.
    steps: FxHashMap<u64, Steps>,
}

/// The places a search is at, kept to be used again.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    here: Vec<Next>,
    next: Vec<Next>,
}

impl Paths {
    /// A tree of patterns. Its literal steps are added to `literals`, in spaces from `first_space` on; the next free
    /// one is returned.
    pub(super) fn new(
        patterns: &[(Glob, u32)],
        first_space: u32,
        literals: &mut Vec<(u32, Box<[u8]>, u32)>,
    ) -> (Self, u32) {
        let mut ways: Vec<Way<'_>> = patterns.iter().map(Way::of).collect();
        let mut builder = Builder {
            first_space,
            places: Vec::new(),
            tails: Vec::new(),
            steps: Vec::new(),
            remains: FxHashMap::default(),
            texts: Vec::new(),
            shapes: Vec::new(),
            found: Vec::new(),
            literals,
        };
        builder.place(&mut ways, false);
        let next_space = first_space + builder.places.len() as u32;
        let rooted = builder.places.first().and_then(|root| {
            let (start, end, to) = root.only;
            (root.names_only && start == end && to != Next::NOWHERE).then_some(to)
        });
        let paths = Self {
            first_space,
            rooted,
            places: builder.places.into(),
            tails: builder.tails.into(),
            steps: builder.steps.into(),
            texts: builder.texts.into(),
            shapes: builder.shapes.into(),
            found: builder.found.into(),
        };
        (paths, next_space)
    }

    /// Calls `each` with what the patterns that match `path` stand for; with some more than once, if it has several patterns.
    #[inline]
    pub(super) fn find(&self, path: &[u8], literals: &Lookup, walk: &mut Walk, mut each: impl FnMut(u32)) {
        let (mut at, mut rest) = match (self.rooted, path) {
            (Some(rooted), [b'/', behind @ ..]) => (rooted, Some(behind)),
            _ => (Next(0), Some(path)),
        };
        while at.tail().is_none() {
            let Some(place) = self.places.get(at.0 as usize) else { return };
            if !place.names_only {
                return self.spread(at, rest, literals, walk, each);
            }
            let Some(left) = rest else { return self.found(at).iter().for_each(|what| each(*what)) };
            let (segment, behind) = split_segment(left);
            (at, rest) = (self.named(at, place, segment, literals), behind);
        }
        if let Some(what) = self.remains(at, rest) {
            each(what);
        }
    }

    /// Goes on with a search that can be at several places at a time.
    #[inline(never)]
    fn spread(&self, at: Next, rest: Option<&[u8]>, literals: &Lookup, walk: &mut Walk, mut each: impl FnMut(u32)) {
        let (Walk { here, next }, mut rest) = (walk, rest);
        here.clear();
        self.arrive(at, rest, here, &mut each);
        while let Some(left) = rest {
            if here.is_empty() {
                return;
            }
            let (segment, behind) = split_segment(left);
            rest = behind;
            next.clear();
            for at in here.iter() {
                let place = &self.places[at.0 as usize];
                if place.stays {
                    self.arrive(*at, rest, next, &mut each);
                }
                self.arrive(self.named(*at, place, segment, literals), rest, next, &mut each);
                self.arrive(place.any, rest, next, &mut each);
                if place.shapes != u32::MAX {
                    for to in self.shapes[place.shapes as usize].iter().flat_map(|shape| shape.lead(segment)) {
                        self.arrive(to, rest, next, &mut each);
                    }
                }
            }
            std::mem::swap(here, next);
        }
        for at in here.iter() {
            self.found(*at).iter().for_each(|what| each(*what));
        }
    }

    /// Where the step of this name leads.
    #[inline(always)]
    fn named(&self, at: Next, place: &Place, segment: &[u8], literals: &Lookup) -> Next {
        let (start, end, to) = place.only;
        if to == Next::NOWHERE {
            return literals.get(self.first_space + at.0, segment).map_or(Next::NOWHERE, Next);
        }
        if same(&self.texts[start as usize..end as usize], segment) { to } else { Next::NOWHERE }
    }

    /// What the patterns that end at a place stand for.
    fn found(&self, at: Next) -> &[u32] {
        let (start, end) = self.places[at.0 as usize].found;
        &self.found[start as usize..end as usize]
    }

    /// Takes note of a place, and of the one behind `**`, which needs no further segment. Where only one pattern is left, it
    /// is compared with the rest of the path at once.
    #[inline]
    fn arrive(&self, at: Next, rest: Option<&[u8]>, places: &mut Vec<Next>, each: &mut impl FnMut(u32)) {
        if at == Next::NOWHERE {
            return;
        }
        if at.tail().is_some() {
            self.remains(at, rest).into_iter().for_each(each);
            return;
        }
        // There are a handful at a time, and looking through them is quicker than marking them anywhere.
        if !places.contains(&at) {
            places.push(at);
            self.arrive(self.places[at.0 as usize].deep, rest, places, each);
        }
    }

    /// What the only pattern that is left stands for, if what remains of it matches what remains of the path.
    #[inline(always)]
    fn remains(&self, at: Next, rest: Option<&[u8]>) -> Option<u32> {
        let Tail { remains, what } = *self.tails.get(at.tail()?)?;
        let matches = match remains {
            Remains::Steps(start, end) => self.steps_match(&self.steps[start as usize..end as usize], rest),
            Remains::Text(start, end) => matches_rest(Some(&self.texts[start as usize..end as usize]), rest),
        };
        matches.then_some(what)
    }

    #[inline]
    fn steps_match(&self, steps: &[Step], rest: Option<&[u8]>) -> bool {
        let mut left = match rest {
            Some(left) => left,
            None => return matches!(steps, [] | [Step::Deep]),
        };
        for (step, behind) in steps.iter().zip(1..) {
            let next = match step {
                Step::Deep => return true,
                Step::Any => split_segment(left).1,
                Step::Name(start, end) => {
                    let name = &self.texts[*start as usize..*end as usize];
                    let Some((segment, rest)) = left.split_at_checked(name.len()) else { return false };
                    if !same(segment, name) {
                        return false;
                    }
                    match rest {
                        [] => None,
                        [b'/', rest @ ..] => Some(rest),
                        _ => return false,
                    }
                }
            };
            match next {
                Some(next) => left = next,
                None => return matches!(steps[behind..], [] | [Step::Deep]),
            }
        }
        // There is more than was asked for.
        false
    }
}

impl Shape {
    /// Where the steps that fit a segment lead.
    fn lead<'s>(&'s self, segment: &'s [u8]) -> impl Iterator<Item = Next> + 's {
        let ends = segment.len().checked_sub(self.behind).filter(|behind| self.before <= *behind);
        let steps = ends.and_then(|behind| self.steps.get(&hash(&segment[..self.before], &segment[behind..])));
        steps.into_iter().flatten().filter(|(pattern, _)| segment_matches(pattern, segment)).map(|(_, to)| *to)
    }
}

fn hash(before: &[u8], behind: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(before);
    hasher.write(behind);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn find(patterns: &[Glob], path: &str) -> Vec<u32> {
        let patterns: Vec<(Glob, u32)> = patterns.iter().cloned().zip(0..).collect();
        let mut literals = Vec::new();
        let (paths, _) = Paths::new(&patterns, 5, &mut literals);
        let mut found = Vec::new();
        paths.find(path.as_bytes(), &Lookup::new(&literals), &mut Walk::default(), |what| found.push(what));
        found.sort_unstable();
        found.dedup();
        found
    }

    #[test]
    fn a_path_finds_every_pattern_that_matches_it() {
        let patterns = ["/v1/**", "/v1/*/posts", "/**/posts", "/v1/users*", "/v1/*s", "/v2/**", "*"];
        let patterns: Vec<Glob> = patterns.iter().map(|text| Glob::new(text).unwrap()).collect();
        assert_eq!(find(&patterns, "/v1"), [0]);
        assert_eq!(find(&patterns, "/v1/users"), [0, 3, 4]);
        assert_eq!(find(&patterns, "/v1/7/posts"), [0, 1, 2]);
        assert_eq!(find(&patterns, "/posts"), [2]);
        assert_eq!(find(&patterns, "posts"), [6]);
        assert!(find(&patterns, "/v3").is_empty());
    }

    proptest! {
        #[test]
        fn the_tree_finds_what_the_patterns_one_by_one_do(
            patterns in proptest::collection::vec("(/?(\\*\\*|[ab*]{0,3})){1,4}", 0..30),
            path in "[ab/]{0,12}",
        ) {
            let globs: Vec<Glob> = patterns.iter().filter_map(|text| Glob::new(text).ok()).collect();
            let singly: Vec<u32> =
                (0..globs.len() as u32).filter(|n| globs[*n as usize].matches(path.as_bytes())).collect();
            prop_assert_eq!(find(&globs, &path), singly);
        }
    }
}
