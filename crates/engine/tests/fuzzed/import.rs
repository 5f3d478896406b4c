// Properties that hold for any bytes imported as limits of another system. Included by the fuzz targets and by the test
// that replays their corpora.

use tollgate_engine::rules::{Dialect, ImportedRules, Mistakes, Rules, Source, format};
use tollgate_engine::{Engine, MemoryStore};

/// Checks a file of the reference Envoy service: its import loads and is in canonical form, and loading the file
/// directly gives the same rules.
pub fn check_envoy(input: &[u8]) {
    let source = Source { name: "f", text: input };
    let imported = ImportedRules::read(&source, Some(Dialect::Envoy), "");
    let Some(rules) = check_imported(imported, input) else { return };
    if let Ok(direct) = Rules::read(&[source]) {
        let shown = |rules: &Rules| -> Vec<String> {
            let rules = rules.domains().iter().flat_map(|domain| domain.rules());
            rules
                .map(|rule| format!("{} {:?} {:?} {:?}", rule.id(), rule.when(), rule.only(), rule.replaces()))
                .collect()
        };
        assert_eq!(shown(&direct), shown(&rules));
    }
}

/// Checks the input, or its part before a line of dashes, as an nginx configuration. The configuration may include
/// itself and the part after that line.
pub fn check_nginx(input: &[u8]) {
    const DASHES: &[u8] = b"\n---\n";
    let cut = input.windows(DASHES.len()).position(|window| window == DASHES);
    let (text, other) = cut.map_or((input, &b""[..]), |cut| (&input[..cut], &input[cut + DASHES.len()..]));
    let include = |pattern: &str| match pattern {
        "f" => Ok(vec![("f".to_owned(), text.to_vec())]),
        "g" => Ok(vec![("g".to_owned(), other.to_vec())]),
        "*" => Ok(vec![("f".to_owned(), text.to_vec()), ("g".to_owned(), other.to_vec())]),
        _ => Err("no such file".to_owned()),
    };
    check_imported(ImportedRules::read_with(&Source { name: "f", text }, Some(Dialect::Nginx), "d", &include), input);
}

fn check_imported(imported: Result<ImportedRules, Mistakes>, input: &[u8]) -> Option<Rules> {
    let message = |mistakes: &Mistakes| {
        let lines = 1 + input.iter().filter(|byte| **byte == b'\n' || **byte == b'\r').count() as u32;
        for mistake in mistakes.as_slice() {
            assert!((1..=lines + 1).contains(&mistake.position.line), "{mistake}");
            assert!(mistake.to_string().len() < 4_000, "message too long: {mistake}");
        }
    };
    let imported = match imported {
        Ok(imported) => imported,
        Err(mistakes) => {
            message(&mistakes);
            return None;
        }
    };
    imported.left_out.iter().for_each(message);
    let again = Source { name: "again", text: imported.yaml.as_bytes() };
    let rules = Rules::read(&[again]).unwrap_or_else(|mistakes| panic!("{mistakes}\nin\n{}", imported.yaml));
    assert_eq!(format(&again).ok().as_deref(), Some(&*imported.yaml), "the import is in canonical form");
    let memory = || MemoryStore::new(1).expect("a tiny table");
    assert_eq!(Engine::with_fallback(memory(), memory()).put(&rules), Ok(1));
    Some(rules)
}
