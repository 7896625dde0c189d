//! Journal encoding: a segment is a header and frames, a frame is one batch, an op is one change.
//!
//! Integers are little-endian. Each op has a checksum of its own; a frame's checksum covers its
//! header and the op checksums, so every byte is covered once. Each frame carries the chain value
//! of its predecessors, which exposes missing, repeated and moved frames. Frames are aligned to 8
//! bytes and end in a non-zero byte, which tells a partial write from later damage. They begin with
//! the segment's random key, so no value content is ever mistaken for a frame.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Format written by this binary. 1 had no manifest, and one frame key for all segments; 2 had a
/// single base and no delta deletes. 3 is unused, because a flipped bit would turn it into an older
/// format.
pub(crate) const FORMAT: u32 = 4;
pub(crate) const SEGMENT_HEADER: usize = 48;
pub(crate) const FRAME_HEADER: usize = 48;
pub(crate) const OP_HEADER: usize = 84;
const SEGMENT_MAGIC: [u8; 8] = *b"ferrokub";
const END: u8 = 0xE5;

/// Segment type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentKind {
    /// Every change from a revision on.
    Log,
    /// The surviving changes of a revision range, in order: live entries, and deletes of entries
    /// that an older file holds.
    Base,
}

/// Marker that every frame of a segment begins with, in two halves. Never leaves the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FrameKey([u8; 8]);

impl FrameKey {
    /// Key of segments in format 1.
    const FIRST: Self = Self(*b"fkFr\0\0\0\0");

    /// A recorded key; zeros, the default, if none was recorded.
    pub(crate) fn at(bytes: &[u8], at: usize) -> Self {
        Self(u64_at(bytes, at).to_le_bytes())
    }

    pub(crate) fn to_bytes(self) -> [u8; 8] {
        self.0
    }

    /// Whether both may be the key of one segment.
    pub(crate) fn may_be(self, other: Self) -> bool {
        self == other || self == Self::default() || other == Self::default()
    }

    pub(crate) fn random() -> Self {
        // `RandomState` is seeded by the operating system.
        Self(RandomState::new().build_hasher().finish().to_le_bytes())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) kind: SegmentKind,
    /// First revision of a log; last revision of a base.
    pub(crate) revision: u64,
    /// Chain value that a log's first frame follows; for a base, that of the log after it.
    pub(crate) chain: u64,
    pub(crate) key: FrameKey,
    pub(crate) format: u32,
}

/// Why a segment header was rejected.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HeaderError {
    /// Written by a newer version.
    Newer(u32),
    /// Malformed.
    Bad,
}

impl SegmentHeader {
    /// Header of a new segment.
    pub(crate) fn new(kind: SegmentKind, revision: u64, chain: u64) -> Self {
        Self { kind, revision, chain, key: FrameKey::random(), format: FORMAT }
    }

    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER] {
        let mut bytes = [0; SEGMENT_HEADER];
        bytes[..8].copy_from_slice(&SEGMENT_MAGIC);
        bytes[8..12].copy_from_slice(&self.format.to_le_bytes());
        bytes[12..16]
            .copy_from_slice(&(if self.kind == SegmentKind::Log { 1u32 } else { 2 }).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.revision.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.chain.to_le_bytes());
        if self.format > 1 {
            bytes[32..40].copy_from_slice(&self.key.0);
        }
        bytes[43] = END;
        let crc = crc32fast::hash(&bytes[..44]);
        bytes[44..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, HeaderError> {
        if bytes.len() < SEGMENT_HEADER
            || bytes[..8] != SEGMENT_MAGIC
            || u32_at(bytes, 44) != crc32fast::hash(&bytes[..44])
        {
            return Err(HeaderError::Bad);
        }
        let format = u32_at(bytes, 8);
        if format > FORMAT {
            return Err(HeaderError::Newer(format));
        }
        let kind = match u32_at(bytes, 12) {
            1 => SegmentKind::Log,
            2 => SegmentKind::Base,
            _ => return Err(HeaderError::Bad),
        };
        let key = if format == 1 {
            FrameKey::FIRST
        } else {
            FrameKey(bytes[32..40].try_into().expect("eight bytes"))
        };
        Ok(Self { kind, revision: u64_at(bytes, 16), chain: u64_at(bytes, 24), key, format })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// Length of the ops, in bytes.
    pub(crate) body: u32,
    /// Revision of the first op.
    pub(crate) first: u64,
    /// Revision of the last op.
    pub(crate) last: u64,
    /// Chain value of the preceding frames.
    pub(crate) chain: u64,
    /// Number of ops; 0 only in the footer of a base.
    pub(crate) ops: u32,
    /// Checksum of the header and of the ops' checksums.
    pub(crate) crc: u32,
}

impl FrameHeader {
    /// Verifies the header's own checksum, not that of the ops.
    pub(crate) fn decode(bytes: &[u8], key: FrameKey) -> Option<Self> {
        if bytes.len() < FRAME_HEADER
            || bytes[..4] != key.0[..4]
            || bytes[36..40] != key.0[4..]
            || u32_at(bytes, 44) != crc32fast::hash(&bytes[..44])
        {
            return None;
        }
        Some(Self {
            body: u32_at(bytes, 4),
            first: u64_at(bytes, 8),
            last: u64_at(bytes, 16),
            chain: u64_at(bytes, 24),
            ops: u32_at(bytes, 32),
            crc: u32_at(bytes, 40),
        })
    }

    /// Length of the whole frame, in bytes.
    pub(crate) fn frame_len(&self) -> u64 {
        (FRAME_HEADER as u64 + u64::from(self.body) + 1).next_multiple_of(8)
    }

    /// Chain value after this frame.
    pub(crate) fn next_chain(&self) -> u64 {
        let mut mixed = self.chain.rotate_left(17)
            ^ (u64::from(self.crc) | u64::from(self.ops) << 32)
            ^ self.last.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }
}

/// Encodes frames into a reused buffer.
#[derive(Default)]
pub(crate) struct FrameWriter {
    buffer: Vec<u8>,
    crcs: crc32fast::Hasher,
    ops: u32,
    first: u64,
    last: u64,
}

impl FrameWriter {
    /// Begins a frame.
    pub(crate) fn begin(&mut self) {
        self.buffer.clear();
        // Release the memory of a single huge batch.
        self.buffer.shrink_to(16 << 20);
        self.buffer.resize(FRAME_HEADER, 0);
        self.crcs = crc32fast::Hasher::new();
        (self.ops, self.first, self.last) = (0, 0, 0);
    }

    /// Releases the buffer. Only between frames.
    pub(crate) fn rest(&mut self) {
        self.buffer = Vec::new();
    }

    /// Begins the footer of a base: no ops, only their total number.
    pub(crate) fn begin_footer(&mut self, revision: u64, ops: u64) {
        self.begin();
        (self.first, self.last) = (ops, revision);
    }

    /// Encoded bytes so far.
    pub(crate) fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether the frame has no ops yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.ops == 0
    }

    /// Appends an op. `value` writes the sealed value; the lengths in `header` are filled in here.
    pub(crate) fn op(&mut self, mut header: OpHeader, key: &str, value: impl FnOnce(&mut Vec<u8>)) {
        let start = self.buffer.len();
        self.buffer.resize(start + OP_HEADER, 0);
        header.key_len = key.len();
        self.buffer.extend_from_slice(key.as_bytes());
        let at = self.buffer.len();
        value(&mut self.buffer);
        header.value_len = self.buffer.len() - at;
        header.encode(&mut self.buffer[start..]);
        let crc = crc32fast::hash(&self.buffer[start + 4..]);
        self.buffer[start..start + 4].copy_from_slice(&crc.to_le_bytes());
        self.count(crc, header.revision);
    }

    /// Appends an op verbatim.
    pub(crate) fn raw(&mut self, op: &Op<'_>) {
        self.buffer.extend_from_slice(op.bytes);
        self.count(u32_at(op.bytes, 0), op.header.revision);
    }

    fn count(&mut self, crc: u32, revision: u64) {
        self.crcs.update(&crc.to_le_bytes());
        self.ops += 1;
        if self.first == 0 {
            self.first = revision;
        }
        self.last = revision;
    }

    /// Ends the frame; returns its header and bytes.
    pub(crate) fn end(&mut self, chain: u64, key: FrameKey) -> (FrameHeader, &[u8]) {
        let body = u32::try_from(self.buffer.len() - FRAME_HEADER)
            .expect("a batch is bounded far below 4 GiB");
        let mut header =
            FrameHeader { body, first: self.first, last: self.last, chain, ops: self.ops, crc: 0 };
        let head = &mut self.buffer[..FRAME_HEADER];
        head[..4].copy_from_slice(&key.0[..4]);
        head[4..8].copy_from_slice(&body.to_le_bytes());
        head[8..16].copy_from_slice(&header.first.to_le_bytes());
        head[16..24].copy_from_slice(&header.last.to_le_bytes());
        head[24..32].copy_from_slice(&chain.to_le_bytes());
        head[32..36].copy_from_slice(&header.ops.to_le_bytes());
        head[36..40].copy_from_slice(&key.0[4..]);
        header.crc = frame_crc(head, std::mem::take(&mut self.crcs));
        head[40..44].copy_from_slice(&header.crc.to_le_bytes());
        let own = crc32fast::hash(&head[..44]);
        head[44..].copy_from_slice(&own.to_le_bytes());
        let len = usize::try_from(header.frame_len()).expect("fits in memory");
        self.buffer.resize(len, END);
        (header, &self.buffer)
    }
}

/// Checksum of the header (without its checksums) and of the op checksums.
fn frame_crc(head: &[u8], crcs: crc32fast::Hasher) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&head[..40]);
    hasher.update(&crcs.finalize().to_le_bytes());
    hasher.finalize()
}

/// Fixed-size part of an op.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OpHeader {
    pub(crate) revision: u64,
    pub(crate) create_revision: u64,
    /// Revision of the value it replaces; 0 if none.
    pub(crate) previous: u64,
    pub(crate) ttl_ms: u64,
    pub(crate) wall_ms: u64,
    pub(crate) marks: [u32; 3],
    pub(crate) revision_at: u32,
    pub(crate) schema_epoch: u32,
    pub(crate) flags: OpFlags,
    pub(crate) prefix_len: usize,
    pub(crate) key_len: usize,
    /// Length of the selectable fields at the beginning of the opened value.
    pub(crate) fields_len: usize,
    pub(crate) value_len: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OpFlags(pub(crate) u32);

impl OpFlags {
    pub(crate) const DELETE: u32 = 1;
    /// A delete with a last state of its own; otherwise it shows the deleted entry.
    pub(crate) const OWN_LAST: u32 = 2;
    pub(crate) const COMMA: u32 = 4;
    pub(crate) const STALE: u32 = 8;
    pub(crate) const EXPIRES: u32 = 16;
    /// The last state is stored as a delta to the deleted entry.
    pub(crate) const DIFFERENCE: u32 = 32;

    pub(crate) fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    pub(crate) fn with(self, flag: u32, on: bool) -> Self {
        Self(if on { self.0 | flag } else { self.0 })
    }
}

impl OpHeader {
    fn encode(&self, bytes: &mut [u8]) {
        for (index, number) in
            [self.revision, self.create_revision, self.previous, self.ttl_ms, self.wall_ms]
                .into_iter()
                .enumerate()
        {
            bytes[4 + index * 8..12 + index * 8].copy_from_slice(&number.to_le_bytes());
        }
        let [a, b, c] = self.marks;
        let lengths = [self.fields_len, self.value_len]
            .map(|len| u32::try_from(len).expect("bounded by the limit on values"));
        for (index, number) in
            [a, b, c, self.revision_at, self.schema_epoch, self.flags.0, lengths[0], lengths[1]]
                .into_iter()
                .enumerate()
        {
            bytes[44 + index * 4..48 + index * 4].copy_from_slice(&number.to_le_bytes());
        }
        for (at, len) in [(76, self.prefix_len), (80, self.key_len)] {
            bytes[at..at + 4]
                .copy_from_slice(&u32::try_from(len).expect("a key is short").to_le_bytes());
        }
    }

    fn decode(bytes: &[u8]) -> Self {
        let len = |at| u32_at(bytes, at) as usize;
        Self {
            revision: u64_at(bytes, 4),
            create_revision: u64_at(bytes, 12),
            previous: u64_at(bytes, 20),
            ttl_ms: u64_at(bytes, 28),
            wall_ms: u64_at(bytes, 36),
            marks: [u32_at(bytes, 44), u32_at(bytes, 48), u32_at(bytes, 52)],
            revision_at: u32_at(bytes, 56),
            schema_epoch: u32_at(bytes, 60),
            flags: OpFlags(u32_at(bytes, 64)),
            fields_len: len(68),
            value_len: len(72),
            prefix_len: len(76),
            key_len: len(80),
        }
    }
}

/// A decoded change, borrowed from its frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op<'a> {
    pub(crate) header: OpHeader,
    /// The whole op.
    pub(crate) bytes: &'a [u8],
    pub(crate) key: &'a str,
    /// Sealed value.
    pub(crate) value: &'a [u8],
}

impl<'a> Op<'a> {
    /// Splits the first op off `bytes`. Checks lengths, not the checksum.
    fn parse(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let header = OpHeader::decode(bytes.get(..OP_HEADER)?);
        let (key, rest) = bytes[OP_HEADER..].split_at_checked(header.key_len)?;
        let (value, rest) = rest.split_at_checked(header.value_len)?;
        let key = std::str::from_utf8(key).ok()?;
        let bytes = &bytes[..bytes.len() - rest.len()];
        Some((Self { header, bytes, key, value }, rest))
    }
}

/// Iterator over the ops of a verified frame.
pub(crate) struct Ops<'a> {
    rest: &'a [u8],
}

impl<'a> Ops<'a> {
    /// `frame` must have passed [`check`].
    pub(crate) fn of(header: &FrameHeader, frame: &'a [u8]) -> Self {
        Self { rest: &frame[FRAME_HEADER..FRAME_HEADER + header.body as usize] }
    }
}

impl<'a> Iterator for Ops<'a> {
    type Item = Op<'a>;

    fn next(&mut self) -> Option<Op<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let (op, rest) = Op::parse(self.rest)?;
        self.rest = rest;
        Some(op)
    }
}

/// Verifies a whole frame.
///
/// # Errors
/// A description of the damage, with the key if readable.
pub(crate) fn check(header: &FrameHeader, frame: &[u8]) -> Result<(), String> {
    let mut rest = frame
        .get(FRAME_HEADER..FRAME_HEADER + header.body as usize)
        .ok_or("a frame is cut short")?;
    let mut crcs = crc32fast::Hasher::new();
    for number in 0..header.ops {
        let Some((op, after)) = Op::parse(rest) else {
            return Err(format!("change {number} of a frame is malformed"));
        };
        if crc32fast::hash(&op.bytes[4..]) != u32_at(op.bytes, 0) {
            return Err(format!("checksum mismatch of {:?}", op.key));
        }
        crcs.update(&op.bytes[..4]);
        rest = after;
    }
    if !rest.is_empty() || frame_crc(&frame[..FRAME_HEADER], crcs) != header.crc {
        return Err("checksum mismatch of a frame".to_owned());
    }
    if frame[FRAME_HEADER + header.body as usize..].iter().any(|byte| *byte != END) {
        return Err("malformed end of a frame".to_owned());
    }
    Ok(())
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
