//! Which seqs are finished: a set of seqs that costs little however they finish.
//!
//! Runs of 1,024 seqs that are finished throughout are kept as ranges; a run that is finished in
//! part costs a bitmap of 128 bytes. So a backlog of one slow sink among millions of finished
//! hooks costs a bit per seq, not a range per hook, and each restart (seqs leap) at most two
//! bitmaps. Pure; runs anywhere.

use std::collections::BTreeMap;

use crate::ids::Seq;

const BLOCK_BITS: u32 = 10;
const WORDS: usize = 1 << (BLOCK_BITS - 6);
const BLOCK_MASK: u64 = (1 << BLOCK_BITS) - 1;

type Bits = [u64; WORDS];

/// A set of seqs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeqSet {
    /// Blocks finished in part, by block number.
    partial: BTreeMap<u64, Box<Bits>>,
    /// Runs of blocks finished throughout: first block to one past the last; never adjacent.
    full: BTreeMap<u64, u64>,
}

impl SeqSet {
    /// An empty set.
    pub fn new() -> SeqSet {
        SeqSet::default()
    }

    /// Whether `seq` is in the set.
    pub fn contains(&self, seq: Seq) -> bool {
        let block = seq.0 >> BLOCK_BITS;
        match self.partial.get(&block) {
            Some(bits) => bits[word_of(seq)] & bit_of(seq) != 0,
            None => self.is_full(block),
        }
    }

    /// Adds `seq`; false when it was there.
    pub fn insert(&mut self, seq: Seq) -> bool {
        let block = seq.0 >> BLOCK_BITS;
        if self.is_full(block) {
            return false;
        }
        let bits = self
            .partial
            .entry(block)
            .or_insert_with(|| Box::new([0; WORDS]));
        let word = &mut bits[word_of(seq)];
        if *word & bit_of(seq) != 0 {
            return false;
        }
        *word |= bit_of(seq);
        if *word == u64::MAX && bits.iter().all(|&w| w == u64::MAX) {
            self.partial.remove(&block);
            self.add_full(block, block + 1);
        }
        true
    }

    /// Adds every seq from `first` to `last`, both included.
    pub fn insert_range(&mut self, first: Seq, last: Seq) {
        assert!(
            first <= last && last.0 < u64::MAX,
            "a range of seqs in rising order"
        );
        let first_whole = first.0.div_ceil(BLOCK_MASK + 1);
        let end_whole = (last.0 + 1) >> BLOCK_BITS;
        if first_whole >= end_whole {
            for seq in first.0..=last.0 {
                self.insert(Seq(seq));
            }
            return;
        }
        for seq in first.0..first_whole << BLOCK_BITS {
            self.insert(Seq(seq));
        }
        for seq in end_whole << BLOCK_BITS..=last.0 {
            self.insert(Seq(seq));
        }
        let mut inside = self.partial.split_off(&first_whole);
        let mut after = inside.split_off(&end_whole);
        self.partial.append(&mut after);
        self.add_full(first_whole, end_whole);
    }

    /// Takes `seq` out; false when it was not there.
    pub fn remove(&mut self, seq: Seq) -> bool {
        let block = seq.0 >> BLOCK_BITS;
        if let Some((&start, &end)) = self.full.range(..=block).next_back()
            && block < end
        {
            self.full.remove(&start);
            if start < block {
                self.full.insert(start, block);
            }
            if block + 1 < end {
                self.full.insert(block + 1, end);
            }
            self.partial.insert(block, Box::new([u64::MAX; WORDS]));
        }
        let Some(bits) = self.partial.get_mut(&block) else {
            return false;
        };
        let was = bits[word_of(seq)] & bit_of(seq) != 0;
        bits[word_of(seq)] &= !bit_of(seq);
        if bits.iter().all(|&w| w == 0) {
            self.partial.remove(&block);
        }
        was
    }

    /// The first maximal range that ends at or after `from`, cut to start no earlier than `from`.
    pub fn next_range(&self, from: Seq) -> Option<(Seq, Seq)> {
        let first = self.next_member(from)?;
        Some((first, Seq(self.next_absent(first).0 - 1)))
    }

    /// All maximal ranges, rising, both ends included.
    pub fn ranges(&self) -> impl Iterator<Item = (Seq, Seq)> + '_ {
        let mut from = Some(Seq(0));
        std::iter::from_fn(move || {
            let range = self.next_range(from?)?;
            from = Some(range.1.next());
            Some(range)
        })
    }

    /// Blocks and runs held: what the memory follows.
    pub fn parts(&self) -> usize {
        self.partial.len() + self.full.len()
    }

    /// An estimate from above of the bytes held.
    pub fn memory_bytes(&self) -> usize {
        // A BTreeMap node is half full at worst; a block's box is 128 bytes.
        self.partial.len() * (size_of::<Bits>() + 40) + self.full.len() * 40
    }

    fn is_full(&self, block: u64) -> bool {
        self.full
            .range(..=block)
            .next_back()
            .is_some_and(|(_, &end)| block < end)
    }

    fn add_full(&mut self, start: u64, end: u64) {
        let (mut start, mut end) = (start, end);
        if let Some((&s, &e)) = self.full.range(..=start).next_back()
            && e >= start
        {
            start = s;
            end = end.max(e);
        }
        while let Some((&s, &e)) = self.full.range(start..=end).next() {
            self.full.remove(&s);
            end = end.max(e);
        }
        self.full.insert(start, end);
    }

    fn next_member(&self, from: Seq) -> Option<Seq> {
        let block = from.0 >> BLOCK_BITS;
        if self.is_full(block) {
            return Some(from);
        }
        if let Some(bits) = self.partial.get(&block)
            && let Some(seq) = scan(bits, block, from.0 & BLOCK_MASK, true)
        {
            return Some(seq);
        }
        let partial = self.partial.range(block + 1..).next();
        let partial = partial.and_then(|(&b, bits)| scan(bits, b, 0, true));
        let full = self
            .full
            .range(block + 1..)
            .next()
            .map(|(&b, _)| Seq(b << BLOCK_BITS));
        partial.into_iter().chain(full).min()
    }

    fn next_absent(&self, from: Seq) -> Seq {
        let mut at = from;
        loop {
            let block = at.0 >> BLOCK_BITS;
            if let Some(bits) = self.partial.get(&block) {
                if let Some(seq) = scan(bits, block, at.0 & BLOCK_MASK, false) {
                    return seq;
                }
                at = Seq((block + 1) << BLOCK_BITS);
            } else if let Some((_, &end)) = self.full.range(..=block).next_back()
                && block < end
            {
                at = Seq(end << BLOCK_BITS);
            } else {
                return at;
            }
        }
    }
}

fn word_of(seq: Seq) -> usize {
    (seq.0 & BLOCK_MASK) as usize >> 6
}

fn bit_of(seq: Seq) -> u64 {
    1 << (seq.0 & 63)
}

/// The first seq of the block at or after place `from` whose bit equals `set`.
fn scan(bits: &Bits, block: u64, from: u64, set: bool) -> Option<Seq> {
    let mut mask = u64::MAX << (from & 63);
    for (i, &word) in bits.iter().enumerate().skip(from as usize >> 6) {
        let hit = (if set { word } else { !word }) & mask;
        if hit != 0 {
            return Some(Seq(block << BLOCK_BITS
                | (i as u64) << 6
                | u64::from(hit.trailing_zeros())));
        }
        mask = u64::MAX;
    }
    None
}
