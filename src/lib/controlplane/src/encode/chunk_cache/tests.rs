//! Tests of the cache of encoded chunks.

use super::*;
use crate::encode::slices::tests::entry;
use std::io::Read;

fn definition() -> Arc<Definition> {
    ferrokube_resources::definitions(ferrokube_resources::tables()).remove(0)
}

fn entries(count: u64) -> Vec<Arc<Entry>> {
    let value = "some words that repeat ".repeat(20);
    let object = |n: u64| format!("}},\"data\":{{\"k\":\"{value}{n}\"}}}}");
    (0..count)
        .map(|n| {
            Arc::new(entry(
                1000 + n * 7,
                "{\"kind\":\"C\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"a\"",
                &object(n),
            ))
        })
        .collect()
}

fn gzip_chunks(
    chunks: &ChunkCache,
    definition: &Arc<Definition>,
    entries: &[Arc<Entry>],
) -> Vec<Bytes> {
    let scope = ChunkScope {
        definition: Arc::clone(definition),
        version: 0,
        encoding: ChunkEncoding::Json,
    };
    let write = |entry: &Entry, out: &mut Vec<u8>| out.extend_from_slice(&entry.bytes);
    frames(chunks.gzip_chunks(ChunkedList {
        scope,
        head: b"{\"items\":[".to_vec(),
        entries: entries.to_vec(),
        tail: b"]}\n",
        write,
    }))
}

fn frames(mut fill: impl Fill) -> Vec<Bytes> {
    std::iter::from_fn(|| fill.fill().map(Chunk::into_bytes)).collect()
}

/// Addresses of the cached bytes.
fn kept(chunks: &ChunkCache) -> Vec<*const u8> {
    chunks.lock().chunks.values().map(|kept| kept.chunk.rows.bytes.as_ptr()).collect()
}

fn join(
    chunks: &ChunkCache,
    scope: &ChunkScope,
    entries: &[Arc<Entry>],
    write: impl Fn(&Entry, &mut Vec<u8>) + Clone + Unpin + Send + 'static,
) -> Vec<Bytes> {
    frames(chunks.join(scope.clone(), entries.to_vec(), b"tail", write, &|length| {
        format!("{length};").into_bytes()
    }))
}

fn unzip(frames: &[Bytes]) -> Vec<u8> {
    let mut plain = Vec::new();
    let zipped = frames.concat();
    let mut decoder = flate2::bufread::GzDecoder::new(&zipped[..]);
    decoder.read_to_end(&mut plain).unwrap();
    assert!(decoder.into_inner().is_empty(), "one member and nothing after it");
    plain
}

#[test]
fn joined_chunks_are_one_gzip_member() {
    let (chunks, definition) = (ChunkCache::default(), definition());
    for count in [0, 1, 2, 100, 1000] {
        let entries = entries(count);
        let frames = gzip_chunks(&chunks, &definition, &entries);
        let items: Vec<String> =
            entries.iter().map(|entry| String::from_utf8(entry.bytes.to_vec()).unwrap()).collect();
        assert_eq!(
            String::from_utf8(unzip(&frames)).unwrap(),
            format!("{{\"items\":[{}]}}\n", items.join(","))
        );
        assert_eq!(
            unzip(&gzip_chunks(&chunks, &definition, &entries)),
            unzip(&frames),
            "made of cached chunks"
        );
    }
}

/// As long as compressed secrets in base64, for which the compressor writes two blocks.
#[test]
fn hardly_compressible_items_are_one_gzip_member() {
    let (chunks, definition) = (ChunkCache::default(), definition());
    let mut random = 1_u64;
    let mut word = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for length in (58_400..61_600).step_by(40) {
        let text: Vec<u8> =
            (0..length).map(|_| alphabet[usize::from((word() >> 20) as u8 & 63)]).collect();
        let rest = format!("}},\"data\":{{\"k\":\"{}\"}}}}", str::from_utf8(&text).unwrap());
        let before = "{\"kind\":\"C\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"a\"";
        let entries = [Arc::new(entry(length, before, &rest))];
        let plain = unzip(&gzip_chunks(&chunks, &definition, &entries));
        assert!(plain.ends_with(&[rest.as_bytes(), b"]}\n"].concat()), "{length}");
    }
}

#[test]
fn items_without_separators_are_concatenated() {
    let (chunks, scope) = (
        ChunkCache::default(),
        ChunkScope { definition: definition(), version: 0, encoding: ChunkEncoding::Protobuf },
    );
    let entries = entries(1000);
    let items: Vec<u8> = entries.iter().flat_map(|entry| entry.bytes.to_vec()).collect();
    let want = [format!("{};", items.len()).as_bytes(), &items, b"tail"].concat();
    let first = join(&chunks, &scope, &entries, |entry, out| out.extend_from_slice(&entry.bytes));
    assert!(first.concat() == want);
    let before = kept(&chunks);
    let mut second =
        chunks.join(scope, entries, b"tail", |_, _| panic!("all chunks are cached"), &|length| {
            format!("{length};").into_bytes()
        });
    assert_eq!(second.left(), Some(want.len() as u64));
    assert!(second.is_cheap() && frames(second).concat() == want);
    assert!(before.len() > 4 && before == kept(&chunks));
}

#[test]
fn a_list_holds_one_frame_however_much_is_cached() {
    let (chunks, definition, entries) = (ChunkCache::default(), definition(), entries(4000));
    let scope = |encoding| ChunkScope { definition: Arc::clone(&definition), version: 0, encoding };
    let write = |entry: &Entry, out: &mut Vec<u8>| out.extend_from_slice(&entry.bytes);
    for _ in 0..2 {
        let zipped = chunks.gzip_chunks(ChunkedList {
            scope: scope(ChunkEncoding::Json),
            head: b"[".to_vec(),
            entries: entries.clone(),
            tail: b"]",
            write,
        });
        let joined = join(&chunks, &scope(ChunkEncoding::Protobuf), &entries, write);
        for frame in frames(zipped).iter().chain(&joined) {
            assert!(frame.len() <= MAX_BYTES + entries[0].bytes.len(), "{} bytes", frame.len());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn chunks_that_no_list_uses_are_dropped() {
    let (chunks, definition) = (ChunkCache::default(), definition());
    gzip_chunks(&chunks, &definition, &entries(1000));
    assert!(chunks.lock().bytes > 0);
    tokio::time::sleep(UNUSED_AFTER - SWEEP_EVERY).await;
    assert!(chunks.lock().bytes > 0);
    tokio::time::sleep(UNUSED_AFTER).await;
    assert_eq!(chunks.lock().bytes, 0);
    assert!(!chunks.lock().is_swept);
    gzip_chunks(&chunks, &definition, &entries(1000));
    assert!(chunks.lock().is_swept, "a sweep runs again");
}

#[test]
fn versions_and_encodings_share_no_chunks() {
    let (chunks, definition) = (ChunkCache::default(), definition());
    let entries = entries(300);
    for version in 0..3_u8 {
        for form in [
            ChunkEncoding::Protobuf,
            ChunkEncoding::ProtobufMetadata("v1"),
            ChunkEncoding::JsonMetadata("v1"),
            ChunkEncoding::JsonMetadata("v1beta1"),
        ] {
            let scope = ChunkScope {
                definition: Arc::clone(&definition),
                version: version.into(),
                encoding: form,
            };
            let letter = format!("{form:?}");
            let joined = chunks.join(
                scope,
                entries.clone(),
                b"",
                move |_, out| out.extend([letter.as_bytes(), &[version]].concat()),
                &|_| Vec::new(),
            );
            let letter = format!("{form:?}");
            assert_eq!(joined.collect(), [letter.as_bytes(), &[version]].concat().repeat(300));
        }
    }
}

#[test]
fn a_change_encodes_only_its_own_chunk_again() {
    let (chunks, definition) = (ChunkCache::default(), definition());
    let mut entries = entries(2000);
    let before = gzip_chunks(&chunks, &definition, &entries);
    let before_kept = kept(&chunks);
    assert!(before_kept.len() > 12 && !before.is_empty(), "{} chunks", before_kept.len());
    let changed =
        entry(99_999, "{\"kind\":\"C\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"b\"", "}}");
    entries[1000] = Arc::new(changed);
    let after = gzip_chunks(&chunks, &definition, &entries);
    let added = kept(&chunks).len() - before_kept.len();
    assert!((1..=3).contains(&added), "{added} chunks were made for one change");
    assert!(String::from_utf8(unzip(&after)).unwrap().contains("\"name\":\"b\""));
}
