//! Journals damaged at rest.

use crate::load::{LoadRun, block_on, open};
use ferrokube_storage::OpenError;
use ferrokube_storage::journal::io::Io;
use ferrokube_storage::testing::{SimDisk, check_present};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const DIR: &str = "/sim/storage";

/// A journal with several bases and logs, and its expected content.
pub(crate) fn journal() -> (SimDisk, LoadRun) {
    let disk = SimDisk::default();
    let mut run = LoadRun::default();
    block_on(async {
        let store = open(&disk).unwrap();
        let whole = |names: &[String]| {
            let count = |kind| names.iter().filter(|name| name.ends_with(kind)).count();
            count(".base") >= 2 && count(".log") >= 2
        };
        for seed in 0..200 {
            run.load(&store, 1, seed).await;
            let last = disk
                .files()
                .into_iter()
                .rfind(|(path, _)| path.extension().is_some_and(|kind| kind == "log"))
                .unwrap();
            if whole(&disk.list(Path::new(DIR)).unwrap()) && last.1.len() > 500 {
                break;
            }
        }
        store.close().await;
    });
    (disk, run)
}

fn damage(image: &BTreeMap<PathBuf, Vec<u8>>) -> OpenError {
    match open(&SimDisk::with_files(image)) {
        Err(error) => error,
        Ok(store) => panic!("a damaged journal was opened at {}", store.revision()),
    }
}

/// Fault 8: one flipped bit anywhere, the last batch included, is found and reported; nothing is
/// served.
#[test]
fn fault_08_every_flipped_bit_is_found() {
    let (disk, run) = journal();
    let files = disk.files();
    let mut keys_named = 0;
    for (path, bytes) in &files {
        if path.ends_with("BALLAST") || path.ends_with("MANIFEST") {
            continue;
        }
        for at in 0..bytes.len() {
            let mut image = files.clone();
            image.get_mut(path).unwrap()[at] ^= 1 << (at % 8);
            match damage(&image) {
                OpenError::Damaged { file, what, .. } => {
                    assert!(
                        files.contains_key(&file) || what.contains("missing"),
                        "{file:?} {what}"
                    );
                    keys_named += usize::from(what.contains("/registry/"));
                }
                OpenError::Newer { .. } => assert!(path.ends_with("FORMAT")),
                error => panic!("byte {at} of {path:?}: {error:?}"),
            }
        }
    }
    assert!(keys_named > 1000, "most errors name a key: {keys_named}");
    let store = open(&SimDisk::with_files(&files)).unwrap();
    check_present(&store, &run.model);
    block_on(store.close());
}

/// Fault 8: missing, truncated, swapped or repeated files.
#[test]
fn fault_08_a_journal_that_does_not_fit_together_is_refused() {
    let (disk, _) = journal();
    let files = disk.files();
    let logs: Vec<PathBuf> = files
        .keys()
        .filter(|path| path.extension().is_some_and(|kind| kind == "log"))
        .cloned()
        .collect();
    let base =
        files.keys().find(|path| path.extension().is_some_and(|kind| kind == "base")).unwrap();
    assert!(logs.len() >= 2, "{logs:?}");
    for missing in logs.iter().chain([base, &PathBuf::from(DIR).join("FORMAT")]) {
        let mut image = files.clone();
        image.remove(missing);
        assert!(matches!(damage(&image), OpenError::Damaged { .. }), "{missing:?} is missing");
    }
    let mut image = files.clone();
    image.insert(logs[0].clone(), files[&logs[1]].clone());
    image.insert(logs[1].clone(), files[&logs[0]].clone());
    assert!(matches!(damage(&image), OpenError::Damaged { .. }), "two logs change places");
    for path in [&logs[0], base] {
        for cut in [0, 20, 48, 60, files[path].len() - 8, files[path].len() - 1] {
            let mut image = files.clone();
            image.get_mut(path).unwrap().truncate(cut);
            assert!(
                matches!(damage(&image), OpenError::Damaged { .. }),
                "{path:?} is cut to {cut}"
            );
        }
        let mut image = files.clone();
        image.get_mut(path).unwrap().extend([0; 64]);
        assert!(matches!(damage(&image), OpenError::Damaged { .. }), "{path:?} has trailing bytes");
    }
    // A repeated frame.
    let mut image = files.clone();
    let last = image.get_mut(logs.last().unwrap()).unwrap();
    let rest = last[48..].to_vec();
    if !rest.is_empty() {
        last.extend(rest);
        assert!(matches!(damage(&image), OpenError::Damaged { .. }), "frames come twice");
    }
}

/// Garbage never panics, nor allocates more than the files hold.
#[test]
fn fault_08_garbage_is_refused() {
    let (disk, _) = journal();
    let files = disk.files();
    let first =
        files.keys().find(|path| path.extension().is_some_and(|kind| kind == "log")).unwrap();
    for fill in [0x00, 0x41, 0xE5, 0xFF] {
        let mut image = files.clone();
        image.get_mut(first).unwrap()[60..].fill(fill);
        assert!(matches!(damage(&image), OpenError::Damaged { .. }));
    }
    let mut image = files.clone();
    image.insert(PathBuf::from(DIR).join("FORMAT"), b"ferrokube-storage format 5\n".to_vec());
    assert!(matches!(damage(&image), OpenError::Newer { found: 5, supported: 4, .. }));
    for text in ["", "ferrokube-storage format 0\n", "something else"] {
        image.insert(PathBuf::from(DIR).join("FORMAT"), text.into());
        assert!(matches!(damage(&image), OpenError::Damaged { .. }), "{text:?}");
    }
}

/// Fault 8: the manifest only says how much was acknowledged, three times. One flipped byte leaves
/// enough: the journal opens whole or is refused by name, also with a log that lacks its end.
#[test]
fn fault_08_a_flipped_byte_of_the_manifest_costs_nothing() {
    let (disk, run) = journal();
    let files = disk.files();
    let manifest = PathBuf::from(DIR).join("MANIFEST");
    let log = files.keys().rfind(|path| path.extension().is_some_and(|kind| kind == "log"));
    let log = log.unwrap();
    let (mut whole, mut refused) = (0, 0);
    // All bytes of the slots, one in each page, and some between them.
    for at in (0..files[&manifest].len()).filter(|at| at % 4096 < 64 || at % 101 == 0) {
        let mut image = files.clone();
        image.get_mut(&manifest).unwrap()[at] ^= 1 << (at % 8);
        match open(&SimDisk::with_files(&image)) {
            Ok(store) => {
                assert!(store.revision() >= run.model.revision(), "byte {at}");
                check_present(&store, &run.model);
                block_on(store.close());
                whole += 1;
            }
            Err(OpenError::Damaged { file, .. }) => {
                assert_eq!(file, manifest, "byte {at}");
                refused += 1;
            }
            Err(error) => panic!("byte {at}: {error}"),
        }
        let last = image.get_mut(log).unwrap();
        last.truncate(last.len() - 1);
        let OpenError::Damaged { file, .. } = damage(&image) else { panic!("byte {at}") };
        assert!(file == *log || file == manifest, "byte {at}: {file:?}");
    }
    assert!(whole + refused > 200 && whole > 0, "{whole} whole, {refused} refused");
}
