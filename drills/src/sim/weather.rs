//! What happens to the intake log and to the host in a run with the dual commit.

use ankusa_wal::disk::sim::SimDisk;

use super::book::{Hex, Kind};
use super::faults;
use super::log::Weather;
use super::run::{Over, Run};

impl Run {
    /// One thing that happens to the log, or to the host.
    pub(super) fn log_operation(&mut self) -> Result<(), Over> {
        let Some(dual) = self.dual.clone() else {
            return Ok(());
        };
        let log = &dual.log;
        match self.rng.below(24) {
            0..8 => log.set_weather(Weather::Sound),
            8..10 => log.set_weather(Weather::Slow),
            10..12 => log.set_weather(Weather::Stalled),
            12..15 => log.set_weather(Weather::Away),
            15..19 => log.set_weather(Weather::Mixed),
            19 => log.set_picky(self.rng.coin()),
            20 => {
                // Long enough for a carried record to give its claim up.
                let idle_ms = self.rng.between(5_000, 40_000);
                self.world
                    .run_for(std::time::Duration::from_millis(idle_ms));
            }
            21 if self.log_goes_back => {
                let records = self.rng.between(1, 12);
                match self.rng.below(4) {
                    0 => log.recreate(),
                    _ => log.lose_tail(records),
                }
            }
            21 | 22 if !self.log_goes_back => {
                self.lose_host();
                self.boot()?;
            }
            _ if self.log_goes_back => {
                let head = log.head();
                log.forget_below(head.saturating_sub(self.rng.below(20)));
            }
            _ => {}
        }
        Ok(())
    }

    /// A log that is away when the node boots comes back some time: the boot waits for it.
    pub(super) fn log_comes_back(&mut self) {
        let Some(dual) = &self.dual else { return };
        if dual.log.weather() == Weather::Away {
            let log = dual.log.clone();
            let after_us = self.rng.between(10_000, 20_000_000);
            self.world.after(after_us, move || {
                if log.weather() == Weather::Away {
                    log.set_weather(Weather::Sound);
                }
            });
        }
    }

    /// A boot that has hooks to write waits for room; it comes some time, and the boot goes on.
    pub(super) fn space_comes_back(&mut self) {
        if self.dual.is_none() {
            return;
        }
        let disks = self.disks.clone();
        let after_us = self.rng.between(10_000, 20_000_000);
        self.world.after(after_us, move || {
            for disk in &disks {
                disk.set_capacity(1 << 40);
            }
        });
    }

    /// The host is gone, and everything on it; its successor has the node's id and an empty disk.
    fn lose_host(&mut self) {
        let Some(dual) = self.dual.clone() else {
            return;
        };
        self.trace.note(format_args!("the host is lost"));
        let life = self.book.life.get();
        self.kill();
        self.book.host_losses.borrow_mut().insert(life);
        self.only_here(&dual);
        dual.forget_host();
        for disk in &mut self.disks {
            self.past += disk.counters();
            *disk = SimDisk::new(&self.world, faults::disk_config(&mut self.rng));
        }
        self.plug();
    }

    /// Hooks that the lost host alone had: none of them acked, and their keys are free.
    fn only_here(&self, dual: &super::dual::Dual) {
        let told: Vec<_> = {
            let requests = self.book.requests.borrow();
            let answers = requests.values().flat_map(|sent| &sent.answers);
            answers.filter_map(|answer| answer.id).collect()
        };
        for id in told {
            if self.plan.probes && !dual.log.holds(&id) {
                let text = format!("{} was acked and was on the lost host only", Hex(&id));
                self.book.broken(Kind::Missing, text);
            }
        }
        for delivery in self.book.deliveries.borrow().iter() {
            if !dual.log.holds(&delivery.id) {
                self.book.gave_up(delivery.id);
            }
        }
    }
}
