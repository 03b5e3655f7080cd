//! A peer's server process: started on a free port, waited for, stopped.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::child::Child;

const START_PATIENCE: Duration = Duration::from_secs(30);
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// A running server.
pub(crate) struct Server {
    child: Child,
    /// Where it listens.
    pub(crate) address: SocketAddr,
}

/// A port of loopback that nobody listens on right now.
pub(crate) fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

impl Server {
    /// Starts `command`, pinned; what it says goes to `server.log` in `dir`.
    pub(crate) fn start(
        mut command: Command,
        name: &str,
        dir: &Path,
        address: SocketAddr,
        core: usize,
    ) -> anyhow::Result<Server> {
        let log_path = dir.join("server.log");
        let log = fs::File::create(&log_path)?;
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let mut child = Child::start(command, name, Some(core))?;
        let begun = Instant::now();
        while TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_err() {
            if !child.is_running() || begun.elapsed() > START_PATIENCE {
                let said = fs::read_to_string(&log_path).unwrap_or_default();
                let last = said.lines().last().unwrap_or("it said nothing").to_owned();
                bail!("it does not listen on {address}: {last}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(Server { child, address })
    }

    /// Stops it.
    pub(crate) fn stop(&mut self) {
        self.child.stop(STOP_PATIENCE);
    }
}

/// A new directory.
pub(crate) fn make(dir: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))
}
