//! Points: the manifest of one snapshot, as lines of text with a checksum.

use crate::blocks::{BLOCK_BYTES, BlockHash, BlockRef};
use std::collections::HashSet;
use std::fmt::Write;
use std::time::{Duration, SystemTime};

/// Folder of the journal in a point and in a data directory.
pub(crate) const STORE: &str = "store";
/// Folder of keys and certificates in a data directory.
const KEYS: &str = "pki";
const TITLE: &str = "ferrokube backup, format 1";
/// Max bytes of an encoded point: about a million blocks.
pub(crate) const MAX_POINT_BYTES: u64 = 128 << 20;
/// Max total bytes of keys and certificates, which a restore holds in memory.
pub(crate) const MAX_KEYS_BYTES: u64 = 16 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PointFile {
    /// `store/NAME`, or a file of keys relative to the data directory.
    pub(crate) name: String,
    pub(crate) blocks: Vec<BlockRef>,
}

impl PointFile {
    /// Whether the file belongs to the journal; otherwise it is a key or certificate.
    pub(crate) fn is_journal(&self) -> bool {
        self.name.strip_prefix(STORE).is_some_and(|rest| rest.starts_with('/'))
    }
}

/// A moment's journal and keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    /// Start of the backup, in milliseconds since 1970.
    pub(crate) taken_ms: u64,
    /// Last revision of the journal.
    pub(crate) revision: u64,
    pub(crate) files: Vec<PointFile>,
}

/// Summary of a point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointInfo {
    /// Start of the backup.
    pub taken: SystemTime,
    /// Last revision in it.
    pub revision: u64,
    /// Number of files.
    pub files: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes written for it; 0 if it was only read.
    pub written: u64,
}

impl Point {
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks().map(|block| block.len as u64).sum()
    }

    pub(crate) fn blocks(&self) -> impl Iterator<Item = &BlockRef> {
        self.files.iter().flat_map(|file| &file.blocks)
    }

    pub(crate) fn info(&self, written: u64) -> PointInfo {
        PointInfo {
            taken: SystemTime::UNIX_EPOCH + Duration::from_millis(self.taken_ms),
            revision: self.revision,
            files: self.files.len(),
            bytes: self.bytes(),
            written,
        }
    }

    /// The encoded text, if it decodes to the same value.
    pub(crate) fn checked(&self) -> Option<String> {
        let text = self.encode();
        let is_small = text.len() as u64 <= MAX_POINT_BYTES;
        (is_small && Self::decode(text.as_bytes()).as_ref() == Some(self)).then_some(text)
    }

    fn encode(&self) -> String {
        let mut text = format!("{TITLE}\ntaken {}\nrevision {}\n", self.taken_ms, self.revision);
        for file in &self.files {
            let _ = writeln!(text, "file {}", file.name);
            for BlockRef { hash, len, offset } in &file.blocks {
                let _ = writeln!(text, "block {hash} {len} {offset}");
            }
        }
        let sum = BlockHash::of(text.as_bytes());
        let _ = writeln!(text, "sum {sum}");
        text
    }

    /// `None` if the text is not what [`Self::encode`] made.
    pub(crate) fn decode(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let (body, sum) = text.strip_suffix('\n')?.rsplit_once('\n')?;
        let body = &text[..=body.len()];
        if BlockHash::parse(sum.strip_prefix("sum ")?)? != BlockHash::of(body.as_bytes()) {
            return None;
        }
        let mut lines = body.lines();
        if lines.next()? != TITLE {
            return None;
        }
        let taken_ms = lines.next()?.strip_prefix("taken ")?.parse().ok()?;
        let revision = lines.next()?.strip_prefix("revision ")?.parse().ok()?;
        let mut files: Vec<PointFile> = Vec::new();
        for line in lines {
            match line.split_once(' ')? {
                ("file", name) if is_name(name) => {
                    files.push(PointFile { name: name.to_owned(), blocks: Vec::new() });
                }
                ("block", block) => files.last_mut()?.blocks.push(parse_block(block)?),
                _ => return None,
            }
        }
        let is_regular = |file: &PointFile| {
            let whole = file.blocks.len().saturating_sub(1);
            file.blocks[..whole].iter().all(|block| block.len == BLOCK_BYTES)
        };
        let names: HashSet<&str> = files.iter().map(|file| file.name.as_str()).collect();
        let keys = files.iter().filter(|file| !file.is_journal());
        let of_keys: u64 = keys.flat_map(|file| &file.blocks).map(|block| block.len as u64).sum();
        let is_sound =
            files.iter().all(is_regular) && names.len() == files.len() && of_keys <= MAX_KEYS_BYTES;
        is_sound.then_some(Self { taken_ms, revision, files })
    }
}

fn parse_block(text: &str) -> Option<BlockRef> {
    let mut words = text.split(' ');
    let hash = BlockHash::parse(words.next()?)?;
    let len = words.next()?.parse().ok().filter(|len| (1..=BLOCK_BYTES).contains(len))?;
    let offset = words.next()?.parse().ok()?;
    words.next().is_none().then_some(BlockRef { hash, len, offset })
}

/// Whether it names a file of the store or of the keys: a point refers to nothing else.
pub(crate) fn is_name(name: &str) -> bool {
    let is_plain = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && !part.contains(|letter: char| letter == '/' || letter.is_control())
    };
    let is_file = |(folder, file): (&str, &str)| [STORE, KEYS].contains(&folder) && is_plain(file);
    name.split_once('/').is_some_and(is_file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_read_as_it_was_written_or_not_at_all() {
        let block = |text: &str| BlockRef {
            hash: BlockHash::of(text.as_bytes()),
            len: text.len(),
            offset: 7,
        };
        let files = vec![
            PointFile { name: "store/1.log".to_owned(), blocks: vec![block("one")] },
            PointFile { name: "pki/my key~".to_owned(), blocks: Vec::new() },
        ];
        let point = Point { taken_ms: 12, revision: 34, files };
        let text = point.encode();
        assert_eq!(Point::decode(text.as_bytes()), Some(point.clone()));
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            assert_eq!(Point::decode(&bytes), None, "byte {at}");
            assert_eq!(Point::decode(&text.as_bytes()[..at]), None, "cut at {at}");
        }
        for name in ["../x", "a/../b", "/etc/passwd", "a", "a/", "a/.b", "a/b/c", "a/b\nc"] {
            let files = vec![PointFile { name: name.to_owned(), blocks: Vec::new() }];
            let text = Point { files, ..point.clone() }.encode();
            assert_eq!(Point::decode(text.as_bytes()), None, "{name}");
        }
    }
}
