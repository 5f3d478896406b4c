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
//! soon have a name of their own in them, so a search mostly ends there.

use std::hash::Hasher;

use rustc_hash::{FxHashMap, FxHasher};

use super::lookup::Lookup;
use crate::rules::{Glob, Segment, matches_rest, segment_matches, split_segment};

/// Patterns with what they stand for. The literal steps are in a [`Lookup`] that is shared with others.
#[derive(Debug)]
pub(crate) struct Paths {
    /// The space of the root's literal steps.
    first_space: u32,
    places: Box<[Place]>,
    tails: Box<[Tail]>,
    texts: Box<[u8]>,
    shapes: Box<[Box<[Shape]>]>,
    found: Box<[u32]>,
}

/// A place in the tree. The first one is the root.
#[derive(Clone, Copy, Debug)]
struct Place {
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
    /// Where the text of the remaining segments is. There is none at all if it ends before it begins.
    start: u32,
    end: u32,
    what: u32,
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
            texts: Vec::new(),
            shapes: Vec::new(),
            found: Vec::new(),
            literals,
        };
        builder.place(&mut ways, false);
        let next_space = first_space + builder.places.len() as u32;
        let paths = Self {
            first_space,
            places: builder.places.into(),
            tails: builder.tails.into(),
            texts: builder.texts.into(),
            shapes: builder.shapes.into(),
            found: builder.found.into(),
        };
        (paths, next_space)
    }

    /// Calls `each` with what the patterns that match `path` stand for; with some more than once, if it has several patterns.
    pub(super) fn find(&self, path: &[u8], literals: &Lookup, walk: &mut Walk, mut each: impl FnMut(u32)) {
        let Walk { here, next } = walk;
        here.clear();
        self.arrive(Next(0), Some(path), here, &mut each);
        let mut rest = Some(path);
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
                if let Some(to) = literals.get(self.first_space + at.0, segment) {
                    self.arrive(Next(to), rest, next, &mut each);
                }
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
            let (start, end) = self.places[at.0 as usize].found;
            self.found[start as usize..end as usize].iter().for_each(|what| each(*what));
        }
    }

    /// Takes note of a place, and of the one behind `**`, which needs no further segment. Where only one pattern is left, it
    /// is compared with the rest of the path at once.
    #[inline]
    fn arrive(&self, at: Next, rest: Option<&[u8]>, places: &mut Vec<Next>, each: &mut impl FnMut(u32)) {
        if at == Next::NOWHERE {
            return;
        }
        if let Some(tail) = at.tail() {
            let Tail { start, end, what } = self.tails[tail];
            let pattern = (start <= end).then(|| &self.texts[start as usize..end as usize]);
            if matches_rest(pattern, rest) {
                each(what);
            }
            return;
        }
        // There are a handful at a time, and looking through them is quicker than marking them anywhere.
        if !places.contains(&at) {
            places.push(at);
            self.arrive(self.places[at.0 as usize].deep, rest, places, each);
        }
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

/// A pattern on its way down: what is left of it.
#[derive(Clone, Copy)]
struct Way<'g> {
    left: Option<&'g [u8]>,
    what: u32,
}

impl<'g> Way<'g> {
    fn of((glob, what): &'g (Glob, u32)) -> Self {
        Self { left: Some(glob.as_str().as_bytes()), what: *what }
    }
}

struct Builder<'b> {
    first_space: u32,
    places: Vec<Place>,
    tails: Vec<Tail>,
    texts: Vec<u8>,
    shapes: Vec<Box<[Shape]>>,
    found: Vec<u32>,
    literals: &'b mut Vec<(u32, Box<[u8]>, u32)>,
}

impl Builder<'_> {
    /// The place that all of these patterns have come to, and everything behind it.
    fn place(&mut self, ways: &mut [Way<'_>], stays: bool) -> Next {
        let number = self.places.len();
        // Those that end here first, then those with the same next segment together.
        ways.sort_by_key(|way| way.left.map(|left| split_segment(left).0));
        let ended = ways.partition_point(|way| way.left.is_none());
        let start = self.found.len() as u32;
        self.found.extend(ways[..ended].iter().map(|way| way.what));
        let (any, deep, shapes) = (Next::NOWHERE, Next::NOWHERE, u32::MAX);
        self.places.push(Place { any, deep, shapes, found: (start, self.found.len() as u32), stays });

        let mut shapes: Vec<Shape> = Vec::new();
        let same_step = |a: &Way<'_>, b: &Way<'_>| {
            a.left.map(|left| split_segment(left).0) == b.left.map(|left| split_segment(left).0)
        };
        for together in ways[ended..].chunk_by_mut(same_step) {
            let Some(segment) = together[0].left.map(|left| split_segment(left).0) else { continue };
            let step = Segment::of(segment);
            let to = self.step(together, step == Segment::Deep);
            match step {
                Segment::Literal(text) => self.literals.push((self.first_space + number as u32, text.into(), to.0)),
                Segment::Any => self.places[number].any = to,
                Segment::Deep => self.places[number].deep = to,
                Segment::Starred(pattern) => add_shape(&mut shapes, pattern, to),
            }
        }
        if !shapes.is_empty() {
            self.places[number].shapes = self.shapes.len() as u32;
            self.shapes.push(shapes.into());
        }
        Next(number as u32)
    }

    /// Where patterns lead that share their next step: to a place, or, if it is only one, to what remains of it.
    fn step(&mut self, ways: &mut [Way<'_>], deep: bool) -> Next {
        if let [way] = ways {
            // Behind `**` it is the `**` that remains, too.
            let left = if deep { way.left } else { way.left.and_then(|left| split_segment(left).1) };
            return self.tail(left, way.what);
        }
        ways.iter_mut().for_each(|way| way.left = way.left.and_then(|left| split_segment(left).1));
        self.place(ways, deep)
    }

    fn tail(&mut self, left: Option<&[u8]>, what: u32) -> Next {
        let start = self.texts.len() as u32;
        let tail = match left {
            Some(text) => {
                self.texts.extend_from_slice(text);
                Tail { start, end: self.texts.len() as u32, what }
            }
            None => Tail { start: 1, end: 0, what },
        };
        self.tails.push(tail);
        Next(Next::TAIL | (self.tails.len() as u32 - 1))
    }
}

fn add_shape(shapes: &mut Vec<Shape>, pattern: &[u8], to: Next) {
    let is_star = |byte: &u8| *byte == b'*';
    let before = pattern.iter().position(is_star).unwrap_or(0);
    let behind = pattern.iter().rev().position(is_star).unwrap_or(0);
    let place = shapes.iter().position(|shape| (shape.before, shape.behind) == (before, behind)).unwrap_or_else(|| {
        shapes.push(Shape { before, behind, steps: FxHashMap::default() });
        shapes.len() - 1
    });
    let ends = hash(&pattern[..before], &pattern[pattern.len() - behind..]);
    shapes[place].steps.entry(ends).or_default().push((pattern.into(), to));
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
