use super::*;
use std::os::unix::fs::PermissionsExt;

fn gpu(name: &str, driver: &str) -> Gpu {
    Gpu {
        name: name.into(),
        uuid: "GPU-0".into(),
        driver: driver.into(),
        free_bytes: 1,
        total_bytes: 2,
    }
}

#[test]
fn every_fact_gives_another_directory_and_free_memory_none() {
    let gpus = [gpu("A", "1")];
    let key = Key {
        model: b"model",
        library: "1.32.0".into(),
        precision: Precision::Fp16,
        device: 0,
        gpus: &gpus,
        numbering: [None, None],
    };
    let root = Path::new("/cache");
    let dir = key.directory(root);
    // The name is kept from version to version, or every engine is built anew without a reason.
    assert_eq!(dir, Path::new("/cache/tensorrt-9372c470eead-3a3c34257fce091f"));
    let busy = [Gpu { free_bytes: 0, uuid: "GPU-9".into(), ..gpus[0].clone() }];
    assert_eq!(Key { gpus: &busy, ..key.clone() }.directory(root), dir);
    let others = [
        Key { model: b"other", ..key.clone() },
        Key { library: "1.32.1".into(), ..key.clone() },
        Key { precision: Precision::Fp32, ..key.clone() },
        Key { device: 1, ..key.clone() },
        Key { gpus: &[], ..key.clone() },
        Key { gpus: &[gpu("B", "1")], ..key.clone() },
        Key { gpus: &[gpu("A", "2")], ..key.clone() },
        // The same letters, otherwise divided.
        Key { gpus: &[gpu("A1", "")], ..key.clone() },
        Key { gpus: &[gpu("A", "1"), gpu("A", "1")], ..key.clone() },
        Key { numbering: [Some("1".into()), None], ..key.clone() },
        Key { numbering: [Some(String::new()), None], ..key.clone() },
        Key { numbering: [None, Some("1".into())], ..key.clone() },
    ];
    let mut dirs: Vec<PathBuf> = others.iter().map(|k| k.directory(root)).collect();
    dirs.push(dir);
    dirs.sort();
    dirs.dedup();
    assert_eq!(dirs.len(), others.len() + 1);
}

#[test]
fn a_directory_that_others_may_write_is_not_used() {
    let root = std::env::temp_dir().join(format!("corelane-trt-cache-{}", std::process::id()));
    let dir = root.join("a/b");
    prepare(&dir).unwrap();
    assert_eq!(std::fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
    prepare(&dir).unwrap();
    assert_eq!(engines(&dir), 0);
    std::fs::write(dir.join("x.engine"), "").unwrap();
    std::fs::write(dir.join("x.profile"), "").unwrap();
    assert_eq!(engines(&dir), 1);
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    let said = prepare(&dir).unwrap_err();
    assert!(said.contains("mode is 777"), "{said}");
    let file = root.join("file");
    std::fs::write(&file, "").unwrap();
    assert!(prepare(&file).unwrap_err().contains("can't be made"));
    let link = root.join("link");
    std::os::unix::fs::symlink(root.join("a"), &link).unwrap();
    assert!(prepare(&link).unwrap_err().contains("must be a directory"));
    std::fs::remove_dir_all(&root).unwrap();
}
