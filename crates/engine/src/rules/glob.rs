//! Patterns for paths: `*` matches any characters within a segment, `**` any number of whole segments.
//!
//! | pattern | matches | does not match |
//! |---|---|---|
//! | `/v1/*` | `/v1/users`, `/v1/` | `/v1`, `/v1/users/7` |
//! | `/v1/**` | `/v1`, `/v1/`, `/v1/users/7` | `/v10` |
//! | `/**/edit` | `/edit`, `/a/b/edit` | `/edit/a` |
//! | `/files/*.png` | `/files/a.png` | `/files/a/b.png` |
//! | `/users/{user}/**` | `/users/7`, `/users/7/posts` | `/users` |
//!
//! `{name}` matches one segment and captures it for `per`.
//!
//! Matching never backtracks beyond the last star, so its time is at most proportional to the pattern length times the
//! value length.

use std::fmt;

/// A pattern with at least one star or capture.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Glob {
    /// The pattern with stars instead of the captures.
    text: Box<str>,
    captures: Box<[Capture]>,
}

/// A named segment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Capture {
    name: Box<str>,
    position: CapturePosition,
}

/// The index of a captured segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CapturePosition {
    /// Counted from the first segment.
    FromStart(usize),
    /// Counted from the last segment.
    FromEnd(usize),
}

impl CapturePosition {
    /// Returns the captured segment of a value.
    pub(crate) fn segment_of(self, value: &[u8]) -> Option<&[u8]> {
        let mut segments = value.split(|byte| *byte == b'/');
        match self {
            Self::FromStart(before) => segments.nth(before),
            Self::FromEnd(after) => segments.nth_back(after),
        }
    }
}

/// The part of a pattern between two slashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Segment<'g> {
    Literal(&'g [u8]),
    /// `*`: any segment.
    Any,
    /// A segment that contains stars, like `a*b`.
    Starred(&'g [u8]),
    /// `**`: any number of segments.
    Deep,
}

impl Glob {
    /// Maximum length.
    pub const MAX_BYTES: usize = 1024;

    /// Returns whether a value is a pattern: it contains a star or a brace.
    pub fn is_pattern(text: &str) -> bool {
        text.contains(['*', '{', '}'])
    }

    /// Parses a pattern.
    ///
    /// # Errors
    /// Returns a description of the problem if the pattern is invalid.
    pub fn new(text: &str) -> Result<Self, &'static str> {
        if text.len() > Self::MAX_BYTES {
            return Err("pattern too long (maximum 1024 bytes)");
        }
        if text.split('/').any(|segment| segment != "**" && segment.contains("**")) {
            return Err("`**` must be a whole segment, between slashes");
        }
        let (text, captures) = extract_captures(text)?;
        let glob = Self { text, captures };
        let segments: Vec<Segment<'_>> = glob.segments().collect();
        if segments.windows(2).any(|pair| pair == [Segment::Deep, Segment::Deep]) {
            return Err("`**/**` is the same as `**`");
        }
        Ok(glob)
    }

    /// Returns the position of the segment that `name` captures.
    pub(crate) fn capture_position(&self, name: &str) -> Option<CapturePosition> {
        self.captures.iter().find(|capture| *capture.name == *name).map(|capture| capture.position)
    }

    /// Returns the names of the captures.
    pub fn capture_names(&self) -> impl Iterator<Item = &str> {
        self.captures.iter().map(|capture| &*capture.name)
    }

    /// Returns the pattern with stars instead of the captures.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn segments(&self) -> impl Iterator<Item = Segment<'_>> {
        self.text.split('/').map(|segment| Segment::parse_segment(segment.as_bytes()))
    }

    /// Returns whether `value` matches.
    pub fn matches(&self, value: &[u8]) -> bool {
        matches_rest(Some(self.text.as_bytes()), Some(value))
    }
}

/// Replaces captures with stars. Returns the new pattern and the captures.
fn extract_captures(text: &str) -> Result<(Box<str>, Box<[Capture]>), &'static str> {
    let segments: Vec<&str> = text.split('/').collect();
    let deep: Vec<usize> = (0..segments.len()).filter(|position| segments[*position] == "**").collect();
    let mut captures: Vec<Capture> = Vec::new();
    let mut written = Vec::with_capacity(segments.len());
    for (position, segment) in segments.iter().enumerate() {
        if !segment.contains(['{', '}']) {
            written.push(*segment);
            continue;
        }
        let name = segment.strip_prefix('{').and_then(|segment| segment.strip_suffix('}'));
        let is_name = |name: &&str| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
        };
        let Some(name) = name.filter(is_name) else {
            return Err("`{name}` must be a whole segment, between slashes, of letters and digits");
        };
        if captures.iter().any(|capture| *capture.name == *name) {
            return Err("duplicate name in braces");
        }
        let position = match (deep.first(), deep.last()) {
            (Some(first), Some(last)) if position > *first && position < *last => {
                return Err("a name between two `**` is ambiguous");
            }
            (Some(first), _) if position > *first => CapturePosition::FromEnd(segments.len() - 1 - position),
            _ => CapturePosition::FromStart(position),
        };
        captures.push(Capture { name: name.into(), position });
        written.push("*");
    }
    Ok((written.join("/").into(), captures.into()))
}

impl<'g> Segment<'g> {
    pub(crate) fn parse_segment(text: &'g [u8]) -> Self {
        match text {
            b"**" => Self::Deep,
            b"*" => Self::Any,
            text if text.contains(&b'*') => Self::Starred(text),
            text => Self::Literal(text),
        }
    }
}

/// Returns whether the remaining value matches the remaining pattern. `None` means that no segments remain.
pub(crate) fn matches_rest(pattern: Option<&[u8]>, value: Option<&[u8]>) -> bool {
    matches_counting_steps(pattern, value, &mut || {})
}

/// Like [`matches_rest`], but calls `step` before each comparison, so that a test can count the comparisons.
#[inline]
fn matches_counting_steps(mut pattern: Option<&[u8]>, mut value: Option<&[u8]>, step: &mut impl FnMut()) -> bool {
    // Where to continue after a mismatch: the pattern after the last `**`, and the remaining value at that point. `**`
    // then matches one more segment.
    let mut fallback: Option<(&[u8], &[u8])> = None;
    loop {
        match (pattern.map(split_segment), value) {
            (None, None) | (Some((b"**", None)), _) => return true,
            (Some((b"**", Some(after))), _) => {
                pattern = Some(after);
                fallback = value.map(|value| (after, value)).or(fallback);
                continue;
            }
            (Some((segment, after)), Some(left)) => {
                let (head, tail) = split_segment(left);
                step();
                if segment_matches_counting_steps(segment, head, step) {
                    (pattern, value) = (after, tail);
                    continue;
                }
            }
            (Some(_), None) | (None, Some(_)) => {}
        }
        // `**` cannot match the last segment, because the rest of the pattern needs at least one segment.
        let Some((after, tail)) = fallback.and_then(|(after, left)| Some((after, split_segment(left).1?))) else {
            return false;
        };
        (pattern, value) = (Some(after), Some(tail));
        fallback = Some((after, tail));
    }
}

/// Returns whether a segment matches a pattern whose stars match any characters. After a mismatch, only the last star
/// is extended.
pub(crate) fn segment_matches(pattern: &[u8], segment: &[u8]) -> bool {
    segment_matches_counting_steps(pattern, segment, &mut || {})
}

#[inline]
fn segment_matches_counting_steps(pattern: &[u8], segment: &[u8], step: &mut impl FnMut()) -> bool {
    let (mut at, mut position) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while at < segment.len() {
        step();
        match pattern.get(position) {
            Some(b'*') => {
                star = Some((position, at));
                position += 1;
            }
            Some(byte) if *byte == segment[at] => (at, position) = (at + 1, position + 1),
            Some(_) | None => {
                let Some((after, taken)) = star else { return false };
                star = Some((after, taken + 1));
                (at, position) = (taken + 1, after + 1);
            }
        }
    }
    pattern[position..].iter().all(|byte| *byte == b'*')
}

/// Splits at the first slash.
#[inline]
pub(crate) fn split_segment(value: &[u8]) -> (&[u8], Option<&[u8]>) {
    match find_slash(value) {
        Some(slash) => (&value[..slash], Some(&value[slash + 1..])),
        None => (value, None),
    }
}

/// Returns the index of the first slash. Searches eight bytes at a time: an exclusive or turns slashes into zero bytes,
/// and a subtraction then sets the highest bit of the first zero byte.
#[inline]
fn find_slash(value: &[u8]) -> Option<usize> {
    const ONE_IN_EACH_BYTE: u64 = 0x0101_0101_0101_0101;
    let mut left = value;
    while let Some((eight, rest)) = left.split_first_chunk() {
        let differing = u64::from_le_bytes(*eight) ^ (ONE_IN_EACH_BYTE * b'/' as u64);
        let slashes = differing.wrapping_sub(ONE_IN_EACH_BYTE) & !differing & (ONE_IN_EACH_BYTE << 7);
        if slashes != 0 {
            return Some(value.len() - left.len() + slashes.trailing_zeros() as usize / 8);
        }
        left = rest;
    }
    left.iter().position(|byte| *byte == b'/').map(|position| value.len() - left.len() + position)
}

impl fmt::Debug for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Glob({:?})", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn assert_matches_only(pattern: &str, matching: &[&str], others: &[&str]) {
        let glob = Glob::new(pattern).unwrap();
        for value in matching {
            assert!(glob.matches(value.as_bytes()), "{pattern} should match {value:?}");
        }
        for value in others {
            assert!(!glob.matches(value.as_bytes()), "{pattern} should not match {value:?}");
        }
    }

    #[test]
    fn star_stays_within_its_segment() {
        assert_matches_only("/v1/*", &["/v1/users", "/v1/"], &["/v1", "/v1/users/7", "/v1/users/", "v1/users", ""]);
        assert_matches_only("/v1/*/posts", &["/v1/7/posts", "/v1//posts"], &["/v1/posts", "/v1/7/8/posts"]);
        assert_matches_only("*", &["", "anything"], &["a/b", "/"]);
        assert_matches_only(
            "*.example.com",
            &["a.example.com", ".example.com", "a.b.example.com"],
            &["example.com", "a.example.com/x"],
        );
        assert_matches_only(
            "/files/a*b*c.png",
            &["/files/abc.png", "/files/axxbxxc.png", "/files/abbc.png"],
            &["/files/ac.png", "/files/abc.pn"],
        );
        assert_matches_only("a*a", &["aa", "aba"], &["a", "ab"]);
    }

    #[test]
    fn two_stars_match_any_number_of_segments() {
        assert_matches_only("/v1/**", &["/v1", "/v1/", "/v1/users", "/v1/users/7"], &["/v10", "/", "", "/v2/v1"]);
        assert_matches_only(
            "/**/edit",
            &["/edit", "/a/edit", "/a/b/edit", "/edit/edit"],
            &["/edit/a", "/aedit", "edit"],
        );
        assert_matches_only(
            "/a/**/b/**/c",
            &["/a/b/c", "/a/x/b/y/z/c", "/a/b/b/c/c", "/a/c/b/c"],
            &["/a/c", "/a/b", "/a/c/b", "/a/b/c/d"],
        );
        assert_matches_only("**", &["", "/", "/a/b"], &[]);
        assert_matches_only("/**/*.png", &["/a.png", "/x/y/a.png"], &["/x/a.png/y"]);
    }

    #[test]
    fn invalid_patterns_are_refused() {
        assert_eq!(Glob::new("/v1**"), Err("`**` must be a whole segment, between slashes"));
        assert_eq!(Glob::new("/***"), Err("`**` must be a whole segment, between slashes"));
        assert_eq!(Glob::new("/**/**"), Err("`**/**` is the same as `**`"));
        assert_eq!(Glob::new(&"*/".repeat(600)), Err("pattern too long (maximum 1024 bytes)"));
    }

    #[test]
    fn names_in_braces_capture_segments() {
        assert_matches_only("/users/{user}/posts", &["/users/7/posts"], &["/users/posts", "/users/7/8/posts"]);
        let taken = |pattern: &str, name: &str, value: &'static str| {
            let glob = Glob::new(pattern).unwrap();
            assert!(glob.matches(value.as_bytes()));
            str::from_utf8(glob.capture_position(name).unwrap().segment_of(value.as_bytes()).unwrap()).unwrap()
        };
        assert_eq!(taken("/users/{user}/**", "user", "/users/7/posts/9"), "7");
        assert_eq!(taken("/**/{folder}/{file}", "folder", "/a/b/c"), "b");
        assert_eq!(taken("/**/{folder}/{file}", "file", "/a/b/c"), "c");
        assert_eq!(taken("{tenant}", "tenant", "acme"), "acme");
        assert_eq!(Glob::new("/{a}.json").unwrap_err()[..32], *"`{name}` must be a whole segment");
        assert_eq!(Glob::new("/{a}/{a}"), Err("duplicate name in braces"));
        assert!(Glob::new("/**/{a}/**").is_err() && Glob::new("/{}").is_err());
    }

    /// Returns the number of steps until a mismatch, and the upper bound: the product of both lengths.
    fn count_steps_and_bound(pattern: &str, value: &str) -> (usize, usize) {
        let glob = Glob::new(pattern).unwrap();
        let mut steps = 0;
        assert!(
            !matches_counting_steps(Some(glob.text.as_bytes()), Some(value.as_bytes()), &mut || steps += 1),
            "{pattern}"
        );
        (steps, (pattern.len() + 1) * (value.len() + 1))
    }

    #[test]
    fn worst_patterns_take_at_most_the_product_of_both_lengths() {
        // Patterns and values of maximum length, for which every star is extended repeatedly.
        let stars = format!("{}b", "*a".repeat(511));
        let deep = format!("{}b", "**/a*/".repeat(170));
        let both = format!("/**/{}b", "a*".repeat(500));
        for (pattern, value) in [
            (&stars, "a".repeat(8192)),
            (&deep, "a/".repeat(4096)),
            (&deep, "aa/".repeat(2730)),
            (&both, "/".repeat(8192)),
            (&both, format!("/{}", "a".repeat(8191))),
            (&both, "/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa".repeat(256)),
        ] {
            let (steps, product) = count_steps_and_bound(pattern, &value);
            assert!(steps <= product, "{steps} steps, {product} is the product of both lengths");
        }
    }

    /// Reference implementation: tries every way to match.
    fn matches_slowly(segments: &[Segment<'_>], value: &[&[u8]]) -> bool {
        match (segments, value) {
            ([], []) => true,
            ([Segment::Deep, rest @ ..], _) => (0..=value.len()).any(|taken| matches_slowly(rest, &value[taken..])),
            ([one, rest @ ..], [first, others @ ..]) => {
                segment_matches_slowly(one, first) && matches_slowly(rest, others)
            }
            ([], [_, ..]) | ([_, ..], []) => false,
        }
    }

    fn segment_matches_slowly(segment: &Segment<'_>, value: &[u8]) -> bool {
        fn matches_stars(pattern: &[u8], value: &[u8]) -> bool {
            match pattern {
                [] => value.is_empty(),
                [b'*', rest @ ..] => (0..=value.len()).any(|taken| matches_stars(rest, &value[taken..])),
                [byte, rest @ ..] => {
                    value.split_first().is_some_and(|(first, value)| first == byte && matches_stars(rest, value))
                }
            }
        }
        match segment {
            Segment::Starred(pattern) => matches_stars(pattern, value),
            Segment::Literal(text) => *text == value,
            Segment::Any | Segment::Deep => true,
        }
    }

    proptest! {
        #[test]
        fn matching_agrees_with_the_reference(
            pattern in "(/?(\\*\\*|[ab*]{0,3})){0,5}",
            value in "[ab/]{0,10}",
        ) {
            if let Ok(glob) = Glob::new(&pattern) {
                let segments: Vec<&[u8]> = value.as_bytes().split(|byte| *byte == b'/').collect();
                let pattern: Vec<Segment<'_>> = glob.segments().collect();
                prop_assert_eq!(glob.matches(value.as_bytes()), matches_slowly(&pattern, &segments));
            }
        }
    }
}
