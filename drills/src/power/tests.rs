//! The simulated disk by itself: what a flush covers, what a cut may lose, what a fault leaves.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::time::Instant;

use super::cut::{CutKind, CutOrder, Moment, crash_image};
use super::device::{Device, Fault, FaultOrder, Marks, SECTOR_BYTES, Write};
use super::pages::Pages;
use crate::rng::Rng;

fn device() -> Device {
    Device::new(1 << 20, Box::new(Marks::default))
}

fn block(byte: u8) -> Vec<u8> {
    vec![byte; 4096]
}

fn group(byte: u8) -> Vec<u8> {
    let mut data = block(byte);
    data[..8].copy_from_slice(b"ANKAGRP1");
    data
}

fn order(fault: Fault, failures_max: u64) -> Option<FaultOrder> {
    Some(FaultOrder {
        fault,
        groups_min: 0,
        failures_max,
    })
}

fn byte_at(pages: &Pages, offset: u64) -> u8 {
    let mut out = [0];
    pages.read(offset, &mut out);
    out[0]
}

fn newest(device: &Device, offset: u64) -> u8 {
    let mut out = [0];
    device.read(offset, &mut out);
    out[0]
}

fn cut(device: &mut Device, kind: CutKind) -> Pages {
    let (done, taken) = std::sync::mpsc::channel();
    let order = CutOrder {
        kind,
        moment: Moment::Write,
        seed: 1,
        groups_min: 0,
        not_after: Instant::now(),
    };
    device.arm_cut(order, done);
    device.cut_now();
    taken.recv().unwrap().image
}

#[test]
fn a_flush_covers_what_was_complete_when_it_arrived() {
    let mut device = device();
    let complete = device.write(0, &block(1)).unwrap();
    device.completed(complete);
    device.write(4096, &block(2)).unwrap();
    let flush = device.flush_begins();
    let late = device.write(8192, &block(3)).unwrap();
    device.completed(late);
    device.flush_ends(&flush).unwrap();
    let none = cut(&mut device, CutKind::None);
    assert_eq!([0, 4096, 8192].map(|at| byte_at(&none, at)), [1, 0, 0]);
    let all = cut(&mut device, CutKind::All);
    assert_eq!([0, 4096, 8192].map(|at| byte_at(&all, at)), [1, 2, 3]);
}

#[test]
fn a_flush_error_keeps_the_writes_and_a_late_error_drops_those_of_the_log() {
    for (fault, after) in [(Fault::FlushError, 7), (Fault::LateError, 0)] {
        let mut device = device();
        device.set_fault(order(fault, 1));
        let number = device.write(0, &group(7)).unwrap();
        device.completed(number);
        let flush = device.flush_begins();
        assert!(device.flush_ends(&flush).is_err());
        assert_eq!(newest(&device, 100), after, "{fault:?}");
        let flush = device.flush_begins();
        device.flush_ends(&flush).unwrap();
        assert_eq!(byte_at(&cut(&mut device, CutKind::None), 100), after);
    }
}

#[test]
fn faults_of_the_log_spare_the_file_system() {
    let mut device = device();
    device.set_fault(order(Fault::WriteError, 9));
    assert!(device.write(0, &block(1)).is_ok());
    assert!(device.write(4096, &group(2)).is_err());
    device.set_fault(order(Fault::EveryError, 9));
    assert!(device.write(0, &block(1)).is_err());
}

#[test]
fn a_fault_begins_with_enough_groups_in_flight_and_ends_by_itself() {
    let mut device = device();
    device.set_fault(Some(FaultOrder {
        fault: Fault::WriteError,
        groups_min: 2,
        failures_max: 1,
    }));
    assert!(device.write(0, &group(1)).is_ok());
    assert!(device.write(4096, &group(2)).is_err());
    assert!(device.write(8192, &group(3)).is_ok());
    assert_eq!(device.counts().groups_at_fault, 2);
}

#[test]
fn every_kind_of_cut_keeps_what_it_names() {
    let stable = Pages::new(1 << 20);
    let unflushed: Vec<Write> = (0..4u64)
        .map(|n| Write {
            number: n,
            offset: n * 4096,
            data: block(n as u8 + 1),
            is_complete: true,
        })
        .collect();
    let check = |kind: CutKind, allowed: std::ops::RangeInclusive<usize>| {
        let mut seen = BTreeSet::new();
        for seed in 0..50 {
            let (image, lost, total) = crash_image(&stable, &unflushed, kind, &mut Rng::new(seed));
            let kept = (0..4 * 4096 / SECTOR_BYTES)
                .filter(|s| byte_at(&image, (s * SECTOR_BYTES) as u64) != 0)
                .count();
            assert_eq!((kept + lost, total), (32, 32), "{kind:?}");
            assert!(allowed.contains(&kept), "{kind:?}: {kept}");
            seen.insert(kept);
        }
        seen.len()
    };
    check(CutKind::None, 0..=0);
    check(CutKind::All, 32..=32);
    check(CutKind::OnlyLast, 8..=8);
    check(CutKind::AllButOne, 24..=24);
    check(CutKind::Halves, 16..=16);
    assert!(check(CutKind::Half, 1..=31) > 3);
    assert!(check(CutKind::Prefix, 0..=32) > 3);
    assert!(check(CutKind::Suffix, 0..=32) > 3);
}

#[test]
fn a_copy_of_the_pages_keeps_its_content() {
    let mut pages = Pages::new(1 << 20);
    pages.write(4000, &[5; 200]);
    let copy = pages.clone();
    pages.write(4090, &[6; 20]);
    assert_eq!(
        [4089, 4090, 4109, 4110].map(|at| byte_at(&pages, at)),
        [5, 6, 6, 5]
    );
    assert_eq!(byte_at(&copy, 4090), 5);
}
