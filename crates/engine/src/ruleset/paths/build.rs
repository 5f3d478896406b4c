//! Patterns are spread out into a tree: what they share is one way, and what is left of only one stays as it is.

use rustc_hash::FxHashMap;

use super::{Next, Place, Remains, Shape, Step, Tail, hash};
use crate::rules::{Glob, Segment, split_segment};

/// A pattern on its way down: what is left of it.
#[derive(Clone, Copy)]
pub(super) struct Way<'g> {
    left: Option<&'g [u8]>,
    what: u32,
}

impl<'g> Way<'g> {
    pub(super) fn of((glob, what): &'g (Glob, u32)) -> Self {
        Self { left: Some(glob.as_str().as_bytes()), what: *what }
    }
}

pub(super) struct Builder<'b> {
    pub(super) first_space: u32,
    pub(super) places: Vec<Place>,
    pub(super) tails: Vec<Tail>,
    pub(super) steps: Vec<Step>,
    /// What remains of patterns, by its text. A thousand that end alike take up no more of the nearest cache than one.
    pub(super) remains: FxHashMap<Option<Box<[u8]>>, Remains>,
    pub(super) texts: Vec<u8>,
    pub(super) shapes: Vec<Box<[Shape]>>,
    pub(super) found: Vec<u32>,
    pub(super) literals: &'b mut Vec<(u32, Box<[u8]>, u32)>,
}

impl Builder<'_> {
    /// The place that all of these patterns have come to, and everything behind it.
    pub(super) fn place(&mut self, ways: &mut [Way<'_>], stays: bool) -> Next {
        let number = self.places.len();
        // Those that end here first, then those with the same next segment together.
        ways.sort_by_key(|way| way.left.map(|left| split_segment(left).0));
        let ended = ways.partition_point(|way| way.left.is_none());
        let start = self.found.len() as u32;
        self.found.extend(ways[..ended].iter().map(|way| way.what));
        self.places.push(Place {
            only: (0, 0, Next::NOWHERE),
            names_only: false,
            any: Next::NOWHERE,
            deep: Next::NOWHERE,
            shapes: u32::MAX,
            found: (start, self.found.len() as u32),
            stays,
        });

        let mut shapes: Vec<Shape> = Vec::new();
        let mut names: Vec<(&[u8], Next)> = Vec::new();
        let same_step = |a: &Way<'_>, b: &Way<'_>| {
            a.left.map(|left| split_segment(left).0) == b.left.map(|left| split_segment(left).0)
        };
        for together in ways[ended..].chunk_by_mut(same_step) {
            let Some(segment) = together[0].left.map(|left| split_segment(left).0) else { continue };
            let step = Segment::of(segment);
            let to = self.step(together, step == Segment::Deep);
            match step {
                Segment::Literal(text) => names.push((text, to)),
                Segment::Any => self.places[number].any = to,
                Segment::Deep => self.places[number].deep = to,
                Segment::Starred(pattern) => add_shape(&mut shapes, pattern, to),
            }
        }
        if !shapes.is_empty() {
            self.places[number].shapes = self.shapes.len() as u32;
            self.shapes.push(shapes.into());
        }
        match &*names {
            [(text, to)] => {
                let (start, end) = self.text(text);
                self.places[number].only = (start, end, *to);
            }
            names => {
                let space = self.first_space + number as u32;
                self.literals.extend(names.iter().map(|(text, to)| (space, (*text).into(), to.0)));
            }
        }
        let Place { any, deep, shapes, stays, .. } = self.places[number];
        self.places[number].names_only = !stays && (any, deep, shapes) == (Next::NOWHERE, Next::NOWHERE, u32::MAX);
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
        let remains = match self.remains.get(&left.map(Into::into)) {
            Some(remains) => *remains,
            None => {
                let remains = self.steps(left).unwrap_or_else(|| {
                    let (start, end) = self.text(left.unwrap_or_default());
                    Remains::Text(start, end)
                });
                self.remains.insert(left.map(Into::into), remains);
                remains
            }
        };
        self.tails.push(Tail { remains, what });
        Next(Next::TAIL | (self.tails.len() as u32 - 1))
    }

    /// What remains of a pattern as steps, unless there is a star in a name or `**` before the end.
    fn steps(&mut self, left: Option<&[u8]>) -> Option<Remains> {
        let (start, mut left) = (self.steps.len() as u32, left);
        while let Some(text) = left {
            let (segment, behind) = split_segment(text);
            let step = match (Segment::of(segment), behind) {
                (Segment::Literal(name), _) => {
                    let (start, end) = self.text(name);
                    Step::Name(start, end)
                }
                (Segment::Any, _) => Step::Any,
                (Segment::Deep, None) => Step::Deep,
                (Segment::Deep, Some(_)) | (Segment::Starred(_), _) => {
                    self.steps.truncate(start as usize);
                    return None;
                }
            };
            self.steps.push(step);
            left = behind;
        }
        Some(Remains::Steps(start, self.steps.len() as u32))
    }

    fn text(&mut self, text: &[u8]) -> (u32, u32) {
        let start = self.texts.len() as u32;
        self.texts.extend_from_slice(text);
        (start, self.texts.len() as u32)
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
