//! The Lua scripts, assembled from the files in `script/`.

/// Assembles a script from Lua files, followed by `$start`.
///
/// Each file becomes a branch of the Lua function `chunk(name, ...)`, which runs the file with the remaining arguments
/// and returns its result. So each file is a complete Lua chunk that a linter can read, and its functions are created
/// only when they are needed.
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

/// Assembles the files that decide charges, followed by `$start`.
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

/// Source of the general script, which decides any group of charges. See the header of `main.lua`.
pub const GENERAL_SOURCE: &str = assemble_charges!("return chunk('main', KEYS, 0, false)\n");

/// Source of the script that merges node charges under `consistency: eventual`. See the header of `merge.lua`.
pub const MERGE_SOURCE: &str = assemble_charges!(include_str!("script/merge.lua"));

/// Source of the script that grants leases under `consistency: leased`. See the header of `exchange.lua`.
pub const EXCHANGE_SOURCE: &str =
    assemble!("pool", "arithmetic", "bucket", "fixed_window"; include_str!("script/exchange.lua"));

/// Source of the fast script for the most common kind of charge. See the header of `special.lua`.
pub const SPECIAL_SOURCE: &str = include_str!("script/special.lua");

/// A script with its SHA-1 hash, which is its name in the store's script cache.
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

    /// Returns the Lua source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the hash for `EVALSHA`.
    pub fn sha(&self) -> &str {
        &self.sha
    }
}

/// The scripts of a store. The scripts share one value format.
#[derive(Debug)]
pub struct Scripts {
    /// Decides any group of charges.
    pub(crate) general: Script,
    /// Decides the most common kind of charge, faster than the general script.
    pub(crate) special: Option<Script>,
    /// Merges charges that nodes decided from their own views.
    pub(crate) merge: Script,
    /// Grants leases.
    pub(crate) exchange: Script,
    /// Whether the scripts use the store's own clock.
    pub(crate) is_own_clock: bool,
}

impl Scripts {
    /// Returns the scripts of this crate.
    pub fn new() -> Self {
        Self::from_assembled(|source| Script::new(source.to_owned()), true)
    }

    /// Returns scripts with a test clock: `edit` replaces the parts of each source that read the clock and set
    /// expiries.
    pub fn with_clock(edit: impl Fn(&str) -> String) -> Self {
        Self::from_assembled(|source| Script::new(edit(source)), false)
    }

    fn from_assembled(script: impl Fn(&str) -> Script, is_own_clock: bool) -> Self {
        let (general, special) = (script(GENERAL_SOURCE), Some(script(SPECIAL_SOURCE)));
        Self { general, special, merge: script(MERGE_SOURCE), exchange: script(EXCHANGE_SOURCE), is_own_clock }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Script> {
        [&self.general, &self.merge, &self.exchange].into_iter().chain(self.special.as_ref())
    }

    /// Removes the special script, for tests that compare it with the general script.
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
