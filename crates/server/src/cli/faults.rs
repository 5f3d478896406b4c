//! `tollgate check --faults`: what may be admitted beyond each limit while something fails.

use std::io::Write;

use clap::Args;
use tollgate::core::Nanos;
use tollgate_engine::faults::{Circumstances, Fault, bound, formula_parameters};
use tollgate_engine::rules::{Consistency, OnExceed, Rule, Rules};

#[derive(Clone, Debug, Args)]
pub(super) struct FaultArgs {
    /// Print what may be admitted beyond each limit while something fails
    #[arg(long)]
    faults: bool,

    /// With --faults: the number of nodes that share the limits
    #[arg(long, value_name = "N", default_value_t = 3, requires = "faults", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    nodes: u32,

    /// With --faults: how long a fault lasts
    #[arg(long, value_name = "N", default_value_t = 10, requires = "faults", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
}

impl FaultArgs {
    /// Prints the bounds of all limits, if they were asked for.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(super) fn print(&self, rules: &Rules) -> anyhow::Result<()> {
        if !self.faults {
            return Ok(());
        }
        let given =
            Circumstances { nodes: self.nodes, length: Nanos::from_secs(self.seconds), ..Circumstances::default() };
        let mut out = std::io::stdout().lock();
        writeln!(
            out,
            "\nAt most E is admitted beyond a limit when something fails, with N = {} nodes on a shared store, P = {} and d = {}.\n\
             docs/faults.md explains each line.",
            given.nodes, given.length, given.deadline
        )?;
        for domain in rules.domains() {
            for rule in domain.rules() {
                print_rule(&mut out, domain.name(), rule, &given)?;
            }
        }
        Ok(())
    }
}

fn print_rule(out: &mut impl Write, domain: &str, rule: &Rule, given: &Circumstances) -> anyhow::Result<()> {
    let Some(limits) = rule.limits() else { return Ok(()) };
    if rule.on_exceed() == OnExceed::Shadow {
        writeln!(out, "\n{domain}/{}: a shadow rule, which refuses nothing", rule.id())?;
        return Ok(());
    }
    for limit in limits.as_slice() {
        let consistency = match rule.consistency() {
            Consistency::Strict => String::new(),
            other => format!(", {}", other.as_str()),
        };
        writeln!(out, "\n{domain}/{}: {}{consistency}", rule.id(), formula_parameters(limit))?;
        if let Consistency::Eventual(_) = rule.consistency() {
            writeln!(out, "  and (N − 1)·(B + r·δ) without a fault, which is owed and paid back")?;
        }
        for fault in Fault::ALL {
            let bound = bound(fault, limit, rule, given);
            writeln!(out, "  {:<38} E = {:<10} {}", fault.to_string(), bound.excess, bound.formula)?;
        }
    }
    if !rule.overrides().is_empty() {
        writeln!(out, "  and the same by the parameters of each override")?;
    }
    Ok(())
}
