//! The store that encrypts: maps names, lengths, ranges and pieces. See the module above.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::{Bytes, BytesMut};
use cairn_base::{Mutex, Timestamp};
use data_encoding::HEXLOWER;

use super::entropy::{Entropy, random};
use super::holder::KeyHolder;
use super::keys::Keys;
use super::names;
use super::object::{
    self, Bad, CHUNK, CUT, HEADER, Header, Kind, MORE_BYTES_MAX, TAG, TAIL, chunk_at, chunk_bytes, chunks,
    plain_bytes, sealed_bytes,
};
use crate::error::{StoreError, Trouble, Verb};
use crate::limits::{GET_BYTES_MAX, PIECE_BYTES_MAX, PIECE_BYTES_MIN, PIECES_MAX, PUT_BYTES_MAX};
use crate::name::{Name, Prefix};
use crate::store::{Head, ListFrom, Listed, Nonce, Page, Piece, Put, Store, Upload};

/// Layouts of objects that are kept in memory.
const LAYOUTS_MAX: usize = 1024;
/// Pieces in all of these: 2 MiB.
const PARTS_MAX: usize = 1 << 16;
/// Bytes that are read from the end of an object to find its map: that of 3,000 pieces.
const END_BYTES: u64 = 64 << 10;
/// Short pieces that are kept until their upload is finished: 80 MiB at most, mostly one.
const SHORT_PIECES_MAX: usize = 16;

/// A sealed object, or one of its pieces, and where it is.
#[derive(Debug, Clone, Copy)]
struct Part {
    kind: Kind,
    number: u32,
    salt: [u8; 16],
    /// Plain bytes.
    length: u64,
    /// Where it begins in the plain and in the sealed object.
    plain_at: u64,
    sealed_at: u64,
}

/// The layout of an object.
#[derive(Debug)]
struct Layout {
    parts: Vec<Part>,
    length: u64,
    /// Bytes of the sealed object.
    sealed: u64,
}

impl Layout {
    fn of_pieces(entries: &[object::Entry], map: u64) -> Self {
        let (mut plain_at, mut sealed_at) = (0, 0);
        let mut parts = Vec::with_capacity(entries.len());
        for (number, (length, salt)) in (1..).zip(entries) {
            let length = u64::from(*length);
            parts.push(Part { kind: Kind::Piece, number, salt: *salt, length, plain_at, sealed_at });
            plain_at += length;
            sealed_at += sealed_bytes(length);
        }
        Self { parts, length: plain_at, sealed: sealed_at + map + TAIL as u64 }
    }

    fn of_whole(header: &Header) -> Self {
        let Header { kind, number, salt, length, .. } = *header;
        let part = Part { kind, number, salt, length, plain_at: 0, sealed_at: 0 };
        Self { parts: vec![part], length, sealed: sealed_bytes(length) }
    }

    /// The part and the chunk that have a plain byte.
    fn chunk_of(&self, at: u64) -> Option<(usize, u64)> {
        let index = self.parts.partition_point(|part| part.plain_at <= at).checked_sub(1)?;
        Some((index, (at - self.parts.get(index)?.plain_at) / CHUNK as u64))
    }
}

#[derive(Default)]
struct Layouts {
    known: HashMap<Name, Arc<Layout>>,
    parts: usize,
}

/// See the module above.
pub struct Sealed {
    store: Arc<dyn Store>,
    holder: Arc<KeyHolder>,
    entropy: Arc<dyn Entropy>,
    layouts: Mutex<Layouts>,
    /// Sealed pieces that are too short to be followed by another one, by upload and number.
    short: Mutex<BTreeMap<(String, u32), Bytes>>,
}

/// Separates the tag of the store from the salt of a piece.
const SALT_MARK: char = '~';

impl Sealed {
    /// Encrypts what goes to `store`, which retries. `entropy` is the operating system.
    pub fn new(store: Arc<dyn Store>, holder: Arc<KeyHolder>, entropy: Arc<dyn Entropy>) -> Self {
        Self { store, holder, entropy, layouts: Mutex::default(), short: Mutex::default() }
    }

    fn blamed(&self, verb: Verb, name: Option<&Name>, trouble: Trouble) -> StoreError {
        StoreError { verb, name: name.cloned(), place: self.store.place().into(), trouble }
    }

    fn keys(&self, cancel: &AtomicBool) -> Result<Arc<Keys>, StoreError> {
        self.holder.keys(&*self.store, cancel)
    }

    /// The keys, and the name in the store.
    fn stored(&self, verb: Verb, name: &Name, cancel: &AtomicBool) -> Result<(Arc<Keys>, Name), StoreError> {
        let keys = self.keys(cancel)?;
        let rule = Trouble::Rule("the name is too long for an encrypted bucket; use a shorter path");
        let stored = names::seal(&keys, name).ok_or_else(|| self.blamed(verb, Some(name), rule))?;
        Ok((keys, stored))
    }

    /// The error of the store below, with the plain name.
    fn shown(name: &Name) -> impl Fn(StoreError) -> StoreError {
        |error| StoreError { name: error.name.is_some().then(|| name.clone()), ..error }
    }

    fn bad(&self, verb: Verb, (name, stored): (&Name, &Name), bad: Bad) -> StoreError {
        let trouble = match bad {
            Bad::Damaged(how) => Trouble::Damaged { how, stored: Some(stored.clone()) },
            Bad::Newer(version) => Trouble::Newer(version),
        };
        self.blamed(verb, Some(name), trouble)
    }

    /// A range of a sealed object; fewer bytes only at its end.
    fn fetch(&self, stored: &Name, begin: u64, end: u64, cancel: &AtomicBool) -> Result<Bytes, StoreError> {
        let mut length = end.saturating_sub(begin);
        if length <= GET_BYTES_MAX as u64 {
            return self.store.get(stored, begin, length as usize, cancel);
        }
        let (mut bytes, mut at) = (BytesMut::new(), begin);
        while length > 0 {
            let wanted = length.min(GET_BYTES_MAX as u64);
            let some = self.store.get(stored, at, wanted as usize, cancel)?;
            bytes.extend_from_slice(&some);
            if (some.len() as u64) < wanted {
                break;
            }
            (at, length) = (at + wanted, length - wanted);
        }
        Ok(bytes.freeze())
    }

    fn known(&self, name: &Name) -> Option<Arc<Layout>> {
        self.layouts.lock().known.get(name).cloned()
    }

    fn forget(&self, name: &Name) {
        let mut layouts = self.layouts.lock();
        if let Some(layout) = layouts.known.remove(name) {
            layouts.parts -= layout.parts.len();
        }
    }

    fn note(&self, name: &Name, layout: Layout) -> Arc<Layout> {
        let layout = Arc::new(layout);
        self.forget(name);
        let mut layouts = self.layouts.lock();
        if layouts.known.len() >= LAYOUTS_MAX || layouts.parts + layout.parts.len() > PARTS_MAX {
            *layouts = Layouts::default();
        }
        layouts.parts += layout.parts.len();
        layouts.known.insert(name.clone(), layout.clone());
        layout
    }

    /// The layout of an object that begins with these bytes.
    fn layout(
        &self,
        keys: &Keys,
        (name, stored): (&Name, &Name),
        (verb, begin): (Verb, &[u8]),
        cancel: &AtomicBool,
    ) -> Result<Arc<Layout>, StoreError> {
        let bad = |bad| self.bad(verb, (name, stored), bad);
        let header = Header::of(begin).map_err(bad)?;
        if header.key != keys.id {
            return Err(bad(Bad::Damaged("it was encrypted with another bucket key")));
        }
        let layout = match (header.kind, header.number) {
            (Kind::Whole, _) => Layout::of_whole(&header),
            (Kind::Piece, 1) => {
                let length = self.store.head(stored, cancel).map_err(Self::shown(name))?.length;
                let from = length.saturating_sub(END_BYTES);
                let mut end = self.fetch(stored, from, length, cancel).map_err(Self::shown(name))?;
                let map = object::map_bytes(&end).map_err(bad)?;
                let from = length.checked_sub(map + TAIL as u64).ok_or(CUT).map_err(bad)?;
                if map + TAIL as u64 > end.len() as u64 {
                    end = self.fetch(stored, from, length, cancel).map_err(Self::shown(name))?;
                }
                let at = end.len().checked_sub(map as usize + TAIL).ok_or(CUT).map_err(bad)?;
                let sealed = end.get(at..end.len() - TAIL).unwrap_or_default();
                let entries = object::open_map(keys, name, sealed).map_err(bad)?;
                let layout = Layout::of_pieces(&entries, map);
                if layout.sealed != length {
                    return Err(bad(Bad::Damaged("its length is not the one in its map")));
                }
                layout
            }
            _ => return Err(bad(Bad::Damaged("it is a part of another object"))),
        };
        Ok(self.note(name, layout))
    }

    /// Reads a range of an object. `have` are bytes from the beginning of the sealed object, up to
    /// its end if they are fewer than `asked`.
    fn read(
        &self,
        (keys, layout): (&Keys, &Layout),
        (name, stored): (&Name, &Name),
        (offset, length): (u64, u64),
        (have, asked): (&Bytes, u64),
        cancel: &AtomicBool,
    ) -> Result<Bytes, StoreError> {
        let bad = |bad| self.bad(Verb::Get, (name, stored), bad);
        let begin = offset.min(layout.length);
        let end = offset.saturating_add(length).min(layout.length);
        // At least one chunk: it authenticates the length.
        let first_byte = begin.min(layout.length.saturating_sub(1));
        let last_byte = end.saturating_sub(1).max(first_byte);
        let (first, last) = match (layout.chunk_of(first_byte), layout.chunk_of(last_byte)) {
            (Some(first), Some(last)) => (first, last),
            _ => return Err(bad(CUT)),
        };
        let part = |index: usize| layout.parts.get(index).copied().ok_or_else(|| bad(CUT));
        let (first_part, last_part) = (part(first.0)?, part(last.0)?);
        let from = first_part.sealed_at + if first.1 == 0 { 0 } else { chunk_at(first.1) };
        let last_bytes = (chunk_bytes(last_part.length, last.1) + TAG) as u64;
        let to = last_part.sealed_at + chunk_at(last.1) + last_bytes;
        // A read past the end shows bytes that were added to an object.
        let looks_past = layout.parts.len() == 1 && offset.saturating_add(length) > layout.length;
        let until = to + u64::from(looks_past && to == layout.sealed);
        let have_bytes = have.len() as u64;
        let sealed = if until <= have_bytes || have_bytes < asked {
            have.slice(have.len().min(from as usize)..have.len().min(until as usize))
        } else {
            self.fetch(stored, from, until, cancel).map_err(Self::shown(name))?
        };
        match (sealed.len() as u64).cmp(&(to - from)) {
            std::cmp::Ordering::Less => return Err(bad(CUT)),
            std::cmp::Ordering::Greater => return Err(bad(Bad::Damaged("bytes were added to it"))),
            std::cmp::Ordering::Equal => {}
        }
        let mut rest = &sealed[..];
        let mut out = Vec::with_capacity(sealed.len());
        for index in first.0..=last.0 {
            let part = part(index)?;
            let Part { kind, number, salt, length, .. } = part;
            let header = Header { kind, key: keys.id, salt, length, number };
            let begin = if index == first.0 { first.1 } else { 0 };
            let end = if index == last.0 { last.1 } else { chunks(length) - 1 };
            if begin == 0 {
                let (found, later) = rest.split_at_checked(HEADER).ok_or_else(|| bad(CUT))?;
                if found != header.to_bytes() {
                    return Err(bad(Bad::Damaged("its header is wrong")));
                }
                rest = later;
            }
            let key = header.open(keys, name);
            for chunk in begin..=end {
                let bytes = chunk_bytes(length, chunk) + TAG;
                let (now, later) = rest.split_at_checked(bytes).ok_or_else(|| bad(CUT))?;
                rest = later;
                object::open_chunk(&key, (length, chunk), now, &mut out).map_err(bad)?;
            }
        }
        let before = first_part.plain_at + first.1 * CHUNK as u64;
        let out = Bytes::from(out);
        let skip = (begin - before) as usize;
        match out.len().checked_sub(skip) {
            Some(left) if left as u64 >= end - begin => Ok(out.slice(skip..skip + (end - begin) as usize)),
            _ => Err(bad(CUT)),
        }
    }

    /// Looks at an object, and finds its layout.
    fn look(
        &self,
        keys: &Keys,
        (name, stored): (&Name, &Name),
        cancel: &AtomicBool,
    ) -> Result<Head, StoreError> {
        let head = self.store.head(stored, cancel).map_err(Self::shown(name))?;
        let layout = match self.known(name) {
            Some(layout) => layout,
            None => {
                let begin = self.store.get(stored, 0, HEADER, cancel).map_err(Self::shown(name))?;
                self.layout(keys, (name, stored), (Verb::Head, &begin), cancel)?
            }
        };
        if layout.sealed != head.length {
            let how = "its length is not the one in its header";
            return Err(self.bad(Verb::Head, (name, stored), Bad::Damaged(how)));
        }
        let nonce = head.nonce.map(|nonce| keys.open_nonce(nonce));
        Ok(Head { length: layout.length, nonce, ..head })
    }

    /// The upload of the store below.
    fn below(&self, upload: &Upload, cancel: &AtomicBool) -> Result<(Arc<Keys>, Upload), StoreError> {
        let (keys, name) = self.stored(Verb::PutPieces, &upload.name, cancel)?;
        Ok((keys, Upload { name, id: upload.id.clone() }))
    }

    fn keep_short(&self, id: &str, number: u32, sealed: &Bytes) {
        let mut short = self.short.lock();
        short.remove(&(id.to_owned(), number));
        if sealed.len() >= PIECE_BYTES_MIN {
            return;
        }
        while short.len() >= SHORT_PIECES_MAX {
            short.pop_first();
        }
        short.insert((id.to_owned(), number), sealed.clone());
    }

    fn forget_upload(&self, id: &str) {
        self.short.lock().retain(|(own, _), _| own != id);
    }

    /// The pieces of the store below, and the entries of the map.
    fn entries(&self, pieces: &[Piece]) -> Option<(Vec<Piece>, Vec<object::Entry>)> {
        let each = |piece: &Piece| {
            let (tag, salt) = piece.tag.rsplit_once(SALT_MARK)?;
            let salt: [u8; 16] = HEXLOWER.decode(salt.as_bytes()).ok()?.try_into().ok()?;
            let length = u32::try_from(piece.length).ok()?;
            let below =
                Piece { number: piece.number, length: sealed_bytes(piece.length), tag: tag.to_owned() };
            Some((below, (length, salt)))
        };
        pieces.iter().map(each).collect::<Option<Vec<_>>>().map(|all| all.into_iter().unzip())
    }

    /// Puts the map after the last piece.
    fn put_map(
        &self,
        (upload, below): (&Upload, &Upload),
        pieces: &mut Vec<Piece>,
        map: Vec<u8>,
        cancel: &AtomicBool,
    ) -> Result<(), StoreError> {
        let name = &upload.name;
        let rule = |rule| self.blamed(Verb::PutPieces, Some(name), Trouble::Rule(rule));
        let Some(last) = pieces.last() else {
            return Err(rule("an upload is finished with all pieces from the first one on"));
        };
        let number = last.number;
        if last.length >= PIECE_BYTES_MIN as u64 {
            let put = self.store.put_piece(below, number + 1, map.into(), cancel);
            pieces.push(put.map_err(Self::shown(name))?);
            return Ok(());
        }
        // Stores refuse a short piece before the last one, so the map is put with it.
        let known = self.short.lock().get(&(upload.id.clone(), number)).cloned();
        let Some(sealed) = known.filter(|sealed| sealed.len() as u64 == last.length) else {
            return Err(self.blamed(Verb::PutPieces, Some(name), Trouble::NoUpload));
        };
        let mut joined = BytesMut::with_capacity(sealed.len() + map.len());
        joined.extend_from_slice(&sealed);
        joined.extend_from_slice(&map);
        let put = self.store.put_piece(below, number, joined.freeze(), cancel).map_err(Self::shown(name))?;
        pieces.pop();
        pieces.push(put);
        Ok(())
    }
}

impl Store for Sealed {
    fn place(&self) -> &str {
        self.store.place()
    }

    fn lists_in_order(&self) -> bool {
        false
    }

    fn put_new(
        &self,
        name: &Name,
        bytes: Bytes,
        nonce: Nonce,
        cancel: &AtomicBool,
    ) -> Result<Put, StoreError> {
        if bytes.len() > PUT_BYTES_MAX - MORE_BYTES_MAX {
            let rule = Trouble::Rule("an object of one put is too long");
            return Err(self.blamed(Verb::Put, Some(name), rule));
        }
        let (keys, stored) = self.stored(Verb::Put, name, cancel)?;
        let sealed = object::seal_whole(&keys, name, random(&*self.entropy), &bytes);
        let put = self.store.put_new(&stored, sealed.into(), keys.seal_nonce(nonce), cancel);
        put.map_err(Self::shown(name))
    }

    fn begin(&self, name: &Name, nonce: Nonce, cancel: &AtomicBool) -> Result<Upload, StoreError> {
        let (keys, stored) = self.stored(Verb::PutPieces, name, cancel)?;
        let begun = self.store.begin(&stored, keys.seal_nonce(nonce), cancel).map_err(Self::shown(name))?;
        Ok(Upload { name: name.clone(), id: begun.id })
    }

    fn put_piece(
        &self,
        upload: &Upload,
        number: u32,
        bytes: Bytes,
        cancel: &AtomicBool,
    ) -> Result<Piece, StoreError> {
        // The last number is left for the map.
        if number == 0 || number >= PIECES_MAX || bytes.len() > PIECE_BYTES_MAX - MORE_BYTES_MAX {
            let rule = Trouble::Rule("a piece has a number from 1 to 9,999 and almost 64 MiB at most");
            return Err(self.blamed(Verb::PutPieces, Some(&upload.name), rule));
        }
        let (keys, below) = self.below(upload, cancel)?;
        let (salt, length) = (random(&*self.entropy), bytes.len() as u64);
        let header = Header { kind: Kind::Piece, key: keys.id, salt, length, number };
        let sealed = Bytes::from(object::seal(&keys, &upload.name, header, &bytes, 0));
        let put = self.store.put_piece(&below, number, sealed.clone(), cancel);
        let put = put.map_err(Self::shown(&upload.name))?;
        self.keep_short(&upload.id, number, &sealed);
        Ok(Piece { number, length, tag: format!("{}{SALT_MARK}{}", put.tag, HEXLOWER.encode(&salt)) })
    }

    fn pieces(&self, upload: &Upload, cancel: &AtomicBool) -> Result<Vec<Piece>, StoreError> {
        let (_, below) = self.below(upload, cancel)?;
        let pieces = self.store.pieces(&below, cancel).map_err(Self::shown(&upload.name))?;
        // The last one may have the map too; it is then put again.
        let plain = |piece: Piece| Some(Piece { length: plain_bytes(piece.length)?, ..piece });
        Ok(pieces.into_iter().filter_map(plain).collect())
    }

    fn finish(
        &self,
        upload: &Upload,
        nonce: Nonce,
        pieces: &[Piece],
        cancel: &AtomicBool,
    ) -> Result<Put, StoreError> {
        let (keys, below) = self.below(upload, cancel)?;
        let name = &upload.name;
        let in_order = (1..).zip(pieces).all(|(number, piece): (u32, _)| piece.number == number);
        let rule = Trouble::Rule("an upload is finished with all pieces from the first one on");
        let no_upload = || self.blamed(Verb::PutPieces, Some(name), Trouble::NoUpload);
        if pieces.is_empty() || !in_order {
            return Err(self.blamed(Verb::PutPieces, Some(name), rule));
        }
        let (mut pieces, entries) = self.entries(pieces).ok_or_else(no_upload)?;
        let map = object::seal_map(&keys, name, random(&*self.entropy), &entries);
        let nonce = keys.seal_nonce(nonce);
        match self.put_map((upload, &below), &mut pieces, map, cancel) {
            // An earlier call may have finished it.
            Err(error) if matches!(error.trouble, Trouble::NoUpload) => {
                return match self.store.head(&below.name, cancel) {
                    Ok(head) if head.nonce == Some(nonce) => Ok(Put::Created),
                    _ => Err(error),
                };
            }
            put => put?,
        }
        let put = self.store.finish(&below, nonce, &pieces, cancel).map_err(Self::shown(name))?;
        if put == Put::Created {
            self.forget_upload(&upload.id);
        }
        Ok(put)
    }

    fn abort(&self, upload: &Upload, cancel: &AtomicBool) -> Result<(), StoreError> {
        let (_, below) = self.below(upload, cancel)?;
        self.forget_upload(&upload.id);
        self.store.abort(&below, cancel).map_err(Self::shown(&upload.name))
    }

    fn uploads(&self, prefix: &Prefix, cancel: &AtomicBool) -> Result<Vec<Upload>, StoreError> {
        let keys = self.keys(cancel)?;
        // No object has a name below a prefix that is too long.
        let Some(stored) = names::seal_prefix(&keys, prefix) else { return Ok(Vec::new()) };
        let uploads = self.store.uploads(&stored, cancel)?;
        let plain = |upload: Upload| Some(Upload { name: names::open(&keys, &upload.name)?, id: upload.id });
        Ok(uploads.into_iter().filter_map(plain).collect())
    }

    fn get(&self, name: &Name, offset: u64, length: usize, cancel: &AtomicBool) -> Result<Bytes, StoreError> {
        if length > GET_BYTES_MAX {
            return Err(self.blamed(Verb::Get, Some(name), Trouble::Rule("a read is longer than 64 MiB")));
        }
        let (keys, stored) = self.stored(Verb::Get, name, cancel)?;
        let (both, range) = ((name, &stored), (offset, length as u64));
        if let Some(layout) = self.known(name) {
            match self.read((&keys, &layout), both, range, (&Bytes::new(), 0), cancel) {
                // Another object may have the name by now.
                Err(StoreError { trouble: Trouble::Damaged { .. } | Trouble::Missing, .. }) => {
                    self.forget(name);
                }
                read => return read,
            }
        }
        // The header, and the range too if it is near it. One byte more shows an object that is
        // longer.
        let asked = match offset < CHUNK as u64 {
            true => {
                let last = (offset + (length as u64).max(1) - 1) / CHUNK as u64;
                (chunk_at(last + 1) + 1).min(GET_BYTES_MAX as u64)
            }
            false => HEADER as u64,
        };
        let have = self.store.get(&stored, 0, asked as usize, cancel).map_err(Self::shown(name))?;
        let layout = self.layout(&keys, both, (Verb::Get, &have), cancel)?;
        self.read((&keys, &layout), both, range, (&have, asked), cancel)
    }

    fn head(&self, name: &Name, cancel: &AtomicBool) -> Result<Head, StoreError> {
        let (keys, stored) = self.stored(Verb::Head, name, cancel)?;
        let was_known = self.known(name).is_some();
        match self.look(&keys, (name, &stored), cancel) {
            // Another object may have the name by now.
            Err(StoreError { trouble: Trouble::Damaged { .. }, .. }) if was_known => {
                self.forget(name);
                self.look(&keys, (name, &stored), cancel)
            }
            looked => looked,
        }
    }

    fn list(
        &self,
        prefix: &Prefix,
        from: &ListFrom,
        count: usize,
        cancel: &AtomicBool,
    ) -> Result<Page, StoreError> {
        let keys = self.keys(cancel)?;
        let Some(stored) = names::seal_prefix(&keys, prefix) else { return Ok(Page::default()) };
        let from = match from {
            ListFrom::After(name) => ListFrom::After(self.stored(Verb::List, name, cancel)?.1),
            other => other.clone(),
        };
        let page = self.store.list(&stored, &from, count, cancel)?;
        let plain = |listed: Listed| {
            let name = names::open(&keys, &listed.name)?;
            let guess =
                || listed.length.saturating_sub(HEADER as u64 + listed.length / CHUNK as u64 * TAG as u64);
            let length = plain_bytes(listed.length).unwrap_or_else(guess);
            Some(Listed { name, length, created: listed.created })
        };
        Ok(Page { objects: page.objects.into_iter().filter_map(plain).collect(), next: page.next })
    }

    fn delete(&self, name: &Name, cancel: &AtomicBool) -> Result<(), StoreError> {
        let (_, stored) = self.stored(Verb::Delete, name, cancel)?;
        self.forget(name);
        self.store.delete(&stored, cancel).map_err(Self::shown(name))
    }

    fn lock_until(&self, name: &Name, until: Timestamp, cancel: &AtomicBool) -> Result<(), StoreError> {
        let (_, stored) = self.stored(Verb::Lock, name, cancel)?;
        self.store.lock_until(&stored, until, cancel).map_err(Self::shown(name))
    }
}
