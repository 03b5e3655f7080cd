//! Judgements, and one look at the machine the tests run on.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;

use super::*;

fn sound() -> Found {
    Found {
        dir: PathBuf::from("/data"),
        magic: 0xEF53,
        io_uring: None,
        memlock_bytes: u64::MAX,
        direct_io: None,
        block_device: None,
    }
}

fn check(found: Found, fatal: &[bool], needle: &str) {
    let findings = judge(&found, 4);
    let got: Vec<bool> = findings.iter().map(|f| f.fatal).collect();
    assert_eq!(got, fatal, "{findings:?}");
    assert!(
        needle.is_empty() || findings[0].message.contains(needle),
        "{findings:?}"
    );
}

#[test]
fn a_sound_machine_has_no_findings() {
    check(sound(), &[], "");
}

#[test]
fn network_overlay_and_user_space_file_systems_are_refused_unless_allowed() {
    for (magic, name) in [
        (0x6573_5546, "fuse"),
        (0x6969, "nfs"),
        (0x794C_7630, "overlay"),
        (0x0102_1997, "9p"),
    ] {
        assert!(matches!(judge_fs(magic), FsTrust::Unsafe(_)));
        check(Found { magic, ..sound() }, &[false], name);
    }
}

#[test]
fn tmpfs_without_direct_io_is_one_finding_that_may_be_allowed() {
    let found = Found {
        magic: 0x0102_1994,
        direct_io: Some(libc::EINVAL),
        ..sound()
    };
    check(found, &[false], "tmpfs");
}

#[test]
fn what_nothing_can_run_without_is_fatal() {
    check(
        Found {
            io_uring: Some(libc::EPERM),
            ..sound()
        },
        &[true],
        "io_uring_disabled",
    );
    check(
        Found {
            io_uring: Some(libc::ENOSYS),
            ..sound()
        },
        &[true],
        "5.8",
    );
    check(
        Found {
            memlock_bytes: 64 << 10,
            ..sound()
        },
        &[true],
        "2048 KiB",
    );
    check(
        Found {
            direct_io: Some(libc::EINVAL),
            ..sound()
        },
        &[true],
        "O_DIRECT",
    );
    check(
        Found {
            block_device: Some("x is absent".into()),
            ..sound()
        },
        &[true],
        "x is absent",
    );
}

#[test]
fn a_device_without_the_entries_the_executor_reads_is_told() {
    let root = tempfile::tempdir().unwrap();
    let dev = libc::makedev(259, 3);
    assert_eq!(
        block_device_fault(root.path(), dev),
        None,
        "no such device: defaults"
    );
    let device = root.path().join("259:0");
    fs::create_dir_all(device.join("queue")).unwrap();
    assert!(
        block_device_fault(root.path(), dev)
            .unwrap()
            .contains("rotational")
    );
    for name in [
        "rotational",
        "minimum_io_size",
        "optimal_io_size",
        "logical_block_size",
        "physical_block_size",
        "max_sectors_kb",
        "max_segment_size",
    ] {
        fs::write(device.join("queue").join(name), "512\n").unwrap();
    }
    assert!(
        block_device_fault(root.path(), dev)
            .unwrap()
            .contains("write_cache")
    );
    fs::write(device.join("queue/write_cache"), "write back\n").unwrap();
    assert!(
        block_device_fault(root.path(), dev)
            .unwrap()
            .contains("slaves")
    );
    fs::create_dir(device.join("slaves")).unwrap();
    assert_eq!(block_device_fault(root.path(), dev), None);
}

#[test]
fn a_look_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let found = look(dir.path()).unwrap();
    assert_ne!(found.magic, 0);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    assert!(look(&dir.path().join("absent")).is_err());
}

#[test]
fn a_full_disk_says_nothing_about_direct_io() {
    assert!(is_full(libc::ENOSPC) && is_full(libc::EDQUOT));
    assert!(!is_full(libc::EINVAL) && !is_full(libc::EROFS));
}
