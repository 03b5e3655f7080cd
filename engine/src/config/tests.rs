//! The configuration: the table, every fault with its text and place, what is hidden.
#![allow(clippy::unwrap_used)]

use super::*;

#[test]
fn tryout_listens_on_loopback_only() {
    let config = Config::tryout();
    assert!(config.http.ip.is_loopback() && config.admin.ip.is_loopback());
    for e in &config.effective {
        println!("{e:?}");
    }
}
