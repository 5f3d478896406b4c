//! Files that an nginx configuration includes by name or by pattern, such as `conf.d/*.conf`.

use std::path::{Component, Path, PathBuf};

use tollgate_engine::rules::Glob;

use super::watch::WatchedFile;

/// Maximum number of files that match one pattern; further files are ignored. The importer itself accepts fewer files.
const MAX_MATCHES: usize = 1024;

/// Returns the files that match a pattern, sorted by name, with their contents. As in nginx, a pattern is relative to
/// the folder of the main file, even in an included file.
///
/// # Errors
/// Returns an error if a matching file cannot be read, or if the pattern has a wildcard other than `*`.
pub fn read_included_files(file: &Path, pattern: &str) -> Result<Vec<(String, Vec<u8>)>, String> {
    let wanted = file.parent().unwrap_or(Path::new("")).join(pattern);
    let read = |path: PathBuf| {
        let name = path.display().to_string();
        let bytes = WatchedFile::new(path).read().map_err(|error| format!("{name}: {error}"))?;
        Ok((name, bytes))
    };
    expand_pattern(&wanted)?.into_iter().map(read).collect()
}

/// Returns the paths that match a pattern, sorted by name. If the pattern has no star, returns the path itself, even if
/// it does not exist.
fn expand_pattern(wanted: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = vec![PathBuf::new()];
    for component in wanted.components() {
        let starred = match component {
            Component::Normal(name) => name.to_str().filter(|name| name.contains(['*', '?', '['])),
            Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => None,
        };
        match starred {
            None => found.iter_mut().for_each(|path| path.push(component)),
            Some(name) => {
                let glob = Glob::new(name).ok().filter(|_| !name.contains(['?', '[', '{', '}']) && name != "**");
                let Some(glob) = glob else {
                    return Err("unsupported pattern: only `*` is supported".into());
                };
                let mut next: Vec<PathBuf> = found.iter().flat_map(|folder| matching_files(folder, &glob)).collect();
                next.sort_unstable();
                next.truncate(MAX_MATCHES);
                found = next;
            }
        }
    }
    Ok(found)
}

/// Returns the entries of a folder that match `glob`. A leading star does not match names that begin with a dot.
fn matching_files(folder: &Path, glob: &Glob) -> Vec<PathBuf> {
    let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let Ok(entries) = std::fs::read_dir(here) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let fits =
        |name: &String| glob.matches(name.as_bytes()) && (!name.starts_with('.') || glob.as_str().starts_with('.'));
    names.filter(fits).map(|name| folder.join(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matching_files_are_returned_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        std::fs::create_dir_all(folder.join("sites/a")).unwrap();
        for name in ["b.conf", "a.conf", ".hidden.conf", "a.txt", "sites/a/x.conf"] {
            std::fs::write(folder.join(name), name).unwrap();
        }
        let main = folder.join("nginx.conf");
        let names = |pattern: &str| -> Result<Vec<String>, String> {
            let found = read_included_files(&main, pattern)?;
            Ok(found.into_iter().map(|(_, bytes)| String::from_utf8(bytes).unwrap()).collect())
        };
        assert_eq!(names("*.conf").unwrap(), ["a.conf", "b.conf"]);
        assert_eq!(names("sites/*/*.conf").unwrap(), ["sites/a/x.conf"]);
        assert_eq!(names("a.txt").unwrap(), ["a.txt"]);
        assert_eq!(names(folder.join("b.conf").to_str().unwrap()).unwrap(), ["b.conf"]);
        assert!(names("none/*.conf").unwrap().is_empty(), "no match is not an error");
        assert!(names("none.conf").unwrap_err().contains("none.conf: "));
        assert_eq!(names("[ab].conf").unwrap_err(), "unsupported pattern: only `*` is supported");
    }
}
