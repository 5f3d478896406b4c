//! The scripts that decide, assembled from their files.

/// Assembles a script: each named file becomes a branch of the Lua function `chunk(name, ...)`, which runs the file with the
/// further arguments and returns its result; `$start` follows. So each file is a complete Lua chunk that a linter reads,
/// and creates its functions only when it is needed.
macro_rules! assemble {
    ($($name:literal),+; $start:expr) => {
        concat!(
            "local function chunk(name, ...)\n",
            $("if name == '", $name, "' then\n", include_str!(concat!("script/", $name, ".lua")), "end\n",)+
            "end\n",
            $start,
        )
    };
}

/// Assembles the files that decide charges, with `$start`.
macro_rules! assemble_charges {
    ($start:expr) => {
        assemble!(
            "main",
            "pool",
            "arithmetic",
            "bucket",
            "interval_bucket",
            "fixed_window",
            "sliding_window",
            "sliding_slices",
            "sliding_log",
            "concurrency",
            "stateless",
            "slow_path";
            $start
        )
    };
}

/// The source of the script that decides everything. The header of `main.lua` describes its arguments, its reply and what it mirrors.
pub const SOURCE: &str = assemble_charges!("return chunk('main', KEYS, 0, false)\n");

/// The source of the script that merges what nodes took under `consistency: eventual`; the header of `merge.lua` describes it.
pub const MERGE_SOURCE: &str = assemble_charges!(include_str!("script/merge.lua"));

/// The source of the script that grants leases under `consistency: leased`; the header of `exchange.lua` describes it.
pub const EXCHANGE_SOURCE: &str =
    assemble!("pool", "arithmetic", "bucket", "fixed_window"; include_str!("script/exchange.lua"));

/// The source of the script for the most common kind of charge; its header describes it.
pub const SPECIAL_SOURCE: &str = include_str!("script/special.lua");

/// A script, and the hash it is cached under in the store.
#[derive(Debug)]
pub struct Script {
    source: String,
    sha: String,
}

impl Script {
    fn new(source: String) -> Self {
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Self { source, sha }
    }

    /// Returns the source that the store compiles.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the hash that the script is called by.
    pub fn sha(&self) -> &str {
        &self.sha
    }
}

/// The scripts of a store. All read and write the same values.
#[derive(Debug)]
pub struct Scripts {
    /// Decides everything.
    pub(crate) general: Script,
    /// Decides the most common kind of charge at less cost.
    pub(crate) special: Option<Script>,
    /// Merges what nodes took by their own views.
    pub(crate) merge: Script,
    /// Grants leases.
    pub(crate) exchange: Script,
    /// Whether the store's own clock decides.
    pub(crate) is_own_clock: bool,
}

impl Scripts {
    /// Returns the scripts of this crate.
    pub fn new() -> Self {
        Self::from_assembled(|source| Script::new(source.to_owned()), true)
    }

    /// Returns scripts with another clock, for tests: `edit` replaces the lines of each source that read the clock and set expiries.
    pub fn with_clock(edit: impl Fn(&str) -> String) -> Self {
        Self::from_assembled(|source| Script::new(edit(source)), false)
    }

    fn from_assembled(script: impl Fn(&str) -> Script, is_own_clock: bool) -> Self {
        let (general, special) = (script(SOURCE), Some(script(SPECIAL_SOURCE)));
        Self { general, special, merge: script(MERGE_SOURCE), exchange: script(EXCHANGE_SOURCE), is_own_clock }
    }

    /// Returns all scripts.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Script> {
        [&self.general, &self.merge, &self.exchange].into_iter().chain(self.special.as_ref())
    }

    /// Makes the general script decide everything, for tests that compare the two.
    #[must_use]
    pub fn without_special(self) -> Self {
        Self { special: None, ..self }
    }
}

impl Default for Scripts {
    fn default() -> Self {
        Self::new()
    }
}
