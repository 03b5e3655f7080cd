//! Each thing that is wrong, and its word.

use ankusa_wal::home::HexBytes;

use super::folder::MemFolder;
use super::rig::{Free, Rig, facts, key, me, prefix, restored};
use crate::backup::{Manifest, Prefix, SendError, SigningKey, catalog};
use crate::restore::{self, RestoreError};

fn backed_up(seed: u64) -> (Rig, MemFolder) {
    let (rig, folder) = (Rig::open(seed, None), MemFolder::default());
    rig.put(0..80);
    rig.back_up(&mut prefix(&folder, "00")).unwrap();
    (rig, folder)
}

fn plan_word(folder: &MemFolder, key: &SigningKey, node: &str, asked: Option<u64>) -> &'static str {
    match restore::plan(folder, key, node, asked, &mut |_, _| {}) {
        Ok(_) => "ok",
        Err(RestoreError::Backup(error)) => error.word(),
        Err(RestoreError::Newer { .. }) => "newer_format",
        Err(error) => panic!("{error}"),
    }
}

const MANIFEST: &str = "manifests/0000000001.manifest";

#[test]
fn every_byte_of_a_manifest_and_every_object_is_guarded() {
    let (_, folder) = backed_up(1);
    assert_eq!(plan_word(&folder, &key(), "node-a", None), "ok");
    let other = SigningKey::new(b"another key");
    assert_eq!(plan_word(&folder, &other, "node-a", None), "bad_signature");
    assert_eq!(plan_word(&folder, &key(), "node-b", None), "foreign_backup");
    assert_eq!(plan_word(&folder, &key(), "node-a", Some(9)), "no_backup");
    assert_eq!(
        plan_word(&MemFolder::default(), &key(), "node-a", None),
        "no_backup"
    );

    let whole = folder.get(MANIFEST).unwrap();
    for at in (0..whole.len()).step_by(7) {
        folder.flip(MANIFEST, at);
        let word = plan_word(&folder, &key(), "node-a", None);
        assert!(
            ["bad_signature", "bad_manifest", "newer_format"].contains(&word),
            "byte {at}: {word}"
        );
        folder.put(MANIFEST, &whole);
    }
    folder.put(MANIFEST, &whole[..whole.len() / 2]);
    assert_eq!(plan_word(&folder, &key(), "node-a", None), "bad_signature");
    folder.put(MANIFEST, &whole);
    // An old backup under a new name.
    folder.put("manifests/0000000007.manifest", &whole);
    assert_eq!(plan_word(&folder, &key(), "node-a", None), "bad_manifest");
    folder.delete("manifests/0000000007.manifest");

    let objects: Vec<String> = folder
        .paths()
        .into_iter()
        .filter(|p| p.starts_with("shard-"))
        .collect();
    assert!(objects.len() > 2);
    for object in objects {
        let whole = folder.get(&object).unwrap();
        folder.flip(&object, whole.len() / 2);
        assert_eq!(
            plan_word(&folder, &key(), "node-a", None),
            "damaged_backup",
            "{object}"
        );
        folder.put(&object, &whole[..whole.len() - 1]);
        assert_eq!(
            plan_word(&folder, &key(), "node-a", None),
            "damaged_backup",
            "{object}"
        );
        folder.delete(&object);
        assert_eq!(
            plan_word(&folder, &key(), "node-a", None),
            "damaged_backup",
            "{object}"
        );
        folder.put(&object, &whole);
    }
    restored(&folder, None);
}

#[test]
fn manifest_that_names_files_outside_is_refused_though_it_is_signed() {
    let (_, folder) = backed_up(2);
    let manifest = catalog::pick(&folder, &key(), None).unwrap();
    let refuse = |change: fn(&mut Manifest)| {
        let mut odd = manifest.clone();
        change(&mut odd);
        folder.put(MANIFEST, &odd.sign(&key()).unwrap());
        plan_word(&folder, &key(), "node-a", None)
    };
    assert_eq!(
        refuse(|m| m.shards[0].files[0].file = "../../x.wal".into()),
        "bad_manifest"
    );
    assert_eq!(
        refuse(|m| m.shards[0].files[0].parts[0].object = "../owner.json".into()),
        "bad_manifest"
    );
    assert_eq!(refuse(|m| m.shards[0].files[0].bytes += 1), "bad_manifest");
    assert_eq!(refuse(|m| m.shards.clear()), "bad_manifest");
    assert_eq!(refuse(|m| m.format = 99), "newer_format");
    assert_eq!(refuse(|m| m.wal_format = 99), "newer_format");
    assert_eq!(refuse(|_| {}), "ok");
}

fn word(result: Result<impl Sized, SendError>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(error) => error.word(),
    }
}

#[test]
fn prefix_of_another_node_or_another_store_is_left_alone() {
    let (rig, folder) = backed_up(3);
    let paths = folder.paths();
    let with = |change: &dyn Fn(&mut crate::backup::Owner)| {
        let mut owner = me("33");
        change(&mut owner);
        let mut prefix = Prefix::new(Box::new(folder.clone()), key(), owner, 2);
        word(rig.back_up(&mut prefix))
    };
    assert_eq!(with(&|o| o.node = "node-b".into()), "foreign_backup");
    assert_eq!(with(&|o| o.store = HexBytes([9; 16])), "foreign_backup");
    assert_eq!(folder.paths(), paths);
    // Also when its owner row is gone.
    let row = folder.get("owner.json").unwrap();
    folder.delete("owner.json");
    assert_eq!(with(&|o| o.store = HexBytes([9; 16])), "foreign_backup");
    // And when the manifests are signed with another key.
    let other_key = || SigningKey::new(b"another key");
    let mut owner = me("33");
    owner.store = HexBytes([9; 16]);
    let mut prefix = Prefix::new(Box::new(folder.clone()), other_key(), owner, 2);
    assert_eq!(word(rig.back_up(&mut prefix)), "foreign_backup");
    folder.put("owner.json", b"{}");
    assert_eq!(with(&|_| {}), "foreign_backup");
    folder.put("owner.json", &row);
    assert_eq!(with(&|_| {}), "ok");
}

#[test]
fn of_two_live_copies_the_one_that_came_first_stops_and_stays_stopped() {
    let (rig, folder) = (Rig::open(4, None), MemFolder::default());
    rig.put(0..20);
    let (mut first, mut second) = (prefix(&folder, "00"), prefix(&folder, "11"));
    rig.back_up(&mut first).unwrap();
    let mut run = first.begin(5).unwrap();
    rig.put(20..30);
    rig.back_up(&mut second).unwrap();
    // In the middle of a run, before the next write.
    let source = rig.source();
    assert_eq!(
        word(run.shard(&rig.files(), &source, &mut Free)),
        "prefix_shared"
    );
    drop(run);
    let paths = folder.paths();
    assert_eq!(word(rig.back_up(&mut first)), "prefix_shared");
    assert_eq!(folder.paths(), paths);
    rig.back_up(&mut second).unwrap();
    assert_eq!(word(rig.back_up(&mut first)), "prefix_shared");
    restored(&folder, None);
}

#[test]
fn older_incarnation_stops_once_a_restored_store_writes() {
    let (rig, folder) = backed_up(5);
    let mut old = prefix(&folder, "00");
    rig.back_up(&mut old).unwrap();
    let mut owner = me("44");
    owner.incarnation = 2;
    let mut new = Prefix::new(Box::new(folder.clone()), key(), owner, 2);
    rig.back_up(&mut new).unwrap();
    assert_eq!(word(rig.back_up(&mut old)), "prefix_shared");
    // Started again it still is.
    assert_eq!(
        word(rig.back_up(&mut prefix(&folder, "55"))),
        "prefix_shared"
    );
    rig.back_up(&mut new).unwrap();
}

#[test]
fn older_copy_of_a_store_does_not_push_its_newer_backup_out() {
    let (rig, folder) = (Rig::open(6, None), MemFolder::default());
    rig.put(0..20);
    let old = rig.disk.snapshot().as_seen();
    rig.put(20..60);
    rig.back_up(&mut prefix(&folder, "00")).unwrap();
    let rolled_back = Rig::open(7, Some(&old));
    let mut again = prefix(&folder, "11");
    assert_eq!(word(rolled_back.back_up(&mut again)), "backup_ahead");
    let newest = catalog::pick(&folder, &key(), None).unwrap();
    assert_eq!(newest.number, 1);
    restored(&folder, None);
}

#[test]
fn damaged_segment_does_not_pass_for_a_backup() {
    let (rig, folder) = (Rig::open(8, None), MemFolder::default());
    rig.put(0..80);
    let mut prefix = prefix(&folder, "00");
    rig.back_up(&mut prefix).unwrap();
    rig.put(80..160);
    let source = rig.source();
    let segment = source.segments.last().unwrap();
    for pos in [segment.end - 100, segment.end - 4096] {
        let mut files = rig.files();
        assert!(files.0.flip(&segment.file, pos, 0xff));
        let mut run = prefix.begin(1).unwrap();
        let got = run.shard(&files, &source, &mut Free);
        // The padding of a frame carries nothing.
        let is_padding = pos == segment.end - 100 && got.is_ok();
        assert!(is_padding || word(got) == "source_damaged");
    }
    assert_eq!(catalog::pick(&folder, &key(), None).unwrap().number, 1);
    rig.back_up(&mut prefix).unwrap();
}

#[test]
fn damaged_manifest_keeps_every_object_until_it_has_aged_out() {
    let (rig, folder) = backed_up(9);
    folder.flip(MANIFEST, 150);
    let mut prefix = prefix(&folder, "00");
    let before: Vec<String> = folder.paths();
    rig.put(80..100);
    rig.back_up(&mut prefix).unwrap();
    for path in before {
        assert!(folder.get(&path).is_some(), "{path}");
    }
    rig.back_up(&mut prefix).unwrap();
    let numbers = catalog::list(&folder, &key()).unwrap();
    assert_eq!(numbers.iter().map(|l| l.number).collect::<Vec<_>>(), [3, 2]);
}

#[test]
fn folder_that_is_not_mounted_for_a_while_is_said_and_not_begun_anew() {
    let (rig, folder) = (Rig::open(10, None), MemFolder::default());
    rig.put(0..20);
    let mut prefix = prefix(&folder, "00");
    rig.back_up(&mut prefix).unwrap();
    let row = folder.get("owner.json").unwrap();
    folder.delete("owner.json");
    assert_eq!(word(rig.back_up(&mut prefix)), "prefix_gone");
    folder.put("owner.json", &row);
    rig.back_up(&mut prefix).unwrap();
    let _ = facts();
}
