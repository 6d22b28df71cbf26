use super::*;

fn stacks(text: &str) -> Stacks {
    Stacks::parse(text).unwrap()
}

/// The plain build: nearly all time in the model.
fn plain() -> Stacks {
    stacks("cl-io;io::run 60\ncl-worker;worker::run;model::run 900\ncl-worker;worker::run 40\n")
}

/// A cache around the model that holds a lock and spins a little.
fn careless() -> Stacks {
    stacks(
        "cl-io;io::run 61\ncl-worker;worker::run;cache::run;model::run 880\n\
         cl-worker;worker::run;cache::run;lock::spin 20\ncl-worker;worker::run 39\n",
    )
}

#[test]
fn the_function_that_came_in_is_named_first() {
    let all = changes("poisson", &plain(), &careless(), (Some(100.0), Some(200.0)));
    let first = &all[0];
    assert_eq!(first.function, "cache::run");
    assert_eq!((first.base_percent, first.new_percent, first.points), (0.0, 90.0, 90.0));
    assert_eq!((first.base_us_per_request, first.new_us_per_request), (Some(0.0), Some(180.0)));
    let moved: Vec<&str> =
        all.iter().filter(|c| c.more_than_noise).map(|c| c.function.as_str()).collect();
    // 20 of 1000 that were none before are more than chance; 900 that became 880 are not.
    assert_eq!(moved, ["cache::run", "lock::spin"]);
    // The other way round it went.
    let back = changes("poisson", &careless(), &plain(), (None, None));
    assert_eq!((back[0].function.as_str(), back[0].points), ("cache::run", -90.0));
    assert_eq!(back[0].base_us_per_request, None);
}

#[test]
fn a_function_that_calls_itself_counts_once() {
    let recursive = stacks("t;f;g;f;f 10\nt;g 10\n");
    let all = changes("s", &stacks("t;g 20\n"), &recursive, (None, None));
    let f = all.iter().find(|c| c.function == "f").unwrap();
    assert_eq!((f.points, f.own_points), (50.0, 50.0));
    let g = all.iter().find(|c| c.function == "g").unwrap();
    assert_eq!((g.points, g.own_points), (0.0, -50.0));
    // A thread is no function.
    assert!(all.iter().all(|c| c.function != "t"));
}

#[test]
fn chance_is_no_change() {
    use rand_pcg::Pcg32;
    use rand_pcg::rand_core::{Rng, SeedableRng};
    // Twenty functions of one share each, sampled twice.
    let mut random = Pcg32::seed_from_u64(3);
    let mut sample = || {
        let text: String =
            (0..2000).map(|_| format!("t;f{} 1\n", random.next_u32() % 20)).collect();
        stacks(&text)
    };
    let mut called = 0;
    for _ in 0..100 {
        let all = changes("s", &sample(), &sample(), (None, None));
        assert_eq!(all.len(), 20);
        called += all.iter().filter(|c| c.more_than_noise).count();
    }
    // Four standard errors: 6 in 100,000 functions.
    assert!(called <= 2, "{called} of 2000");
}

/// Labels and values of a trace, by id, and that every child is within its parent.
fn boxes(figure: &Figure) -> Vec<(String, u64)> {
    let trace = &figure.plotly["data"][0];
    let texts = |key: &str| -> Vec<String> {
        let all = trace[key].as_array().unwrap();
        all.iter().map(|v| v.as_str().unwrap().to_string()).collect()
    };
    let values: Vec<u64> =
        trace["values"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap()).collect();
    let (ids, parents, labels) = (texts("ids"), texts("parents"), texts("labels"));
    let mut inside: BTreeMap<&str, u64> = BTreeMap::new();
    for (parent, value) in parents.iter().zip(&values) {
        assert!(parent.is_empty() || ids.contains(parent), "{parent} is not there");
        *inside.entry(parent).or_default() += value;
    }
    for (id, value) in ids.iter().zip(&values) {
        assert!(inside.get(id.as_str()).copied().unwrap_or(0) <= *value, "{id}");
    }
    assert_eq!(texts("text").len(), ids.len());
    assert_eq!(trace["marker"]["colors"].as_array().unwrap().len(), ids.len());
    labels.into_iter().zip(values).collect()
}

#[test]
fn figures_hold_every_box_that_can_be_seen() {
    let figure = figure("poisson", &careless());
    assert_eq!(figure.file(), "poisson.flame-graph.plotly.json");
    let all = boxes(&figure);
    assert_eq!(all[0], ("all".into(), 1000));
    assert!(all.contains(&("cache::run".into(), 900)));
    // One in a thousand is too narrow.
    let figure = super::figure("s", &stacks("t;wide 999\nt;narrow 1\n"));
    assert!(boxes(&figure).iter().all(|(label, _)| label != "narrow"));
    let figure = difference("poisson", ("old", &plain()), ("new", &careless()));
    let all = boxes(&figure);
    assert_eq!(all[0].1, 2 * 1000 * 1000);
    assert!(all.contains(&("cache::run".into(), 900 * 1000)));
    let trace = &figure.plotly["data"][0];
    let at = all.iter().position(|(label, _)| label == "cache::run").unwrap();
    assert_eq!(trace["text"][at], "0.0 % in old, 90.0 % in new: +90.0 points");
    assert_eq!(trace["marker"]["colors"][at], direction(90.0));
}
