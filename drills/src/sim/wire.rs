//! The mesh between simulated cores: messages arrive late, never lost, in order for each pair.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use ankusa_engine::claims::{ClaimMessage, Desk};
use ankusa_wal::Host;
use ankusa_wal::sim::{SimHost, SimRng, SimWorld};

/// The wires between the cores of one node.
pub struct Wires {
    world: SimWorld,
    rng: RefCell<SimRng>,
    /// When the last message of a pair arrives.
    last_us: RefCell<Vec<u64>>,
    cores: usize,
    desks: RefCell<Vec<Weak<Desk>>>,
    is_alive: Rc<Cell<bool>>,
}

impl Wires {
    /// Wires between `cores` cores; nothing arrives once `is_alive` is false.
    pub fn new(world: &SimWorld, cores: usize, is_alive: Rc<Cell<bool>>) -> Rc<Wires> {
        Rc::new(Wires {
            world: world.clone(),
            rng: RefCell::new(SimRng::new(world.random())),
            last_us: RefCell::new(vec![0; cores * cores]),
            cores,
            desks: RefCell::new((0..cores).map(|_| Weak::new()).collect()),
            is_alive,
        })
    }

    /// The desk at one end.
    pub fn plug(&self, core: usize, desk: &Rc<Desk>) {
        self.desks.borrow_mut()[core] = Rc::downgrade(desk);
    }

    /// Sends a message on its way.
    pub fn send(
        self: &Rc<Self>,
        host: &Rc<SimHost>,
        (from, to): (usize, usize),
        message: ClaimMessage,
    ) {
        let delay_us = {
            let mut rng = self.rng.borrow_mut();
            if rng.below(20) == 0 {
                rng.between(1_000, 20_000)
            } else {
                rng.between(1, 200)
            }
        };
        let now_us = self.world.now_us();
        let at_us = {
            let mut last_us = self.last_us.borrow_mut();
            let last_us = &mut last_us[from * self.cores + to];
            *last_us = (*last_us).max(now_us + delay_us);
            *last_us
        };
        let (wires, host) = (Rc::downgrade(self), Rc::clone(host));
        self.world.after(at_us - now_us, move || {
            let Some(wires) = wires.upgrade() else { return };
            let desk = wires.desks.borrow()[to].upgrade();
            if let Some(desk) = desk.filter(|_| wires.is_alive.get()) {
                desk.receive(message, (host.wall_ms() / 1000) as u32);
            }
        });
    }
}
