//! Intrusive lists over one array of 4-byte links: all the memory a waiting row costs here.
//!
//! Owns the link of every row (or lane, or tenant: anything with a small dense number). An item
//! is on at most one list at a time; its link says where the next item is, that it is the last,
//! that it is on no list, or that it is held (for a row: in flight). So "started twice" and
//! "queued twice" are both visible in the link itself, and are asserted.
//!
//! The array grows by chunks, so that growing never copies what is there. It does not know what
//! a list means. Runs on the shard's core.

/// On no list.
const FREE: u32 = u32::MAX;
/// On a list, as its last item.
const END: u32 = u32::MAX - 1;
/// On no list, and held by somebody.
const HELD: u32 = u32::MAX - 2;
/// Numbers an item may have.
pub(super) const ITEMS_MAX: u32 = u32::MAX - 2;

const CHUNK_ITEMS: usize = 16 * 1024;

/// The links.
#[derive(Default)]
pub(super) struct Links {
    chunks: Vec<Box<[u32]>>,
}

impl Links {
    /// True when the item is neither on a list nor held.
    pub(super) fn is_free(&self, item: u32) -> bool {
        self.get(item) == FREE
    }

    /// True between [`Links::hold`] and [`Links::release`].
    pub(super) fn is_held(&self, item: u32) -> bool {
        self.get(item) == HELD
    }

    /// Marks a free item as held.
    pub(super) fn hold(&mut self, item: u32) {
        assert!(
            self.is_free(item),
            "item {item} is on a list or held already"
        );
        self.set(item, HELD);
    }

    /// Makes a held item free again.
    pub(super) fn release(&mut self, item: u32) {
        assert!(self.is_held(item), "item {item} is not held");
        self.set(item, FREE);
    }

    /// Bytes of the array.
    pub(super) fn bytes(&self) -> usize {
        self.chunks.len() * CHUNK_ITEMS * size_of::<u32>()
            + self.chunks.capacity() * size_of::<Box<[u32]>>()
    }

    fn get(&self, item: u32) -> u32 {
        let at = item as usize;
        self.chunks
            .get(at / CHUNK_ITEMS)
            .map_or(FREE, |chunk| chunk[at % CHUNK_ITEMS])
    }

    fn set(&mut self, item: u32, link: u32) {
        assert!(item < ITEMS_MAX, "item number {item} is taken by a mark");
        let at = item as usize;
        while self.chunks.len() <= at / CHUNK_ITEMS {
            self.chunks.push(vec![FREE; CHUNK_ITEMS].into_boxed_slice());
        }
        self.chunks[at / CHUNK_ITEMS][at % CHUNK_ITEMS] = link;
    }
}

/// A first-in first-out list: ready rows of a lane, active lanes of a tenant, active tenants.
pub(super) struct Fifo {
    head: u32,
    tail: u32,
    count: u32,
}

impl Default for Fifo {
    fn default() -> Fifo {
        Fifo {
            head: END,
            tail: END,
            count: 0,
        }
    }
}

impl Fifo {
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The first item.
    pub(super) fn head(&self) -> Option<u32> {
        (self.head != END).then_some(self.head)
    }

    /// Appends a free item.
    pub(super) fn push(&mut self, links: &mut Links, item: u32) {
        assert!(
            links.is_free(item),
            "item {item} is on a list or held already"
        );
        links.set(item, END);
        if self.head == END {
            self.head = item;
        } else {
            links.set(self.tail, item);
        }
        self.tail = item;
        self.count += 1;
    }

    /// Takes the first item off; it is free afterwards.
    pub(super) fn pop(&mut self, links: &mut Links) -> Option<u32> {
        let item = self.head()?;
        self.head = links.get(item);
        if self.head == END {
            self.tail = END;
        }
        links.set(item, FREE);
        self.count -= 1;
        Some(item)
    }

    /// Moves the first item to the end.
    pub(super) fn rotate(&mut self, links: &mut Links) {
        if self.count > 1
            && let Some(item) = self.pop(links)
        {
            self.push(links, item);
        }
    }
}

/// A last-in first-out list of 4 bytes: one slot of the timer wheel, always emptied whole.
#[derive(Clone, Copy)]
pub(super) struct Stack {
    head: u32,
}

impl Default for Stack {
    fn default() -> Stack {
        Stack { head: END }
    }
}

impl Stack {
    pub(super) fn is_empty(self) -> bool {
        self.head == END
    }

    /// Puts a free item on top.
    pub(super) fn push(&mut self, links: &mut Links, item: u32) {
        assert!(
            links.is_free(item),
            "item {item} is on a list or held already"
        );
        links.set(item, self.head);
        self.head = item;
    }

    /// Takes the top item off; it is free afterwards.
    pub(super) fn pop(&mut self, links: &mut Links) -> Option<u32> {
        let item = self.head;
        if item == END {
            return None;
        }
        self.head = links.get(item);
        links.set(item, FREE);
        Some(item)
    }
}
