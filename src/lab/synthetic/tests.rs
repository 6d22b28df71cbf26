use super::*;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("corelane-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn place(asked: Option<&str>, variables: &[(&str, &str)]) -> Result<PathBuf, SyntheticError> {
    state_file(asked.map(Path::new), |name| {
        variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into())
    })
}

#[test]
fn the_nearest_word_says_where_the_size_is_kept() {
    let all = [(VARIABLE, "/own"), ("XDG_STATE_HOME", "/xdg"), ("HOME", "/me")];
    let at = |asked, variables: &[(&str, &str)]| place(asked, variables).unwrap();
    assert_eq!(at(Some("here"), &all), Path::new("here/synthetic.json"));
    assert_eq!(at(None, &all), Path::new("/own/synthetic.json"));
    assert_eq!(at(None, &all[1..]), Path::new("/xdg/corelane/synthetic.json"));
    assert_eq!(at(None, &all[2..]), Path::new("/me/.local/state/corelane/synthetic.json"));
    // An empty or relative variable of the system is none.
    let odd = [(VARIABLE, ""), ("XDG_STATE_HOME", "relative"), ("HOME", "/me")];
    assert_eq!(at(None, &odd), Path::new("/me/.local/state/corelane/synthetic.json"));
    let error = place(None, &[]).unwrap_err();
    assert!(matches!(error, SyntheticError::NoPlace));
    assert!(error.to_string().contains("give --state-dir"), "{error}");
}

#[test]
fn it_is_measured_once_kept_and_measured_anew_where_the_file_does_not_do() {
    let scratch = Scratch::new("synthetic");
    let file = scratch.0.join("deep").join(FILE);
    let (first, origin) = size(&file).unwrap();
    assert_eq!(origin, Origin::Measured { why: None });
    assert!(first.rounds_per_ms > 0);
    assert_eq!(size(&file).unwrap(), (first.clone(), Origin::Kept));
    assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "no half files");
    let changed = |change: &dyn Fn(&mut Size)| {
        let mut size = first.clone();
        change(&mut size);
        serde_json::to_string(&size).unwrap()
    };
    for (text, part) in [
        ("{\"schema\":".to_string(), "it is damaged"),
        (String::new(), "it is damaged"),
        (changed(&|s| s.schema = 9), "its schema is 9, this version has 1"),
        (changed(&|s| s.loop_version = 0), "its loop version is 0"),
        (changed(&|s| s.machine = "other".into()), "its machine is \"other\", here it is"),
        (changed(&|s| s.optimisation = "z".into()), "its optimisation is \"z\""),
        (changed(&|s| s.rounds_per_ms = 0), "it has 0 rounds a millisecond"),
        (changed(&|s| s.rounds_per_ms = u64::MAX), "are possible"),
    ] {
        let why = Size::parse(&text).unwrap_err();
        assert!(why.contains(part), "{why}");
    }
    std::fs::write(&file, "half a fi").unwrap();
    let (again, origin) = size(&file).unwrap();
    assert!(matches!(&origin, Origin::Measured { why: Some(why) } if why.contains("damaged")));
    // Told once: the file does now.
    assert_eq!(size(&file).unwrap(), (again, Origin::Kept));
}

#[test]
fn a_place_that_cannot_be_written_is_an_error_that_names_it() {
    let scratch = Scratch::new("synthetic-file");
    std::fs::create_dir_all(&scratch.0).unwrap();
    let in_the_way = scratch.0.join("file");
    std::fs::write(&in_the_way, "").unwrap();
    let error = size(&in_the_way.join(FILE)).unwrap_err();
    assert!(matches!(&error, SyntheticError::Write { path, .. } if path.ends_with(FILE)));
    assert!(error.to_string().contains("can't be kept in"), "{error}");
}

#[test]
fn its_work_is_the_size_times_its_time() {
    let size = Size::here(CoreId(0), 10_000);
    assert_eq!(size.work(), FakeWork { rounds_per_run: 5_000, rounds_per_row: 5_000 });
    let manifest = size.manifest().unwrap();
    assert_eq!((manifest.name.as_str(), manifest.max_batch_size), (NAME, BATCH_ROWS));
    let model = crate::model::LoadedModel::load(manifest).unwrap();
    assert!(model.batching.enabled && model.engine.batch_sizes() == [1, 2, 4, 8]);
}
