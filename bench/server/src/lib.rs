//! Code shared by the server benchmarks.

pub mod goals;
pub mod process;

/// Returns a rule file with `count` rules, two of which match the requests of the benchmarks. One third of the other
/// rules have a path pattern as their condition, one third a single value, and one third a list of values.
pub fn rule_file(count: usize) -> String {
    let mut text = "domain: api\nrules:\n- {id: mine, when: {path: '/v1/mine/**'}, per: [client], limit: 1M/s}\n\
                    - {id: gold, when: {plan: gold}, per: [client], limit: 1M/s}\n"
        .to_owned();
    for number in 2..count {
        let when = match number % 3 {
            0 => format!("{{path: '/v1/other{number}/**'}}"),
            1 => format!("{{plan: plan{number}}}"),
            _ => format!("{{client: [a{number}, b{number}, c{number}]}}"),
        };
        text.push_str(&format!("- {{id: r{number}, when: {when}, per: [client], limit: 100/s}}\n"));
    }
    text
}
