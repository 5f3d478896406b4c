//! The one script that decides, put together from its parts.

/// The whole source. Each part says what it mirrors; the first also says what goes in and what comes out.
pub const SOURCE: &str = concat!(
    include_str!("script/head.lua"),
    include_str!("script/bucket.lua"),
    include_str!("script/interval_bucket.lua"),
    include_str!("script/fixed_window.lua"),
    include_str!("script/sliding_window.lua"),
    include_str!("script/sliding_slices.lua"),
    include_str!("script/sliding_log.lua"),
    include_str!("script/concurrency.lua"),
    include_str!("script/unkept.lua"),
    include_str!("script/sets.lua"),
    include_str!("script/general.lua"),
    include_str!("script/decide.lua"),
);

/// A script and the name it is cached under in the store.
#[derive(Debug)]
pub struct Script {
    source: String,
    sha: String,
}

impl Script {
    /// The script of this crate.
    pub fn new() -> Self {
        Self::from_source(SOURCE.to_owned())
    }

    /// Another one: tests replace the line that reads the clock.
    pub fn from_source(source: String) -> Self {
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Self { source, sha }
    }

    /// What the store compiles.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What it is called by.
    pub fn sha(&self) -> &str {
        &self.sha
    }
}

impl Default for Script {
    fn default() -> Self {
        Self::new()
    }
}
