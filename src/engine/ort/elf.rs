//! What a shared library says of itself, read from the file without running any of it.
//!
//! Only what the probe asks for: the machine, the names it needs, the symbol versions it defines, and
//! whether it exports a symbol. Every offset comes from the file, so every one is checked.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Longest table that is read, in bytes; ONNX Runtime's largest has about 100 KiB.
const TABLE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Most entries of one list (dynamic entries, versions, a hash chain).
const LIST_LEN_MAX: usize = 65_536;

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elf {
    /// Libraries that it needs.
    pub needed: Vec<String>,
    /// Symbol versions that it defines, without its own name.
    pub versions: Vec<String>,
    /// Whether it exports the symbol that was asked for.
    pub exports: bool,
}

/// Why the file is not a shared library that this program could open.
#[derive(Debug)]
pub enum ElfError {
    /// It can't be read.
    Io(std::io::Error),
    /// It is something else, or damaged; a sentence's end.
    Not(String),
    /// It is for another machine.
    Machine {
        /// What the file is for.
        found: String,
        /// What this program runs on.
        wanted: &'static str,
    },
}

impl From<std::io::Error> for ElfError {
    fn from(error: std::io::Error) -> Self {
        ElfError::Io(error)
    }
}

fn damaged(what: &str) -> ElfError {
    ElfError::Not(format!("is damaged: {what}"))
}

/// The machine that this program is built for: its number in ELF headers, its name.
const fn this_machine() -> (u16, &'static str) {
    if cfg!(target_arch = "x86_64") {
        (62, "64-bit x86-64")
    } else if cfg!(target_arch = "aarch64") {
        (183, "64-bit AArch64")
    } else {
        (0, "a machine that ONNX Runtime's library can't be opened on")
    }
}

fn machine_name(class: u8, machine: u16) -> String {
    let bits = if class == 1 { "32-bit" } else { "64-bit" };
    let name = match machine {
        3 => "x86",
        40 => "Arm",
        62 => "x86-64",
        183 => "AArch64",
        243 => "RISC-V",
        _ => return format!("{bits} machine number {machine}"),
    };
    format!("{bits} {name}")
}

struct Source {
    file: File,
    len: u64,
}

impl Source {
    fn read(&self, offset: u64, len: u64, what: &str) -> Result<Vec<u8>, ElfError> {
        let end = offset.checked_add(len).ok_or_else(|| damaged(what))?;
        if end > self.len || len > TABLE_BYTES_MAX {
            return Err(damaged(&format!("{what} lies outside of the file")));
        }
        let mut bytes = vec![0; len as usize];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, ElfError> {
    let part = bytes.get(at..at + 2).ok_or_else(|| damaged("a table is cut short"))?;
    Ok(u16::from_le_bytes([part[0], part[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, ElfError> {
    Ok(u32::from(u16_at(bytes, at)?) | u32::from(u16_at(bytes, at + 2)?) << 16)
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64, ElfError> {
    Ok(u64::from(u32_at(bytes, at)?) | u64::from(u32_at(bytes, at + 4)?) << 32)
}

fn text_at(strings: &[u8], at: u64) -> Result<String, ElfError> {
    let rest = usize::try_from(at).ok().and_then(|at| strings.get(at..));
    let rest = rest.ok_or_else(|| damaged("a name lies outside of the names"))?;
    let end = rest.iter().position(|&b| b == 0).ok_or_else(|| damaged("a name has no end"))?;
    Ok(String::from_utf8_lossy(&rest[..end]).into_owned())
}

/// A loaded segment: address, offset in the file, bytes in the file.
struct Segment {
    address: u64,
    offset: u64,
    len: u64,
}

struct Dynamic {
    source: Source,
    segments: Vec<Segment>,
    /// Tag and value.
    entries: Vec<(u64, u64)>,
    strings: Vec<u8>,
}

const DT_NEEDED: u64 = 1;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_STRSZ: u64 = 10;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DT_VERDEF: u64 = 0x6fff_fffc;
const DT_VERDEFNUM: u64 = 0x6fff_fffd;
const SYMBOL_BYTES: u64 = 24;

/// Reads `path`; `symbol` is the export that is asked for.
///
/// # Errors
/// The file can't be read, is no shared library for this machine, or is damaged.
pub fn read(path: &Path, symbol: &str) -> Result<Elf, ElfError> {
    // Before it is opened: opening a pipe would wait for its other end.
    let kind = std::fs::metadata(path)?;
    if !kind.is_file() {
        let what = if kind.is_dir() { "is a directory" } else { "is no regular file" };
        return Err(ElfError::Not(what.into()));
    }
    let dynamic = open(path)?;
    let needed: Result<Vec<String>, ElfError> =
        dynamic.all(DT_NEEDED).map(|at| text_at(&dynamic.strings, at)).collect();
    Ok(Elf { needed: needed?, versions: dynamic.versions()?, exports: dynamic.exports(symbol)? })
}

fn open(path: &Path) -> Result<Dynamic, ElfError> {
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    let source = Source { file, len };
    let not_elf = || ElfError::Not("is no shared library (not an ELF file)".into());
    if len < 64 {
        return Err(not_elf());
    }
    let header = source.read(0, 64, "the header")?;
    if header[..4] != *b"\x7fELF" {
        return Err(not_elf());
    }
    let (class, order) = (header[4], header[5]);
    let (wanted_machine, wanted) = this_machine();
    let machine = u16_at(&header, 18)?;
    if class != 2 || order != 1 || machine != wanted_machine {
        return Err(ElfError::Machine { found: machine_name(class, machine), wanted });
    }
    if u16_at(&header, 16)? != 3 {
        return Err(ElfError::Not("is an ELF file, but no shared library".into()));
    }
    let (offset, size) = (u64_at(&header, 32)?, u64::from(u16_at(&header, 54)?));
    let count = u64::from(u16_at(&header, 56)?);
    if size < 56 {
        return Err(damaged("its program headers are too short"));
    }
    let table = source.read(offset, size * count, "the program headers")?;
    let mut segments = Vec::new();
    let mut list = None;
    for entry in table.chunks_exact(size as usize) {
        let (kind, offset) = (u32_at(entry, 0)?, u64_at(entry, 8)?);
        let (address, len) = (u64_at(entry, 16)?, u64_at(entry, 32)?);
        match kind {
            1 => segments.push(Segment { address, offset, len }),
            2 => list = Some(source.read(offset, len, "the dynamic section")?),
            _ => {}
        }
    }
    let list = list.ok_or_else(|| ElfError::Not("has no dynamic section".into()))?;
    let mut entries = Vec::new();
    for entry in list.chunks_exact(16).take(LIST_LEN_MAX) {
        let pair = (u64_at(entry, 0)?, u64_at(entry, 8)?);
        if pair.0 == 0 {
            break;
        }
        entries.push(pair);
    }
    let mut dynamic = Dynamic { source, segments, entries, strings: Vec::new() };
    let strings = dynamic.one(DT_STRTAB).ok_or_else(|| damaged("it has no names"))?;
    let len = dynamic.one(DT_STRSZ).ok_or_else(|| damaged("its names have no length"))?;
    dynamic.strings = dynamic.at(strings, len, "the names")?;
    Ok(dynamic)
}

impl Dynamic {
    fn all(&self, tag: u64) -> impl Iterator<Item = u64> {
        self.entries.iter().filter(move |e| e.0 == tag).map(|e| e.1)
    }

    fn one(&self, tag: u64) -> Option<u64> {
        self.all(tag).next()
    }

    /// `len` bytes at `address`, from the file.
    fn at(&self, address: u64, len: u64, what: &str) -> Result<Vec<u8>, ElfError> {
        let inside = |s: &&Segment| address >= s.address && address - s.address < s.len;
        let segment = self.segments.iter().find(inside);
        let segment = segment.ok_or_else(|| damaged(&format!("{what} lies in no segment")))?;
        let offset = segment.offset.checked_add(address - segment.address);
        self.source.read(offset.ok_or_else(|| damaged(what))?, len, what)
    }

    fn versions(&self) -> Result<Vec<String>, ElfError> {
        let (Some(mut at), Some(count)) = (self.one(DT_VERDEF), self.one(DT_VERDEFNUM)) else {
            return Ok(Vec::new());
        };
        let mut versions = Vec::new();
        for _ in 0..count.min(LIST_LEN_MAX as u64) {
            let what = "a version's definition";
            let entry = self.at(at, 20, what)?;
            let own_name = u16_at(&entry, 2)? & 1 != 0;
            let names = at.checked_add(u64::from(u32_at(&entry, 12)?));
            let name = self.at(names.ok_or_else(|| damaged(what))?, 8, what)?;
            if !own_name {
                versions.push(text_at(&self.strings, u64::from(u32_at(&name, 0)?))?);
            }
            match u64::from(u32_at(&entry, 16)?) {
                0 => break,
                next => at = at.checked_add(next).ok_or_else(|| damaged(what))?,
            }
        }
        Ok(versions)
    }

    /// Whether `symbol` is defined here, by either hash table.
    fn exports(&self, symbol: &str) -> Result<bool, ElfError> {
        if let Some(table) = self.one(DT_GNU_HASH) {
            return self.in_gnu_hash(table, symbol);
        }
        let Some(table) = self.one(DT_HASH) else { return Ok(false) };
        let symbols = u32_at(&self.at(table, 8, "the hash table")?, 4)?;
        for n in 0..symbols.min(LIST_LEN_MAX as u32) {
            if self.is_defined(n, symbol)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn in_gnu_hash(&self, table: u64, symbol: &str) -> Result<bool, ElfError> {
        let what = "the hash table";
        let add = |a: u64, b: u64| a.checked_add(b).ok_or_else(|| damaged(what));
        let header = self.at(table, 16, what)?;
        let (buckets, first) = (u32_at(&header, 0)?, u32_at(&header, 4)?);
        let bloom = u64::from(u32_at(&header, 8)?) * 8;
        if buckets == 0 {
            return Ok(false);
        }
        let wanted =
            symbol.bytes().fold(5381u32, |h, b| h.wrapping_mul(33).wrapping_add(u32::from(b)));
        let bucket_list = add(table, 16 + bloom)?;
        let bucket = self.at(add(bucket_list, u64::from(wanted % buckets) * 4)?, 4, what)?;
        let mut n = u32_at(&bucket, 0)?;
        if n < first {
            return Ok(false);
        }
        let chains = add(bucket_list, u64::from(buckets) * 4)?;
        for _ in 0..LIST_LEN_MAX {
            let hash = u32_at(&self.at(add(chains, u64::from(n - first) * 4)?, 4, what)?, 0)?;
            if hash | 1 == wanted | 1 && self.is_defined(n, symbol)? {
                return Ok(true);
            }
            if hash & 1 != 0 {
                return Ok(false);
            }
            n = n.checked_add(1).ok_or_else(|| damaged(what))?;
        }
        Err(damaged("a hash chain has no end"))
    }

    /// Whether symbol number `n` is called `name` and defined in this file.
    fn is_defined(&self, n: u32, name: &str) -> Result<bool, ElfError> {
        let table = self.one(DT_SYMTAB).ok_or_else(|| damaged("it has no symbols"))?;
        let at = table.checked_add(u64::from(n) * SYMBOL_BYTES);
        let entry = self.at(at.ok_or_else(|| damaged("a symbol"))?, SYMBOL_BYTES, "a symbol")?;
        let defined = u16_at(&entry, 6)? != 0;
        Ok(defined && text_at(&self.strings, u64::from(u32_at(&entry, 0)?))? == name)
    }
}
