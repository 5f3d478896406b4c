use super::*;

fn format_text(text: &str) -> String {
    format(&Source { name: "f", text: text.as_bytes() }).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn assert_formatted(text: &str, expected: &str) {
    assert_eq!(format_text(text), expected, "for\n{text}");
    assert_eq!(format_text(expected), expected, "again");
}

fn format_error(text: &str) -> String {
    format(&Source { name: "f", text: text.as_bytes() }).unwrap_err().to_string()
}

#[test]
fn each_key_of_a_rule_is_on_its_own_line() {
    assert_formatted(
        "{rules: [{limit: '5/m', when: {path: \"/a\", method: [GET,\n POST]}, id: a}, {id: b, unlimited: true}], domain: d}",
        "domain: d\nrules:\n- id: a\n  when: {path: /a, method: [GET, POST]}\n  limit: 5/m\n- id: b\n  unlimited: true\n",
    );
    assert_formatted("domains: [{domain: a, rules: []}]", "domains:\n- domain: a\n  rules: []\n");
}

#[test]
fn long_values_are_written_over_several_lines() {
    let values: Vec<String> = (0..40).map(|n| format!("value{n}")).collect();
    let text = format!("domain: d\nrules:\n- id: a\n  when: {{x: [{}]}}\n  limit: 1/s\n", values.join(", "));
    let lines = format_text(&text);
    assert!(lines.lines().all(|line| line.len() <= 120), "{lines}");
    assert!(lines.contains("  when:\n    x:\n    - value0\n"), "{lines}");
    assert_formatted(&lines, &lines);
}

#[test]
fn comments_stay_with_their_values() {
    assert_formatted(
        "# top\n\n\ndomain:   d # whose\nrules:  # all\n  # first\n  - limit: 1/s   # slow\n    id: a\n    # who\n    per: [a,\n      b] # both\n  \
         # second\n  - {id: b, limit: 2/s} # flow\n# end\n",
        "# top\n\ndomain: d  # whose\nrules:  # all\n# first\n- id: a\n  # who\n  per:\n  - a\n  - b  # both\n  limit: 1/s  # slow\n\
         # second\n# flow\n- id: b\n  limit: 2/s\n# end\n",
    );
}

#[test]
fn second_comment_of_a_value_moves_to_its_own_line() {
    assert_formatted(
        "domain: d\nrules:\n- id: a\n  message: # one\n    text # two\n  limit: 1/s\n",
        "domain: d\nrules:\n- id: a\n  limit: 1/s\n  # two\n  message: text  # one\n",
    );
}

#[test]
fn number_sign_in_a_string_is_not_a_comment() {
    assert_formatted(
        "domain: d\nrules:\n- {id: a, limit: 1/s, message: 'a # b'}\n- {id: b, limit: 1/s, message: \"it's # \\\"this\\\"\"}\n- id: c\n  message: x#y\n  limit: 1/s\n",
        "domain: d\nrules:\n- id: a\n  limit: 1/s\n  message: 'a # b'\n- id: b\n  limit: 1/s\n  message: 'it''s # \"this\"'\n- id: c\n  limit: 1/s\n  message: 'x#y'\n",
    );
    assert_formatted(
        "domain: d\nrules:\n- message: |\n    a # b\n    c\n  id: a # c\n  limit: 1/s\n",
        "domain: d\nrules:\n- id: a  # c\n  limit: 1/s\n  message: \"a # b\\nc\\n\"\n",
    );
}

#[test]
fn strings_are_quoted_where_necessary() {
    for text in [
        "", "null", "~", "- a", "a: b", "*", "{a}", "[", "a,b", "09:00", "'", "\"", "\t", "é", "a b ", " a", "#",
        "yes", "1.10", "::1", "a:b", "@x", "%", "\u{feff}", "\u{2028}", "\u{7f}",
    ] {
        let tree = Node {
            position: Position::default(),
            value: Value::Map(vec![(
                Node { position: Position::default(), value: Value::Text("k".into()) },
                Node {
                    position: Position::default(),
                    value: Value::List(vec![Node { position: Position::default(), value: Value::Text(text.into()) }]),
                },
            )]),
        };
        let written = write_file(&tree);
        let again =
            text::parse_tree(written.as_bytes(), &mut MistakeCollector::new("")).unwrap_or_else(|| panic!("{written}"));
        let Value::Map(pairs) = &again.value else { panic!("{written}") };
        assert!(
            matches!(&pairs[0].1.value, Value::List(nodes) if nodes[0].value == Value::Text(text.into())),
            "{written}"
        );
    }
}

#[test]
fn formatting_that_would_lose_something_is_refused() {
    assert_eq!(
        format_error("a: &x 1\nb: *x\n"),
        "line 1: the sharing of anchors and aliases would be lost, so nothing was changed"
    );
    assert!(format_error("a: !tag 1\n").contains("a tag"));
    assert!(format_error("a: \"b\n  c\"\n").contains("over several lines"));
    assert!(format_error("a: [").contains("invalid YAML"));
    assert!(format_error("a: 1\na: 2\n").contains("duplicate key"));
}
