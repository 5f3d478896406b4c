//! `tollgate check --faults` and `tollgate explain --faults`: print how far each limit may be exceeded during a fault.

use std::io::Write;

use clap::Args;
use tollgate::core::Nanos;
use tollgate_engine::faults::{Circumstances, Fault, FaultBound, bound, bound_without_fault, formula_parameters};
use tollgate_engine::rules::{Consistency, OnExceed, Rule, Rules};

#[derive(Clone, Debug, Args)]
pub(super) struct FaultArgs {
    /// Print how far each limit may be exceeded during a fault
    #[arg(long)]
    faults: bool,

    /// With --faults: the number of nodes that share the limits
    #[arg(long, value_name = "N", default_value_t = 3, requires = "faults", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    nodes: u32,

    /// With --faults: how many seconds a fault lasts
    #[arg(long, value_name = "N", default_value_t = 10, requires = "faults", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,

    /// With --faults: how many milliseconds a decision waits for the store, as with serve --store-deadline
    #[arg(long, value_name = "MS", default_value_t = 10, requires = "faults", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    deadline: u64,
}

impl FaultArgs {
    /// Returns whether `--faults` was given.
    pub(super) fn is_given(&self) -> bool {
        self.faults
    }

    /// If `--faults` was given, prints how far the limits of the selected rules may be exceeded. `wanted` selects rules
    /// by domain and id.
    ///
    /// # Errors
    /// Returns an error if the bounds cannot be written to the standard output.
    pub(super) fn print_bounds(&self, rules: &Rules, wanted: impl Fn(&str, &str) -> bool) -> anyhow::Result<()> {
        if !self.faults {
            return Ok(());
        }
        let (length, deadline) = (Nanos::from_secs(self.seconds), Nanos::from_millis(self.deadline));
        let given = Circumstances { nodes: self.nodes, length, deadline };
        let mut out = std::io::stdout().lock();
        writeln!(
            out,
            "\nAt most E is admitted beyond a limit when something fails, with N = {} nodes on a shared store, P = {} and d = {}.\n\
             docs/faults.md explains each line.",
            given.nodes, given.length, given.deadline
        )?;
        for domain in rules.domains() {
            for rule in domain.rules().iter().filter(|rule| wanted(domain.name(), rule.id())) {
                print_rule(&mut out, domain.name(), rule, &given)?;
            }
        }
        Ok(())
    }
}

fn print_bound_line(out: &mut impl Write, fault: &str, bound: &FaultBound) -> anyhow::Result<()> {
    Ok(writeln!(out, "  {fault:<38} E = {:<10} {}", bound.excess, bound.formula)?)
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
            print_bound_line(out, "without a fault (excess is paid back)", &bound_without_fault(limit, rule, given))?;
        }
        for fault in Fault::ALL {
            print_bound_line(out, &fault.to_string(), &bound(fault, limit, rule, given))?;
        }
    }
    if !rule.overrides().is_empty() {
        writeln!(out, "  the same formulas apply to each override, with its parameters")?;
    }
    Ok(())
}
