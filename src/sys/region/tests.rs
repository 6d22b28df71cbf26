use super::*;

#[test]
fn a_region_is_zero_and_writable_and_begins_at_a_page() {
    let mut region = Region::zeroed(10_000).unwrap();
    assert_eq!(region.len(), 10_000);
    assert!((region.start().as_ptr() as usize).is_multiple_of(PAGE_BYTES));
    assert!(region.as_slice().iter().all(|&b| b == 0));
    region.as_mut_slice().unwrap()[9_999] = 7;
    assert_eq!(region.as_slice()[9_999], 7);
    assert!(Region::zeroed(usize::MAX - 5).is_err());
}

#[test]
fn what_is_untouched_takes_no_memory_until_it_is_used() {
    let resident = |text: &str| crate::sys::memory::resident_bytes().expect(text);
    let len = 256 * 1024 * 1024;
    let before = resident("before");
    let mut lazy = Region::untouched(len).unwrap();
    lazy.as_mut_slice().unwrap()[len / 2] = 1;
    assert!(resident("untouched") < before + len / 4);
    let full = Region::resident(len / 2).unwrap();
    assert!(full.as_slice().iter().all(|&b| b == 0));
    assert!(resident("resident") > before + len / 4);
}

#[test]
fn a_file_is_mapped_read_only_and_must_be_long_enough() {
    let path = std::env::temp_dir().join(format!("corelane-region-{}", std::process::id()));
    std::fs::write(&path, b"twelve bytes").unwrap();
    let file = File::open(&path).unwrap();
    let mut region = Region::file(&file, 12).unwrap();
    assert_eq!(region.as_slice(), b"twelve bytes");
    assert!(region.as_mut_slice().is_none());
    for len in [0, 13] {
        let error = Region::file(&file, len).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn huge_pages_are_counted_where_they_were_advised() {
    let smaps = "7f00-7f01 rw-p\nAnonHugePages:      4096 kB\nVmFlags: rd wr mr hg sd\n\
                 7f01-7f02 rw-p\nAnonHugePages:      2048 kB\nVmFlags: rd wr mr\n\
                 7f02-7f03 rw-p\nAnonHugePages:         0 kB\nVmFlags: hg\n";
    assert_eq!(huge_bytes(smaps), 4096 * 1024);
}

#[test]
fn every_wish_has_a_name() {
    for (name, wish) in Wish::NAMES {
        assert_eq!(Wish::from_name(name), Some(wish));
    }
    assert_eq!(Wish::from_name("always"), None);
}

#[test]
#[cfg(target_os = "linux")]
fn instructions_that_were_let_go_run_again() {
    let line = "8d337000-8e9e8000 r-xp 00338000 fe:00 42                 /usr/bin/corelane";
    assert_eq!(instructions(line), Some(0x8d33_7000..0x8e9e_8000));
    for other in
        ["1000-2000 r--p 0 fe:00 42 /usr/bin/corelane", "1000-2000 r-xp 0 00:00 0 [vdso]", ""]
    {
        assert_eq!(instructions(other), None, "{other}");
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let here = release_code as fn() as usize;
    assert!(maps.lines().filter_map(instructions).any(|range| range.contains(&here)));
    release_code();
    assert_eq!(instructions(line), Some(0x8d33_7000..0x8e9e_8000));
}
