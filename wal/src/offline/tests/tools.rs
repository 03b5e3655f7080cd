//! `stat`, `dump` and `bench`.

use super::log::*;
use crate::config::SyncMode;
use crate::disk::glommio::GlommioDisk;
use crate::offline::bench::{BenchCell, recommend};
use crate::offline::judge::Expect;
use crate::offline::{BenchConfig, DumpOptions, device_bench, dump, stat};

#[test]
fn stat_counts_what_is_there() {
    let (mut image, spots) = log();
    image.put("slot-0003.wal", &vec![0; SLOT_BYTES]);
    let report = on(&image, async |disk| {
        stat(disk, Expect::default(), &mut |_, _| {}).await.unwrap()
    })
    .0;
    assert_eq!(
        (report.slots, report.blank_slots, report.damages),
        (4, 1, 0)
    );
    assert_eq!(report.segments.len(), 3);
    assert_eq!(
        report.segments.iter().map(|s| s.frames).sum::<u64>(),
        LAST_LSN
    );
    let bytes: u64 = report.segments.iter().map(|s| s.frame_bytes).sum();
    assert_eq!(bytes, spots.iter().map(|s| s.bytes).sum::<u64>());
    assert_eq!(report.to_json()["records"]["hook"]["records"], 2 * LAST_LSN);
    assert!(report.to_string().contains("no damage"), "{report}");
}

#[test]
fn dump_shows_headers_frames_records_and_damage() {
    let (mut image, spots) = log();
    image.flip(&spots[2].file(), spots[2].offset + 100, 1);
    image.overwrite(&file_of(2), 0, &[1; 8]);
    let collect = |options: DumpOptions| {
        let mut out = (Vec::new(), Vec::new());
        on(&image, async |disk| {
            dump(disk, &options, &mut |item| {
                out.0.push(item.to_string());
                out.1.push(item.to_json());
            })
            .await
            .unwrap();
        });
        out
    };
    let (text, json) = collect(DumpOptions {
        records: true,
        bodies: true,
        ..Default::default()
    });
    let count = |needle: &str| text.iter().filter(|t| t.contains(needle)).count();
    assert_eq!(count("segment 1 of shard 1"), 1);
    assert_eq!(count("no segment: no segment header"), 1);
    assert_eq!(count("DAMAGED: record checksum"), 1);
    assert_eq!(
        count("(of an earlier use)"),
        PER_SEGMENT as usize,
        "its header is gone"
    );
    assert_eq!(count("acme/stripe POST /in?x=1 100 bytes"), 2 * 8);
    let hooks: Vec<_> = json.iter().filter(|v| v["kind"] == "hook").collect();
    assert_eq!(hooks.len(), 2 * (LAST_LSN as usize - 1));
    assert_eq!(hooks[0]["record"]["body"], "x".repeat(100));
    assert_eq!(hooks[0]["record"]["headers"][0][0], "content-length");
    assert_eq!(hooks[0]["record"]["sinks"][0], 3);
    let few = DumpOptions {
        file: Some(file_of(0)),
        from_lsn: Some(crate::Lsn(2)),
        to_lsn: Some(crate::Lsn(2)),
        ..Default::default()
    };
    assert_eq!(collect(few).0.len(), 2, "one slot, one frame");
    let none = DumpOptions {
        file: Some("slot-9.wal".into()),
        ..Default::default()
    };
    let dumped = on(&image, async |disk| dump(disk, &none, &mut |_| {}).await).0;
    let error = dumped.unwrap_err().to_string();
    assert_eq!(error, "no slot slot-9.wal here");
}

fn cell(sync: SyncMode, inflight: usize, per_second: f64) -> BenchCell {
    BenchCell {
        sync,
        bytes: 4096,
        inflight,
        per_second,
        p50_us: 1,
        p99_us: 2,
        writes: 10,
    }
}

#[test]
fn the_default_stays_unless_something_is_clearly_better() {
    use SyncMode::{Dsync, Fdatasync};
    let check = |rates: [f64; 4], want: (SyncMode, usize)| {
        let shapes = [(Fdatasync, 1), (Fdatasync, 2), (Dsync, 2), (Dsync, 4)];
        let cells: Vec<_> = shapes
            .iter()
            .zip(rates)
            .map(|((s, n), rate)| cell(*s, *n, rate))
            .collect();
        assert_eq!(recommend(&cells), want, "{rates:?}");
    };
    check([100.0, 150.0, 160.0, 170.0], (Fdatasync, 2));
    check([100.0, 150.0, 300.0, 310.0], (Dsync, 2));
    check([100.0, 150.0, 200.0, 310.0], (Dsync, 4));
    check([300.0, 150.0, 160.0, 170.0], (Fdatasync, 1));
}

#[test]
fn bench_measures_every_cell_and_cleans_up() {
    let base = std::env::current_exe().unwrap();
    let dir = tempfile::tempdir_in(base.parent().unwrap()).unwrap();
    let path = dir.path().to_owned();
    let report = glommio::LocalExecutorBuilder::new(glommio::Placement::Unbound)
        .spawn(|| async move {
            let disk = GlommioDisk::open(&path).unwrap();
            let config = BenchConfig {
                file_bytes: 4 << 20,
                sizes: vec![4096, 65536],
                inflight: vec![1, 2],
                cell: std::time::Duration::from_millis(2),
                rounds: 1,
            };
            device_bench(&disk, &config, &mut |_, _| {}).await.unwrap()
        })
        .unwrap()
        .join()
        .unwrap();
    assert_eq!(report.cells.len(), 2 * 2 * 2);
    assert!(
        report
            .cells
            .iter()
            .all(|c| c.writes >= c.inflight && c.p50_us > 0),
        "{report}"
    );
    assert!(report.to_string().contains("recommended: wal.sync"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
