//! One reload among others: a core that is late with an abandoned one changes nothing any more.
//!
//! Every reload has a number. A core keeps what it made only while that number is the one it was
//! asked for last ([`Place`]); the main thread counts only answers to its own ([`Round`]). Pure.

use std::cell::{Cell, RefCell};

/// The number of a reload; never used twice by a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReloadNo(pub u64);

impl ReloadNo {
    /// The next one.
    pub fn next(self) -> ReloadNo {
        ReloadNo(self.0 + 1)
    }
}

/// Where a core keeps what it made of a configuration until all cores have.
#[derive(Debug)]
pub struct Place<T> {
    wanted: Cell<Option<ReloadNo>>,
    made: RefCell<Option<T>>,
}

impl<T> Default for Place<T> {
    fn default() -> Place<T> {
        Place {
            wanted: Cell::new(None),
            made: RefCell::new(None),
        }
    }
}

impl<T> Place<T> {
    /// From now on only this reload counts.
    pub fn expect(&self, number: ReloadNo) {
        self.wanted.set(Some(number));
        *self.made.borrow_mut() = None;
    }

    /// What was made for a reload; dropped when it is not the one expected.
    pub fn put(&self, number: ReloadNo, made: T) {
        if self.wanted.get() == Some(number) {
            *self.made.borrow_mut() = Some(made);
        }
    }

    /// The reload is given up.
    pub fn abandon(&self, number: ReloadNo) {
        if self.wanted.get() == Some(number) {
            self.wanted.set(None);
            *self.made.borrow_mut() = None;
        }
    }

    /// Takes what was made for this reload.
    pub fn take(&self, number: ReloadNo) -> Option<T> {
        if self.wanted.get() != Some(number) {
            return None;
        }
        self.wanted.set(None);
        self.made.borrow_mut().take()
    }
}

/// The answers of the cores to one reload.
#[derive(Debug)]
pub struct Round {
    number: ReloadNo,
    left: Vec<usize>,
}

impl Round {
    /// None of `cores` has answered yet.
    pub fn new(number: ReloadNo, cores: usize) -> Round {
        Round {
            number,
            left: (0..cores).collect(),
        }
    }

    /// A core has answered; one that is late with another reload is not heard.
    ///
    /// # Errors
    /// It cannot: the reload is off.
    pub fn answer(
        &mut self,
        number: ReloadNo,
        core: usize,
        result: Result<(), String>,
    ) -> Result<(), String> {
        if number != self.number {
            return Ok(());
        }
        result.map_err(|why| format!("core {core}: {why}"))?;
        self.left.retain(|left| *left != core);
        Ok(())
    }

    /// Cores that have not answered.
    pub fn left(&self) -> usize {
        self.left.len()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const FIRST: ReloadNo = ReloadNo(1);
    const SECOND: ReloadNo = ReloadNo(2);

    #[test]
    fn late_core_of_an_abandoned_reload_is_neither_counted_nor_put_in_place() {
        let mut round = Round::new(SECOND, 2);
        round.answer(FIRST, 1, Ok(())).unwrap();
        round.answer(FIRST, 0, Err("cannot".into())).unwrap();
        assert_eq!(round.left(), 2);
        let place = Place::default();
        place.expect(FIRST);
        place.abandon(FIRST);
        place.expect(SECOND);
        place.put(SECOND, "second");
        place.put(FIRST, "first");
        place.abandon(FIRST);
        assert_eq!(place.take(FIRST), None);
        assert_eq!(place.take(SECOND), Some("second"));
        assert_eq!(place.take(SECOND), None, "once");
    }

    #[test]
    fn reload_is_over_when_every_core_has_answered_and_off_when_one_cannot() {
        let mut round = Round::new(FIRST, 2);
        round.answer(FIRST, 1, Ok(())).unwrap();
        round.answer(FIRST, 1, Ok(())).unwrap();
        assert_eq!(round.left(), 1);
        let off = round.answer(FIRST, 0, Err("no room".into()));
        assert_eq!(off, Err("core 0: no room".into()));
        round.answer(FIRST, 0, Ok(())).unwrap();
        assert_eq!(round.left(), 0);
    }

    #[test]
    fn what_comes_after_the_reload_was_given_up_is_dropped() {
        let place = Place::default();
        place.expect(FIRST);
        place.abandon(FIRST);
        place.put(FIRST, "late");
        assert_eq!(place.take(FIRST), None);
        place.expect(SECOND);
        assert_eq!(place.take(SECOND), None);
    }
}
