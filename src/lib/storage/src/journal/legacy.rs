//! Upgrading directories in format 1 when they are opened, with crashes at every step.

use crate::entry::DraftEntry;
use crate::journal::codec;
use crate::journal::frame::{FrameWriter, SegmentHeader, SegmentKind};
use crate::journal::io::Io;
use crate::journal::transform::PlainValues;
use crate::testing::{Crash, DiskFault, SimDisk, commit, key, put, text, write};
use crate::txn::{Event, TxnEvent};
use crate::{Config, Environment, OpenError, Prefix, Revision, Store};
use std::path::Path;
use std::sync::Arc;

const DIR: &str = "/sim/store";

/// A journal in format 1, with one log of `frames` frames.
fn old(frames: u64) -> SimDisk {
    let disk = SimDisk::default();
    let at = |name: &str| Path::new(DIR).join(name);
    disk.make_dir(Path::new(DIR)).unwrap();
    disk.create(&at("FORMAT")).unwrap().write_at(0, b"ferrokube-storage format 1\n").unwrap();
    let header = SegmentHeader { format: 1, ..SegmentHeader::new(SegmentKind::Log, 1, 0) };
    let bytes = header.encode();
    let header = SegmentHeader::decode(&bytes).unwrap();
    assert_eq!((header.format, &bytes[32..40]), (1, [0; 8].as_slice()));
    let mut log = bytes.to_vec();
    let (mut writer, mut chain) = (FrameWriter::default(), 0);
    for revision in 1..=frames {
        let put = put(&key("configmaps", "ns", &format!("n{revision}")), "old");
        let entry = DraftEntry::new([&put.value, b""], put.sidecar, Revision(revision)).finish(
            put.key,
            Revision(revision),
            Revision(revision),
        );
        let event = Event { entry: Arc::new(entry), previous: None, deleted: false };
        writer.begin();
        codec::write(
            &mut writer,
            &TxnEvent { event, own_last: false, expires: None },
            &PlainValues,
        );
        let (frame, bytes) = writer.end(chain, header.key);
        assert!(bytes.starts_with(b"fkFr"));
        log.extend_from_slice(bytes);
        chain = frame.next_chain();
    }
    disk.create(&at("00000000000000000001.log")).unwrap().write_at(0, &log).unwrap();
    SimDisk::with_files(&disk.files())
}

fn open(disk: &SimDisk) -> Result<Store, OpenError> {
    Store::open_with(
        Config::embedded(DIR),
        Environment { io: Arc::new(disk.clone()), ..Environment::default() },
    )
}

async fn check(disk: &SimDisk, frames: u64) {
    let store = open(disk).unwrap();
    assert_eq!(store.revision(), Revision(frames));
    for revision in 1..=frames {
        let entry = store.get(&key("configmaps", "ns", &format!("n{revision}"))).unwrap();
        assert_eq!((entry.revision, text(&entry).as_str()), (Revision(revision), "old"));
    }
    let done = commit(&store, write(&key("configmaps", "ns", "new"), "new")).await.unwrap();
    store.close().await;
    let files = disk.files();
    assert_eq!(files[&Path::new(DIR).join("FORMAT")], b"ferrokube-storage format 4\n");
    let store = open(&SimDisk::with_files(&files)).unwrap();
    let prefix = Prefix::new("configmaps").unwrap();
    assert_eq!(
        (store.revision(), store.snapshot(&prefix).count(None, None) as u64),
        (done.revision, frames + 1)
    );
    assert_eq!(
        store.watch(&prefix, Revision(0)).unwrap().next(100).await.unwrap().len() as u64,
        frames + 1
    );
    store.close().await;
}

#[tokio::test]
async fn format_1_is_upgraded_in_place() {
    for frames in [0, 1, 5] {
        check(&old(frames), frames).await;
    }
}

#[tokio::test]
async fn an_upgrade_survives_a_power_cut_at_every_call() {
    for crash in [Crash::Killed, Crash::Dropped, Crash::Torn, Crash::Reordered] {
        for call in 0.. {
            let disk = old(3);
            disk.fail_at(call, DiskFault::PowerCut);
            if let Ok(store) = open(&disk) {
                store.close().await;
            }
            check(&disk.crash(crash, call), 3).await;
            if disk.calls() <= call {
                break;
            }
        }
    }
}
