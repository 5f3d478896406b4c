//! Files that another one includes by name or by pattern, as nginx does: `conf.d/*.conf`.

use std::path::{Component, Path, PathBuf};

use tollgate_engine::rules::Glob;

use super::file::Watched;

/// So many files are read for one pattern; whoever asked has a bound of its own, and it is lower.
const MAX_FOUND: usize = 1024;

/// The files that a pattern stands for, by name, each with what is in it. It is relative to the folder of the file that was
/// given, also when it stands in one that this includes: that is how nginx has it.
///
/// # Errors
/// When one of them cannot be read, or the pattern has more to it than stars.
pub fn included_by(file: &Path, pattern: &str) -> Result<Vec<(String, Vec<u8>)>, String> {
    let wanted = file.parent().unwrap_or(Path::new("")).join(pattern);
    let read = |path: PathBuf| {
        let name = path.display().to_string();
        let bytes = Watched::new(path).read().map_err(|error| format!("{name}: {error}"))?;
        Ok((name, bytes))
    };
    find(&wanted)?.into_iter().map(read).collect()
}

/// The paths that a pattern stands for, in order. Without a star that is the path itself, whether it exists or not.
fn find(wanted: &Path) -> Result<Vec<PathBuf>, String> {
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
                    return Err("of patterns for names, only `*` is understood".into());
                };
                let mut next: Vec<PathBuf> = found.iter().flat_map(|folder| matching(folder, &glob)).collect();
                next.sort_unstable();
                next.truncate(MAX_FOUND);
                found = next;
            }
        }
    }
    Ok(found)
}

/// What lies in a folder and matches. Names that begin with a dot are hidden from stars.
fn matching(folder: &Path, glob: &Glob) -> Vec<PathBuf> {
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
    fn patterns_stand_for_files_in_the_order_of_their_names() {
        let folder = std::env::temp_dir().join(format!("tollgate-include-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("sites/a")).unwrap();
        for name in ["b.conf", "a.conf", ".hidden.conf", "a.txt", "sites/a/x.conf"] {
            std::fs::write(folder.join(name), name).unwrap();
        }
        let main = folder.join("nginx.conf");
        let names = |pattern: &str| -> Result<Vec<String>, String> {
            let found = included_by(&main, pattern)?;
            Ok(found.into_iter().map(|(_, bytes)| String::from_utf8(bytes).unwrap()).collect())
        };
        assert_eq!(names("*.conf").unwrap(), ["a.conf", "b.conf"]);
        assert_eq!(names("sites/*/*.conf").unwrap(), ["sites/a/x.conf"]);
        assert_eq!(names("a.txt").unwrap(), ["a.txt"]);
        assert_eq!(names(folder.join("b.conf").to_str().unwrap()).unwrap(), ["b.conf"]);
        assert!(names("none/*.conf").unwrap().is_empty(), "nothing is no mistake");
        assert!(names("none.conf").unwrap_err().contains("none.conf: "));
        assert_eq!(names("[ab].conf").unwrap_err(), "of patterns for names, only `*` is understood");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
