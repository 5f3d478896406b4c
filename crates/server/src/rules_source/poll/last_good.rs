//! The last good rules of a service, stored on disk so that a node can start while the service is unreachable.
//!
//! A node must not load rules from a truncated or damaged file. A write therefore creates a new file, flushes it and
//! renames it, and a read uses the file only if its checksum matches.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use super::request::MAX_RESPONSE_BYTES;
use crate::control::model::Snapshot;
use crate::control::sha256_hex;

/// The format version of the file. A file with another version is refused.
const FORMAT_VERSION: u32 = 1;

/// The file with the last good rules of a service.
#[derive(Clone, Debug)]
pub(super) struct LastGoodFile {
    path: PathBuf,
    service: String,
}

/// The content of the file.
#[derive(Serialize, Deserialize)]
struct LastGoodContent {
    format: u32,
    /// The service that sent the rules. A file from another service is refused.
    service: String,
    /// The ETag of the snapshot. A node that starts with this file sends the ETag, so that the service answers
    /// with a snapshot only if it has a different one.
    etag: Option<String>,
    /// The checksum of `snapshot` as compact JSON. This checksum is needed because the checksum inside `snapshot`
    /// covers only the rules, not the tokens.
    sha256: String,
    snapshot: Snapshot,
}

/// The only field that every format version has.
#[derive(Deserialize)]
struct FormatHeader {
    format: u32,
}

impl LastGoodFile {
    /// Returns the last-good file in the directory `data`, for the service at the address `service`.
    pub(super) fn new(data: &Path, service: &str) -> Self {
        Self { path: data.join("last-good.json"), service: service.to_owned() }
    }

    /// Returns its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the stored snapshot. If the write fails, the previous snapshot remains.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub(super) fn write(&self, etag: Option<&str>, snapshot: &Snapshot) -> anyhow::Result<()> {
        let content = LastGoodContent {
            format: FORMAT_VERSION,
            service: self.service.clone(),
            etag: etag.map(str::to_owned),
            sha256: sha256_hex(&serde_json::to_vec(snapshot)?),
            snapshot: snapshot.clone(),
        };
        let bytes = serde_json::to_vec(&content)?;
        let folder = self.path.parent().unwrap_or(Path::new("."));
        // The file contains digests of tokens, so only its owner may read it.
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let new = self.path.with_extension("json.new");
        let written = write_new_file(&new, &bytes).and_then(|()| std::fs::rename(&new, &self.path));
        if let Err(error) = written {
            // Free the disk space.
            let _ = std::fs::remove_file(&new);
            return Err(error.into());
        }
        // Flush the folder, so that the new name is on disk.
        Ok(File::open(folder)?.sync_all()?)
    }

    /// Replaces the stored tokens and kill switch with those in `new`. Keeps the stored rules. Does nothing if there is
    /// no file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or written.
    pub(super) fn update_all_but_rules(&self, new: &Snapshot) -> anyhow::Result<()> {
        match self.read()? {
            Some((etag, snapshot)) if (&snapshot.tokens, snapshot.mode) != (&new.tokens, new.mode) => {
                let merged = Snapshot { tokens: new.tokens.clone(), mode: new.mode, ..(*snapshot).clone() };
                self.write(etag.as_deref(), &merged)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the stored ETag and snapshot, or `None` if there is no file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is damaged, or belongs to another service.
    pub(super) fn read(&self) -> anyhow::Result<Option<(Option<String>, Arc<Snapshot>)>> {
        let bytes = match std::fs::metadata(&self.path).and_then(|metadata| {
            if metadata.len() > 2 * MAX_RESPONSE_BYTES as u64 {
                Err(io::ErrorKind::FileTooLarge.into())
            } else {
                std::fs::read(&self.path)
            }
        }) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", self.path.display())),
        };
        let content = self.check_content(&bytes).with_context(|| format!("{} cannot be used", self.path.display()))?;
        Ok(Some((content.etag, Arc::new(content.snapshot))))
    }

    fn check_content(&self, bytes: &[u8]) -> anyhow::Result<LastGoodContent> {
        let FormatHeader { format } = serde_json::from_slice(bytes).context("damaged")?;
        ensure!(format == FORMAT_VERSION, "unsupported format {format} (this program reads {FORMAT_VERSION})");
        let content: LastGoodContent = serde_json::from_slice(bytes).context("damaged")?;
        ensure!(content.sha256 == sha256_hex(&serde_json::to_vec(&content.snapshot)?), "damaged: checksum mismatch");
        ensure!(content.service == self.service, "rules of {}, not of {}", content.service, self.service);
        Ok(content)
    }
}

fn write_new_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // First removes the file of an interrupted write, because it may have other permissions.
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
    use crate::control::model::{FleetMode, Role, TokenGrant, Verifier};

    fn test_file() -> (tempfile::TempDir, LastGoodFile) {
        let folder = tempfile::tempdir().unwrap();
        let file = LastGoodFile::new(&folder.path().join("data"), "https://rules:1/");
        (folder, file)
    }

    fn test_snapshot() -> Snapshot {
        let grant = TokenGrant { name: "n".into(), role: Role::Reader, domains: vec!["a".into()], expires_ms: Some(5) };
        let token = Verifier { digest: "0f".repeat(32), id: "i".into(), grant };
        Snapshot {
            revision: 3,
            checksum: "c".into(),
            rules: "{\"\u{e9}\\n\":1}".into(),
            tokens: vec![token],
            mode: FleetMode::Observe,
        }
    }

    #[test]
    fn snapshot_round_trips_and_only_the_owner_may_read_it() {
        let (_folder, file) = test_file();
        assert!(file.read().unwrap().is_none(), "no file yet");
        file.write(Some("\"3-c\""), &test_snapshot()).unwrap();
        file.write(None, &Snapshot { revision: 4, ..test_snapshot() }).unwrap();
        let (etag, read) = file.read().unwrap().unwrap();
        assert_eq!((etag, &*read), (None, &Snapshot { revision: 4, ..test_snapshot() }));
        let folder = file.path().parent().unwrap();
        assert_eq!(std::fs::metadata(file.path()).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), 1, "no temporary file remains");
        let other = LastGoodFile::new(folder, "https://other:1/");
        assert!(format!("{:#}", other.read().unwrap_err()).contains("of https://rules:1/, not of https://other:1/"));
    }

    #[test]
    fn tokens_and_kill_switch_are_replaced_and_rules_kept() {
        let (_folder, file) = test_file();
        let kept = Snapshot { tokens: Vec::new(), mode: FleetMode::Enforce, ..test_snapshot() };
        let refused = Snapshot { revision: 9, rules: "{".into(), ..kept.clone() };
        file.update_all_but_rules(&refused).unwrap();
        assert!(file.read().unwrap().is_none(), "without rules nothing is written");
        file.write(Some("\"3-c\""), &test_snapshot()).unwrap();
        file.update_all_but_rules(&refused).unwrap();
        let (etag, read) = file.read().unwrap().unwrap();
        assert_eq!((etag.as_deref(), &*read), (Some("\"3-c\""), &kept));
    }

    #[test]
    fn damaged_file_is_refused() {
        let (_folder, file) = test_file();
        file.write(Some("\"3-c\""), &test_snapshot()).unwrap();
        let whole = std::fs::read(file.path()).unwrap();
        let sum = whole.windows(8).position(|window| window == b"\"sha256\"").unwrap();
        for at in 0..whole.len() {
            std::fs::write(file.path(), &whole[..at]).unwrap();
            assert!(file.read().is_err(), "cut to {at} bytes");
            // The checksum covers only the snapshot. The fields before the snapshot have their own checks.
            let mut changed = whole.clone();
            changed[at] = changed[at].wrapping_add(1);
            std::fs::write(file.path(), &changed).unwrap();
            if at >= sum {
                assert!(file.read().is_err(), "with byte {at} changed: {}", String::from_utf8_lossy(&changed));
            }
        }
        std::fs::write(file.path(), String::from_utf8(whole).unwrap().replace("\"format\":1", "\"format\":2")).unwrap();
        assert!(format!("{:#}", file.read().unwrap_err()).contains("format 2"));
    }
}
