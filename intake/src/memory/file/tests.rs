//! What was flushed is read back; a torn tail is cut; damage is refused.
#![allow(clippy::unwrap_used)]

use super::*;

fn values(log: &PartitionFile) -> Vec<(u64, String)> {
    let mut reader = log.reader(log.first()).unwrap();
    std::iter::from_fn(|| reader.next().unwrap())
        .map(|s| (s.position, String::from_utf8(s.value.to_vec()).unwrap()))
        .collect()
}

fn three(path: &Path) -> PartitionFile {
    let mut log = PartitionFile::open(path.to_owned()).unwrap();
    for value in ["a", "bb", "ccc"] {
        log.append([("k", &b"v"[..])].into_iter(), value.as_bytes(), 1);
    }
    log.flush(true).unwrap();
    log
}

#[test]
fn every_cut_of_the_file_keeps_the_whole_records_and_drops_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p0.log");
    let log = three(&path);
    let starts = log.starts.clone();
    let whole = std::fs::read(&path).unwrap();
    for cut in FILE_HEAD as usize..=whole.len() {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let log = PartitionFile::open(path.clone()).unwrap();
        let kept = starts.iter().filter(|s| **s <= cut as u64).count() - 1;
        assert_eq!(log.head(), kept as u64, "cut at {cut}");
        assert_eq!(values(&log).len(), kept);
    }
}

#[test]
fn a_flipped_byte_before_a_whole_record_is_refused_and_in_the_last_one_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p0.log");
    let log = three(&path);
    let last = log.starts[2] as usize;
    let whole = std::fs::read(&path).unwrap();
    for at in FILE_HEAD as usize..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x40;
        std::fs::write(&path, &flipped).unwrap();
        let opened = PartitionFile::open(path.clone());
        match opened {
            Ok(log) => {
                assert!(at >= last, "flip at {at} lost a record in silence");
                assert_eq!(log.head(), 2);
            }
            Err(error) => assert!(at < last, "flip at {at}: {error}"),
        }
    }
}

#[test]
fn dropped_and_lost_records_stay_gone_after_a_reopen() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p0.log");
    let mut log = three(&path);
    log.drop_below(1).unwrap();
    log.lose_from(2).unwrap();
    assert_eq!((log.first(), log.head()), (1, 2));
    assert_eq!(log.append(std::iter::empty(), b"new", 2), 2);
    log.flush(true).unwrap();
    let log = PartitionFile::open(path.clone()).unwrap();
    assert_eq!(values(&log), [(1, "bb".into()), (2, "new".into())]);
}
