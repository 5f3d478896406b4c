//! The examples of the documents, run as they stand there against the real program.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Rules, Server, run};

/// Where an answer is not written out.
const ANYTHING: char = '…';

/// A command of a document, and what it says comes of it.
struct Example {
    command: String,
    answer: String,
}

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The blocks of a document that are marked as `kind`.
fn blocks<'a>(document: &'a str, kind: &str) -> Vec<&'a str> {
    let begin = format!("```{kind}\n");
    document.split(&begin).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

/// The commands, which begin with `$` and go on after a backslash, each with the lines that follow it.
fn examples(block: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let mut goes_on = false;
    for line in block.lines() {
        match (line.strip_prefix("$ "), examples.last_mut()) {
            (Some(command), _) => examples.push(Example { command: command.to_owned(), answer: String::new() }),
            (None, Some(last)) if goes_on => last.command = format!("{}\n{line}", last.command),
            (None, Some(last)) => last.answer = format!("{}{line}\n", last.answer),
            (None, None) => panic!("an answer before the first command: {line}"),
        }
        goes_on = line.ends_with('\\');
    }
    examples
}

/// Whether what was said is what was expected, with anything in the places that were left out.
fn fits(said: &str, expected: &str) -> bool {
    let mut parts = expected.split(ANYTHING);
    let Some(rest) = said.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut rest = Some(rest);
    let mut last = None;
    for part in parts {
        rest = rest.and_then(|rest| Some(rest.split_once(part)?.1));
        last = Some(part);
    }
    match (rest, last) {
        (None, _) => false,
        (Some(_), Some(last)) => said.ends_with(last),
        (Some(rest), None) => rest.is_empty(),
    }
}

/// Runs the examples of a document in one shell, and fails with the first that says something else.
fn check(name: &str, server: &Server, directory: &Path) {
    let text = document(name);
    let examples: Vec<Example> = blocks(&text, "console").into_iter().flat_map(examples).collect();
    assert!(examples.len() >= 10, "hardly any examples in {name}");
    let (port, program) = (server.resp_port(), PathBuf::from(env!("CARGO_BIN_EXE_tollgate")));
    let here = |command: &str| {
        command.replace("http://127.0.0.1:8080", server.url("").as_str()).replace("-p 6380", &format!("-p {port}"))
    };
    let end = "--- end of an example ---";
    let script: String =
        examples.iter().map(|example| format!("{}\nprintf '\\n{end}\\n'\n", here(&example.command))).collect();
    let path = format!(
        "{}:{}",
        program.parent().unwrap_or(Path::new(".")).display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let mut shell = Command::new("sh");
    let said = run(shell
        .arg("-c")
        .arg(script)
        .env("PATH", path)
        .env("TOLLGATE_SERVER", server.url(""))
        .current_dir(directory));
    let said: Vec<&str> = said.split(&format!("{end}\n")).collect();
    assert_eq!(said.len(), examples.len() + 1);
    for (example, said) in examples.iter().zip(said) {
        let without_spaces =
            |text: &str| text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n").trim().to_owned();
        let (said, expected) = (without_spaces(said), without_spaces(&example.answer));
        assert!(fits(&said, &expected), "{name} has\n$ {}\n{expected}\nand it is\n{said}", example.command);
    }
}

#[test]
fn the_examples_of_the_verbs_are_as_they_say() {
    let directory = std::env::temp_dir().join(format!("tollgate-docs-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let rules = Rules::new(blocks(&document("docs/verbs.md"), "yaml")[0]);
    std::fs::copy(rules.path(), directory.join("rules.yaml")).expect("a file");
    // As it is called in the document, so that places in it are told as they are there.
    let server = Server::start_in(&directory, &["--rules", "rules.yaml"]);
    check("docs/verbs.md", &server, &directory);
    drop(server);
    // Only litter in the temporary directory if it fails.
    let _ = std::fs::remove_dir_all(&directory);
}

#[test]
fn what_is_left_out_may_be_anything_and_nothing_else_may() {
    for (said, expected, fit) in [
        ("abc", "abc", true),
        ("abc", "ab", false),
        ("abc", "a…", true),
        ("abc", "…c", true),
        ("abc", "a…c", true),
        ("abc", "a…b", false),
        ("abcabd", "a…b…d", true),
        ("abc", "b…", false),
        ("", "", true),
    ] {
        assert_eq!(fits(said, expected), fit, "{said} {expected}");
    }
}
