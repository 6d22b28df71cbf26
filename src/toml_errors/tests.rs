use super::*;

type Keys = (Option<u64>, Option<String>, Option<u64>);

fn read(text: &str) -> Result<Keys, TomlError> {
    let document = Document::parse("m.toml", text)?;
    let root = document.root();
    let depth = root.integer("max_queue_size", 1, 64)?;
    let name = root.text("name")?;
    let mut core = None;
    if let Some(group) = root.table("group")? {
        core = group.integer("core", 0, 9)?;
        group.finish()?;
    }
    root.finish()?;
    Ok((depth, name, core))
}

#[test]
fn values_are_read() {
    let all = read("name = 'a'\nmax_queue_size = 0x1F\n[group]\ncore = 3\n").unwrap();
    assert_eq!(all, (Some(31), Some("a".into()), Some(3)));
    assert_eq!(read("").unwrap(), (None, None, None));
}

#[test]
fn an_unknown_key_names_the_nearest_and_the_line() {
    let error = read("name = 'a'\n\nmax_que_size = 3\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "m.toml, line 3: unknown key `max_que_size`; did you mean `max_queue_size`?"
    );
    let error = read("[group]\n# cores\ncors = 3\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "m.toml, line 3: unknown key `group.cors`; did you mean `group.core`?"
    );
    let error = read("zzzzzzzz = 1\n").unwrap_err();
    assert!(error.to_string().contains("known keys are max_queue_size, name, group"), "{error}");
}

#[test]
fn a_wrong_type_says_both_types() {
    let error = read("name = 'a'\nmax_queue_size = '3'\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "m.toml, line 2: `max_queue_size` must be a whole number, but is text"
    );
    let error = read("group = [1]\n").unwrap_err();
    assert_eq!(error.to_string(), "m.toml, line 1: `group` must be a table, but is a list");
}

#[test]
fn a_number_out_of_bounds_says_all_numbers() {
    for value in ["65", "0", "-3", "99999999999999999999999"] {
        let error = read(&format!("max_queue_size = {value}")).unwrap_err();
        let said =
            format!("m.toml, line 1: `max_queue_size` is {value}; it must be within 1 to 64");
        assert_eq!(error.to_string(), said);
    }
}

#[test]
fn syntax_errors_have_a_line() {
    let error = read("name = 'a'\nmax_queue_size = = 3\n").unwrap_err();
    assert_eq!(error.line, 2);
    assert!(matches!(*error.kind, TomlErrorKind::Syntax { .. }));
    let error = read("name = 'a'\nname = 'b'\n").unwrap_err();
    assert!(matches!(*error.kind, TomlErrorKind::Syntax { .. }), "{error}");
}

#[test]
fn distances() {
    assert_eq!(edits("kitten", "sitting"), 3);
    assert_eq!(edits("", "abc"), 3);
    assert_eq!(
        nearest("max_batch", ["max_batch_size", "name"].into_iter()),
        Some("max_batch_size")
    );
    assert_eq!(nearest("qqqq", ["max_batch_size", "name"].into_iter()), None);
}

#[test]
fn a_missing_key_names_one_that_looks_as_if_it_were_meant() {
    let missing = |text: &str| {
        let document = Document::parse("m.toml", text).unwrap();
        let root = document.root();
        assert_eq!(root.integer("size", 0, 9).unwrap(), Some(1));
        root.missing("shape").to_string()
    };
    assert_eq!(
        missing("size = 1\nother = 2\nshpae = [3]\n"),
        "m.toml, line 3: `shape` is missing; is `shpae` meant to be it?"
    );
    // What another key is for is not meant to be this one.
    assert_eq!(missing("size = 1\nother = 2\n"), "m.toml, line 1: `shape` is missing");
}
