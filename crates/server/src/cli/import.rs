//! `tollgate import FILE`: converts limits of other systems to rules.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use tollgate_engine::rules::{Dialect, ImportedRules};

use super::{files, print_mistakes};
use crate::rules_source::include::read_included_files;

#[derive(Clone, Debug, Args)]
pub(super) struct ImportArgs {
    /// The file with the limits
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The system that the file was written for; detected by default
    #[arg(long, value_name = "SYSTEM")]
    from: Option<ImportFrom>,

    /// The domain of rules from nginx, which has no domains
    #[arg(long, value_name = "NAME", default_value = "nginx")]
    domain: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ImportFrom {
    /// The reference Envoy rate-limit service: a domain and nested descriptors.
    Envoy,
    /// nginx: `limit_req` and `limit_conn` with their zones.
    Nginx,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  tollgate import envoy.yaml > rules.yaml
  tollgate import --domain edge /etc/nginx/nginx.conf > rules.yaml

Limits that cannot be converted are reported on the standard error stream, with their line and the reason; the exit status is 0 if \
there are any rules. Files of the reference Envoy service need not be imported: `serve --rules` and `check` accept them.";

/// Prints the converted rules, and reports the limits that cannot be converted.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub(super) fn run(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    let file = files::read_file(&args.file)?;
    let dialect = args.from.map(|from| match from {
        ImportFrom::Envoy => Dialect::Envoy,
        ImportFrom::Nginx => Dialect::Nginx,
    });
    let included = |pattern: &str| read_included_files(&args.file, pattern);
    match ImportedRules::read_with(&file.as_source(), dialect, &args.domain, &included) {
        Ok(imported) => {
            std::io::stdout().write_all(imported.yaml.as_bytes())?;
            imported.left_out.as_ref().map_or(Ok(()), print_mistakes)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(mistakes) => {
            print_mistakes(&mistakes)?;
            Ok(ExitCode::FAILURE)
        }
    }
}
