//! Converts descriptor values to conditions. A star in Envoy matches any characters, but a star in a rule matches no
//! slash.

use super::super::super::mistake::Position;
use super::super::super::text::Node;
use super::super::build::{map_node, one_or_list, text_node};

/// Maximum number of patterns for one value. Each star inside the value doubles the number of patterns.
const MAX_PATTERNS_PER_VALUE: usize = 16;

/// The values that a descriptor matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DescriptorValue<'v> {
    Any,
    Exactly(&'v str),
    Starred(&'v str),
}

impl<'v> DescriptorValue<'v> {
    pub(super) fn new(value: Option<&'v str>) -> Self {
        match value {
            None | Some("") => Self::Any,
            Some(value) if value.contains('*') => Self::Starred(value),
            Some(value) => Self::Exactly(value),
        }
    }

    /// Returns whether the descriptor matches every value.
    pub(super) fn is_everything(self) -> bool {
        match self {
            Self::Any => true,
            Self::Exactly(_) => false,
            Self::Starred(value) => value.bytes().all(|byte| byte == b'*'),
        }
    }

    /// Returns the condition, or the reason why a rule cannot express it.
    pub(super) fn condition(self, position: Position) -> Result<Node, &'static str> {
        Ok(match self.condition_parts(position)? {
            ("any_of", texts) => texts,
            test => map_node(position, vec![test]),
        })
    }

    /// Returns the key of the condition and its value.
    fn condition_parts(self, position: Position) -> Result<(&'static str, Node), &'static str> {
        Ok(match self {
            Self::Any => ("present", text_node(position, "true")),
            Self::Exactly(value) if value.contains(['{', '}']) => ("equals", text_node(position, value)),
            Self::Exactly(value) => ("any_of", text_node(position, value)),
            Self::Starred(value) => match value.trim_end_matches('*') {
                "" => ("present", text_node(position, "true")),
                prefix if !prefix.contains('*') => ("prefix", text_node(position, prefix)),
                _ => (
                    "any_of",
                    one_or_list(position, to_globs(value)?.into_iter().map(|glob| text_node(position, glob)).collect()),
                ),
            },
        })
    }
}

/// How the values of more specific descriptors are excluded from a rule.
#[derive(Debug)]
pub(super) enum Exclusion {
    /// A single condition that contains `not`.
    Not(Node),
    /// Conditions for overrides without a limit. Each excluded value matches one of these conditions.
    Each(Vec<Node>),
}

impl Exclusion {
    /// Excludes the values of more specific descriptors from the values that `from` matches.
    pub(super) fn new(
        position: Position,
        from: DescriptorValue<'_>,
        excluded: &[DescriptorValue<'_>],
    ) -> Result<Self, &'static str> {
        let exactly = |values: &DescriptorValue<'_>| matches!(values, DescriptorValue::Exactly(_));
        let braces = |values: &DescriptorValue<'_>| matches!(values, DescriptorValue::Exactly(value) if value.contains(['{', '}']));
        let has_braces = excluded.iter().any(braces);
        if has_braces && !excluded.iter().all(exactly) {
            let each: Result<_, _> = excluded.iter().map(|values| values.condition(position)).collect();
            return each.map(Self::Each);
        }
        let mut texts = Vec::with_capacity(excluded.len());
        for values in excluded {
            match values {
                DescriptorValue::Any => {}
                DescriptorValue::Exactly(value) => texts.push(text_node(position, *value)),
                DescriptorValue::Starred(value) => {
                    texts.extend(to_globs(value)?.into_iter().map(|glob| text_node(position, glob)));
                }
            }
        }
        let texts = one_or_list(position, texts);
        let except = if has_braces { map_node(position, vec![("equals", texts)]) } else { texts };
        let test = match from {
            DescriptorValue::Any => None,
            DescriptorValue::Exactly(_) | DescriptorValue::Starred(_) => Some(from.condition_parts(position)?),
        };
        Ok(Self::Not(map_node(position, test.into_iter().chain([("not", except)]).collect())))
    }
}

/// Returns patterns that together match the same strings as a value with stars. Each inner star needs two patterns: one
/// matches within a segment, the other across slashes. A star at either end needs only one pattern with `**`.
fn to_globs(value: &str) -> Result<Vec<String>, &'static str> {
    if value.contains(['{', '}']) {
        return Err("a value with stars and braces cannot be expressed as a pattern");
    }
    let mut parts = value.split('*').filter(|part| !part.is_empty());
    let first = parts.next().unwrap_or_default();
    let mut globs = vec![if value.starts_with('*') { format!("**/*{first}") } else { first.to_owned() }];
    for part in parts {
        if globs.len() >= MAX_PATTERNS_PER_VALUE {
            return Err("a value with that many stars cannot be expressed as a pattern");
        }
        globs = globs.iter().flat_map(|glob| [format!("{glob}*{part}"), format!("{glob}*/**/*{part}")]).collect();
    }
    if value.ends_with('*') {
        globs.iter_mut().for_each(|glob| glob.push_str("*/**"));
    }
    Ok(globs)
}

#[cfg(test)]
mod tests {
    use super::super::super::super::glob::{Glob, segment_matches};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn globs_match_the_same_strings_as_the_envoy_value(value in "[ab/*]{1,7}", asked in "[ab/]{0,8}") {
            let stars = value.bytes().all(|byte| byte == b'*');
            if value.contains('*') && !stars {
                let globs = to_globs(&value).unwrap();
                let ours = globs.iter().any(|glob| match Glob::is_pattern(glob) {
                    true => Glob::new(glob).unwrap_or_else(|why| panic!("{glob}: {why}")).matches(asked.as_bytes()),
                    false => *glob == asked,
                });
                prop_assert_eq!(ours, segment_matches(value.as_bytes(), asked.as_bytes()), "{:?}", globs);
            }
        }
    }
}
