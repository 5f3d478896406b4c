//! Builds the tree: patterns share common beginnings, and the rest of a single pattern is stored as a whole.

use rustc_hash::FxHashMap;

use super::{PathNode, PatternRest, PatternSegment, StarSegments, StepTarget, Tail, hash};
use crate::rules::{Glob, Segment, split_segment};

/// A pattern whose rest is not yet in the tree.
#[derive(Clone, Copy)]
pub(super) struct OpenPattern<'g> {
    left: Option<&'g [u8]>,
    what: u32,
}

impl<'g> OpenPattern<'g> {
    pub(super) fn from_glob((glob, what): &'g (Glob, u32)) -> Self {
        Self { left: Some(glob.as_str().as_bytes()), what: *what }
    }
}

pub(super) struct TreeBuilder<'b> {
    pub(super) first_space: u32,
    pub(super) nodes: Vec<PathNode>,
    pub(super) tails: Vec<Tail>,
    pub(super) steps: Vec<PatternSegment>,
    /// The rests of patterns, by their text. Patterns with the same ending share one rest, which saves
    /// cache space.
    pub(super) remains: FxHashMap<Option<Box<[u8]>>, PatternRest>,
    pub(super) texts: Vec<u8>,
    pub(super) star_segments: Vec<Box<[StarSegments]>>,
    pub(super) found: Vec<u32>,
    pub(super) literals: &'b mut Vec<(u32, Box<[u8]>, u32)>,
}

impl TreeBuilder<'_> {
    /// Adds a node for patterns that share all previous steps, and the subtree below it.
    pub(super) fn add_node(&mut self, ways: &mut [OpenPattern<'_>], stays: bool) -> StepTarget {
        let number = self.nodes.len();
        // Patterns that end at this node come first. The other patterns are grouped by their next segment.
        ways.sort_by_key(|way| way.left.map(|left| split_segment(left).0));
        let ended = ways.partition_point(|way| way.left.is_none());
        let start = self.found.len() as u32;
        self.found.extend(ways[..ended].iter().map(|way| way.what));
        self.nodes.push(PathNode {
            only: (0, 0, StepTarget::NOWHERE),
            names_only: false,
            any: StepTarget::NOWHERE,
            deep: StepTarget::NOWHERE,
            star_segments: u32::MAX,
            found: (start, self.found.len() as u32),
            stays,
        });

        let mut star_segments: Vec<StarSegments> = Vec::new();
        let mut names: Vec<(&[u8], StepTarget)> = Vec::new();
        let same_step = |a: &OpenPattern<'_>, b: &OpenPattern<'_>| {
            a.left.map(|left| split_segment(left).0) == b.left.map(|left| split_segment(left).0)
        };
        for together in ways[ended..].chunk_by_mut(same_step) {
            let Some(segment) = together[0].left.map(|left| split_segment(left).0) else { continue };
            let step = Segment::parse_segment(segment);
            let to = self.add_target(together, step == Segment::Deep);
            match step {
                Segment::Literal(text) => names.push((text, to)),
                Segment::Any => self.nodes[number].any = to,
                Segment::Deep => self.nodes[number].deep = to,
                Segment::Starred(pattern) => add_star_segment(&mut star_segments, pattern, to),
            }
        }
        if !star_segments.is_empty() {
            self.nodes[number].star_segments = self.star_segments.len() as u32;
            self.star_segments.push(star_segments.into());
        }
        match &*names {
            [(text, to)] => {
                let (start, end) = self.add_text(text);
                self.nodes[number].only = (start, end, *to);
            }
            names => {
                let space = self.first_space + number as u32;
                self.literals.extend(names.iter().map(|(text, to)| (space, (*text).into(), to.0)));
            }
        }
        let PathNode { any, deep, star_segments, stays, .. } = self.nodes[number];
        self.nodes[number].names_only =
            !stays && (any, deep, star_segments) == (StepTarget::NOWHERE, StepTarget::NOWHERE, u32::MAX);
        StepTarget(number as u32)
    }

    /// Adds the target of patterns that share their next step: a node, or the rest of a single pattern.
    fn add_target(&mut self, ways: &mut [OpenPattern<'_>], deep: bool) -> StepTarget {
        if let [way] = ways {
            // After `**`, the rest still begins with the `**`.
            let left = if deep { way.left } else { way.left.and_then(|left| split_segment(left).1) };
            return self.add_tail(left, way.what);
        }
        ways.iter_mut().for_each(|way| way.left = way.left.and_then(|left| split_segment(left).1));
        self.add_node(ways, deep)
    }

    fn add_tail(&mut self, left: Option<&[u8]>, what: u32) -> StepTarget {
        let remains = match self.remains.get(&left.map(Into::into)) {
            Some(remains) => *remains,
            None => {
                let remains = self.rest_as_steps(left).unwrap_or_else(|| {
                    let (start, end) = self.add_text(left.unwrap_or_default());
                    PatternRest::Text(start, end)
                });
                self.remains.insert(left.map(Into::into), remains);
                remains
            }
        };
        self.tails.push(Tail { remains, what });
        StepTarget(StepTarget::TAIL | (self.tails.len() as u32 - 1))
    }

    /// Converts the rest of a pattern to steps; `None` if it has an inner star, or a `**` that is not last.
    fn rest_as_steps(&mut self, left: Option<&[u8]>) -> Option<PatternRest> {
        let (start, mut left) = (self.steps.len() as u32, left);
        while let Some(text) = left {
            let (segment, after) = split_segment(text);
            let step = match (Segment::parse_segment(segment), after) {
                (Segment::Literal(name), _) => {
                    let (start, end) = self.add_text(name);
                    PatternSegment::Name(start, end)
                }
                (Segment::Any, _) => PatternSegment::Any,
                (Segment::Deep, None) => PatternSegment::Deep,
                (Segment::Deep, Some(_)) | (Segment::Starred(_), _) => {
                    self.steps.truncate(start as usize);
                    return None;
                }
            };
            self.steps.push(step);
            left = after;
        }
        Some(PatternRest::Steps(start, self.steps.len() as u32))
    }

    fn add_text(&mut self, text: &[u8]) -> (u32, u32) {
        let start = self.texts.len() as u32;
        self.texts.extend_from_slice(text);
        (start, self.texts.len() as u32)
    }
}

fn add_star_segment(star_segments: &mut Vec<StarSegments>, pattern: &[u8], to: StepTarget) {
    let is_star = |byte: &u8| *byte == b'*';
    let before = pattern.iter().position(is_star).unwrap_or(0);
    let after = pattern.iter().rev().position(is_star).unwrap_or(0);
    let node =
        star_segments.iter().position(|group| (group.before, group.after) == (before, after)).unwrap_or_else(|| {
            star_segments.push(StarSegments { before, after, steps: FxHashMap::default() });
            star_segments.len() - 1
        });
    let ends = hash(&pattern[..before], &pattern[pattern.len() - after..]);
    star_segments[node].steps.entry(ends).or_default().push((pattern.into(), to));
}
