//! Matches many path patterns together with a tree of segments. The search time depends on the path and hardly on the
//! number of patterns.
//!
//! Each pattern is a sequence of steps from the root, with one step per segment. Patterns with a common beginning share
//! its steps. A search has a set of current nodes. For each segment, the search follows three kinds of steps from every
//! current node: the literal step with that name, `*`, and matching steps such as `a*b`. It finds literal steps with
//! one hash lookup, and steps such as `a*b` by prefix and suffix. A node after `**` also stays current. Therefore, a
//! search for a path of a few segments needs a few lookups, and visits each node at most once per segment.
//!
//! Where only one pattern remains, the tree ends, and the rest of the pattern is compared directly. Most patterns
//! contain a unique name early, so most searches end this way. While only literal steps follow, a search has a single
//! current node and needs no other state.

mod build;

use std::hash::Hasher;

use rustc_hash::{FxHashMap, FxHasher};

use super::lookup::{Lookup, equals_short};
use crate::rules::{Glob, matches_rest, segment_matches, split_segment};
use build::{OpenPattern, TreeBuilder};

/// A tree of numbered patterns. The literal steps are in a shared [`Lookup`].
#[derive(Debug)]
pub(crate) struct Paths {
    /// The lookup space of the root's literal steps. Node `n` uses the space `first_space + n`.
    first_space: u32,
    /// The node after a leading slash, if all patterns begin with a slash.
    rooted: Option<StepTarget>,
    nodes: Box<[PathNode]>,
    tails: Box<[Tail]>,
    steps: Box<[PatternSegment]>,
    texts: Box<[u8]>,
    star_segments: Box<[Box<[StarSegments]>]>,
    found: Box<[u32]>,
}

/// A node of the tree. The first node is the root.
#[derive(Clone, Copy, Debug)]
struct PathNode {
    /// The literal step, if there is exactly one: the range of its text, and its target. If there are several literal
    /// steps, they are in the lookup table.
    only: (u32, u32, StepTarget),
    /// Whether only literal steps follow, so that a search stays at a single node.
    names_only: bool,
    any: StepTarget,
    /// The node after `**`, reached by zero or more segments.
    deep: StepTarget,
    /// The index in `star_segments` of the next segments with an inner star; `u32::MAX` if there are none.
    star_segments: u32,
    /// The range in `found` of the patterns that end here.
    found: (u32, u32),
    /// Whether the node stays current for all further segments, because it follows `**`.
    stays: bool,
}

/// The target of a step: nowhere, a node, or the rest of the only remaining pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StepTarget(u32);

impl StepTarget {
    const NOWHERE: Self = Self(u32::MAX);
    const TAIL: u32 = 1 << 31;

    fn tail(self) -> Option<usize> {
        (self != Self::NOWHERE && self.0 & Self::TAIL != 0).then_some((self.0 & !Self::TAIL) as usize)
    }
}

/// The rest of a pattern, and the pattern's number.
#[derive(Clone, Copy, Debug)]
struct Tail {
    remains: PatternRest,
    what: u32,
}

#[derive(Clone, Copy, Debug)]
enum PatternRest {
    /// Steps that are compared one by one.
    Steps(u32, u32),
    /// A pattern for the general matcher, because it has an inner star, or a `**` that is not last.
    Text(u32, u32),
}

/// A step of the rest of a pattern.
#[derive(Clone, Copy, Debug)]
enum PatternSegment {
    /// A literal segment: the range of its text.
    Name(u32, u32),
    Any,
    /// `**` at the end.
    Deep,
}

/// Steps whose prefix and suffix have the same hash.
type StarSegmentTargets = Vec<(Box<[u8]>, StepTarget)>;

/// Pattern segments with an inner star, such as `ab*cd`, that have the same prefix length and the same suffix length.
#[derive(Debug)]
struct StarSegments {
    before: usize,
    after: usize,
    /// Steps by the hash of their prefix and suffix. A search compares the steps that it finds with the segment.
    steps: FxHashMap<u64, StarSegmentTargets>,
}

/// The current and next nodes of a search. Reused to avoid allocation.
#[derive(Debug, Default)]
pub(crate) struct SearchNodes {
    here: Vec<StepTarget>,
    next: Vec<StepTarget>,
}

impl Paths {
    /// Builds a tree. Adds the tree's literal steps to `literals`, in spaces starting with `first_space`. Returns the
    /// tree and the next free space.
    pub(super) fn new(
        patterns: &[(Glob, u32)],
        first_space: u32,
        literals: &mut Vec<(u32, Box<[u8]>, u32)>,
    ) -> (Self, u32) {
        let mut ways: Vec<OpenPattern<'_>> = patterns.iter().map(OpenPattern::from_glob).collect();
        let mut builder = TreeBuilder {
            first_space,
            nodes: Vec::new(),
            tails: Vec::new(),
            steps: Vec::new(),
            remains: FxHashMap::default(),
            texts: Vec::new(),
            star_segments: Vec::new(),
            found: Vec::new(),
            literals,
        };
        builder.add_node(&mut ways, false);
        let next_space = first_space + builder.nodes.len() as u32;
        let rooted = builder.nodes.first().and_then(|root| {
            let (start, end, to) = root.only;
            (root.names_only && start == end && to != StepTarget::NOWHERE).then_some(to)
        });
        let paths = Self {
            first_space,
            rooted,
            nodes: builder.nodes.into(),
            tails: builder.tails.into(),
            steps: builder.steps.into(),
            texts: builder.texts.into(),
            star_segments: builder.star_segments.into(),
            found: builder.found.into(),
        };
        (paths, next_space)
    }

    /// Calls `each` with the number of every pattern that matches `path`, possibly several times.
    #[inline]
    pub(super) fn find(&self, path: &[u8], literals: &Lookup, walk: &mut SearchNodes, mut each: impl FnMut(u32)) {
        let (mut at, mut rest) = match (self.rooted, path) {
            (Some(rooted), [b'/', after @ ..]) => (rooted, Some(after)),
            _ => (StepTarget(0), Some(path)),
        };
        while at.tail().is_none() {
            let Some(node) = self.nodes.get(at.0 as usize) else { return };
            if !node.names_only {
                return self.find_from_several_nodes(at, rest, literals, walk, each);
            }
            let Some(left) = rest else { return self.patterns_ending_at(at).iter().for_each(|what| each(*what)) };
            let (segment, after) = split_segment(left);
            (at, rest) = (self.literal_target(at, node, segment, literals), after);
        }
        if let Some(what) = self.match_rest(at, rest) {
            each(what);
        }
    }

    /// Continues a search that may have several current nodes.
    #[inline(never)]
    fn find_from_several_nodes(
        &self,
        at: StepTarget,
        rest: Option<&[u8]>,
        literals: &Lookup,
        walk: &mut SearchNodes,
        mut each: impl FnMut(u32),
    ) {
        let (SearchNodes { here, next }, mut rest) = (walk, rest);
        here.clear();
        self.add_node(at, rest, here, &mut each);
        while let Some(left) = rest {
            if here.is_empty() {
                return;
            }
            let (segment, after) = split_segment(left);
            rest = after;
            next.clear();
            for at in here.iter() {
                let node = &self.nodes[at.0 as usize];
                if node.stays {
                    self.add_node(*at, rest, next, &mut each);
                }
                self.add_node(self.literal_target(*at, node, segment, literals), rest, next, &mut each);
                self.add_node(node.any, rest, next, &mut each);
                if node.star_segments != u32::MAX {
                    for to in self.star_segments[node.star_segments as usize]
                        .iter()
                        .flat_map(|group| group.targets_of(segment))
                    {
                        self.add_node(to, rest, next, &mut each);
                    }
                }
            }
            std::mem::swap(here, next);
        }
        for at in here.iter() {
            self.patterns_ending_at(*at).iter().for_each(|what| each(*what));
        }
    }

    /// Returns the target of a node's literal step for a segment.
    #[inline(always)]
    fn literal_target(&self, at: StepTarget, node: &PathNode, segment: &[u8], literals: &Lookup) -> StepTarget {
        let (start, end, to) = node.only;
        if to == StepTarget::NOWHERE {
            return literals.get(self.first_space + at.0, segment).map_or(StepTarget::NOWHERE, StepTarget);
        }
        if equals_short(&self.texts[start as usize..end as usize], segment) { to } else { StepTarget::NOWHERE }
    }

    /// Returns the numbers of the patterns that end at a node.
    fn patterns_ending_at(&self, at: StepTarget) -> &[u32] {
        let (start, end) = self.nodes[at.0 as usize].found;
        &self.found[start as usize..end as usize]
    }

    /// Adds a node to the current nodes. If `**` follows, also adds the node after it, because `**` can match zero
    /// segments. If only one pattern remains, compares its rest immediately.
    #[inline]
    fn add_node(&self, at: StepTarget, rest: Option<&[u8]>, nodes: &mut Vec<StepTarget>, each: &mut impl FnMut(u32)) {
        if at == StepTarget::NOWHERE {
            return;
        }
        if at.tail().is_some() {
            self.match_rest(at, rest).into_iter().for_each(each);
            return;
        }
        // There are only a few nodes, so a linear search is fastest.
        if !nodes.contains(&at) {
            nodes.push(at);
            self.add_node(self.nodes[at.0 as usize].deep, rest, nodes, each);
        }
    }

    /// Returns the number of the only remaining pattern, if its rest matches the rest of the path.
    #[inline(always)]
    fn match_rest(&self, at: StepTarget, rest: Option<&[u8]>) -> Option<u32> {
        let Tail { remains, what } = *self.tails.get(at.tail()?)?;
        let matches = match remains {
            PatternRest::Steps(start, end) => self.steps_match(&self.steps[start as usize..end as usize], rest),
            PatternRest::Text(start, end) => matches_rest(Some(&self.texts[start as usize..end as usize]), rest),
        };
        matches.then_some(what)
    }

    #[inline]
    fn steps_match(&self, steps: &[PatternSegment], rest: Option<&[u8]>) -> bool {
        let mut left = match rest {
            Some(left) => left,
            None => return matches!(steps, [] | [PatternSegment::Deep]),
        };
        for (step, next_step) in steps.iter().zip(1..) {
            let tail = match step {
                PatternSegment::Deep => return true,
                PatternSegment::Any => split_segment(left).1,
                PatternSegment::Name(start, end) => {
                    let name = &self.texts[*start as usize..*end as usize];
                    let Some((segment, rest)) = left.split_at_checked(name.len()) else { return false };
                    if !equals_short(segment, name) {
                        return false;
                    }
                    match rest {
                        [] => None,
                        [b'/', rest @ ..] => Some(rest),
                        _ => return false,
                    }
                }
            };
            match tail {
                Some(tail) => left = tail,
                None => return matches!(steps[next_step..], [] | [PatternSegment::Deep]),
            }
        }
        // The path is longer than the pattern.
        false
    }
}

impl StarSegments {
    /// Returns the targets of the steps that match a segment.
    fn targets_of<'s>(&'s self, segment: &'s [u8]) -> impl Iterator<Item = StepTarget> + 's {
        let ends = segment.len().checked_sub(self.after).filter(|after| self.before <= *after);
        let steps = ends.and_then(|after| self.steps.get(&hash(&segment[..self.before], &segment[after..])));
        steps.into_iter().flatten().filter(|(pattern, _)| segment_matches(pattern, segment)).map(|(_, to)| *to)
    }
}

fn hash(before: &[u8], after: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(before);
    hasher.write(after);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn find_patterns(patterns: &[Glob], path: &str) -> Vec<u32> {
        let patterns: Vec<(Glob, u32)> = patterns.iter().cloned().zip(0..).collect();
        let mut literals = Vec::new();
        let (paths, _) = Paths::new(&patterns, 5, &mut literals);
        let mut found = Vec::new();
        paths.find(path.as_bytes(), &Lookup::new(&literals), &mut SearchNodes::default(), |what| found.push(what));
        found.sort_unstable();
        found.dedup();
        found
    }

    #[test]
    fn path_finds_every_pattern_that_matches_it() {
        let patterns = ["/v1/**", "/v1/*/posts", "/**/posts", "/v1/users*", "/v1/*s", "/v2/**", "*"];
        let patterns: Vec<Glob> = patterns.iter().map(|text| Glob::new(text).unwrap()).collect();
        assert_eq!(find_patterns(&patterns, "/v1"), [0]);
        assert_eq!(find_patterns(&patterns, "/v1/users"), [0, 3, 4]);
        assert_eq!(find_patterns(&patterns, "/v1/7/posts"), [0, 1, 2]);
        assert_eq!(find_patterns(&patterns, "/posts"), [2]);
        assert_eq!(find_patterns(&patterns, "posts"), [6]);
        assert!(find_patterns(&patterns, "/v3").is_empty());
    }

    proptest! {
        #[test]
        fn tree_agrees_with_matching_each_pattern(
            patterns in proptest::collection::vec("(/?(\\*\\*|[ab*]{0,3})){1,4}", 0..30),
            path in "[ab/]{0,12}",
        ) {
            let globs: Vec<Glob> = patterns.iter().filter_map(|text| Glob::new(text).ok()).collect();
            let singly: Vec<u32> =
                (0..globs.len() as u32).filter(|n| globs[*n as usize].matches(path.as_bytes())).collect();
            prop_assert_eq!(find_patterns(&globs, &path), singly);
        }
    }
}
