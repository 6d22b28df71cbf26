//! Mapped memory for weights and arenas: locked, or in huge pages, where that is asked for.
//!
//! What is asked for holds for the process ([`configure`]), since what it draws on is the process's: the
//! limit on locked memory, the system's huge pages. [`report`] says what came of it.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap, mmap_anonymous, munmap};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// Bytes of a huge page, as x86-64 and aarch64 with small pages have them.
const HUGE_PAGE_BYTES: usize = 2 * 1024 * 1024;
/// Stride in which pages are touched: the smallest page of any system that this runs on.
const PAGE_BYTES: usize = 4096;

/// How much something is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wish {
    /// Not at all.
    #[default]
    Off,
    /// If the system gives it; the report says how much it gave.
    Try,
    /// Without it there is an error.
    Require,
}

impl Wish {
    /// Every wish, and its name in configuration and on the command line.
    pub const NAMES: [(&'static str, Wish); 3] =
        [("off", Wish::Off), ("try", Wish::Try), ("require", Wish::Require)];

    /// Its name.
    pub fn name(self) -> &'static str {
        Wish::NAMES.into_iter().find(|(_, wish)| *wish == self).map_or("", |(name, _)| name)
    }

    /// The wish of that name.
    pub fn from_name(name: &str) -> Option<Wish> {
        Wish::NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, wish)| wish)
    }
}

/// What is asked for, for weights and arenas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Options {
    /// Locked into memory, so that they are never paged out.
    pub lock: Wish,
    /// In huge pages, which spare the processor's address translation.
    pub huge_pages: Wish,
}

/// Of one wish: what was asked for, and what the system gave, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct WantedGot {
    /// The wish.
    pub wish: Wish,
    /// Bytes of all regions that it is for.
    pub wanted_bytes: usize,
    /// Bytes that have it; `null` where the system does not say.
    pub got_bytes: Option<usize>,
}

/// What came of [`Options`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Locked memory.
    pub lock: WantedGot,
    /// Huge pages.
    pub huge_pages: WantedGot,
}

// Relaxed throughout: settings made before models are loaded, and statistics.
static LOCK: AtomicU8 = AtomicU8::new(0);
static HUGE: AtomicU8 = AtomicU8::new(0);
static LOCK_WANTED: AtomicUsize = AtomicUsize::new(0);
static HUGE_WANTED: AtomicUsize = AtomicUsize::new(0);
static LOCK_GOT: AtomicUsize = AtomicUsize::new(0);

/// Asks for `options` for every region made from now on, by any thread.
pub fn configure(options: Options) {
    LOCK.store(options.lock as u8, Ordering::Relaxed);
    HUGE.store(options.huge_pages as u8, Ordering::Relaxed);
}

/// What is asked for.
pub fn options() -> Options {
    let wish = |n: u8| Wish::NAMES.into_iter().find(|w| w.1 as u8 == n).map_or(Wish::Off, |w| w.1);
    Options {
        lock: wish(LOCK.load(Ordering::Relaxed)),
        huge_pages: wish(HUGE.load(Ordering::Relaxed)),
    }
}

/// What came of it, over all regions there are.
pub fn report() -> Report {
    let Options { lock, huge_pages } = options();
    let huge = (huge_pages != Wish::Off).then(|| std::fs::read_to_string("/proc/self/smaps").ok());
    let wanted = HUGE_WANTED.load(Ordering::Relaxed);
    // Pages are counted whole, also where a region ends within one.
    let advised = |smaps: String| huge_bytes(&smaps).min(wanted);
    Report {
        lock: WantedGot {
            wish: lock,
            wanted_bytes: LOCK_WANTED.load(Ordering::Relaxed),
            got_bytes: Some(LOCK_GOT.load(Ordering::Relaxed)),
        },
        huge_pages: WantedGot {
            wish: huge_pages,
            wanted_bytes: wanted,
            got_bytes: huge.map_or(Some(0), |smaps| smaps.map(advised)),
        },
    }
}

/// Bytes in huge pages of the mappings that were advised to have them, from the text of
/// `/proc/self/smaps`.
fn huge_bytes(smaps: &str) -> usize {
    let (mut sum, mut this) = (0usize, 0usize);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("AnonHugePages:") => {
                let kib: usize = words.next().and_then(|n| n.parse().ok()).unwrap_or(0);
                this = kib.saturating_mul(1024);
            }
            // The last line of a mapping.
            Some("VmFlags:") => {
                if words.any(|flag| flag == "hg") {
                    sum = sum.saturating_add(this);
                }
                this = 0;
            }
            _ => {}
        }
    }
    sum
}

/// A stretch of mapped memory, begun at a page: anonymous and writable, or a file's and read only.
#[derive(Debug)]
pub struct Region {
    start: NonNull<u8>,
    len: usize,
    /// The whole mapping, which may begin earlier and end later.
    mapping: (*mut u8, usize),
    writable: bool,
    /// Whether it counts as wanted, and as got.
    locked: (bool, bool),
    huge: bool,
}

// SAFETY: a region owns its mapping, which is not tied to a thread.
unsafe impl Send for Region {}
// SAFETY: shared access only reads, or hands out a raw pointer whose users keep the rules themselves.
unsafe impl Sync for Region {}

impl Region {
    /// `len` zero bytes, every page touched, locked and in huge pages as [`configure`] asked.
    ///
    /// # Errors
    /// If the system has no memory, or does not give what is required.
    pub fn zeroed(len: usize) -> io::Result<Region> {
        let huge = options().huge_pages;
        let wanted = len.max(1).checked_next_multiple_of(PAGE_BYTES);
        let slack = if huge == Wish::Off { 0 } else { 2 * HUGE_PAGE_BYTES };
        let whole = wanted.and_then(|n| n.checked_add(slack)).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        if huge == Wish::Off {
            // All pages at once; huge pages come once they are advised.
            flags |= MapFlags::POPULATE;
        }
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            mmap_anonymous(null_mut(), whole, ProtFlags::READ | ProtFlags::WRITE, flags)?
        };
        let base = base.cast::<u8>();
        let skip = if slack == 0 { 0 } else { base.align_offset(HUGE_PAGE_BYTES) };
        // SAFETY: the slack is twice what skipping to a boundary takes at most, so the start is inside.
        let start = unsafe { NonNull::new_unchecked(base.add(skip)) };
        let mut region = Region {
            start,
            len,
            mapping: (base, whole),
            writable: true,
            locked: (false, false),
            huge: false,
        };
        if huge != Wish::Off {
            region.huge = true;
            HUGE_WANTED.fetch_add(len, Ordering::Relaxed);
            let advised = len.next_multiple_of(HUGE_PAGE_BYTES);
            // SAFETY: within the mapping, which is twice the boundary longer than `len`; the advice
            // changes no contents.
            let given = unsafe { madvise(start.as_ptr().cast(), advised, Advice::LinuxHugepage) };
            if let (Err(error), Wish::Require) = (given, huge) {
                return Err(refused("huge pages", len, error.into()));
            }
        }
        region.touch();
        region.lock()?;
        Ok(region)
    }

    /// Writes a zero to every page of a region that nobody has written to.
    fn touch(&self) {
        for offset in (0..self.len).step_by(PAGE_BYTES) {
            // SAFETY: offset < len, inside the mapping, which is writable and still all zero. Volatile,
            // so that the write is not elided and the page becomes resident.
            unsafe { self.start.as_ptr().add(offset).write_volatile(0) };
        }
    }

    /// `len` zero bytes of which each page is memory only once it is used, and never locked: for buffers of
    /// which few are in use at a time.
    ///
    /// # Errors
    /// If the system has no address space.
    pub fn untouched(len: usize) -> io::Result<Region> {
        Region::plain(len, MapFlags::empty())
    }

    /// `len` zero bytes, every page in memory, whatever [`configure`] asked.
    ///
    /// # Errors
    /// If the system has no memory.
    pub fn resident(len: usize) -> io::Result<Region> {
        let region = Region::plain(len, MapFlags::POPULATE)?;
        region.touch();
        Ok(region)
    }

    fn plain(len: usize, more: MapFlags) -> io::Result<Region> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | more;
        let (prot, whole) = (ProtFlags::READ | ProtFlags::WRITE, len.max(1));
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe { mmap_anonymous(null_mut(), whole, prot, flags)? };
        let base = base.cast::<u8>();
        let start = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
        let (locked, mapping) = ((false, false), (base, whole));
        Ok(Region { start, len, mapping, writable: true, locked, huge: false })
    }

    /// The first `len` bytes of `file`, read only, locked as [`configure`] asked; pages of the system's
    /// cache, shared between processes. The file must not be shortened meanwhile: a file that is
    /// replaced by renaming another never is.
    ///
    /// # Errors
    /// If the file can't be mapped, is shorter, or does not get what is required.
    pub fn file(file: &File, len: usize) -> io::Result<Region> {
        if len == 0 || file.metadata()?.len() < len as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing; it is never
        // written through.
        let base = unsafe { mmap(null_mut(), len, ProtFlags::READ, flags, file, 0)? };
        let base = base.cast::<u8>();
        let start = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut region = Region {
            start,
            len,
            mapping: (base, len),
            writable: false,
            locked: (false, false),
            huge: false,
        };
        region.lock()?;
        Ok(region)
    }

    fn lock(&mut self) -> io::Result<()> {
        let wish = options().lock;
        if wish == Wish::Off {
            return Ok(());
        }
        self.locked.0 = true;
        LOCK_WANTED.fetch_add(self.len, Ordering::Relaxed);
        // SAFETY: the region's own pages; locking changes no contents.
        match unsafe { mlock(self.start.as_ptr().cast(), self.len) } {
            Ok(()) => {
                self.locked.1 = true;
                LOCK_GOT.fetch_add(self.len, Ordering::Relaxed);
                Ok(())
            }
            Err(error) if wish == Wish::Require => {
                Err(refused("locked memory", self.len, error.into()))
            }
            Err(_) => Ok(()),
        }
    }

    /// The first byte; users of disjoint parts keep the aliasing rules themselves.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: start..start+len lies in one live mapping of initialised bytes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, unless they are a file's.
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        // SAFETY: as in `as_slice`, mapped writable, and `&mut self` makes the access exclusive.
        self.writable
            .then(|| unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.locked.0 {
            LOCK_WANTED.fetch_sub(self.len, Ordering::Relaxed);
        }
        if self.locked.1 {
            LOCK_GOT.fetch_sub(self.len, Ordering::Relaxed);
        }
        if self.huge {
            HUGE_WANTED.fetch_sub(self.len, Ordering::Relaxed);
        }
        // SAFETY: the mapping was made for this region alone, and nobody borrows it any more.
        let _ = unsafe { munmap(self.mapping.0.cast(), self.mapping.1) };
    }
}

/// What the system refused, how much of it, and what helps.
fn refused(what: &str, bytes: usize, error: io::Error) -> io::Error {
    let text = format!(
        "{what} for {bytes} bytes is required, and the system refuses: {error}. Raise the limit \
         (RLIMIT_MEMLOCK for locked memory, transparent_hugepage for huge pages), or ask for \"try\""
    );
    io::Error::new(error.kind(), text)
}

/// Gives memory that the allocator keeps but nobody uses back to the system: after loading, which
/// leaves much of it.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> core::ffi::c_int;
        }
        // SAFETY: glibc's own function, callable at any time from any thread.
        unsafe { malloc_trim(0) };
    }
}

/// Lets go of this program's instructions that are in memory; those that run again are mapped again, from
/// the file. After loading: reading models is most of the code, and it does not run again.
///
/// Where a debugger follows the process, its breakpoints are in these pages, and they stay.
pub fn release_code() {
    #[cfg(target_os = "linux")]
    {
        let text = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
        let followed = text("/proc/self/status")
            .lines()
            .any(|line| line.strip_prefix("TracerPid:").is_some_and(|pid| pid.trim() != "0"));
        let maps = text("/proc/self/maps");
        let here = release_code as fn() as usize;
        let code = maps.lines().filter_map(instructions).find(|range| range.contains(&here));
        if let (Some(range), false) = (code, followed) {
            // SAFETY: a private mapping of a file that is not writable, so each page comes back as it is
            // in the file when it is touched next.
            let _ = unsafe { madvise(range.start as *mut _, range.len(), Advice::LinuxDontNeed) };
        }
    }
}

/// The addresses of a line of `/proc/self/maps`, if it is of a file's instructions.
#[cfg(target_os = "linux")]
fn instructions(line: &str) -> Option<std::ops::Range<usize>> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let of_file = words.next() == Some("r-xp") && words.nth(3)?.starts_with('/');
    let number = |hex| usize::from_str_radix(hex, 16).ok();
    of_file.then_some(number(start)?..number(end)?)
}

#[cfg(test)]
mod tests;
