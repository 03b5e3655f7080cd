//! Files that are gone: a segment or a slot that the checkpoint lists is put back, empty when
//! nothing of it is left. Works on copies in memory; reads only.

use super::plan::{Work, cut_after};
use crate::disk::{BLOCK_BYTES, DirEntry, Disk};
use crate::error::Damage;
use crate::format::segment::{SEGMENT_FLAG_GAP, SegmentHeader};
use crate::ids::Lsn;
use crate::offline::OfflineError;
use crate::offline::judge::{Found, Judgement};
use crate::offline::scan::{SlotScan, look};
use crate::slots::SlotNo;

impl<D: Disk> Work<'_, D> {
    /// Gives a segment that a checkpoint lists its header back, or puts an empty one in its place.
    pub(super) async fn restore_needed(
        &mut self,
        j: &Judgement,
        found: &Found,
    ) -> Result<(), OfflineError> {
        let needs = self.checkpoint.iter().flat_map(|c| c.needs.clone());
        let need = needs
            .into_iter()
            .find(|n| Some(n.segment) == found.damage.segment);
        let (Some(need), Some((store_uuid, shard))) = (need, j.store_uuid.zip(j.shard)) else {
            return Err(OfflineError::NoRepair(found.damage.to_string()));
        };
        let mut header = SegmentHeader {
            store_uuid,
            shard,
            segment: need.segment,
            first_lsn: Lsn(1),
            salt: need.salt,
            slots: self.scan.slots.len() as u32,
            ..SegmentHeader::default()
        };
        let is_its_use =
            |s: &SlotScan| s.header.is_err() && s.frames.iter().any(|f| f.header.salt == need.salt);
        if let Some(slot) = self.scan.slots.iter().position(is_its_use) {
            let frames = &self.scan.slots[slot].frames;
            let own = frames.iter().find(|f| f.header.salt == need.salt);
            header.first_lsn = own.map_or(Lsn(1), |f| f.header.lsn);
            header.cut.lsn = header.first_lsn.prev();
            let mut content = self.content(slot).await?;
            header.encode(&mut content[..BLOCK_BYTES]);
            let name = &self.scan.slots[slot].name;
            self.plan.steps.push(format!(
                "build the header of {name} again (segment {}), as the checkpoint has it",
                need.segment
            ));
            self.put(slot, content);
            return Ok(());
        }
        if need.segment.0 > j.chain.last().map_or(0, |p| p.header.segment.0) {
            // It will be the newest: the log goes on behind it.
            header.first_lsn = j.claimed.max(j.last_kept()).next();
            header.cut = cut_after(j, j.kept.last(), header.first_lsn);
            header.flags = SEGMENT_FLAG_GAP;
        }
        self.plan.lost.push(found.damage.clone());
        let wanted = SlotNo(need.slot).file_name();
        let is_taken = self.scan.slots.iter().any(|s| s.name == wanted);
        let name = if is_taken {
            self.free_slot_name()
        } else {
            wanted
        };
        self.plan
            .steps
            .push(format!("put an empty segment {} into {name}", need.segment));
        self.put_new(name, &header);
        Ok(())
    }

    /// Puts an empty slot where one is absent that the checkpoint lists.
    pub(super) fn blank_slot(&mut self, damage: &Damage) -> Result<(), OfflineError> {
        let Some(name) = damage.file.clone() else {
            return Err(OfflineError::NoRepair(damage.to_string()));
        };
        self.plan.lost.push(damage.clone());
        self.plan
            .steps
            .push(format!("put an empty slot into {name}"));
        self.put_file(name, |_| {});
        Ok(())
    }

    /// The highest segment number that anything names.
    pub(super) fn newest_segment(&self) -> u64 {
        let number = |s: &SlotScan| s.header.as_ref().ok().map(|h| h.segment.0);
        let needed = self
            .checkpoint
            .iter()
            .flat_map(|c| &c.needs)
            .map(|n| n.segment.0);
        self.scan
            .slots
            .iter()
            .filter_map(number)
            .chain(needed)
            .max()
            .unwrap_or(0)
    }

    pub(super) fn free_slot_name(&self) -> String {
        let taken = |name: &String| self.scan.slots.iter().any(|s| s.name == *name);
        let mut names = (0..).map(|n| SlotNo(n).file_name());
        names.find(|n| !taken(n)).unwrap_or_default()
    }

    /// A new slot with nothing but a header.
    pub(super) fn put_new(&mut self, name: String, header: &SegmentHeader) {
        self.put_file(name, |content| header.encode(&mut content[..BLOCK_BYTES]));
    }

    fn put_file(&mut self, name: String, fill: impl FnOnce(&mut [u8])) {
        let bytes = self
            .scan
            .slots
            .iter()
            .map(|s| s.bytes)
            .max()
            .unwrap_or(1 << 20);
        let mut content = vec![0; bytes as usize];
        fill(&mut content);
        let entry = DirEntry {
            name: name.clone(),
            bytes,
        };
        self.scan.slots.push(look(entry, &content, Vec::new()));
        self.changed.insert(name, content);
    }
}
