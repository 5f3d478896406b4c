//! Positions of values in a chunk. Values are referenced by position, so that parsing copies nothing.

/// The position and length of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    start: u32,
    len: u32,
}

/// Flag in `len` that marks a value with escape sequences. The escape sequences are decoded when the value is used.
const ESCAPED_FLAG: u32 = 1 << 31;

impl Span {
    /// A missing value.
    pub const NONE: Self = Self { start: u32::MAX, len: 0 };

    /// Creates a span. `start` and `len` must be less than 2³¹; chunks are far smaller.
    #[inline]
    pub fn new(start: usize, len: usize) -> Self {
        Self { start: start as u32, len: len as u32 }
    }

    /// Marks the value as escaped if `escaped` is true.
    #[inline]
    #[must_use]
    pub fn escaped_if(self, escaped: bool) -> Self {
        Self { len: if escaped { self.len | ESCAPED_FLAG } else { self.len }, ..self }
    }

    /// Returns whether the value is missing.
    #[inline]
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// Returns whether the value contains escape sequences.
    #[inline]
    pub fn is_escaped(self) -> bool {
        self.len & ESCAPED_FLAG != 0
    }

    /// Returns the position of the first byte.
    #[inline]
    pub(crate) fn start(self) -> usize {
        self.start as usize
    }

    /// Returns the length.
    #[inline]
    pub(crate) fn len(self) -> usize {
        (self.len & !ESCAPED_FLAG) as usize
    }

    /// Returns the bytes of the value in `text`, without decoding escape sequences. Returns `None` if the value is
    /// missing or the span is out of bounds.
    #[inline]
    pub fn bytes_in(self, text: &[u8]) -> Option<&[u8]> {
        if self.is_none() { None } else { text.get(self.start()..self.start() + self.len()) }
    }
}
