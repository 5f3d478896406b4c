//! The script that decides, assembled from its files.

/// Assembles the script: each named file becomes a branch of the Lua function `chunk(name, ...)`, which runs the file with the
/// further arguments and returns its result; the main file follows. So each file is a complete Lua chunk that a linter reads,
/// and creates its functions only when it is needed.
macro_rules! assemble {
    ($($name:literal),+; $main:literal) => {
        concat!(
            "local function chunk(name, ...)\n",
            $("if name == '", $name, "' then\n", include_str!(concat!("script/", $name, ".lua")), "end\n",)+
            "end\n",
            include_str!(concat!("script/", $main, ".lua")),
        )
    };
}

/// The source of the script. The header of `main.lua` describes its arguments, its reply and what it mirrors.
pub const SOURCE: &str = assemble!(
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
    "main"
);

/// A script, and the hash it is cached under in the store.
#[derive(Debug)]
pub struct Script {
    source: String,
    sha: String,
}

impl Script {
    /// Returns the script of this crate.
    pub fn new() -> Self {
        Self::from_source(SOURCE.to_owned())
    }

    /// Returns a script with another source: tests replace the line that reads the clock.
    pub fn from_source(source: String) -> Self {
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

impl Default for Script {
    fn default() -> Self {
        Self::new()
    }
}
