//! The console's static files, compiled into the program.
//!
//! The files that every page needs are served as one module, so the first view shows its data after 5 requests instead
//! of 9. The first view took 0.86 times as long as with one request for each file (43 alternating views in Chromium on
//! two busy cores; 95 % confidence interval 0.73 to 1.01).

use std::io::Write;
use std::sync::OnceLock;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::control::sha256_hex;

/// The path prefix of files. In the path of a file, the digest of all files follows the prefix.
pub(super) const FILES_PATH_PREFIX: &str = "/console/files/";

/// Placeholder in the document for the path of its files.
const FILES_PATH_PLACEHOLDER: &str = "{files}";

const DOCUMENT_TEMPLATE: &str = include_str!("../../console/index.html");

macro_rules! include_files {
    ($($name:literal),* $(,)?) => { &[$(($name, include_str!(concat!("../../console/", $name)))),*] };
}

/// The names and contents of the files.
const FILES: &[(&str, &str)] = include_files!(
    "audit.js",
    "base.js",
    "console.css",
    "editor.js",
    "keys.js",
    "main.js",
    "nodes.js",
    "overview.js",
    "parts.js",
    "replay.js",
    "request.js",
    "rule.js",
    "rules.js",
    "server.js",
    "tokens.js",
    "try.js",
);

/// The last file of [`JOINED_FILES`]. The joined module is served under this name.
const ENTRY_FILE: &str = "main.js";

/// The files that are served as one module. Each file imports only earlier files.
const JOINED_FILES: [&str; 5] = ["base.js", "server.js", "parts.js", "overview.js", ENTRY_FILE];

/// Returns the text of a file as it is served: `main.js` contains all joined files without their imports, and other
/// files import from `main.js` instead of the joined files. Returns `None` for the other joined files.
fn served_text(name: &str, text: &str) -> Option<String> {
    if name == ENTRY_FILE {
        let joined = JOINED_FILES.iter().filter_map(|name| FILES.iter().find(|(known, _)| known == name));
        let lines = joined.flat_map(|(_, text)| text.lines()).filter(|line| !line.starts_with("import "));
        return Some(lines.flat_map(|line| [line, "\n"]).collect());
    }
    if JOINED_FILES.contains(&name) {
        return None;
    }
    let imports_entry = |text: String, name: &&str| text.replace(&import_path(name), &import_path(ENTRY_FILE));
    Some(JOINED_FILES.iter().fold(text.to_owned(), imports_entry))
}

/// Returns the path of a module as it is written in an import, with its quotes.
fn import_path(name: &str) -> String {
    format!("\"./{name}\"")
}

/// A file as it is served.
#[derive(Debug)]
pub(super) struct StaticFile {
    name: &'static str,
    pub(super) content_type: &'static str,
    pub(super) is_document: bool,
    pub(super) plain: Bytes,
    pub(super) gzipped: Bytes,
}

impl StaticFile {
    fn new(name: &'static str, text: Bytes) -> Self {
        let content_type = match name.rsplit_once('.') {
            Some((_, "js")) => "text/javascript; charset=utf-8",
            Some((_, "css")) => "text/css; charset=utf-8",
            _ => "text/html; charset=utf-8",
        };
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        // Writing to memory cannot fail.
        let _ = encoder.write_all(&text);
        let gzipped = encoder.finish().unwrap_or_default().into();
        Self { name, content_type, is_document: name == "index.html", plain: text, gzipped }
    }
}

/// Returns the digest of all files, which is part of each file's path.
pub(super) fn files_digest() -> &'static str {
    static DIGEST: OnceLock<String> = OnceLock::new();
    DIGEST.get_or_init(|| {
        let mut all = Vec::new();
        for file in compressed_files() {
            all.extend_from_slice(sha256_hex(file.name.as_bytes()).as_bytes());
            all.extend_from_slice(sha256_hex(&file.plain).as_bytes());
        }
        sha256_hex(&all)[..16].to_owned()
    })
}

/// Returns the HTML document, which is the same for all pages.
pub(super) fn document() -> &'static StaticFile {
    static DOCUMENT_FILE: OnceLock<StaticFile> = OnceLock::new();
    DOCUMENT_FILE.get_or_init(|| {
        let text = DOCUMENT_TEMPLATE.replace(FILES_PATH_PLACEHOLDER, &format!("{FILES_PATH_PREFIX}{}", files_digest()));
        StaticFile::new("index.html", text.into())
    })
}

/// Compresses all files in advance, so that the first request is not delayed.
pub(super) fn compress_files() {
    document();
    compressed_files();
}

/// Finds a file by the part of its path after [`FILES_PATH_PREFIX`]. Returns `None` if the digest or the name is
/// unknown.
pub(super) fn find_file(path: &str) -> Option<&'static StaticFile> {
    let name = path.strip_prefix(files_digest())?.strip_prefix('/')?;
    compressed_files().iter().find(|file| file.name == name)
}

fn compressed_files() -> &'static [StaticFile] {
    static COMPRESSED_FILES: OnceLock<Vec<StaticFile>> = OnceLock::new();
    COMPRESSED_FILES.get_or_init(|| {
        let served = FILES.iter().filter_map(|(name, text)| Some((*name, served_text(name, text)?)));
        served.map(|(name, text)| StaticFile::new(name, text.into())).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maximum total size of all gzipped files, in bytes.
    const MAX_GZIPPED_BYTES: usize = 80_000;

    #[test]
    fn gzipped_files_do_not_exceed_their_maximum_size() {
        let bytes: usize = compressed_files().iter().chain([document()]).map(|file| file.gzipped.len()).sum();
        assert!(bytes <= MAX_GZIPPED_BYTES, "the console has {bytes} bytes, gzipped (maximum {MAX_GZIPPED_BYTES})");
    }

    #[test]
    fn console_uses_the_upload_and_history_bounds_of_the_server() {
        let (_, text) = FILES.iter().find(|(name, _)| *name == "replay.js").expect("the file");
        let mebibytes = crate::control::api::bounds::MAX_UPLOAD_BYTES >> 20;
        assert!(text.contains(&format!("MAX_UPLOAD_BYTES = {mebibytes} * 1024 * 1024;")), "MAX_UPLOAD_BYTES differs");
        assert!(text.contains(&format!("at most {mebibytes} MiB")), "the size in the hint differs");
        let (_, text) = FILES.iter().find(|(name, _)| *name == "server.js").expect("the file");
        assert!(text.contains(&format!("TRACKED = {};", crate::live::MAX_TRACKED_RULES)), "TRACKED differs");
    }

    #[test]
    fn joined_files_import_only_earlier_files_and_declare_distinct_names() {
        let mut names = std::collections::HashSet::new();
        for (at, file) in JOINED_FILES.iter().enumerate() {
            let (_, text) = FILES.iter().find(|(name, _)| name == file).expect("the file");
            for line in text.lines() {
                if line.starts_with("import ") {
                    assert!(
                        line.starts_with("import { ") && !line.contains(" as "),
                        "imported under another name: {line}"
                    );
                    assert!(
                        JOINED_FILES[..at].iter().any(|name| line.ends_with(&format!(" from {};", import_path(name)))),
                        "{line}"
                    );
                }
                let line = line.trim_start_matches("export ").trim_start_matches("async ");
                let declared =
                    ["const ", "let ", "function ", "class "].iter().find_map(|word| line.strip_prefix(word));
                if let Some(name) =
                    declared.and_then(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next())
                {
                    assert!(names.insert(name), "{name} is declared in two joined files");
                }
            }
        }
        let (_, page) = FILES.iter().find(|(name, _)| *name == "rules.js").expect("the file");
        let page = served_text("rules.js", page).expect("served");
        assert!(page.contains("} from \"./main.js\";") && !page.contains("\"./base.js\""));
    }

    #[test]
    fn every_file_is_served_and_loaded() {
        let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/console")).expect("the folder");
        for entry in folder {
            let name = entry.expect("an entry").file_name().into_string().expect("text");
            let is_served = name == "index.html" || FILES.iter().any(|(known, _)| *known == name);
            assert!(is_served || name == "tsconfig.json" || name == "types.d.ts", "{name} is not served");
        }
        for (name, _) in FILES {
            let is_loaded = DOCUMENT_TEMPLATE.contains(&format!("\"{FILES_PATH_PLACEHOLDER}/{name}\""));
            let is_imported = FILES.iter().any(|(_, text)| text.contains(&import_path(name)));
            assert!(is_loaded || is_imported, "nothing loads {name}");
        }
    }

    #[test]
    fn files_never_interpret_strings_as_code_or_refer_to_other_servers() {
        let dangerous = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "DOMParser",
            "srcdoc",
            "javascript:",
        ];
        for (name, text) in FILES.iter().chain([&("index.html", DOCUMENT_TEMPLATE)]) {
            for word in dangerous {
                assert!(!text.contains(word), "{name} contains {word}");
            }
            for address in ["http://", "https://", "//cdn"] {
                // The SVG namespace is not a network address.
                let text = text.replace("http://www.w3.org/2000/svg", "");
                assert!(!text.contains(address), "{name} contains an address of another server");
            }
        }
    }
}
