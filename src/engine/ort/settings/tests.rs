use super::*;

fn parse(list: &[&str]) -> Result<Vec<Wanted>, String> {
    parse_providers(&list.iter().map(|t| t.to_string()).collect::<Vec<_>>())
}

#[test]
fn providers_are_read_with_their_need() {
    let list = parse(&["tensorrt:preferred", "cuda", "cpu:required"]).unwrap();
    let shown: Vec<String> = list.iter().map(Wanted::to_string).collect();
    assert_eq!(shown, ["tensorrt:preferred", "cuda:required", "cpu:required"]);
    assert_eq!(parse(&["cpu"]).unwrap(), OrtSettings::default().providers);
}

#[test]
fn lists_that_can_not_be_meant_are_refused() {
    for (list, part) in [
        (&["gpu"][..], "\"gpu\" is no provider"),
        (&["cuda:maybe"], "\"cuda:maybe\" is no provider"),
        (&["cuda", "cuda:preferred"], "names cuda twice"),
        (&["cpu", "cuda"], "must be the last"),
        (&[], "names no provider"),
    ] {
        let said = parse(list).unwrap_err();
        assert!(said.contains(part), "{list:?}: {said}");
    }
}
