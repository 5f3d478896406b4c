//! The last good set of a service on disk, so that a node can start while the service is away.
//!
//! A file that was cut short or changed by chance must not become the rules of a node. The write goes to another name, is flushed, and
//! takes the place of the one before in one step; and what is read has to have the checksum that was written with it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use super::ask::MAX_ANSWER;
use crate::control::hex::sha256;
use crate::control::model::{Snapshot, Verifier};

/// The form of the file. A new one gets a new number, and this program says of a file with another that it cannot read it.
const FORMAT: u32 = 1;

/// The place of the file.
#[derive(Clone, Debug)]
pub(super) struct LastGood {
    path: PathBuf,
    service: String,
}

/// What is in the file.
#[derive(Serialize, Deserialize)]
struct Kept {
    format: u32,
    /// Whose rules: those of another service are not for this node.
    service: String,
    /// What the service calls this set, to ask for newer ones only.
    etag: Option<String>,
    /// Of `set`, as it is written without spaces. The set has one of its own, for its rules; this is for its tokens too.
    sha256: String,
    set: Snapshot,
}

/// Only the number, of whatever form.
#[derive(Deserialize)]
struct Form {
    format: u32,
}

impl LastGood {
    /// The file in a data directory, for the service at this address.
    pub(super) fn new(data: &Path, service: &str) -> Self {
        Self { path: data.join("last-good.json"), service: service.to_owned() }
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a set, in place of the one before. If it fails, that one is left as it is.
    ///
    /// # Errors
    /// When there is no room, or nothing may be written there.
    pub(super) fn write(&self, etag: Option<&str>, set: &Snapshot) -> anyhow::Result<()> {
        let kept = Kept {
            format: FORMAT,
            service: self.service.clone(),
            etag: etag.map(str::to_owned),
            sha256: sha256(&serde_json::to_vec(set)?),
            set: set.clone(),
        };
        let bytes = serde_json::to_vec(&kept)?;
        let folder = self.path.parent().unwrap_or(Path::new("."));
        // It has digests of tokens, which are nobody's business.
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let new = self.path.with_extension("json.new");
        let written = write_new(&new, &bytes).and_then(|()| std::fs::rename(&new, &self.path));
        if let Err(error) = written {
            // The room it takes may be what is missing.
            let _ = std::fs::remove_file(&new);
            return Err(error.into());
        }
        // The name lasts when the folder does.
        Ok(File::open(folder)?.sync_all()?)
    }

    /// Writes other tokens beside the rules that are there. If there are none, there is nothing that tokens would open.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub(super) fn write_tokens(&self, tokens: &[Verifier]) -> anyhow::Result<()> {
        match self.read()? {
            Some((etag, set)) if set.tokens != tokens => {
                self.write(etag.as_deref(), &Snapshot { tokens: tokens.to_vec(), ..(*set).clone() })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Reads the set, if there is one, with what the service calls it.
    ///
    /// # Errors
    /// When it cannot be read, is not whole, or is of another service.
    pub(super) fn read(&self) -> anyhow::Result<Option<(Option<String>, Arc<Snapshot>)>> {
        let bytes = match std::fs::metadata(&self.path).and_then(|metadata| {
            if metadata.len() > 2 * MAX_ANSWER as u64 {
                Err(io::ErrorKind::FileTooLarge.into())
            } else {
                std::fs::read(&self.path)
            }
        }) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", self.path.display())),
        };
        let kept = self.check(&bytes).with_context(|| format!("{} cannot be used", self.path.display()))?;
        Ok(Some((kept.etag, Arc::new(kept.set))))
    }

    fn check(&self, bytes: &[u8]) -> anyhow::Result<Kept> {
        let Form { format } = serde_json::from_slice(bytes).context("it is damaged")?;
        ensure!(format == FORMAT, "it is of form {format}, this program knows form {FORMAT}");
        let kept: Kept = serde_json::from_slice(bytes).context("it is damaged")?;
        ensure!(kept.sha256 == sha256(&serde_json::to_vec(&kept.set)?), "it is damaged: its checksum does not fit");
        ensure!(kept.service == self.service, "it has the rules of {}, not of {}", kept.service, self.service);
        Ok(kept)
    }
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // One that is left over from a write that was cut short may have other permissions.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::control::model::Role;

    fn place(name: &str) -> LastGood {
        let folder = std::env::temp_dir().join(format!("tollgate-last-good-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        LastGood::new(&folder.join("data"), "https://rules:1/")
    }

    fn set() -> Snapshot {
        let token = Verifier {
            digest: "0f".repeat(32),
            id: "i".into(),
            name: "n".into(),
            role: Role::Reader,
            domains: vec!["a".into()],
            expires_ms: Some(5),
        };
        Snapshot { revision: 3, checksum: "c".into(), rules: "{\"\u{e9}\\n\":1}".into(), tokens: vec![token] }
    }

    #[test]
    fn what_was_written_is_read_and_nobody_else_can_read_it() {
        let file = place("whole");
        assert!(file.read().unwrap().is_none(), "there is none yet");
        file.write(Some("\"3-c\""), &set()).unwrap();
        file.write(None, &Snapshot { revision: 4, ..set() }).unwrap();
        let (etag, read) = file.read().unwrap().unwrap();
        assert_eq!((etag, &*read), (None, &Snapshot { revision: 4, ..set() }));
        let folder = file.path().parent().unwrap();
        assert_eq!(std::fs::metadata(file.path()).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), 1, "nothing is left over");
        let other = LastGood::new(folder, "https://other:1/");
        assert!(format!("{:#}", other.read().unwrap_err()).contains("of https://rules:1/, not of https://other:1/"));
        std::fs::remove_dir_all(folder.parent().unwrap()).unwrap();
    }

    #[test]
    fn tokens_are_replaced_beside_the_rules() {
        let file = place("tokens");
        file.write_tokens(&[]).unwrap();
        assert!(file.read().unwrap().is_none(), "without rules there is nothing to open");
        file.write(Some("\"3-c\""), &set()).unwrap();
        file.write_tokens(&[]).unwrap();
        let (etag, read) = file.read().unwrap().unwrap();
        assert_eq!((etag.as_deref(), &*read), (Some("\"3-c\""), &Snapshot { tokens: Vec::new(), ..set() }));
        std::fs::remove_dir_all(file.path().parent().unwrap().parent().unwrap()).unwrap();
    }

    #[test]
    fn a_file_with_a_byte_changed_or_missing_is_not_used() {
        let file = place("damaged");
        file.write(Some("\"3-c\""), &set()).unwrap();
        let whole = std::fs::read(file.path()).unwrap();
        let sum = whole.windows(8).position(|window| window == b"\"sha256\"").unwrap();
        for at in 0..whole.len() {
            std::fs::write(file.path(), &whole[..at]).unwrap();
            assert!(file.read().is_err(), "cut to {at} bytes");
            // The set and its checksum; what stands before is told apart by what it means.
            let mut changed = whole.clone();
            changed[at] = changed[at].wrapping_add(1);
            std::fs::write(file.path(), &changed).unwrap();
            if at >= sum {
                assert!(file.read().is_err(), "with byte {at} changed: {}", String::from_utf8_lossy(&changed));
            }
        }
        std::fs::write(file.path(), String::from_utf8(whole).unwrap().replace("\"format\":1", "\"format\":2")).unwrap();
        assert!(format!("{:#}", file.read().unwrap_err()).contains("form 2"));
        std::fs::remove_dir_all(file.path().parent().unwrap().parent().unwrap()).unwrap();
    }
}
