//! Bodies of deltas and snapshot parts. A body is encoded once and sent to many nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use tollgate::fingerprint::Fingerprint;

use super::codec::{FINGERPRINT_BYTES, Reader, put_fingerprint, put_varint, unzigzag, zigzag};
use super::{MAX_FRAME_BYTES, WireError};
use crate::table::{DrainedCharges, NetCharge, SharedLimits, SnapshotKey, UsedAmount};

/// Charges and resets of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeltaBody {
    /// Charges, grouped by the sender's number for their limits.
    pub blocks: Vec<(u32, Vec<NetCharge>)>,
    /// Keys that were reset, with their new generation.
    pub resets: Vec<(Fingerprint, u32)>,
}

/// Key states in a snapshot part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartBody {
    /// Keys, grouped by the sender's number for the limits of their last charge.
    pub blocks: Vec<(u32, Vec<SnapshotKey>)>,
}

/// Maximum length of a body. The remaining bytes of a frame are for its other fields.
pub(crate) const MAX_BODY_BYTES: usize = MAX_FRAME_BYTES - 16 * 1_024;

impl DeltaBody {
    /// Encodes drained charges. Returns the limits that the charges refer to.
    pub(crate) fn encode_drained(drained: &mut DrainedCharges, out: &mut Vec<u8>) -> Vec<Arc<SharedLimits>> {
        drained.items.sort_unstable_by_key(|(limits, item)| (limits.number(), item.key));
        let mut limits: Vec<Arc<SharedLimits>> = Vec::new();
        let blocks = drained.items.chunk_by(|(one, _), (other, _)| one.number() == other.number());
        put_varint(blocks.clone().count() as u64, out);
        for block in blocks {
            let own = &block[0].0;
            put_varint(own.number().into(), out);
            put_varint(block.len() as u64, out);
            block.iter().for_each(|(_, item)| put_net_charge(item, out));
            limits.push(own.clone());
        }
        put_varint(drained.resets.len() as u64, out);
        for (key, generation) in &drained.resets {
            put_fingerprint(*key, out);
            put_varint((*generation).into(), out);
        }
        limits
    }

    /// Encodes a body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(self.blocks.len() as u64, out);
        for (number, items) in &self.blocks {
            put_varint((*number).into(), out);
            put_varint(items.len() as u64, out);
            items.iter().for_each(|item| put_net_charge(item, out));
        }
        put_varint(self.resets.len() as u64, out);
        for (key, generation) in &self.resets {
            put_fingerprint(*key, out);
            put_varint((*generation).into(), out);
        }
    }

    /// Decodes a body.
    ///
    /// # Errors
    /// Fails if the body is truncated or followed by other bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let mut body = Self::default();
        for _ in 0..reader.read_count(2, usize::MAX)? {
            let number = reader.varint_u32()?;
            let count = reader.read_count(FINGERPRINT_BYTES + 1, usize::MAX)?;
            let items =
                (0..count).map(|_| Ok(NetCharge { key: reader.fingerprint()?, cost: unzigzag(reader.varint()?) }));
            let items = items.collect::<Result<_, _>>()?;
            body.blocks.push((number, items));
        }
        let count = reader.read_count(FINGERPRINT_BYTES + 1, usize::MAX)?;
        let resets = (0..count).map(|_| Ok((reader.fingerprint()?, reader.varint_u32()?)));
        body.resets = resets.collect::<Result<_, _>>()?;
        reader.expect_end()?;
        Ok(body)
    }
}

fn put_net_charge(item: &NetCharge, out: &mut Vec<u8>) {
    put_fingerprint(item.key, out);
    put_varint(zigzag(item.cost), out);
}

/// Builds a snapshot part.
#[derive(Debug, Default)]
pub(crate) struct PartBuilder {
    blocks: BTreeMap<u32, (Arc<SharedLimits>, u64, Vec<u8>)>,
    bytes: usize,
    /// Number of keys that did not fit into the part.
    pub(crate) left_out: u64,
}

impl PartBuilder {
    pub(crate) fn add(&mut self, limits: &Arc<SharedLimits>, key: &SnapshotKey) {
        if self.bytes > MAX_BODY_BYTES {
            self.left_out += 1;
            return;
        }
        let (_, count, block) = self.blocks.entry(limits.number()).or_insert_with(|| (limits.clone(), 0, Vec::new()));
        let before = block.len();
        put_snapshot_key(key, block);
        *count += 1;
        // The limits number and the key count of a block take at most 15 bytes.
        self.bytes += block.len() - before + if *count == 1 { 15 } else { 0 };
    }

    /// Returns the encoded body and the limits that the body refers to.
    pub(crate) fn finish(self) -> (Vec<u8>, Vec<Arc<SharedLimits>>) {
        let mut out = Vec::with_capacity(self.bytes + 10);
        put_varint(self.blocks.len() as u64, &mut out);
        let mut limits = Vec::with_capacity(self.blocks.len());
        for (number, (own, count, block)) in self.blocks {
            put_varint(number.into(), &mut out);
            put_varint(count, &mut out);
            out.extend_from_slice(&block);
            limits.push(own);
        }
        (out, limits)
    }
}

impl PartBody {
    /// Encodes a body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(self.blocks.len() as u64, out);
        for (number, keys) in &self.blocks {
            put_varint((*number).into(), out);
            put_varint(keys.len() as u64, out);
            keys.iter().for_each(|key| put_snapshot_key(key, out));
        }
    }

    /// Decodes a body.
    ///
    /// # Errors
    /// Fails if the body is truncated or followed by other bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let mut body = Self::default();
        for _ in 0..reader.read_count(2, usize::MAX)? {
            let number = reader.varint_u32()?;
            let count = reader.read_count(FINGERPRINT_BYTES + 2, usize::MAX)?;
            let keys = (0..count).map(|_| {
                let (key, generation) = (reader.fingerprint()?, reader.varint_u32()?);
                let used = (0..reader.read_count(2, tollgate_core::Limits::MAX)?)
                    .map(|_| Ok(UsedAmount { whole: reader.varint()?, part: reader.varint_u32()? }));
                Ok(SnapshotKey { key, generation, used: used.collect::<Result<_, _>>()? })
            });
            let keys = keys.collect::<Result<_, _>>()?;
            body.blocks.push((number, keys));
        }
        reader.expect_end()?;
        Ok(body)
    }
}

fn put_snapshot_key(key: &SnapshotKey, out: &mut Vec<u8>) {
    put_fingerprint(key.key, out);
    put_varint(key.generation.into(), out);
    put_varint(key.used.len() as u64, out);
    for used in &key.used {
        put_varint(used.whole, out);
        put_varint(used.part.into(), out);
    }
}
