//! Generates rules of three kinds (path patterns, single values and lists of values), and requests that match two
//! rules.

/// Number of different requests.
pub(crate) const REQUEST_COUNT: usize = 1_000;

/// The attributes of a request: path, tenant, method and client.
pub(crate) type Attributes = [(&'static str, String); 4];

/// A limit so high that no run reaches it.
pub(crate) const NEVER_REACHED_LIMIT: &str = "1000000/s";
/// A limit that admits only the first request of each client.
pub(crate) const ONE_PER_DAY: &str = "1/d";

/// Returns a rule file with `size` rules, all with the same limit.
pub(crate) fn rule_file(size: usize, limit: &str) -> String {
    let mut text = String::from("domain: api\nrules:\n");
    for n in 0..size {
        let when = match n % 3 {
            0 => format!("path: /service-{n}/*/items/**"),
            1 => format!("tenant: tenant-{n}"),
            _ => format!("plan: [basic-{n}, silver-{n}, gold-{n}], method: [GET, POST]"),
        };
        text += &format!("- {{id: rule-{n}, when: {{{when}}}, per: [client], limit: {limit}}}\n");
    }
    text
}

/// Returns the condition of rule `n` in the syntax of limitador, which has no path patterns.
pub(crate) fn limitador_condition(n: usize) -> String {
    match n % 3 {
        0 => format!("path.startsWith('/service-{n}/') && path.contains('/items/')"),
        1 => format!("tenant == 'tenant-{n}'"),
        _ => format!(
            "(plan == 'basic-{n}' || plan == 'silver-{n}' || plan == 'gold-{n}') && (method == 'GET' || method == 'POST')"
        ),
    }
}

/// Returns requests that each match two rules: one by path pattern and one by tenant.
pub(crate) fn matching_requests(size: usize) -> Vec<Attributes> {
    let request = |n: usize| {
        // Multiplying by large primes scatters the indices.
        let path = n * 7_919 % size.div_ceil(3) * 3;
        let tenant = n * 104_729 % (size + 1).div_euclid(3) * 3 + 1;
        [
            ("path", format!("/service-{path}/17/items/4711")),
            ("tenant", format!("tenant-{tenant}")),
            ("method", "GET".into()),
            // One client per request keeps the number of counters independent of the number of rules.
            ("client", format!("client {n}")),
        ]
    };
    (0..REQUEST_COUNT).map(request).collect()
}
